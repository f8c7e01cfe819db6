"""Agents that come and go, and the episodes they leave."""

import re
from typing import Any

import numpy as np
import pytest

from rlrun import checkpointing as storage
from rlrun.core.errors import DataError, RlrunError
from rlrun.memory import DictObservation, DictResponse, EpisodeState, MemoryProxy, MetaData, Table
from rlrun.memory.table.columns import Column
from rlrun.memory.table.episodes import Stored

from .tables import STEP

COLUMNS = {"observation": {"shape": [2]}, "action": {"dtype": "int64"}, **STEP}
INITIAL, RUNNING, TERMINAL, INTERRUPTED = EpisodeState


def make(columns: dict[str, Any] = COLUMNS, **settings: Any) -> tuple[Table, MemoryProxy]:
    table = Table(length=100, columns=columns)
    return table, MemoryProxy(table, **settings)


def sees(state: EpisodeState, number: float, reward: float | None = None, **info: float) -> DictObservation:
    rewards = {} if reward is None else {"reward": reward}
    return DictObservation(state, {"view": np.array([number, -number])}, rewards, MetaData(info))


def does(action: int) -> DictResponse:
    return DictResponse({"action": np.int64(action)})


def play(proxy: MemoryProxy, agent: int, rewards: list[float], end: EpisodeState, **info: float) -> None:
    """One agent's episode: observation t is t, action t is 10 + t."""
    proxy.add({agent: sees(INITIAL, 0)}, {agent: does(10)})
    for step, reward in enumerate(rewards[:-1], 1):
        proxy.add({agent: sees(RUNNING, step, reward)}, {agent: does(10 + step)})
    proxy.add({agent: sees(end, len(rewards), rewards[-1], **info)}, {})


