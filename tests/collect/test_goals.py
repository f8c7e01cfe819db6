"""Goal generators learn from the episodes of all envs, and their probabilities reach every env."""

import json
from functools import partial

import numpy as np
import pytest
from tests.identical import compare, differing
from tests.resume.twins import copy_as_killed

import rlrun
from rlrun.collect import AsyncCollector, Collector, GoalGenerator, LearningProgress, RandomAgent, evaluate
from rlrun.config import compose
from rlrun.core import worker
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.env import make
from rlrun.env.wrappers import RandomGoal
from rlrun.memory import Table

TASKS = ["algorithm=sac", "env.target=tests.collect.probes.Tasks", "+with=learned_goal", "goals=3", "num_envs=2"]
KINDS = {
    "sync": (Collector, "sync"),
    "workers": (Collector, "async"),
    "thread": (partial(AsyncCollector, kind="thread", queue=12), "sync"),
    "process": (partial(AsyncCollector, kind="process", queue=12), "sync"),
}


def tasks(vectorization="sync", count=2):
    around = {"goal": partial(RandomGoal, count=3, option="goal")}
    return make(target="tests.collect.probes.Tasks", around=around, num_envs=count, vectorization=vectorization)


def learned(goal, returns, generator=None, **options):
    """Return a generator of three goals after some episodes."""
    generator = generator or LearningProgress(tasks().spaces, **options)
    generator.learn(np.array(goal, int), np.array(returns, float), np.full(len(goal), 3))
    return generator


@pytest.fixture
def begun(children, monkeypatch):
    """Return a function that begins a collector with a generator, and ends all that were begun."""
    monkeypatch.setattr(worker, "start", children.worker)
    collectors = []

    def begin(kind, generator):
        collector, vectorization = KINDS[kind]
        env = tasks(vectorization)
        table = Table(spaces=env.spaces, length=5_000, num_envs=2)
        agent = RandomAgent(env.spaces.action, seed=1)
        collectors.append(collector(env, agent, table, goal_generator=generator))
        collectors[-1].begin_training()
        return collectors[-1]

    yield begin
    for collector in collectors:
        collector.end_training(None)


# --- learning progress


