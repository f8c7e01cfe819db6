"""Exploring along an upper bound, worked by hand on critics that are linear in the action."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.algorithms.oac import OACAgent
from rlrun.algorithms.sac import SoftPolicy, Temperature
from rlrun.core.errors import SpaceError
from rlrun.core.spaces import Box, Spaces
from rlrun.ops import noise

from .fixed import DISCRETE, LINE, MIXED, critics_of, policy_of

PLANE = Spaces(LINE, Box((2,), np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32)))
MEAN, DEVIATION = np.array([0.3, -0.2]), np.array([0.5, 0.1])  # under the tanh, at observation 0
SLOPES = {2: [[1.0, 2.0], [3.0, -1.0]], 3: [[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]]}
LEVELS = {2: [0.0, 0.5], 3: [0.0, 0.5, -1.0]}


def agent_of(members=2, **options):
    """Return an agent whose mean moves with the observation: that of observation 1 is MEAN + (0.4, 0.9)."""
    rows = [[[0.0], *[[component] for component in slope]] for slope in SLOPES[members]]
    critics = critics_of(PLANE, *[(row, [level]) for row, level in zip(rows, LEVELS[members], strict=True)])
    policy = SoftPolicy(PLANE, critics, Temperature(PLANE), hidden=())
    layer = policy.double().gaussian.layers[-1]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.4], [0.9], [0.0], [0.0]], dtype=torch.float64))
        layer.bias.copy_(torch.tensor([*MEAN, *np.log(DEVIATION)], dtype=torch.float64))
    return OACAgent(policy, gaussian=policy.gaussian, critics=critics.double(), **options)


def shifted(mean, members, shift, optimism):
    """Return μ_E by the equations of the paper, whose deviation over critics divides by their number."""
    slopes, action = np.array(SLOPES[members]), np.tanh(mean)
    values = slopes @ action + LEVELS[members]
    deviation = np.sqrt(((values - values.mean()) ** 2).mean())
    spread = ((values - values.mean()) @ (slopes - slopes.mean(0))) / (members * deviation)
    gradient = (slopes.mean(0) + optimism * spread) * (1 - action**2)
    variance = DEVIATION**2
    return mean + shift * variance * gradient / np.sqrt((gradient**2 * variance).sum())


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize(("shift", "optimism"), [(1.0, 0.0), (6.86, 4.66), (0.5, -2.0)])
def test_the_mean_moves_along_the_upper_bound_and_each_row_by_itself(members, shift, optimism):
    mean, log_std = agent_of(members, shift=shift, optimism=optimism).exploring(torch.tensor([[0.0], [1.0]]).double())
    expected = [shifted(MEAN + step, members, shift, optimism) for step in (np.zeros(2), np.array([0.4, 0.9]))]
    np.testing.assert_allclose(mean.numpy(force=True), expected, atol=1e-6)
    np.testing.assert_allclose(log_std.numpy(force=True), [np.log(DEVIATION)] * 2, atol=1e-6)


def test_the_shift_is_as_long_as_was_asked_for():
    mean, _ = agent_of(shift=2.0).exploring(torch.zeros(1, 1).double())
    moved = (mean.numpy(force=True)[0] - MEAN) / DEVIATION
    assert float((moved**2).sum() ** 0.5) == pytest.approx(2.0, abs=1e-6)  # in standard deviations


def test_nothing_moves_where_critics_know_no_direction():
    agent = agent_of()
    with torch.no_grad():
        agent.critics.layers.layers[0].weight.zero_()
    assert agent.exploring(torch.zeros(1, 1).double())[0][0].tolist() == pytest.approx(MEAN.tolist())


def test_exploring_draws_around_the_moved_mean_and_leaves_no_gradient():
    agent, seen = agent_of(), np.zeros((3, 1))
    with noise.given(lambda kind, like: torch.ones_like(like)):
        action = agent(seen)["action"]
    expected = np.tanh(shifted(MEAN, 2, 6.86, 4.66) + DEVIATION)
    np.testing.assert_allclose(action, [expected] * 3, atol=1e-6)
    parameters = [*agent.policy.parameters(), *agent.critics.parameters()]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in parameters)


def test_the_best_action_and_what_is_exported_know_no_optimism():
    agent, seen = agent_of(), np.zeros((2, 1))
    np.testing.assert_allclose(agent(seen, explore=False)["action"], [np.tanh(MEAN)] * 2, atol=1e-6)
    with noise.given(lambda kind, like: torch.ones_like(like)), torch.no_grad():
        target_subset, _ = agent.respond(torch.from_numpy(seen), None, True)
    np.testing.assert_allclose(target_subset.numpy(), [np.tanh(MEAN + DEVIATION)] * 2, atol=1e-6)


@pytest.mark.parametrize("spaces", [DISCRETE, MIXED])
def test_choices_are_refused(spaces):
    wide = 1 + (spaces is MIXED)
    critics = critics_of(spaces, ([[0.0, 0.0]] * wide, [0.0, 0.0]))
    policy, _ = policy_of(spaces, critics, alphas=(0.2,) * wide)
    with pytest.raises(SpaceError, match="numbers; here they are"):
        OACAgent(policy, gaussian=policy.gaussian, critics=critics)
