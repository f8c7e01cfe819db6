"""Windows by priority: how often they come, what they weigh, and what feedback changes."""

from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.schedules import Linear
from rlrun.memory import Fifo, Prioritized, Table
from rlrun.memory.table.trees import PENDING, MinTree, SegmentTree, SumTree

from .tables import COLUMNS, assert_as_expected, counted, episode, fill, starts

KINDS = {"rows": Fifo, "episodes": lambda: Fifo(whole=True)}


def table_of(lengths: list[int], *, size: int = 400, kind: str = "rows", **settings: Any) -> Table:
    options = {name: settings.pop(name) for name in ("short", "min_length", "num_envs") if name in settings}
    sampler = Prioritized(**settings)
    return fill(Table(length=size, columns=COLUMNS, sampler=sampler, ejector=KINDS[kind](), **options), lengths)


def priority_of(observation: np.ndarray) -> np.ndarray:
    """A priority between 1 and 8 that is known for every row."""
    return 1.0 + (observation * 37 % 8)


def feed_all(table: Table, length: int = 1) -> None:
    """Sample until every row has its known priority."""
    for _ in range(60):
        batch = table.sample(200, length)
        batch.feedback(torch.from_numpy(priority_of(batch["reward"].numpy().reshape(200, -1)[:, 0])))


