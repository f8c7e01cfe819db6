"""Priorities that come back a burst at a time."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import map_tree
from rlrun.memory import Fifo, Mix, NStep, Prioritized, Recent, Sample, Table

from .tables import COLUMNS, episode, fill
from .test_ahead import PIXELS, VECTOR, assert_same, loader_of, write
from .test_prioritized import powers


def sampler_of(**settings: Any) -> Prioritized:
    return Prioritized(**{"alpha": 1.0, "beta": 1.0, "epsilon": 1e-12, "feedback": "burst", **settings})


def table_of(rows: int, *, size: int = 40, short: Any = "skip", **settings: Any) -> Table:
    return fill(Table(length=size, columns=COLUMNS, sampler=sampler_of(**settings), short=short), [rows])


def starts(batch: Sample, count: int) -> tuple[list[int], list[float]]:
    """Return the first row of each window of a sample, and its weight."""
    rows, weight = (batch[name].reshape(count, -1)[:, 0].tolist() for name in ("reward", "weight"))
    return rows, weight


def served(table: Table, count: int, length: int = 1) -> tuple[list[int], list[float]]:
    return starts(table.sample(count, length), count)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("length", [1, 2])
def test_samples_of_a_burst_ignore_its_feedback(at_once, length, monkeypatch):
    """Each of four rows has priority 1, so a stratified sample of four has each; later they are 3, 1, 1 and 1."""
    if not at_once:
        monkeypatch.setattr("rlrun.memory.table.table.AHEAD", 0)  # bytes
    table = table_of(4, short="pad")
    table.draw_ahead(3, 4, length)
    for newest in (9.0, 2.0, 3.0):
        rows, weight = starts(batch := table.sample(4, length), 4)
        assert rows == [0, 1, 2, 3]
        assert length > 1 or weight == [1.0] * 4
        batch.feedback(torch.tensor([newest, 1.0, 1.0, 1.0]))
    assert set(powers(table).values()) == {1.0}
    table.draw_ahead(2, 6, length)
    for _ in range(2):
        rows, weight = served(table, 6, length)
        assert rows == [0, 0, 0, 1, 2, 3]
        assert length > 1 or weight == pytest.approx([1 / 3] * 3 + [1.0] * 3)


def test_newest_error_of_a_sample_counts():
    table = table_of(1)
    table.draw_ahead(2, 3)
    for priority in ([5.0, 6.0, 7.0], [8.0, 4.0, 2.0]):
        table.sample(3).feedback(torch.tensor(priority))
    table.draw_ahead(1, 3)
    assert powers(table) == pytest.approx({0: 2.0})


def test_new_rows_get_the_largest_error_of_the_burst():
    table = table_of(4, size=4)
    table.draw_ahead(2, 4)
    for priority in ([9.0, 2.0, 3.0, 4.0], [5.0, 2.0, 3.0, 4.0]):
        table.sample(4).feedback(torch.tensor(priority))
    episode(table, 2, 100)  # in the slots of rows 0 and 1; its last observation takes that of row 2
    assert powers(table) == pytest.approx({3: 4.0, 100: 9.0, 101: 9.0})


def test_errors_of_a_burst_outlive_growth():
    table = table_of(4, size=4)
    table.draw_ahead(2, 4)
    table.sample(4).feedback(torch.tensor([9.0, 2.0, 3.0, 4.0]))
    table.resize(8)
    assert powers(table) == pytest.approx({0: 9.0, 1: 2.0, 2: 3.0, 3: 4.0})


def test_weights_of_a_burst_are_those_of_its_begin():
    """Without normalization a weight is (mean / priority)^beta, and beta is 0.25 after one pick and 1 after four."""
    table = table_of(2, beta=Linear(first=0.0, last=1.0, steps=4), normalize_weights=False)
    table.sample(2).feedback(torch.tensor([1.0, 15.0]))
    for times, wanted in ((3, [8.0**0.25, (8 / 15) ** 0.25]), (2, [8.0, 8 / 15])):
        table.draw_ahead(times, 16)
        for _ in range(times):
            rows, weight = starts(batch := table.sample(16), 16)
            assert rows == [0] + [1] * 15
            assert weight == pytest.approx([wanted[0]] + [wanted[1]] * 15)
            batch.feedback(torch.tensor([1.0] + [15.0] * 15))


def test_weights_are_divided_by_their_samples_largest():
    table = table_of(2, stratified=False)
    batch = table.sample(16)
    batch.feedback(torch.tensor([1.0, 15.0])[batch["reward"]])
    table.draw_ahead(40, 3)
    samples = [served(table, 3) for _ in range(40)]
    assert {frozenset(rows) for rows, _ in samples} >= {frozenset({0.0, 1.0}), frozenset({1.0})}
    for rows, weight in samples:
        priority = [1.0 + 14.0 * row for row in rows]
        assert weight == pytest.approx([min(priority) / value for value in priority])


def test_each_sample_of_a_burst_is_of_all_rows():
    table = table_of(4, stratified=False)
    table.draw_ahead(5, 40)
    assert all({*served(table, 40)[0]} == {0, 1, 2, 3} for _ in range(5))


@pytest.mark.parametrize("at_once", [True, False])
def test_new_rows_end_a_burst(at_once, monkeypatch):
    """Rows 0, 100 and 101 have priority 9, rows 1, 2 and 3 have 1: a stratified sample of ten has these in one part."""
    if not at_once:
        monkeypatch.setattr("rlrun.memory.table.table.AHEAD", 0)  # bytes
    table = table_of(4)
    table.draw_ahead(3, 10)
    batch = table.sample(10)
    batch.feedback(1.0 + 8.0 * (batch["reward"] == 0.0))
    episode(table, 2, 100)
    assert table.state_dict()["sampler"]["burst"]["start"].size == 0
    rows, _ = served(table, 10)
    assert rows[:3] + rows[4:] == [0] * 3 + [100] * 3 + [101] * 3


def test_replaced_windows_stay_in_their_sample():
    """A quarter of rows begin no window of two, and each sample gets its own others for them."""
    table = fill(Table(length=60, columns=COLUMNS, sampler=sampler_of()), [4] * 10)
    table.draw_ahead(3, 400, 2)
    for _ in range(3):
        assert np.mean(np.array(served(table, 400, 2)[0]) < 500) == pytest.approx(0.5, abs=0.05)


def test_without_bursts_each_update_is_one():
    burst, update = table_of(30), table_of(30, feedback="update")
    for _ in range(6):
        batches = [table.sample(8) for table in (burst, update)]
        assert_same(*batches)
        for batch in batches:
            batch.feedback(batches[0]["reward"] + 1.0)


KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "rows": ({"columns": VECTOR}, 1),
    "n-step": ({"columns": VECTOR, "adaptors": [NStep(steps=3, discount=0.9)]}, 1),
    "frames": ({"columns": PIXELS, "frame_stack": 2}, 1),
    "windows": ({"columns": VECTOR, "num_envs": 3}, 3),
    "padded": ({"columns": VECTOR, "short": "pad"}, 4),
    "whole episodes": ({"columns": VECTOR}, 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_burst_goes_on_as_it_was(kind):
    options, length = KINDS[kind]

    def table_of_kind() -> Table:
        sampler = sampler_of(alpha=0.6, beta=0.5, seed=2, mix=0.9)
        return Table(length=60, sampler=sampler, ejector=Fifo(whole=kind == "whole episodes"), **options)

    def update(table: Table) -> Any:
        batch = table.sample(5, length)
        batch.feedback(batch["reward"].abs() % 9.5 + float(batch["weight"].sum()))
        return batch

    whole, parted = table_of_kind(), table_of_kind()
    for table in (whole, parted):
        write(table, 0, 50)
        table.draw_ahead(6, 5, length)
        for _ in range(2):
            update(table)
        table.sample(3, length)  # another count is none of the burst: pending priorities are written
        for _ in range(2):
            update(table)
    state = parted.state_dict()
    assert len(state["sampler"]["burst"]["start"]) == 2
    parted = table_of_kind()
    parted.load_state_dict(state)
    for step in (50, 60):
        for _ in range(2):
            assert_same(update(whole), update(parted))
        for table in (whole, parted):
            write(table, step, 10)
            table.draw_ahead(2, 5, length)
    assert_same(whole.sampler.tree.state_dict(), parted.sampler.tree.state_dict())
    assert whole.sampler.generator.bit_generator.state == parted.sampler.generator.bit_generator.state


def test_fork_without_bursts_keeps_priorities():
    table = table_of(4)
    table.draw_ahead(2, 4)
    table.sample(4).feedback(torch.tensor([9.0, 1.0, 1.0, 1.0]))
    for _ in range(2):  # a fork that was killed before its first sample is one, too
        state = table.state_dict()
        table = Table(length=40, columns=COLUMNS, sampler=sampler_of(feedback="update"))
        table.load_state_dict(state)
    table.sample(4)
    assert powers(table) == pytest.approx({0: 9.0, 1: 1.0, 2: 1.0, 3: 1.0})
    assert "burst" not in table.state_dict()["sampler"]


@pytest.mark.parametrize("tables", ["alone", "shared"])
def test_loaders_go_on_within_a_burst(tables):
    """A second loader of the same table makes samples that are none of the first one's burst."""

    def run(*parts: int) -> list[Any]:
        batches: list[Any] = []
        state: Any = None
        for count in parts:
            table = Table(length=60, columns=VECTOR, sampler=sampler_of(seed=5))
            loader = loader_of(*[table] * (1 if tables == "alone" else 2))
            loaders = getattr(loader, "parts", {"first": loader})
            collector = loaders["first"].collector
            for part in loaders.values():
                part.collector = collector
            if state is not None:
                table.load_state_dict(state[0])
                collector.steps = state[2]
                loader.load_state_dict(state[1])
            for groups in islice(loader, count):
                batches.append(map_tree(torch.clone, groups))
                batch = next(reversed(groups.values()))
                batch.feedback(batch["reward"] % 5.5)
            state = table.state_dict(), loader.state_dict(), collector.steps
        return batches

    for whole, parted in zip(run(40), run(13, 27), strict=True):
        assert_same(whole, parted)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Prioritized(feedback="epoch"), "^feedback: wanted one of"),
        (lambda: Recent(sampler_of(), share=0.5, newest=9), "memory.sampler: Recent draws samples singly"),
        (lambda: Mix([{"table": table_of(4), "share": 1}]), "^parts.0: a Mix draws samples singly"),
    ],
)
def test_bursts_that_are_impossible_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