@pytest.mark.parametrize(
    ("goal", "returns", "shares"),
    [
        ([0, 0, 1, 1, 2, 2], [0, 0, 5, 5, 0, 3], [0, 0, 1]),
        ([0, 0, 1, 1, 2, 2], [0, 1, 3, 0, 5, 5], [1 / 4, 3 / 4, 0]),  # a falling return counts as a rising one
        ([0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 2, 0, 3, 0, 1, 1], [1, 0, 0]),  # the slope of 0, 3, 0 is 0
        ([0, 0, 1, 1, 2], [0, 2, 4, 4, 7], [1 / 2, 0, 1 / 2]),  # an untried goal has the largest progress
        ([0, 0, 1, 1], [0, 0, 4, 4], [0, 0, 1]),
        ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [1 / 3, 1 / 3, 1 / 3]),
        ([0] * 5 + [1] * 5 + [2] * 5, [0, 9, 2, 2, 2, *range(5), *[1] * 5], [0, 1, 0]),  # three episodes count
        ([0, 0, 1, 1, 2, 2], [-1e308, 1e308, -1e308, 1e308, 0, 0], [1 / 3, 1 / 3, 1 / 3]),
        ([], [], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_probabilities_follow_learning_progress(goal, returns, shares):
    probabilities = learned(goal, returns, window=3, uniform=0.3).probabilities()
    assert probabilities == pytest.approx(0.1 + 0.7 * np.array(shares))


def test_metrics_tell_probabilities_and_returns():
    metrics = learned([0, 0, 2, 2], [0, 0, 1, 2], uniform=0.0).metrics
    assert metrics["goal/entropy"] == pytest.approx(np.log(2))
    assert [metrics[f"goal/probability_{goal}"] for goal in range(3)] == [0.0, 0.5, 0.5]
    assert {name: value for name, value in metrics.items() if "return" in name} == {
        "goal/return_0": 0.0,
        "goal/return_2": 1.5,
    }


class Weighted(GoalGenerator):
    """Wants constant weights."""

    def __init__(self, spaces, wanted):
        super().__init__(spaces)
        self.wanted, self.episodes = wanted, []

    def learn(self, goal, episode_return, length):
        self.episodes += zip(goal.tolist(), episode_return.tolist(), length.tolist(), strict=True)

    def weights(self):
        return self.wanted


@pytest.mark.parametrize("wanted", [[1, 2], [[1, 2, 3]], [1, -1, 2], [0, 0, 0], [1, np.nan, 1], [1, np.inf, 1], 3])
def test_wrong_weights_are_refused(wanted):
    with pytest.raises(RlrunError, match=r"Weighted.weights: wanted 3 weights of goals, .*; got"):
        Weighted(tasks().spaces, wanted).probabilities()


@pytest.mark.parametrize("options", [{"window": 1}, {"uniform": 1.1}, {"uniform": -0.1}, {"uniform": np.nan}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ConfigError, match="goal_generator: wanted window >= 2 and uniform from 0 to 1"):
        LearningProgress(tasks().spaces, **options)


@pytest.mark.parametrize(
    ("around", "message"),
    [
        ({}, "wanted a number of goals .* with a choice 'goal'; here they are Box"),
        ({"goal": partial(RandomGoal, size=2)}, "here they are {goal: Box"),
        ({"goal": partial(RandomGoal, count=9_000)}, "wanted at most 8,000 goals, got 9,000"),
        ({"goal": partial(RandomGoal, count=None)}, "goals=4 or goal_size=2; got None and None"),
    ],
)
def test_other_goals_are_refused(around, message):
    with pytest.raises(ConfigError, match=message):
        LearningProgress(make("CartPole-v1", around=around).spaces)


@pytest.mark.parametrize("state", [[[], []], [[], [], [None]], [[], [], ["1"]], [[], [], [10**400]]])
def test_wrong_states_are_refused(state):
    with pytest.raises(RlrunError, match=r"it has 2 goals, and this run has 3|wanted a list of numbers"):
        learned([0], [1.0]).load_state_dict({"returns": state})


# --- in envs


@pytest.mark.parametrize("kind", KINDS)
def test_learnable_goal_is_preferred(kind, begun, monkeypatch):
    generator = LearningProgress(tasks().spaces, uniform=0.1)
    given, learn = [], generator.learn
    monkeypatch.setattr(generator, "learn", lambda goal, *rest: (given.extend(goal.tolist()), learn(goal, *rest)))
    begun(kind, generator).collect(900)
    assert np.bincount(given[-200:], minlength=3)[2] > 160
    assert generator.probabilities() == pytest.approx([0.1 / 3, 0.1 / 3, 0.9 + 0.1 / 3])


@pytest.mark.parametrize("kind", KINDS)
def test_every_env_draws_by_weights(kind, begun):
    generator = Weighted(tasks().spaces, [0, 5, 0])
    collector = begun(kind, generator)
    collector.collect(24)
    assert generator.episodes[:4] == [(1, 3.0, 3)] * 4  # the first ones of both envs, too
    generator.wanted = [1, 0, 0]
    collector.collect(60)
    assert generator.episodes[-8:] == [(0, 0.0, 3)] * 8


def test_evaluation_neither_learns_nor_follows(begun):
    generator = Weighted(tasks().spaces, [0, 0, 1])
    collector = begun("sync", generator)
    collector.collect(12)
    before = list(generator.episodes)
    returns = evaluate(collector.env.copy(4), collector.agent, episodes=90, seed=3).returns
    assert 20 < np.count_nonzero(np.array(returns) == 0.0) < 40  # goals are uniform there
    assert generator.episodes == before
    collector.collect(12)
    assert {goal for goal, *_ in generator.episodes} == {2}


@pytest.mark.parametrize(
    "vectorization",
    ["native", "sync", "async"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_envs_without_goals_are_refused(vectorization):
    env = make("CartPole-v1", vectorization=vectorization)
    with pytest.raises(RlrunError, match=rf"\({vectorization}\) has no wrapper rlrun.env.wrappers.RandomGoal"):
        env.weigh_goals(np.ones(1))
    env.close()


# --- in runs


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_killed_runs_resume_exactly(vectorization, tmp_path):
    short = [
        "algorithm.hidden=[8,8]",
        "algorithm.batch_size=4",
        "algorithm.warmup_steps=20",
        "algorithm.updates_per_step=0.1",
    ]
    often = ["checkpoint.every=50", "checkpoint.keep_last=null", "log.every=10", "evaluation.every=70"]
    overrides = [*TASKS, *short, *often, "stop.env_steps=240", f"env.vectorization={vectorization}", "logger=[]"]
    rlrun.train(overrides, run_dir=tmp_path / "whole")
    copy_as_killed(tmp_path / "whole", tmp_path / "resumed", at=50)  # inside episodes
    rlrun.resume(tmp_path / "resumed")
    same = compare(tmp_path / "whole", tmp_path / "resumed")
    assert all(same.values()), (same, differing(tmp_path / "whole", tmp_path / "resumed"))
    lines = [json.loads(line) for line in (tmp_path / "resumed" / "metrics.jsonl").read_text().splitlines()]
    probabilities = [line["goal/probability_2"] for line in lines if "goal/probability_2" in line]
    assert probabilities[-1] > 0.8
    assert json.loads((tmp_path / "resumed" / "manifest.json").read_text())["resume"] == "exact"


def test_a_generator_of_yours_runs(tmp_path):
    key = "callbacks.goal_generator"
    yours = [f"{key}._target_=tests.collect.test_goals.Weighted", f"+{key}.wanted=[1,0,0]"]
    without = [f"~{key}.window", f"~{key}.uniform"]
    overrides = [*TASKS, *yours, *without, "stop.env_steps=60", "algorithm.warmup_steps=40", "logger=[]"]
    run = rlrun.train(compose(overrides), run_dir=tmp_path / "run")
    assert {goal for goal, *_ in run.trainer.callbacks["goal_generator"].episodes} == {0}