def drawn(table: Table, samples: int, count: int, length: int = 1) -> np.ndarray:
    """Return the first rows of the windows of several samples."""
    return np.concatenate([starts(table, count, length) for _ in range(samples)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stratified", [False, True])
def test_chance_is_a_power_of_priority(stratified, kind):
    table = table_of([7, 3, 12, 1], kind=kind, alpha=0.6, stratified=stratified)
    episode(table, 5, 400, over=False)  # the last of these is not complete
    feed_all(table)
    rows = [100 * e + k for e, length in enumerate([7, 3, 12, 1, 4]) for k in range(length)]
    counts = counted(rows, drawn(table, 600, 1 if stratified else 20))  # parts of a batch are not independent
    assert_as_expected(counts, priority_of(np.array(rows)) ** 0.6)


@pytest.mark.parametrize("length", [2, 5])
def test_windows_use_their_first_rows_priority(length):
    table = table_of([7, 3, 12, 1, 6], alpha=1.0, stratified=False)
    feed_all(table)
    rows = [100 * e + k for e, size in enumerate([7, 3, 12, 1, 6]) for k in range(size - length + 1)]
    assert_as_expected(counted(rows, drawn(table, 500, 20, length)), priority_of(np.array(rows)))


@pytest.mark.parametrize(("size", "count"), [(4000, 4), (4000, 50), (250, 50)])
@pytest.mark.parametrize("stratified", [False, True])
def test_chances_are_exact_with_few_windows(stratified, size, count):
    table = table_of([2] * 60 + [9, 8], size=size, alpha=1.0, stratified=stratified)
    feed_all(table)
    rows = [6000, 6001, 6100]
    assert_as_expected(counted(rows, drawn(table, 200, count, 8)), priority_of(np.array(rows)))


def test_stratified_batches_hold_exact_shares():
    table = table_of([8], alpha=1.0, epsilon=1e-12)
    feed_all(table)
    share = priority_of(np.arange(8))  # 1 6 3 8 5 2 7 4
    assert counted(list(range(8)), drawn(table, 10, 36 * 5)).tolist() == pytest.approx(50 * share, abs=2)


def test_zero_priority_and_alpha():
    uniform = table_of([20], alpha=0.0)
    feed_all(uniform)
    assert_as_expected(counted(list(range(20)), drawn(uniform, 400, 1)), np.ones(20))
    assert (uniform.sample(30)["weight"] == 1).all()
    table = table_of([2], epsilon=0.1, alpha=1.0)
    table.sample(8).feedback(torch.zeros(8))
    assert set(table.sample(50)["reward"].tolist()) == {0, 1}


def test_weights_are_those_of_the_paper():
    table = table_of([4], alpha=1.0, beta=0.4, epsilon=1e-12)
    for _ in range(20):
        batch = table.sample(64)
        batch.feedback(5.0 * (batch["reward"] + 1.0))
    batch = table.sample(64)
    weights = dict(zip(batch["reward"].tolist(), batch["weight"].tolist(), strict=True))
    # (4 · p / 10)^-0.4 for p = 1, 2, 3, 4, divided by the largest
    assert weights == pytest.approx({0: 1.0, 1: 0.757858, 2: 0.644394, 3: 0.574349}, abs=1e-6)
    assert batch["weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("length", "weights"),  # (4 · p / 10)^-0.4 for p = 1, 2, 3, 4, and (2 · p / 3)^-0.4 for p = 1, 2
    [(1, {0: 1.442700, 1: 1.093362, 2: 0.929667, 100: 0.828614}), (2, {0: 1.176079, 1: 0.891301})],
)
def test_weights_without_normalization_count_all_windows(length, weights):
    table = table_of([3], alpha=1.0, beta=0.4, epsilon=1e-12, normalize_weights=False)
    episode(table, 2, 100, over=False)  # one complete row; neither last observations nor the newest row count
    for _ in range(20):
        batch = table.sample(64, length)
        rows = batch["reward"].reshape(64, -1)[:, 0]
        batch.feedback(torch.where(rows == 100, 4.0, rows + 1.0))
    batch = table.sample(64, length)
    rows = batch["reward"].reshape(64, -1)[:, 0].tolist()
    assert dict(zip(rows, batch["weight"].tolist(), strict=True)) == pytest.approx(weights, abs=1e-6)


def test_weights_undo_the_choice_of_rows():
    table = table_of([30], alpha=0.7, beta=1.0, stratified=False)
    feed_all(table)
    batch = table.sample(40_000)
    weight = batch["weight"].double()
    assert float((weight * batch["reward"]).sum() / weight.sum()) == pytest.approx(14.5, abs=0.2)


def test_beta_follows_the_number_of_picks():
    table = table_of([2], alpha=1.0, beta=Linear(first=0.0, last=1.0, steps=2), epsilon=1e-12)
    seen = []
    for _ in range(4):
        batch = table.sample(16)
        seen.append(float(batch["weight"].min()))
        batch.feedback(1.0 + 3.0 * batch["reward"])
    assert seen == pytest.approx([1.0, 0.5, 0.25, 0.25])


def powers(table: Table) -> dict[int, float]:
    """Return what the tree holds for each row whose next observation is stored."""
    slots = np.flatnonzero(table.index.complete[: table.index.size])
    values = table.sampler.tree.get(slots)
    return dict(zip(table.storage.arrays["reward"][slots].tolist(), values.tolist(), strict=True))


def test_new_rows_get_the_largest_priority():
    table = table_of([3], alpha=0.5, epsilon=1e-12)
    table.sample(9).feedback(torch.full((9,), 9.0))
    episode(table, 2, 50)
    batch = table.sample(1)
    assert powers(table)[50] == powers(table)[51] == pytest.approx(3.0)
    batch.feedback(torch.tensor([0.25]))
    episode(table, 1, 60)
    table.sample(1)
    assert powers(table)[60] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("kind", "lengths", "size", "rows", "wanted"),
    [
        ("rows", [4], 5, 2, {2: 5.0, 3: 5.0, 200: 1.0, 201: 1.0}),  # three slots: a free one, those of rows 0 and 1
        ("episodes", [4, 4], 10, 4, dict.fromkeys(range(100, 104), 5.0) | dict.fromkeys(range(200, 204), 1.0)),
    ],
)
@pytest.mark.parametrize("feedback", ["update", "burst"])
def test_feedback_for_lost_rows_is_ignored(feedback, kind, lengths, size, rows, wanted):
    table = table_of(lengths, size=size, kind=kind, alpha=1.0, epsilon=1e-12, feedback=feedback)
    batch = table.sample(90)
    assert len(set(batch["reward"].tolist())) == sum(lengths)
    episode(table, rows, 200)
    batch.feedback(torch.full((90,), 5.0))
    table.draw_ahead(1, 1)  # what a burst left is written when the next begins
    assert powers(table) == pytest.approx(wanted)


def test_newest_row_keeps_its_first_priority():
    table = table_of([], alpha=1.0)
    episode(table, 3, 0, over=False)
    batch = table.sample(200)
    assert set(batch["reward"].tolist()) == {0, 1}
    batch.feedback(torch.full((200,), 3.0))
    episode(table, 1, 3, over=False)
    table.sample(1)
    assert powers(table) == pytest.approx({0: 3.0, 1: 3.0, 2: 1.0}, abs=1e-5)


def test_writes_without_samples_are_bounded():
    table = table_of([4], num_envs=2, size=100, alpha=1.0)
    batch = table.sample(50)
    for number in range(2 * PENDING):
        table.add(np.array([0, 1]), {"observation": [number, number], "reward": [number, -number]})
    assert len(table.sampler.tree._changed) <= PENDING + 1
    batch.feedback(torch.full((50,), 5.0))
    assert set(powers(table).values()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("rows", "mix", "wanted"),
    [
        (3, None, [2.0, 3.0, 4.0]),
        (3, 0.9, [0.9 * 4 + 0.1 * 3, 0.9 * 4 + 0.1 * 3.5, 4.0]),
        (2, None, [2.0, 3.0]),
        (2, 0.5, [2.75, 3.0]),
    ],
)
def test_windows_have_priorities_without_padding(rows, mix, wanted):
    table = table_of([rows], alpha=1.0, epsilon=1e-12, mix=mix, short="pad")
    batch = table.sample(60, 4)  # of two rows: 0 1 1 1 and 1 1 1 1
    batch.feedback(torch.where(batch["valid"], batch["reward"] + 2.0, 100.0))
    assert [powers(table)[row] for row in range(rows)] == pytest.approx(wanted)


NUMBERS, SHAPE = (
    "priorities are finite numbers from 0; 1 of 4 are not",
    r"4 windows; wanted one for each, or .* \[4, 3\]",
)


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        *((torch.tensor([1.0, bad, 2.0, 0.5]), NUMBERS) for bad in (float("nan"), float("inf"), -1.0)),
        *((torch.ones(shape), SHAPE) for shape in ((3,), (4, 1), (4, 3, 1), ())),
    ],
)
def test_wrong_priorities_are_refused(priority, message):
    table = table_of([5])
    batch = table.sample(4, 3)
    with pytest.raises(RlrunError, match=message):
        batch.feedback(priority)
    assert set(powers(table).values()) <= {0.0, 1.0}


