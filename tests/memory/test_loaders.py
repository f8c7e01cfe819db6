"""Pacing of the replay loader, with a collector that only counts."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import rlrun
from rlrun.core.errors import ConfigError, RlrunError, RunDirError
from rlrun.memory import CollectLoader, ReplayLoader, Table


class Counter:
    """Makes whole rounds of its envs; episodes of five steps."""

    def __init__(self, table: Table) -> None:
        self.table, self.envs = table, table.index.num_envs
        self.steps, self.calls, self.random_steps = 0, 0, 0

    def collect(self, steps: int, random: bool = False) -> int:
        rounds = -(-steps // self.envs)
        for _ in range(rounds):
            self.steps += self.envs
            numbers = np.full(self.envs, self.steps // self.envs)
            self.table.add(None, {"observation": numbers, "reward": numbers})
            if numbers[0] % 5 == 0:
                self.table.close(None, numbers)
        self.calls += 1
        self.random_steps += rounds * self.envs * random
        return rounds * self.envs


def make(*, num_envs: int = 1, **settings: Any) -> tuple[ReplayLoader, Counter]:
    table = Table(length=400, num_envs=num_envs, columns={"observation": {}, "reward": {}})
    collector = Counter(table)
    return ReplayLoader(table=table, collector=collector, batch=4, **settings), collector


def steps_at_updates(loader: ReplayLoader, collector: Counter, count: int) -> list[int]:
    """Return the steps after warm-up at each of the first updates."""
    return [collector.steps - loader.start for _ in itertools.islice(loader, count)]


@pytest.mark.parametrize(
    ("num_envs", "rate", "wanted"),
    [
        (1, 0.25, [4, 8, 12, 16]),
        (1, 1, [1, 2, 3, 4]),
        (1, 3, [1, 1, 1, 2, 2, 2, 3]),
        (4, 0.25, [4, 8, 12, 16]),
        (4, 1, [4, 4, 4, 4, 8, 8]),
        (4, 3, [4] * 12 + [8] * 3),
        (4, 0.1, [12, 20, 32, 40]),
        (1, 1.5, [1, 2, 2, 3, 4, 4]),
        (1, 0.1, [10 * update for update in range(1, 300)]),
    ],
)
def test_updates_come_when_due(num_envs: int, rate: float, wanted: list[int]) -> None:
    loader, collector = make(num_envs=num_envs, updates_per_step=rate, warm_up=20)
    assert steps_at_updates(loader, collector, len(wanted)) == wanted
    if rate < 1:
        assert collector.calls == len(wanted) + 1  # that of the warm-up, and one for each update
        loader, collector = make(num_envs=num_envs, steps_per_update=round(1 / rate), updates_per_step=9.0, warm_up=20)
        assert steps_at_updates(loader, collector, len(wanted)) == wanted


@pytest.mark.parametrize(
    ("num_envs", "rate", "at_a_time", "wanted"),
    [
        (1, 0.5, 6, [6, 6, 6, 12, 12, 12, 18]),
        (1, 1, 3, [3, 3, 3, 6]),
        (1, 0.25, 6, [6, 12, 12, 18]),
        (1, 0.1, 3, [12, 21, 30, 42]),
        (4, 0.5, 6, [8, 8, 8, 12, 12, 12, 20]),
    ],
)
def test_steps_are_collected_in_groups(num_envs: int, rate: float, at_a_time: int, wanted: list[int]) -> None:
    loader, collector = make(num_envs=num_envs, updates_per_step=rate, collect_steps=at_a_time, warm_up=20)
    assert not loader.ready()  # before the first step
    progress = [(collector.steps - loader.start, loader.ready()) for _ in itertools.islice(loader, len(wanted))]
    assert [steps for steps, _ in progress] == wanted
    assert [ready for _, ready in progress[:-1]] == [after == now for now, after in itertools.pairwise(wanted)]


@pytest.mark.parametrize(
    ("settings", "start", "random"),
    [({"num_envs": 4, "warm_up": 1500}, 1500, 1500), ({"warm_up": 0, "length": 3}, 4, 0)],  # three rows and one more
)
def test_warm_up_is_random_and_fills(settings: dict[str, Any], start: int, random: int) -> None:
    loader, collector = make(**settings)
    reward = next(iter(loader))["default"]["reward"]
    assert (loader.start, collector.random_steps, collector.steps) == (start, random, 1504 if random else 5)
    assert reward.shape == ((4, 3) if "length" in settings else (4,))


def test_too_short_episodes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    loader, collector = make(warm_up=10, length=6)  # episodes of five steps
    collector.episodes = 12
    with pytest.raises(RlrunError, match="a sample of 4 windows needs one of 6 transitions"):
        next(iter(loader))
    assert [record.message for record in caplog.records] == [
        "loader: of 12 episodes none holds a window of 6 transitions, so there are no updates; shorter windows help, "
        "or memory.short=pad, or a smaller memory.min_length"
    ]


@pytest.mark.parametrize(("rows", "random"), [(12, 8), (30, 0)])
def test_stored_rows_count_towards_warm_up(rows: int, random: int) -> None:
    loader, collector = make(warm_up=20, updates_per_step=0.5)
    loader.table.add_episode({"observation": np.arange(rows), "reward": np.arange(rows)}, rows)
    assert steps_at_updates(loader, collector, 3) == [2, 4, 6]
    assert (loader.start, collector.random_steps) == (random, random)


def test_resumed_runs_refill_an_empty_memory() -> None:
    loader, collector = make(updates_per_step=0.25, warm_up=20)
    steps_at_updates(loader, collector, 3)
    restored, _ = make(updates_per_step=0.25, warm_up=20)
    restored.collector.steps = collector.steps
    restored.load_state_dict(loader.state_dict())
    assert [restored.collector.steps for _ in itertools.islice(restored, 2)] == [20 + 12 + 20 + 4, 20 + 12 + 20 + 8]
    assert restored.collector.random_steps == 0


@pytest.mark.parametrize("position", [{"start": 1 << 40}, {"updates": 1 << 40}], ids=str)
def test_forged_position_is_no_endless_collection(position: dict[str, int]) -> None:
    loader, collector = make(warm_up=20)
    steps_at_updates(loader, collector, 3)
    loader.load_state_dict({**loader.state_dict(), **position})
    with pytest.raises(RunDirError, match=r"loader: the saved state has .* steps before the next"):
        next(iter(loader))
    assert collector.steps == 23


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 0), ("warm_up", -1), ("updates_per_step", 0), ("updates_per_step", -0.5), ("steps_per_update", 0),
     ("length", 0), ("updates_per_step", float("nan")), ("collect_steps", 0), ("every", 0)],
)  # fmt: skip
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    table = Table(length=9, columns={"reward": {}})
    kind = CollectLoader if name == "every" else partial(ReplayLoader, table=table, batch=4)
    with pytest.raises(ConfigError, match=f"^{name}"):
        kind(**{"collector": Counter(table), name: value})


@pytest.mark.parametrize(("num_envs", "wanted"), [(1, [10, 20, 30]), (3, [12, 21, 30]), (16, [16, 32, 48])])
def test_collect_loader_serves_every_few_steps(num_envs: int, wanted: list[int]) -> None:
    collector = make(num_envs=num_envs)[1]
    loader = CollectLoader(collector=collector, every=10)
    assert [(groups, collector.steps) for groups in itertools.islice(loader, 3)] == [
        ({"default": {}}, steps) for steps in wanted
    ]
    assert loader.names() == {"default": ()}


def test_interrupted_rounds_are_finished() -> None:
    collector = make()[1]
    collector.collect(7)
    next(iter(CollectLoader(collector=collector, every=10)))
    assert collector.steps == 10


def test_a_round_of_collection_ends_with_the_budget(tmp_path):
    small = ["algorithm=mbrl", "env=pendulum", "preset=null", "algorithm.hidden=[4]", "algorithm.warmup_steps=10"]
    small += ["algorithm.plan.population=4", "algorithm.plan.elite=2", "algorithm.plan.horizon=2", "evaluation.every=0"]
    small += ["algorithm.model_every=200", "stop.env_steps=30", "evaluation.episodes=1"]
    assert rlrun.train(small, run_dir=tmp_path / "run").summary["env_steps"] == 30
