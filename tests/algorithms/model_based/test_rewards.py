"""Rewards that are imagined: by networks and functions, with a state of their own, and several of a step."""

import numpy as np
import pytest
import torch
from tests.algorithms.fixed import adam
from torch import nn

from rlrun.algorithms.model_based.dynamics import DynamicsLoss
from rlrun.algorithms.model_based.imagination import Imagination
from rlrun.algorithms.model_based.planning import CEM
from rlrun.algorithms.model_based.rewards import RewardModel
from rlrun.collect import PolicyAgent
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces
from rlrun.env import ModelEnv
from rlrun.memory import Table, Untransformed, WeighRewards
from rlrun.nn import DeterministicPolicy, Dynamics, WorldModel

from .test_planning import box

SPACES = Spaces(box(2, 10.0), box(1))
TWICE = Spaces(box(2, 10.0), box(1), 2)  # two rewards a step


def small(spaces=SPACES, **options):
    return Dynamics(spaces, **{"hidden": [8], "members": 2, "deterministic": True, "ends": False, **options})


@pytest.mark.parametrize("lead", [(3,), (2, 3), (2, 3, 4)])
def test_a_reward_model_reads_steps_of_any_leading_dimensions(lead):
    model = RewardModel(SPACES, hidden=[8])
    step = [torch.randn(*lead, size) for size in (2, 1, 2)]
    rows = [part.reshape(-1, part.shape[-1]) for part in step]
    one_by_one = torch.stack([model(*(part[row] for part in rows)) for row in range(len(rows[0]))])
    torch.testing.assert_close(model(*step), one_by_one.reshape(lead))


class Smooth:
    """Minus the square by which an action differs from the one before."""

    state_size = 1

    def __call__(self, observation, action, next_observation, state):
        return -(action - state).square().sum(-1)

    def after(self, observation, action, state):
        return action


@pytest.mark.parametrize(("core", "propagation"), [(None, "ts_inf"), (None, "ts1"), ("gru", "ts_inf")])
def test_the_state_of_a_reward_is_moved_by_imagined_and_by_real_steps(core, propagation):
    dynamics = small(rewards=False, core=core, core_size=3)
    options = {"horizon": 2, "population": 200, "iterations": 8, "epsilon": 0.0, "propagation": propagation}
    planner = CEM(SPACES, WorldModel(dynamics, reward=Smooth()), **options)
    state, seen = planner.initial_state(2), torch.randn(2, 2)
    assert state["reward"].tolist() == [[0.0], [0.0]]
    state["reward"] = torch.tensor([[0.2], [-0.5]])
    evaluate = planner.evaluator(planner.model.begin(seen, state), False)
    returns = evaluate(torch.tensor([[0.6, 0.6], [0.6, -0.6]]).expand(2, -1, -1).unsqueeze(-1))
    torch.testing.assert_close(returns, torch.tensor([[-0.16, -0.16 - 1.44], [-1.21, -1.21 - 1.44]]))
    action, after = planner.advance(seen, state, False)
    torch.testing.assert_close(action, state["reward"], atol=0.03, rtol=0.0)
    assert torch.equal(after["reward"], action)
    taken = torch.tensor([[0.9], [0.1]])
    assert torch.equal(planner.after(seen, state, taken)["reward"], taken)


def test_imagination_refuses_rewards_with_a_state():
    with pytest.raises(ConfigError, match="cannot begin within an episode"):
        ModelEnv(WorldModel(small(rewards=False), reward=Smooth()), SPACES, 4)


class Constant(nn.Module):
    """The state stays; the rewards of a step are 3 and -1."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.row = nn.Parameter(torch.tensor([0.0, 0.0, 3.0, -1.0]))

    def forward(self, rows):
        return self.row.expand(len(rows), -1)


def test_each_of_several_rewards_is_learned_and_imagined():
    network = small(TWICE, several=True)
    loss, draw = DynamicsLoss(network, adam), torch.Generator().manual_seed(0)
    paid = torch.randn(32, 2, generator=draw)
    rows = {"observation": torch.randn(32, 2), "action": torch.rand(32, 1), "next_observation": torch.randn(32, 2)}
    rows |= {"terminated": torch.zeros(32, dtype=torch.bool), "reward": paid.sum(-1), "untransformed": {"reward": paid}}
    updates = loss.loss(**rows)[1]["updates"]
    torch.testing.assert_close(updates["network.target_shift"][2:], paid.mean(0))
    model = WorldModel(small(TWICE, several=True, network=Constant))
    adaptors = {"stored": Untransformed(["reward"]), "weights": WeighRewards([1.0, 2.0])}
    table = Table(length=8, num_envs=4, spaces=TWICE, adaptors=adaptors)
    acting = PolicyAgent(DeterministicPolicy(TWICE, hidden=[4]))
    imagination = Imagination(model, acting, table, TWICE, length=2, after=0)
    imagination.begin_batch(torch.randn(4, 2), 0)
    sample = table.sample(5)
    assert sample["untransformed"]["reward"].tolist() == [[3.0, -1.0]] * 5
    assert sample["reward"].tolist() == [1.0] * 5
    assert imagination.store.newest["imagination/reward"] == 3.0


def test_plans_sum_several_rewards_by_weights_of_the_moment():
    weights = torch.tensor([1.0, 2.0])
    network = small(TWICE, weights=lambda: weights, network=Constant)
    planner = CEM(TWICE, WorldModel(network), horizon=3, population=10, elite=2)
    for now in ([1.0, 2.0], [0.5, -1.0]):
        weights.copy_(torch.tensor(now))
        returns = planner.evaluator(torch.zeros(1, 2), False)(torch.zeros(1, 2, 3, 1))
        torch.testing.assert_close(returns, torch.full((1, 2), 3.0 * (3.0 * now[0] - now[1])))


def test_rewards_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="a step has 2 rewards, and a plan wants one weight for each"):
        CEM(TWICE, WorldModel(small(TWICE, weights=[1.0])))
    with pytest.raises(ConfigError, match="a step has 2 rewards, and a plan wants one weight for each"):
        CEM(TWICE, WorldModel(small(TWICE, several=True)))
    with pytest.raises(ConfigError, match="weights: the reward of a step is one number"):
        small(weights=[1.0])
    for wrong in ([[1.0], [2.0]], [1.0, None], [1.0, float("nan")], "1", {"a": 1.0}, 5.0):
        with pytest.raises(ConfigError, match=r"weights: wanted a number for each reward, such as .*, got "):
            small(TWICE, weights=wrong)
    with pytest.raises(
        ConfigError, match=r"reward: of steps \[2, 3\] wanted 2 numbers each, \[2, 3, 2\]; got \[2, 3\]"
    ):
        WorldModel(small(TWICE, several=True), reward=lambda o, a, n: o[..., 0])
    model = WorldModel(small(TWICE, several=True), reward=lambda o, a, n: np.pi * o)
    env = ModelEnv(model, TWICE, 3, starts=torch.ones(1, 2))
    env.reset(seed=0)
    np.testing.assert_allclose(env.step(np.zeros((3, 1), np.float32))[1], np.pi * np.ones((3, 2)), rtol=1e-6)
