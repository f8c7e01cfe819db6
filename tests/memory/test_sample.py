"""Priorities and new values reach the rows of their own sample, whoever else draws from the table."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.callbacks import LossCallback, PriorityFeedback
from rlrun.core.errors import RlrunError
from rlrun.core.spaces import map_tree
from rlrun.memory import (
    DatasetLoader,
    Fifo,
    JointLoader,
    Mix,
    Prefetch,
    Prioritized,
    Recent,
    ReplayLoader,
    Sample,
    Table,
    Uniform,
    UniformEjector,
)
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer

from .tables import COLUMNS, SAMPLERS, episode, fill

OWN = {**COLUMNS, "search": {"dtype": "int64"}}


def prioritized(**settings: Any) -> Prioritized:
    return Prioritized(**{"alpha": 1.0, "epsilon": 1e-12, "seed": 3, **settings})


def table_of(lengths: list[int], **settings: Any) -> Table:
    return fill(Table(**{"length": 200, "columns": COLUMNS, "sampler": prioritized(), **settings}), lengths)


def searching(sampler: Any, **settings: Any) -> Table:
    """Return a table of five episodes of six rows, with a column `search` of zeros."""
    table = Table(**{"length": 200, "columns": OWN, "sampler": sampler, **settings})
    for number in range(5):
        env_index = number % table.index.num_envs
        for step in range(6):
            value = [100 * number + step]
            table.add(env_index, {"observation": value, "reward": value, "search": [0]})
        table.close(env_index, [100 * number + 6])
    return table


def priorities(table: Table, sampler: Any = None) -> dict[int, float]:
    """Return the priority of every row, by its reward."""
    slots = np.flatnonzero(table.index.complete[:-1])
    sampler = sampler or table.sampler
    sampler = getattr(sampler, "sampler", sampler)  # of Recent
    sampler._write_pending()
    return dict(zip(table.storage.arrays["reward"][slots].tolist(), sampler.tree.get(slots).tolist(), strict=True))


class Errors(LossCallback):
    """The error of a row is 2 + its reward."""

    def loss(self, reward: Any) -> Any:
        return 2.0 + reward.float() + 0.0 * self.network(torch.ones(1)).sum()

    def error(self, elements: Any, outputs: Any) -> Any:
        return elements


class Seen(Callback):
    """Collects the rewards of all rows of its data group."""

    def __init__(self, data_group: str, seen: set[int]) -> None:
        self.data_group, self.seen = data_group, seen

    def end_batch(self, reward: Any) -> None:
        self.seen.update(reward.flatten().tolist())


def feeding(table: Any, *groups: str, seen: set[int]) -> dict[str, Callback]:
    """Return a loss and its priorities for each data group, and what collects the rows that they had."""
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    losses = {f"{group}_loss": Errors(nn.Linear(1, 1), sgd, data_group=group) for group in groups}
    losses |= {f"{group}_seen": Seen(group, seen) for group in groups}
    return losses | {f"{group}_priority": PriorityFeedback(table, data_group=group) for group in groups}


def assert_learned(table: Table, seen: set[int]) -> None:
    """Assert that rows have the errors of these rows, and all others the priority that they began with."""
    rows = priorities(table)
    assert rows == pytest.approx({row: 2.0 + row if row in seen else 1.0 for row in rows})
    assert seen & rows.keys()


class Ends(Callback):
    cycle = 1

    def __init__(self, last: int) -> None:
        self.last = last

    def end_cycle(self, update: int) -> None:
        if update == self.last:
            raise Stop


BATCHES = {
    "equal": ((8, 1), (8, 1)),
    "unequal": ((8, 1), (3, 1)),
    "windows": ((8, 1), (5, 4)),
    "long": ((2, 6), (9, 1)),
}


@pytest.mark.parametrize("short", ["skip", "pad"])
@pytest.mark.parametrize(  # Recent draws samples singly, so it has no bursts
    ("feedback", "recent"), [("update", False), ("update", True), ("burst", False)]
)
@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
def test_loaders_of_one_table_keep_their_rows(sizes, recent, feedback, short):
    """A row's priority is 2 + its reward once it was learned from, and 1 before."""
    sampler: Any = prioritized(feedback=feedback)
    sampler = Recent(sampler, share=0.5, newest=6) if recent else sampler
    table = table_of([12, 7, 9], sampler=sampler, short=short)
    parts = {
        name: ReplayLoader(table=table, collector=None, batch=batch, length=length)
        for name, (batch, length) in zip("ab", sizes, strict=True)
    }
    table.draw_ahead(6, *sizes[0])
    seen: set[int] = set()
    Trainer({**feeding(table, "a", "b", seen=seen), "end": Ends(3)}, JointLoader(**parts)).train()
    assert_learned(table, seen)


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(("length", "short"), [(1, "skip"), (3, "skip"), (3, "pad")])
def test_values_return_to_rows_of_any_sampler(kind, length, short):
    """Four samples are drawn before the first is rewritten; then each is rewritten twice."""
    table = searching(SAMPLERS[kind](3), short=short, num_envs=2)
    batches = [table.sample(4, length) for _ in range(4)]
    seen: set[int] = set()
    for batch in (*reversed(batches), *batches):
        valid = batch.get("valid", torch.ones_like(batch["reward"], dtype=torch.bool))
        batch.rewrite({"search": torch.where(valid, 7 + batch["reward"], -1)})
        seen |= set(batch["reward"][valid].tolist())
    slots = np.flatnonzero(table.index.complete[:-1])
    rows = zip(*(table.storage.arrays[name][slots].tolist() for name in ("reward", "search")), strict=True)
    assert dict(rows) == {100 * n + step: 0 for n in range(5) for step in range(6)} | {row: 7 + row for row in seen}


