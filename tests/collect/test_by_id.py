"""One agent acts for all ids; the collector stores their episodes."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.algorithms.dqn import QLoss, QNetwork, QTarget
from rlrun.callbacks import Budget
from rlrun.collect import EpsilonGreedy, RandomAgent
from rlrun.collect.by_id import IDLE, AgentProxy, ByIdCollector, stacked
from rlrun.core.errors import RequestError, RlrunError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete
from rlrun.memory import ReplayLoader, Table
from rlrun.memory.episodes import Stored
from rlrun.memory.proxy import DictObservation, EpisodeState, MemoryProxy
from rlrun.training.trainer import Trainer

from .crowd import Crowd


class Counting:
    """Answers with the sum of what each agent sees, and counts its calls."""

    outputs = ("action", "state_value")

    def __init__(self, state: Any = None) -> None:
        self.calls, self.state = [], state

    def __call__(self, observation: Any, state: Any = None, *, explore: bool = True) -> Any:
        self.calls.append((len(observation), explore))
        return {"action": observation.sum(1).astype(np.int64), "state_value": observation[:, 0]}

    def initial_state(self, count: int) -> Any:
        return self.state


def sees(value: float, state: EpisodeState = EpisodeState.RUNNING) -> DictObservation:
    return DictObservation(state, {"view": np.array([value, 1.0])})


def test_agent_is_called_once_for_all() -> None:
    agent = Counting()
    episode_end = sees(9.0, EpisodeState.TERMINAL)
    responses = AgentProxy(agent, Crowd.spaces)({"a": sees(1.0), "b": episode_end, "c": sees(5.0)}, explore=False)
    assert agent.calls == [(2, False)]
    assert {name: response.array_data["action"] for name, response in responses.items()} == {"a": 2, "c": 6}
    assert responses["c"].array_data["state_value"] == 5.0


def test_agent_is_not_called_for_nobody() -> None:
    agent = Counting()
    assert AgentProxy(agent, Crowd.spaces)({4: sees(1.0, EpisodeState.INTERRUPTED)}) == {}
    assert agent.calls == []


def test_recurrent_agents_are_refused() -> None:
    with pytest.raises(RequestError, match="state of a recurrent agent is not kept by id"):
        AgentProxy(Counting(state=np.zeros(1)), Crowd.spaces)


def test_observations_are_stacked_by_the_space() -> None:
    space = Composite({"near": Box((2,), np.zeros(2), np.ones(2)), "far": Composite({"count": Discrete(4)})})
    tree = stacked(space, [{"far": {"count": 1}, "near": [0.5, 1.0]}, {"near": np.zeros(2), "far": {"count": 3}}])
    assert tree["near"].tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert (tree["far"]["count"].tolist(), tree["near"].dtype.name) == ([1, 3], "float32")

    with pytest.raises(SpaceError, match=r"observation.near has shape \[3\]; the space has \[2\]"):
        stacked(space, [{"near": np.zeros(3), "far": {"count": 1}}])
    with pytest.raises(SpaceError, match="observation lacks the part 'near'; it has far"):
        stacked(space, [{"far": {"count": 1}}])


def make(env: Any = None, agent: Any = None, **settings: Any) -> tuple[Table, ByIdCollector]:
    env = env or Crowd()
    table = Table(length=5000, spaces=env.spaces)
    agent = agent or RandomAgent(env.spaces.action, seed=0)
    return table, ByIdCollector(env, agent, MemoryProxy(table), **settings)


def test_agent_defines_its_random_agent() -> None:
    class Own(Counting):
        def at_random(self, space: Any, *, seed: int) -> Any:
            return space, seed

    _, collector = make(agent=Own(), warm_up_seed=3)
    assert collector.random == (Crowd.spaces.action, 3)
    _, collector = make(agent=Counting())
    assert isinstance(collector.random, RandomAgent)


def test_each_response_counts_as_a_step() -> None:
    table, collector = make()
    assert collector.begin_training() == {"step": 0}
    steps = collector.collect(1000, random=True)
    assert 1000 <= steps < 1005
    assert collector.steps == steps == collector.begin_batch()["step"]
    assert steps - 5 * 7 < len(table) <= steps  # all but what is still under way


def test_stored_episodes_are_those_of_agents() -> None:
    table, collector = make()
    collector.begin_training()
    collector.collect(300)
    episodes = list(Stored.of(table))
    assert {len(episode) for episode in episodes} == {2, 3, 4, 5, 6}
    for episode in episodes:
        right = (episode.row["observation"][:, 0] > 0) == episode.row["action"]
        assert np.array_equal(right, episode.row["reward"] > 0)
        assert episode.row["terminated"][-1] != episode.row["truncated"][-1]
    assert collector.metrics["episode/count"] == len(episodes)
    newest = [episode.row["reward"].sum() for episode in episodes[-20:]]
    assert collector.metrics["episode/return"] == pytest.approx(np.mean(newest), abs=0.35)


def test_environment_without_agents_is_an_error() -> None:
    _, collector = make(Crowd(arrivals=0.0))
    collector.begin_training()
    with pytest.raises(RlrunError, match=f"no agent for {IDLE:,} rounds"):
        collector.collect(1)


def test_collecting_before_training_is_refused() -> None:
    with pytest.raises(RequestError, match=r"callbacks.collector is missing"):
        make()[1].collect(1)


def test_resumed_collector_continues_counting() -> None:
    _, first = make()
    first.begin_training()
    first.collect(200)
    table, second = make()
    second.load_state_dict(storage.merge(*storage.split(first.state_dict())))
    second.memory.load_state_dict(first.memory.state_dict())
    open_before = first.memory.metrics["agents/open"]
    assert second.begin_training() == {"step": first.steps}
    assert open_before >= len(list(Stored.of(table))) > 0  # what was under way counts as cut off
    second.collect(50)
    assert second.metrics["episode/count"] > first.metrics["episode/count"]


def test_dqn_learns_from_changing_agents() -> None:
    network = QNetwork(Crowd.spaces, hidden=[32])
    agent = EpsilonGreedy(network, epsilon=0.1, spaces=Crowd.spaces, seed=1)
    table, collector = make(agent=agent)
    callbacks = {
        "collector": collector,
        "q_target": QTarget(network, discount=0.5),
        "q_loss": QLoss(network, partial(torch.optim.Adam, lr=3e-3)),
        "budget": Budget(updates=150),
    }
    state = Trainer(callbacks, ReplayLoader(table=table, collector=collector, batch=64, warm_up=200)).train()
    assert collector.env.closed
    assert (state["update"], state["step"] >= 350) == (150, True)
    view = np.array([[-1.0, 0.5], [1.0, 0.5]], np.float32)
    assert agent(view, explore=False)["action"].tolist() == [0, 1]
