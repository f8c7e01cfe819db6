"""One agent acts for all ids; the collector stores their episodes."""

from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlrun
from rlrun import checkpointing as storage
from rlrun.collect import RandomAgent, evaluate
from rlrun.collect.by_id import IDLE, AgentProxy, ByIdCollector, stacked
from rlrun.commands.check import check
from rlrun.core.errors import RequestError, RlrunError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete
from rlrun.env import EnvById
from rlrun.env.by_id import Crowd, DictObservation, EpisodeState
from rlrun.memory import Table
from rlrun.memory.table.episodes import Stored

TARGET = "env.target=rlrun.env.by_id.Crowd"
SPACES = EnvById(Crowd()).spaces


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
    responses = AgentProxy(agent, SPACES)({"a": sees(1.0), "b": episode_end, "c": sees(5.0)}, explore=False)
    assert agent.calls == [(2, False)]
    assert {name: response.array_data["action"] for name, response in responses.items()} == {"a": 2, "c": 6}
    assert responses["c"].array_data["state_value"] == 5.0


def test_agent_is_not_called_for_nobody() -> None:
    agent = Counting()
    assert AgentProxy(agent, SPACES)({4: sees(1.0, EpisodeState.INTERRUPTED)}) == {}
    assert agent.calls == []


def test_recurrent_agents_are_refused() -> None:
    with pytest.raises(RequestError, match="state of a recurrent agent is not kept by id"):
        AgentProxy(Counting(state=np.zeros(1)), SPACES)


def test_observations_are_stacked_by_the_space() -> None:
    space = Composite({"near": Box((2,), np.zeros(2), np.ones(2)), "far": Composite({"count": Discrete(4)})})
    tree = stacked(space, [{"far": {"count": 1}, "near": [0.5, 1.0]}, {"near": np.zeros(2), "far": {"count": 3}}])
    assert tree["near"].tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert (tree["far"]["count"].tolist(), tree["near"].dtype.name) == ([1, 3], "float32")

    with pytest.raises(SpaceError, match=r"observation.near has shape \[3\]; the space has \[2\]"):
        stacked(space, [{"near": np.zeros(3), "far": {"count": 1}}])
    with pytest.raises(SpaceError, match="observation lacks the part 'near'; it has far"):
        stacked(space, [{"far": {"count": 1}}])


def make(world: Any = None, agent: Any = None, **settings: Any) -> tuple[Table, ByIdCollector]:
    env = EnvById(world or Crowd())
    table = Table(length=5000, spaces=env.spaces)
    agent = agent or RandomAgent(env.spaces.action, seed=0)
    return table, ByIdCollector(env, agent, table, **settings)


def test_agent_defines_its_random_agent() -> None:
    class Own(Counting):
        def at_random(self, space: Any, *, seed: int) -> Any:
            return space, seed

    _, collector = make(agent=Own(), warm_up_seed=3)
    assert collector.random == (SPACES.action, 3)
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
    open_before = first.memory.metrics["agents/open"]
    assert second.begin_training() == {"step": first.steps}
    assert open_before >= len(list(Stored.of(table))) > 0  # what was under way counts as cut off
    second.collect(50)
    assert second.metrics["episode/count"] > first.metrics["episode/count"]


class Script:
    """Plays four rounds again and again: a stays for three steps, b for one, and c comes after b."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,))
    action_space = gymnasium.spaces.Box(-2.0, 4.0, (1,))
    ROUNDS = (
        {"a": ("initial", 0.0), "b": ("initial", 0.0)},
        {"a": ("running", 1.0), "b": ("terminal", 5.0), "c": ("initial", 0.0)},
        {"a": ("running", 1.0), "c": ("terminal", 100.0)},
        {"a": ("interrupted", 2.0)},
    )

    def dict_reset(self, seed: int | None = None) -> Any:
        self.round, self.actions = 0, list[float]()
        return self.look()

    def dict_step(self, responses: Any) -> Any:
        self.actions += [float(response.array_data["action"][0]) for response in responses.values()]
        self.round += 1
        return self.look()

    def look(self) -> Any:
        agents = self.ROUNDS[self.round % 4].items()
        view = {"view": np.zeros(2)}
        return {
            name: DictObservation(EpisodeState(state), view, {"reward": reward}) for name, (state, reward) in agents
        }


@pytest.mark.parametrize(("most", "expected"), [(None, ([4, 5], [3, 1], "truncated")), (2, ([2, 5], [2, 1], "cut"))])
def test_evaluation_counts_the_agents_that_begin_first(most: Any, expected: Any) -> None:
    class Half(Counting):
        def __call__(self, observation: Any, state: Any = None, *, explore: bool = True) -> Any:
            return {"action": observation[:, :1] + 0.5}

    env = EnvById(Script())
    result = evaluate(env, Half(), episodes=2, seed=7, max_steps=most)
    returns, lengths, ending = expected
    assert (result.returns, result.lengths, result.endings) == (returns, lengths, [ending, "terminated"])
    assert (result.seeds, set(env.world.actions)) == ([7, 7], {2.5})  # the action 0.5 of [-1, 1] in [-2, 4]


def test_an_agent_without_a_last_observation_ends_the_evaluation(monkeypatch: Any) -> None:
    class Lossy(Script):
        def look(self) -> Any:
            return super().look() if self.round < 1 else {}

    monkeypatch.setattr(import_module("rlrun.collect.evaluate"), "IDLE", 3)
    with pytest.raises(RlrunError, match=r"gave no last observation of agent .*, and it is gone for good"):
        evaluate(EnvById(Lossy()), Counting(), episodes=2, seed=7)


def test_run_by_yaml_is_evaluated_and_exported(tmp_path: Any) -> None:
    overrides = ["algorithm=dqn", "env.target=rlrun.env.by_id.Crowd", "+with=by_id", "algorithm.discount=0.5"]
    overrides += ["algorithm.lr=3e-3", "algorithm.hidden=[32]", "algorithm.warmup_steps=200", "stop.env_steps=500"]
    rlrun.train([*overrides, "evaluation.episodes=8"], run_dir=tmp_path / "run")
    report = rlrun.evaluate(tmp_path / "run", episodes=6)
    assert report.returns == report.lengths  # the right choice at each step
    assert report.endings == ["terminated", "truncated"] * 3
    assert rlrun.export_onnx(tmp_path / "run").about["parity"]["largest"] == 0.0
    with pytest.raises(RequestError, match="environment 'crowd' cannot be shown"):
        rlrun.play(tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=dqn", "env=cartpole"], r"\+with=by_id wants env.target and env.kwargs; there are no env.id"),
        (["algorithm=dqn", TARGET, "num_envs=2"], "num_envs=2: agents known by an id share one environment"),
        (["algorithm=a2c", TARGET, "num_envs=1"], "a rollout takes no agents that come and go; use replay"),
        (
            ["algorithm=dqn", TARGET, "+with=async"],
            r"\+with=by_id and \+with=async do not go together: both set collector",
        ),
        (
            ["algorithm=dqn", "env.target=rlrun.env.toys.Chain"],
            "Chain' has no dict_reset",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], message: str) -> None:
    before, after = (overrides[:-1], overrides[-1:]) if overrides[-1].startswith("+") else (overrides, [])
    with pytest.raises(RlrunError, match=message):
        check([*before, "+with=by_id", *after])