@pytest.mark.parametrize("ejector", [Fifo, lambda: Fifo(whole=True), UniformEjector])
def test_row_in_the_place_of_another_keeps_its_priority(ejector):
    """Episodes of one length take the slots, numbers and steps of those that left."""
    table = table_of([4], length=10, ejector=ejector())
    for number in range(1, 40):
        old = [table.sample(12) for _ in range(2)]
        for later in range(1, 7):
            episode(table, 4, 1000 * number + 100 * later)
            for batch in old:
                batch.feedback(torch.full((12,), 50.0))
            assert 50.0 not in {value for row, value in priorities(table).items() if row >= 1000 * number + 100}
            table.sampler.highest = table.sampler.largest = 1.0


@pytest.mark.parametrize("change", ["clear", "resize", "load"])
def test_rows_of_before_are_left_alone(change):
    table = table_of([4, 3], length=20)
    old = table.sample(12)
    if change == "clear":
        table.clear()
        fill(table, [4, 3])
    elif change == "resize":
        table.resize(40)
    else:
        table.load_state_dict(table.state_dict())
    old.feedback(torch.full((12,), 50.0))
    assert set(priorities(table).values()) == {1.0}


def test_mixture_of_loaders_and_tables():
    """A mixture of two tables, one of these alone, and rows of it that come from no sampler."""
    first, second = table_of([12, 7], seed=1), table_of([0, 0, 0, 9, 6], seed=2)
    mix = Mix([{"table": first, "share": 1}, {"table": second, "share": 2}])
    loader = JointLoader(
        mixed=ReplayLoader(table=mix, collector=None, batch=7),
        alone=ReplayLoader(table=first, collector=None, batch=5),
        rows=DatasetLoader(first, batch=4),
    )
    seen: set[int] = set()
    callbacks = {**feeding(mix, "mixed", seen=seen), **feeding(first, "alone", seen=seen), "end": Ends(3)}
    Trainer(callbacks, loader).train()
    for table in (first, second):
        assert_learned(table, seen)


def test_nested_batches_know_their_rows():
    table = table_of([12, 7])
    loader = JointLoader(
        nested="both", **{name: ReplayLoader(table=table, collector=None, batch=4) for name in ("a", "b")}
    )
    (groups,) = islice(loader, 1)
    for name in ("a", "b"):
        batch = groups["both"][name]
        batch.feedback(batch["reward"] + 2.0)
    for reward in torch.cat([groups["both"][name]["reward"] for name in ("a", "b")]).tolist():
        assert priorities(table)[reward] == pytest.approx(reward + 2.0)


class Writes(Callback):
    """Stores 7 + reward for each row of its batch."""

    data_group: str | None = "default"

    def end_batch(self, batches: Any, reward: Any) -> None:
        batches["default"].sample.rewrite({"search": 7 + reward})


def test_batches_drawn_ahead_know_their_rows():
    """The second batch is there before the first is rewritten."""
    table = searching(Uniform(seed=2))
    ahead = Prefetch(ReplayLoader(table=table, collector=None, batch=4), depth=2)
    with pytest.raises(RlrunError, match="the memory changed, without the loader"):
        Trainer({"writes": Writes(), "ahead": ahead}, ahead).train()
    reward, search = (table.storage.arrays[name] for name in ("reward", "search"))
    assert set(search[search != 0] - reward[search != 0]) == {7}


def joint(table: Table) -> Any:
    return JointLoader(
        a=ReplayLoader(table=Mix([{"table": table, "share": 1}]), collector=None, batch=4, length=3),
        b=ReplayLoader(table=table, collector=None, batch=3),
    )


def ahead(table: Table) -> Any:
    loader = Prefetch(joint(table))
    loader.begin_training()
    return loader


@pytest.mark.parametrize("make", [joint, ahead])
@pytest.mark.parametrize("order", [1, -1])
def test_checkpoint_has_the_rows_of_waiting_batches(make: Callable[[Table], Any], order):
    """Some batches are there when a run stops: those of a round that is not complete, and those drawn ahead."""

    before = searching(Uniform(seed=3), short="pad")
    loader = make(before)
    (groups,) = islice(loader, 1)
    if isinstance(loader, Prefetch):
        loader.end_batch()  # one batch was drawn ahead
        groups = loader._drawn[0].groups
    else:
        loader._given = {part: {part: groups[part]} for part in groups}
    state = map_tree(lambda value: value, loader.state_dict())
    after = searching(Uniform(seed=3), short="pad")
    resumed = make(after)
    parts: list[Any] = [(after, before.state_dict()), (resumed, state)]
    for part, saved in parts[::order]:
        part.load_state_dict(saved)
    (again,) = islice(resumed, 1)
    for name, batch in groups.items():
        assert isinstance(again[name], Sample)
        for given in (batch, again[name]):
            given.rewrite({"search": 7 + given["reward"]})
    assert np.array_equal(before.storage.arrays["search"], after.storage.arrays["search"])
    assert np.count_nonzero(after.storage.arrays["search"])


def test_foreign_batch_is_refused():
    table, other = table_of([9]), table_of([9])
    loader = ReplayLoader(table=other, collector=None, batch=4)
    message = r"callbacks\.default_priority\.table: batches of data group 'default' are not sampled from this table"
    with pytest.raises(RlrunError, match=message):
        Trainer({**feeding(table, "default", seen=set()), "end": Ends(3)}, loader).train()
    with pytest.raises(RlrunError, match=message):
        Trainer({**feeding(table, "default", seen=set()), "end": Ends(3)}, DatasetLoader(table, batch=3)).train()
