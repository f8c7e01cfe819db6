"""Exploring along an upper bound, worked by hand on critics whose values, or quantiles, are linear in the action."""

import numpy as np
import pytest
import torch

from rlrun.algorithms.actor_critic.doac import DOACAgent
from rlrun.algorithms.actor_critic.oac import OACAgent
from rlrun.core.spaces import Box, Spaces
from rlrun.nn import ImplicitCritics, SoftPolicy, Temperature
from rlrun.ops import distributions

from .fixed import LINE, critics_of

PLANE = Spaces(LINE, Box((2,), np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32)))
DEVIATION = np.array([0.5, 0.1])  # under the tanh
MEANS = np.array([[0.3, -0.2], [0.7, 0.7]])  # at observations 0 and 1
SLOPES = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]])
BENDS = np.array([[0.0, 3.0], [-2.0, 0.0], [4.0, 1.0]])
LEVELS = np.array([0.0, 0.5, -1.0])


class Lines(ImplicitCritics):
    """Z_i(s, c; τ) = (slope_i + τ² bend_i) · c + level_i."""

    def raw_output(self, observation, c, points):
        slopes, bends, levels = (torch.from_numpy(array[: self.members]) for array in (SLOPES, BENDS, LEVELS))
        lines = slopes[:, None, None] + points.square().unsqueeze(-1) * bends[:, None, None]  # [M, B, N, A]
        return (lines * c.unsqueeze(-2)).sum(-1) + levels[:, None, None]


def agent_of(members=2, kind=OACAgent, **options):
    if kind is DOACAgent:
        critics = Lines(PLANE, hidden=(4,), members=members, count=4)
    else:
        rows = [[[0.0], *[[component] for component in slope]] for slope in SLOPES[:members]]
        critics = critics_of(PLANE, *[(row, [level]) for row, level in zip(rows, LEVELS, strict=False)])
    policy = SoftPolicy(PLANE, critics, Temperature(PLANE), hidden=()).double()
    layer = policy.gaussian.layers[-1]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.stack([*(MEANS[1] - MEANS[0]), 0, 0])[:, None]))
        layer.bias.copy_(torch.from_numpy(np.concatenate([MEANS[0], np.log(DEVIATION)])))
    return kind(policy, gaussian=policy.gaussian, critics=critics.double(), **options)


def shifted(mean, members=2, shift=6.86, optimism=4.66, kind=OACAgent):
    """Return μ_E by the equations of the papers.

    The deviation over critics divides by their number M; for DOAC by M - 1. Its critics' means are over the fractions
    1/8, 3/8, 5/8 and 7/8, whose squares are 21/64 on average.
    """
    count = members - (kind is DOACAgent)
    slopes, action = (SLOPES + (21 / 64 * BENDS if kind is DOACAgent else 0.0))[:members], np.tanh(mean)
    values = slopes @ action + LEVELS[:members]
    apart = values - values.mean()
    deviation = np.sqrt((apart**2).sum() / count)
    gradient = (slopes.mean(0) + optimism * apart @ slopes / (count * deviation)) * (1 - action**2)
    return mean + shift * DEVIATION**2 * gradient / np.sqrt((gradient**2 * DEVIATION**2).sum())


@pytest.mark.parametrize("kind", [OACAgent, DOACAgent])
@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize(("shift", "optimism"), [(1.0, 0.0), (6.86, 4.66), (0.5, -2.0)])
def test_mean_moves_along_the_bound(kind, members, shift, optimism):
    agent = agent_of(members, kind, shift=shift, optimism=optimism)
    mean, log_std = agent.exploring(torch.tensor([[0.0], [1.0]]).double())
    expected = [shifted(center, members, shift, optimism, kind) for center in MEANS]
    np.testing.assert_allclose(mean.numpy(force=True), expected, atol=1e-6)
    np.testing.assert_allclose(log_std.numpy(force=True), [np.log(DEVIATION)] * 2, atol=1e-6)
    moved = (mean.numpy(force=True) - MEANS) / DEVIATION
    np.testing.assert_allclose((moved**2).sum(-1) ** 0.5, shift, atol=1e-6)  # in standard deviations


def test_flat_critics_move_nothing():
    agent = agent_of()
    with torch.no_grad():
        agent.critics.layers.layers[0].weight.zero_()
    assert agent.exploring(torch.zeros(1, 1).double())[0][0].tolist() == pytest.approx(MEANS[0].tolist())


def test_exploring_leaves_no_gradient():
    agent = agent_of()
    with distributions.given(lambda kind, like: torch.ones_like(like)):
        action = agent(np.zeros((3, 1)))["action"]
    np.testing.assert_allclose(action, [np.tanh(shifted(MEANS[0]) + DEVIATION)] * 3, atol=1e-6)
    parameters = [*agent.policy.parameters(), *agent.critics.parameters()]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in parameters)


def test_playing_and_exports_know_no_optimism():
    agent, seen = agent_of(), np.zeros((2, 1))
    np.testing.assert_allclose(agent(seen, explore=False)["action"], [np.tanh(MEANS[0])] * 2, atol=1e-6)
    with distributions.given(lambda kind, like: torch.ones_like(like)), torch.no_grad():
        action, _ = agent.respond(torch.from_numpy(seen), None, True)
    np.testing.assert_allclose(action.numpy(), [np.tanh(MEANS[0] + DEVIATION)] * 2, atol=1e-6)