def test_priorities_move_with_their_rows():
    table = table_of([6, 6], size=16, alpha=1.0, epsilon=1e-12)
    feed_all(table)
    episode(table, 3, 200)  # over the end of the ring: the oldest row stands in the middle now
    before = powers(table)
    table.resize(100)
    episode(table, 2, 300)
    table.sample(1)
    assert powers(table) == pytest.approx(before | dict.fromkeys((200, 201, 202, 300, 301), 8.0))
    assert set(table.sample(400)["reward"].tolist()) == {*before, 300, 301}


def play(table: Table) -> list[float]:
    """Add, sample and feed back; return all that was sampled."""
    seen: list[float] = []
    for number in range(20):
        episode(table, 7, 1000 + 10 * number, over=number % 3 > 0)
        for length in (1, 3):
            batch = table.sample(16, length)
            seen += [*batch["reward"].flatten().tolist(), *batch["weight"].tolist()]
            batch.feedback(torch.from_numpy(priority_of(batch["reward"].numpy())))
    return seen


def test_alpha_follows_the_number_of_picks_and_new_rows_too():
    table = table_of([1], alpha=Linear(first=1.0, last=0.0, steps=2), epsilon=1e-12)
    for start, power in ((50, 3.0), (60, 1.0)):
        table.sample(1).feedback(torch.tensor([9.0 if start == 50 else 0.25]))
        restored = table_of([1], alpha=table.sampler.alpha, epsilon=1e-12)
        restored.load_state_dict(table.state_dict())
        for copy in (table, restored):
            episode(copy, 1, start)
            assert copy.sampler.tree.leaves.tolist() == table.sampler.tree.leaves.tolist()
            assert powers(copy)[start] == pytest.approx(power)


