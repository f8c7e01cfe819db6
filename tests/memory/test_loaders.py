"""Pacing of the replay loader, with a collector that only counts."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.memory import CollectLoader, NStep, Prioritized, ReplayLoader, Table, loaders


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
            self.table.add(None, dict.fromkeys(COLUMNS, numbers))
            if numbers[0] % 5 == 0:
                self.table.close(None, numbers)
        self.calls += 1
        self.random_steps += rounds * self.envs * random
        return rounds * self.envs


COLUMNS: dict[str, Any] = {name: {} for name in ("observation", "reward", "terminated", "truncated")}
OF_TABLE = ("adaptors", "short", "sampler")


def make(*, num_envs: int = 1, **settings: Any) -> tuple[ReplayLoader, Counter]:
    options = {name: settings.pop(name) for name in OF_TABLE if name in settings}
    table = Table(length=400, num_envs=num_envs, columns=COLUMNS, **options)
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
    loader.table.add_episode(dict.fromkeys(COLUMNS, np.arange(rows)), rows)
    assert steps_at_updates(loader, collector, 3) == [2, 4, 6]
    assert (loader.start, collector.random_steps) == (random, random)


def test_offline_loaders_need_no_collector() -> None:
    loader, _ = make()
    loader.table.add_episode(dict.fromkeys(COLUMNS, np.arange(9)), 9)
    offline = ReplayLoader(table=loader.table, collector=None, batch=4, updates_per_step=0.01, length=2)
    assert [groups["default"]["reward"].shape for groups in itertools.islice(offline, 50)] == [(4, 2)] * 50
    assert len(loader.table) == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 0), ("warm_up", -1), ("updates_per_step", 0), ("updates_per_step", -0.5), ("steps_per_update", 0),
     ("length", 0), ("updates_per_step", float("nan")), ("collect_steps", 0)],
)  # fmt: skip
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    table = Table(length=9, columns={"reward": {}})
    with pytest.raises(ConfigError, match=f"loader.{name}"):
        ReplayLoader(**{"table": table, "batch": 4, "collector": Counter(table), name: value})


@pytest.mark.parametrize(("num_envs", "wanted"), [(1, [10, 20, 30]), (3, [12, 21, 30]), (16, [32, 48, 64])])
def test_collect_loader_serves_every_few_steps(num_envs: int, wanted: list[int]) -> None:
    collector = make(num_envs=num_envs)[1]
    loader = CollectLoader(collector=collector, every=10)
    collector.collect(num_envs)  # an interrupted round is finished
    assert [(groups, collector.steps) for groups in itertools.islice(loader, 3)] == [
        ({"default": {}}, steps) for steps in wanted
    ]
    assert loader.names() == {"default": ()}
    with pytest.raises(ConfigError, match=r"loader\.every"):
        CollectLoader(collector=collector, every=0)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"adaptors": {"n_step": NStep(steps=2, discount=0.9)}}, {"length": 2}),
        ({"short": "pad"}, {"length": 3}),
    ],
)
def test_batches_of_a_block_equal_single_ones(settings: dict[str, Any], options: dict[str, Any]) -> None:
    batches = []
    for block in (loaders.BLOCK, 0):  # so small that each batch is read by itself
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loaders, "BLOCK", block)
            loader, _ = make(**settings, **options, updates_per_step=0.5, collect_steps=8, warm_up=20)
            batches.append([groups["default"] for groups in itertools.islice(loader, 10)])
            assert len(loader.state_dict().get("drawn", ())) == (2 if block else 0)
    for first, second in zip(*batches, strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_resumed_blocks_are_finished() -> None:
    uninterrupted, _ = make(updates_per_step=0.5, collect_steps=8, warm_up=20)
    wanted = [groups["default"]["reward"].tolist() for groups in itertools.islice(uninterrupted, 8)]
    loader, collector = make(updates_per_step=0.5, collect_steps=8, warm_up=20)
    batches = [groups["default"]["reward"].tolist() for groups in itertools.islice(loader, 2)]
    resumed, later = make(updates_per_step=0.5, collect_steps=8, warm_up=20)
    later.steps = collector.steps
    resumed.table.load_state_dict(loader.table.state_dict())
    resumed.load_state_dict(loader.state_dict())
    assert batches + [groups["default"]["reward"].tolist() for groups in itertools.islice(resumed, 6)] == wanted


def test_rows_of_other_writers_end_a_block() -> None:
    loader, _ = make(updates_per_step=1, collect_steps=8, warm_up=20)
    batches = iter(loader)
    next(batches)
    for _ in range(300):
        loader.table.add(None, dict.fromkeys(COLUMNS, np.array([7])))
    rewards = torch.cat([next(batches)["default"]["reward"] for _ in range(7)])
    assert (rewards == 7).float().mean() > 0.7  # most rows of the table are new


def test_prioritized_batches_wait_for_priorities() -> None:
    loader, _ = make(updates_per_step=1, collect_steps=8, warm_up=20, sampler=Prioritized())
    next(iter(loader))
    assert "drawn" not in loader.state_dict()
