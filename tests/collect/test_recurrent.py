"""A lane's state is that of the episode it is in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlrun.collect import Collector, PolicyAgent, RandomAgent, evaluate
from rlrun.collect.agents import restarted
from rlrun.core.errors import RequestError
from rlrun.memory import Table
from rlrun.memory.rollout_table import Rollout

from .probes import labelled

MODES = [None, *AutoresetMode]


class Counting:
    """Its state is how many steps of the episode it has seen; notes what it was given."""

    outputs = ("action", "state")

    def __init__(self):
        self.given = []

    def __call__(self, observation, state=None, *, explore=True):
        self.given.append((observation.copy(), state.copy()))
        return {"action": state[:, 0].astype(np.int64) % 5, "state": state + 1}

    def initial_state(self, count):
        return np.zeros((count, 1), np.float32)


def collector_of(mode, count, table=Table, columns=None):
    env = labelled(mode, count)
    columns = {"state": {"shape": 1}} if columns is None else columns
    length = {"length": 600} if table is Table else {}
    table = table(spaces=env.spaces, num_envs=count, columns=columns, **length)
    if isinstance(table, Rollout):
        table.reserve(40)
    collector = Collector(env, Counting(), table, warm_up_seed=7)
    collector.begin_training()
    return collector


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_memory_has_the_state_before_each_step(mode, count):
    collector = collector_of(mode, count)
    collector.collect(30 * count)
    batch = collector.table.sample(500)
    assert torch.equal(batch["state"][:, 0], batch["observation"][:, 2])  # the step of the episode
    assert torch.equal(batch["action"], batch["state"][:, 0].long())


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_rollout_has_the_state_before_each_step(mode):
    collector = collector_of(mode, 3, Rollout)
    collector.collect(60)
    steps, valid = collector.table.steps(collector.observation)
    assert (steps["state"][..., 0] == steps["observation"][..., 2])[valid].all()
    assert steps["state"].max() == 3


@pytest.mark.parametrize("columns", [{}, {"state": {"shape": 1}}], ids=str)
def test_the_state_goes_on_whether_or_not_it_is_stored(columns):
    collector = collector_of(None, 2, columns=columns)
    collector.collect(40)
    assert all((seen[:, 2] == state[:, 0]).all() for seen, state in collector.agent.given)


def test_a_state_is_saved_and_taken_back():
    collector, restored = collector_of(None, 2), collector_of(None, 2)
    collector.collect(10)
    assert collector.state.max() > 0
    restored.load_state_dict(collector.state_dict())
    assert np.array_equal(restored.state, collector.state)


def test_a_lane_that_was_lost_begins_with_a_fresh_state():
    collector = collector_of(None, 3)
    collector.collect(6)
    assert collector.state.tolist() == [[2.0]] * 3
    collector._break_off(np.array([1]))
    assert collector.state.tolist() == [[2.0], [0.0], [2.0]]


def test_random_steps_are_no_state_that_memory_could_keep():
    collector = collector_of(None, 2)
    with pytest.raises(RequestError, match="random actions have no state, which the memory stores"):
        collector.collect(2, random=True)
    collector = collector_of(None, 2, columns={})
    collector.collect(2, random=True)
    assert collector.state.tolist() == [[0.0]] * 2


def test_an_agent_without_a_state_has_none():
    env = labelled(None, 2)
    collector = Collector(env, RandomAgent(env.spaces.action, seed=0), Table(spaces=env.spaces, length=60, num_envs=2))
    collector.begin_training()
    collector.collect(20)
    assert collector.state is None
    assert collector.state_dict()["state"] is None


@pytest.mark.parametrize("envs", [1, 3])
def test_every_episode_of_an_evaluation_begins_with_a_fresh_state(envs):
    env = labelled(None, envs)
    agent = Counting()
    evaluation = evaluate(env, agent, episodes=7, seed=5)
    assert all((seen[:, 2] == state[:, 0]).all() for seen, state in agent.given)
    assert max(evaluation.lengths) > 1


def test_an_evaluation_that_cuts_episodes_off_begins_anew():
    agent = Counting()
    evaluate(labelled(None, 2), agent, episodes=6, seed=0, max_steps=2)
    assert max(state.max() for _, state in agent.given) == 1


def test_states_may_be_trees():
    state, initial = {"h": np.ones((2, 3)), "c": np.ones(2)}, {"h": np.zeros((2, 3)), "c": np.zeros(2)}
    new_state = restarted(state, initial, np.array([True, False]))
    assert (new_state["h"].tolist(), new_state["c"].tolist()) == ([[0.0] * 3, [1.0] * 3], [0.0, 1.0])
    assert state["c"].tolist() == [1.0, 1.0]


class Summing(torch.nn.Module):
    """Remembers the sum of what it saw, and acts by it."""

    state_size = 1

    def act(self, observation, explore):
        raise AssertionError

    def advance(self, observation, state, explore):
        state = state + observation
        return state * (2.0 if explore else 1.0), state

    def initial_state(self, count):
        return torch.zeros(count, 1)


def test_a_policy_acts_by_what_its_agent_is_given():
    agent = PolicyAgent(Summing(), preprocess=lambda observation: observation * 10)
    assert agent.outputs == ("action", "state")
    response = agent(np.ones((2, 1), np.float32), agent.initial_state(2) + 5.0, explore=False)
    assert {name: value.tolist() for name, value in response.items()} == {
        "action": [[15.0]] * 2,
        "state": [[15.0]] * 2,
    }
    with pytest.raises(RequestError, match="acts on the state before each step"):
        agent(np.ones((2, 1), np.float32))