def test_saving_changes_nothing():
    saved, untouched = table_of([30, 20, 10]), table_of([30, 20, 10])
    batches = [table.sample(16) for table in (saved, untouched)]
    for table in (saved, untouched):
        episode(table, 3, 5000, over=False)
    saved.state_dict()
    for batch in batches:
        batch.feedback(torch.full((16,), 50.0))
    assert play(saved) == play(untouched)


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": -1.0}, {"alpha": Linear(1.0, -1.0, 9)}, {"beta": -1.0}, {"beta": 2.0}, {"epsilon": 0.0}, {"mix": 1.5}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"^(alpha|beta|epsilon|mix|feedback)"):
        Prioritized(**wrong)


# -- sums by slot, and the slots that shares of them fall to

RANDOM_OPERATIONS = 4_000
SIZES = (1, 15, 16, 17, 255, 256, 257, 3000)


def tree_of(values: np.ndarray) -> SumTree:
    tree = SumTree(len(values))
    tree.set(slice(0, len(values)), values)
    return tree


def change(tree: SumTree, values: np.ndarray, generator: np.random.Generator) -> None:
    """Set some numbers in one of the ways there are; half of them to zero."""
    size = len(values)
    slots = generator.integers(0, size, generator.integers(1, 40))
    fresh = generator.exponential(size=len(slots)) ** 4 * generator.integers(0, 2, len(slots))
    kind = generator.integers(4)
    if kind == 0:
        tree.set(slots, 2.5)
        values[slots] = 2.5
    elif kind == 1:
        begin, end = np.sort(generator.choice(size + 1, 2, replace=False))
        tree.set(slice(begin, end), float(fresh[0]))
        values[begin:end] = fresh[0]
    else:
        tree.set(slots, fresh)
        for slot, value in zip(slots, fresh, strict=True):  # the last counts
            values[slot] = value


@pytest.mark.parametrize("size", SIZES)
def test_tree_agrees_with_plain_arrays(size):
    generator = np.random.default_rng(size)
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(RANDOM_OPERATIONS // len(SIZES)):
        change(tree, values, generator)
        assert np.array_equal(tree.get(np.arange(size)), values)
        assert tree.total == pytest.approx(values.sum(), rel=1e-12)
        prefix = generator.random(3) * tree.total
        if tree.total > 0:
            assert tree.find(prefix).tolist() == values.cumsum().searchsorted(prefix, "right").tolist()


@pytest.mark.parametrize("size", SIZES)
def test_ranges_agree_with_plain_arrays(size):
    generator = np.random.default_rng(size)
    values = generator.exponential(size=size) - 0.5
    trees = SegmentTree(size), MinTree(size), SegmentTree(size, np.maximum, -np.inf)
    for tree in trees:
        tree.set(np.arange(size), values)
    for _ in range(50):
        slots = generator.integers(0, size, 3)
        values[slots] = generator.random(3) - 0.5
        for tree in trees:
            tree.set(slots, values[slots])
        start, end = np.sort(generator.choice(size + 1, 2, replace=False)).tolist()
        wanted = [values[start:end].sum(), values[start:end].min(), values[start:end].max()]
        assert [tree.reduce(start, end) for tree in trees] == pytest.approx(wanted, rel=1e-9, abs=1e-9)
        assert trees[1].min(start) == values[start:].min()
    assert tree_of(np.abs(values)).sum(-1) == abs(values[-1])
    assert trees[0].reduce(3, 3) == 0.0
    assert MinTree(size).min() == np.inf
    copy = MinTree(size)
    copy.load_state_dict(trees[1].state_dict())
    assert copy.min() == values.min()


@pytest.mark.parametrize("size", SIZES)
def test_slots_of_zero_are_not_found(size):
    values = np.zeros(size)
    values[size // 2] = 3.0
    prefix = np.array([0.0, 1e-300, 1.5, np.nextafter(3.0, 0.0)])
    assert (tree_of(values).find(prefix) == size // 2).all()


def test_sums_do_not_drift():
    generator = np.random.default_rng(0)
    tree = tree_of(generator.random(2000))
    for scale in np.geomspace(1e-9, 1e9, 3000):
        tree.set(generator.integers(0, 2000, 20), scale * generator.random(20))
        assert tree.total > 0
    values = generator.random(2000)
    tree.set(np.arange(0, 2000, 2), values[::2])
    tree.set(np.arange(1, 2000, 2), values[1::2])
    assert tree.total == tree_of(values).total  # to the bit
