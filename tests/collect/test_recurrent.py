"""The recurrent state of an env is that of its open episode."""

from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlrun.collect import AsyncCollector, Collector, PolicyAgent, evaluate
from rlrun.collect.agents import restarted
from rlrun.core.errors import RequestError
from rlrun.memory.table.rollout_table import Rollout

from .probes import collector_for, labelled

MODES = [None, *AutoresetMode]


class Counting:
    """Its state is the number of steps of the episode so far; keeps its inputs."""

    outputs = ("action", "state")

    def __init__(self):
        self.given = []

    def __call__(self, observation, state=None, *, explore=True):
        self.given.append((observation.copy(), state.copy()))
        return {"action": state[:, 0].astype(np.int64) % 5, "state": state + 1}

    def initial_state(self, count):
        return np.zeros((count, 1), np.float32)


def collector_of(mode, count, columns=MappingProxyType({"state": {"shape": 1}})):
    return collector_for(labelled(mode, count), Counting(), columns=columns)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_memory_has_state_before_each_step(mode, count):
    collector = collector_of(mode, count)
    collector.collect(30 * count)
    batch = collector.table.sample(500)
    assert torch.equal(batch["state"][:, 0], batch["observation"][:, 2])  # the step of the episode
    assert torch.equal(batch["action"], batch["state"][:, 0].long())


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_rollout_has_state_before_each_step(mode):
    env = labelled(mode, 3)
    table = Rollout(spaces=env.spaces, num_envs=3, columns={"state": {"shape": 1}})
    table.reserve(40)
    collector = collector_for(env, Counting(), table=table)
    collector.collect(60)
    steps, valid = table.steps(collector.observation)
    assert (steps["state"][..., 0] == steps["observation"][..., 2])[valid].all()
    assert (steps["next_observation"][..., 2] == steps["observation"][..., 2] + 1)[valid].all()
    assert steps["state"].max() == 3


@pytest.mark.parametrize("columns", [{}, {"state": {"shape": 1}}], ids=str)
def test_state_follows_the_episode(columns):
    collector = collector_of(None, 2, columns=columns)
    collector.collect(40)
    assert all((seen[:, 2] == state[:, 0]).all() for seen, state in collector.agent.given)


def test_state_is_restored_or_reset():
    collector, restored = collector_of(None, 3), collector_of(None, 3)
    collector.collect(6)
    restored.load_state_dict(collector.state_dict())
    assert restored.state.tolist() == [[2.0]] * 3
    restored._break_off(np.array([1]))
    assert restored.state.tolist() == [[2.0], [0.0], [2.0]]


@pytest.mark.parametrize("kind", [Collector, partial(AsyncCollector, kind="thread", queue=2)], ids=["own", "async"])
@pytest.mark.parametrize("columns", [{}, {"state": {"shape": 1}}], ids=str)
def test_random_steps_advance_the_state(columns, kind, monkeypatch):
    monkeypatch.setattr(Counting, "after", lambda self, observation, state: state + 10.0, raising=False)
    collector = collector_for(labelled(None, 2), Counting(), columns=columns, kind=kind)
    collector.collect(2, random=True)
    collector.collect(2)
    assert collector.state.tolist() == [[11.0]] * 2
    collector.end_training(None)


@pytest.mark.parametrize(("envs", "max_steps", "most"), [(1, None, 3), (3, None, 2), (2, 2, 1)])
def test_evaluated_episodes_begin_with_fresh_state(envs, max_steps, most):
    agent = Counting()
    evaluate(labelled(None, envs), agent, episodes=7, seed=5, max_steps=max_steps)
    assert all((seen[:, 2] == state[:, 0]).all() for seen, state in agent.given)
    assert max(state.max() for _, state in agent.given) == most


def test_states_may_be_trees():
    state, initial = {"h": np.ones((2, 3)), "c": np.ones(2)}, {"h": np.zeros((2, 3)), "c": np.zeros(2)}
    new_state = restarted(state, initial, np.array([True, False]))
    assert (new_state["h"].tolist(), new_state["c"].tolist()) == ([[0.0] * 3, [1.0] * 3], [0.0, 1.0])
    assert state["c"].tolist() == [1.0, 1.0]


class Summing(torch.nn.Module):
    """Its state is the sum of its observations, and its action, too."""

    state_size = 1

    def act(self, observation, explore):
        raise AssertionError

    def advance(self, observation, state, explore):
        state = state + observation
        return state * (2.0 if explore else 1.0), state

    def initial_state(self, count):
        return torch.zeros(count, 1)


def test_policy_acts_on_state():
    agent = PolicyAgent(Summing(), preprocess=lambda observation: observation * 10)
    assert agent.outputs == ("action", "state")
    response = agent(np.ones((2, 1), np.float32), agent.initial_state(2) + 5.0, explore=False)
    assert {name: value.tolist() for name, value in response.items()} == {"action": [[15.0]] * 2, "state": [[15.0]] * 2}
    with pytest.raises(RequestError, match="acts on the state before each step"):
        agent(np.ones((2, 1), np.float32))