@pytest.mark.parametrize(("end", "terminated"), [(TERMINAL, True), (INTERRUPTED, False)])
def test_reward_follows_its_action(end: EpisodeState, terminated: bool) -> None:
    table, proxy = make({**COLUMNS, "skill": {"tag": True}}, tags=["skill"])
    play(proxy, 7, [1.0, 2.0, 3.0], end, skill=0.25)
    (episode,) = Stored.of(table)
    assert episode.row["observation"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert episode.row["action"].tolist() == [10, 11, 12]
    assert episode.row["reward"].tolist() == [1, 2, 3]
    assert episode.last.tolist() == [3, -3]
    assert episode.row["terminated"].tolist() == [False, False, terminated]
    assert episode.row["truncated"].tolist() == [False, False, not terminated]
    assert episode.tags["skill"] == 0.25


def test_agents_have_separate_episodes() -> None:
    table, proxy = make()
    proxy.add({1: sees(INITIAL, 0), 2: sees(INITIAL, 50)}, {1: does(1), 2: does(2)})
    proxy.add({1: sees(TERMINAL, 1, 5.0), 2: sees(RUNNING, 51, 6.0)}, {2: does(3)})
    assert [len(episode) for episode in Stored.of(table)] == [1]
    proxy.add({2: sees(INTERRUPTED, 52, 7.0), 3: sees(INITIAL, 80)}, {3: does(4)})
    assert [episode.row["reward"].tolist() for episode in Stored.of(table)] == [[5], [6, 7]]
    assert proxy.metrics["agents/open"] == 1


def test_environment_may_reuse_its_arrays() -> None:
    table, proxy = make()
    shared, act = sees(INITIAL, 0), does(0)
    proxy.add({1: shared}, {1: act})
    shared.array_data["view"][:], shared.episode_state, shared.rewards = 9.0, TERMINAL, {"reward": 1.0}
    proxy.add({1: shared}, {})
    (episode,) = Stored.of(table)
    assert (episode.row["observation"].tolist(), episode.last.tolist()) == ([[0, 0]], [9, 9])


def test_left_out_episodes_are_counted() -> None:
    table = Table(length=100, columns=COLUMNS, min_length=3)
    proxy = MemoryProxy(table)
    play(proxy, 1, [1.0, 1.0], TERMINAL)
    play(proxy, 1, [1.0, 1.0, 1.0], TERMINAL)
    proxy.add({4: sees(TERMINAL, 1, 1.0)}, {})  # it never began
    assert len(table) == 3
    assert table.metrics["memory/too_short"] == 1
    assert proxy.metrics == {"agents/open": 0, "agents/unknown": 1}


@pytest.mark.parametrize(
    ("round_", "message"),
    [
        (({7: sees(RUNNING, 1, 1.0)}, {7: does(1)}), "agent 7 is running, but its episode never began"),
        (({1: sees(INITIAL, 1)}, {1: does(1)}), "agent 1 is initial, but its last episode is not over"),
        (({1: sees(RUNNING, 1, 1.0)}, {}), "agent 1 is running and has no response"),
        (({1: sees(TERMINAL, 1, 1.0)}, {1: does(1)}), "agent 1 responds, but its episode is over"),
        (({}, {8: does(1)}), "agent 8 responds, but has no observation"),
    ],
)
def test_wrong_rounds_are_refused(round_: tuple[Any, Any], message: str) -> None:
    _, proxy = make()
    proxy.add({1: sees(INITIAL, 0)}, {1: does(0)})
    observations, responses = round_
    with pytest.raises(RlrunError, match=message):
        proxy.add({2: sees(INITIAL, 0), **observations}, {2: does(0), **responses})
    assert proxy.metrics["agents/open"] == 1


@pytest.mark.parametrize(
    ("number", "reward", "name"), [(np.nan, 1.0, "observation.view"), (1, np.inf, "reward.reward")]
)
def test_nonfinite_numbers_name_their_agent(number: float, reward: float, name: str) -> None:
    _, proxy = make()
    proxy.add({5: sees(INITIAL, 0)}, {5: does(0)})
    with pytest.raises(DataError, match=f"agent 5 {name}"):
        proxy.add({5: sees(RUNNING, number, reward)}, {5: does(0)})


def test_more_columns_come_from_agents() -> None:
    with pytest.raises(RlrunError, match="agent 3: nothing gives the memory's column 'log_prob'"):
        play(make({**COLUMNS, "log_prob": {}})[1], 3, [1.0], TERMINAL)
    table, proxy = make({**COLUMNS, "log_prob": {}, "style": {}})
    proxy.add({1: sees(INITIAL, 0)}, {1: DictResponse({"action": np.int64(1)}, {"log_prob": -2.0})})
    proxy.add({1: DictObservation(TERMINAL, {"view": np.ones(2)}, {"reward": 1.0, "style": 4.0, "other": 0.0})}, {})
    (episode,) = Stored.of(table)
    assert (episode.row["log_prob"].tolist(), episode.row["style"].tolist()) == ([-2], [4])


def test_dict_observations_keep_their_parts() -> None:
    table, proxy = make({"observation.near": {"shape": [2]}, "observation.far.left": {}, "action": {}, **STEP})
    for state, number, responses in ((INITIAL, 1.0, {9: DictResponse({"action": 0.5})}), (TERMINAL, 2.0, {})):
        data = {"near": np.full(2, number), "far": {"left": np.float32(-number)}}
        proxy.add({9: DictObservation(state, data, {"reward": 1.0})}, responses)
    (episode,) = Stored.of(table)
    assert episode.row["observation"]["far"]["left"].tolist() == [-1]
    assert episode.last["near"].tolist() == [2, 2]


def test_open_episodes_survive_a_checkpoint() -> None:
    _, before = make()
    before.add({1: sees(INITIAL, 0), "late": sees(INITIAL, 5)}, {1: does(0), "late": does(5)})
    before.add({1: sees(RUNNING, 1, 8.0)}, {1: does(1)})
    table, after = make()
    after.load_state_dict(storage.merge(*storage.split(before.state_dict())))
    after.add({1: sees(TERMINAL, 2, 9.0), "late": sees(TERMINAL, 6, 1.0)}, {})
    assert [episode.row["reward"].tolist() for episode in Stored.of(table)] == [[8, 9], [1]]
    assert [episode.row["action"].tolist() for episode in Stored.of(table)] == [[0, 1], [5]]


@pytest.mark.parametrize("length", [10**12, 0, -3])
def test_open_episodes_of_another_length_are_refused(length: int) -> None:
    _, before = make()
    before.add({1: sees(INITIAL, 0)}, {1: does(0)})
    state = before.state_dict()
    state["open"][1]["length"] = length
    with pytest.raises(RlrunError, match=f"agent 1 has not {length} rows"):
        make()[1].load_state_dict(state)


@pytest.mark.parametrize(
    ("group", "name", "values", "message"),
    [
        ("rewards", "reward", np.ones((2, 1)), "has reward of shape float64 [2, 1]"),
        ("rewards", "reward", np.full(2, "x"), "has reward of shape <U1 [2]"),
        ("responses", "action", np.ones((2, 2, 3)), "has action of shape float64 [2, 2, 3]"),
        ("responses", "action", np.array([0, 9]), "has column 'action' from 0 to 9; there are [9] choices"),
        ("responses", "action", np.array([-1, 0]), "has column 'action' from -1 to 0; there are [9] choices"),
        ("observations", "view", np.ones((2, 3)), "has observation.view of shape float64 [2, 3]"),
    ],
)
def test_open_episodes_that_do_not_fit_are_refused(group: str, name: str, values: Any, message: str) -> None:
    columns = {**COLUMNS, "action": Column("action", dtype="int64", choices=(9,))}
    _, before = make(columns)
    before.add({1: sees(INITIAL, 0)}, {1: does(0)})
    before.add({1: sees(RUNNING, 1, 8.0)}, {1: does(8)})
    state = before.state_dict()
    make(columns)[1].load_state_dict(state)
    state["open"][1][group][name] = values
    with pytest.raises(RlrunError, match=f"agent 1 {re.escape(message)}"):
        make(columns)[1].load_state_dict(state)


def test_interrupting_keeps_whole_transitions() -> None:
    table, proxy = make()
    proxy.add({1: sees(INITIAL, 0), 2: sees(INITIAL, 5)}, {1: does(0), 2: does(5)})
    proxy.add({1: sees(RUNNING, 1, 8.0)}, {1: does(1)})
    proxy.interrupt()
    (episode,) = Stored.of(table)
    assert (episode.row["reward"].tolist(), episode.last.tolist()) == ([8], [1, -1])
    assert episode.row["truncated"].tolist() == [True]
    proxy.add({1: sees(INITIAL, 0)}, {1: does(0)})  # the ids are free again
