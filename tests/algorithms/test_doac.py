"""Exploring along an upper bound of critics that tell quantiles, worked by hand on lines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.algorithms.doac import DOACAgent
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Spaces
from rlrun.nn import ImplicitCritics, SoftPolicy, Temperature

from .fixed import LINE

PLANE = Spaces(LINE, Box((2,), np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32)))
DEVIATION = np.array([0.5, 0.1])  # under the tanh
MEANS = np.array([[0.3, -0.2], [0.7, 0.7]])  # at observations 0 and 1
SLOPES = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]])
BENDS = np.array([[0.0, 3.0], [-2.0, 0.0], [4.0, 1.0]])
LEVELS = np.array([0.0, 0.5, -1.0])
COUNT = 4


class Lines(ImplicitCritics):
    """Z_i(s, c; τ) = (slope_i + τ² bend_i) · c + level_i."""

    def raw_output(self, observation, c, points):
        slopes, bends, levels = (torch.from_numpy(array[: self.members]) for array in (SLOPES, BENDS, LEVELS))
        lines = slopes[:, None, None] + points.square().unsqueeze(-1) * bends[:, None, None]  # [M, B, N, A]
        return (lines * c.unsqueeze(-2)).sum(-1) + levels[:, None, None]


def agent_of(members, **options):
    critics = Lines(PLANE, hidden=(4,), members=members, count=COUNT)
    policy = SoftPolicy(PLANE, critics, Temperature(PLANE), hidden=()).double()
    layer = policy.gaussian.layers[-1]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.stack([*(MEANS[1] - MEANS[0]), 0, 0])[:, None]))
        layer.bias.copy_(torch.from_numpy(np.concatenate([MEANS[0], np.log(DEVIATION)])))
    return DOACAgent(policy, gaussian=policy.gaussian, critics=critics.double(), **options)


def shifted(mean, members, shift, optimism):
    """Return μ_E, by critics' means over the fractions 1/8, 3/8, 5/8 and 7/8, whose squares are 21/64 on average."""
    slopes, action = (SLOPES + 21 / 64 * BENDS)[:members], np.tanh(mean)
    values = slopes @ action + LEVELS[:members]
    apart = values - values.mean()
    deviation = np.sqrt((apart**2).sum() / (members - 1))
    gradient = (slopes.mean(0) + optimism * apart @ slopes / ((members - 1) * deviation)) * (1 - action**2)
    return mean + shift * DEVIATION**2 * gradient / np.sqrt((gradient**2 * DEVIATION**2).sum())


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize(("shift", "optimism"), [(1.0, 0.0), (6.86, 4.66), (0.5, -2.0)])
def test_the_mean_moves_along_the_upper_bound_of_means_and_each_row_by_itself(members, shift, optimism):
    agent = agent_of(members, shift=shift, optimism=optimism)
    mean, log_std = agent.exploring(torch.tensor([[0.0], [1.0]]).double())
    expected = [shifted(center, members, shift, optimism) for center in MEANS]
    np.testing.assert_allclose(mean.numpy(force=True), expected, atol=1e-6)
    np.testing.assert_allclose(log_std.numpy(force=True), [np.log(DEVIATION)] * 2, atol=1e-6)


def test_one_critic_has_no_deviation():
    with pytest.raises(ConfigError, match=r"^algorithm\.ensemble: DOAC uses the deviation of critics"):
        agent_of(1)
