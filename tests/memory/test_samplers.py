"""Coverage, sequential, recent and stratified sampling, and the uniform one by episodes."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlrun.core.errors import ConfigError
from rlrun.memory import CoverageEjector, Fifo, Table, Uniform
from rlrun.memory.table.coverage_samplers import Coverage, Sequential, Stratified
from rlrun.memory.table.prioritized import Prioritized
from rlrun.memory.table.recent_sampler import Recent
from rlrun.memory.table.samplers import Sampler

from .tables import COLUMNS, assert_as_expected, counted, episode, fill, starts

KINDS = {"rows": Fifo, "episodes": lambda: Fifo(whole=True)}


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return KINDS[request.param]


def table_of(sampler: Sampler | None, lengths: list[int], *, num_envs: int = 1, **settings: Any) -> Table:
    return fill(Table(length=200 * num_envs, num_envs=num_envs, columns=COLUMNS, sampler=sampler, **settings), lengths)


def window_counts(table: Table, draws: int, length: int, lengths: list[int]) -> np.ndarray:
    """Return how often a sample has each window of the episodes of `fill`."""
    every = [100 * e + k for e, rows in enumerate(lengths) for k in range(rows - length + 1)]
    return counted(every, starts(table, draws, length))


@pytest.mark.parametrize(
    "kind", [Uniform, Coverage, Sequential, Stratified, Recent, Table], ids=lambda kind: kind.__name__
)
def test_seed_decides_what_is_sampled(kind: Any) -> None:
    def drawn(seed: int) -> list[int]:
        if kind is Table:  # of the sampler that a table makes itself
            return starts(table_of(None, [30, 40, 20], seed=seed), 30).tolist()
        options = {"sampler": Uniform(), "share": 0.5, "newest": 20} if kind is Recent else {}
        return starts(table_of(kind(**options, seed=seed), [30, 40, 20]), 30).tolist()

    assert drawn(1) == drawn(1) != drawn(2)


# -- uniform by episodes ------------------------------------------------------------------------


def test_episodes_are_weighted_by_length(kind: Callable[[], Any]) -> None:
    lengths = [3, 8, 2, 12]
    table = table_of(Uniform(weighting="episodes"), lengths, ejector=kind())
    # of 23 rows that lie in episodes with windows of 3, the first has 3 in a single window
    chances = [1.0] * 1 + [8 / 3 / 6] * 6 + [12 / 3 / 10] * 10
    counts = window_counts(table, 10_000, 3, lengths)
    assert_as_expected(counts, chances)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("make", [Uniform, lambda: Coverage(alpha=0)], ids=["uniform", "coverage 0"])
def test_every_window_is_equally_likely(make: Any, length: int, kind: Callable[[], Any]) -> None:
    lengths = [3, 8, 2, 12, 1]
    counts = window_counts(table_of(make(), lengths, ejector=kind()), 10_000, length, lengths)
    assert_as_expected(counts, np.ones(len(counts)))


# -- coverage -----------------------------------------------------------------------------------


def test_coverage_weights_follow_the_formula() -> None:
    lengths = [4, 4, 8]
    sampler = Coverage(alpha=1.0)
    table = table_of(sampler, lengths)
    table.sample(1)
    sampler.visits[:] = 5  # what all were sampled does not matter
    numbers = [int(table.index.episode(np.array([slot]))[0]) for slot in (0, 5, 10)]
    sampler.visits[numbers] = 5, 8, 6  # weights 4, 4 / 4 and 8 / 2
    visits = sampler.visits.copy()
    came = np.zeros(3)
    for _ in range(3000):
        sampler.visits[:] = visits
        came[starts(table, 1)[0] // 100] += 1
    assert_as_expected(came, [4, 1, 4])


def test_ejected_episodes_are_not_counted() -> None:
    sampler = Coverage(alpha=20.0)  # in effect the least sampled
    table = Table(length=22, columns=COLUMNS, sampler=sampler)
    for number in range(40):
        episode(table, 10, 100 * number)
        if number > 1:
            assert (starts(table, 3, 4) // 100 == number).all()
        for _ in range(20):
            table.sample(3, 4)
        assert set(np.flatnonzero(sampler.visits)) <= set(np.flatnonzero(table.index.alive()))


# -- sequential ---------------------------------------------------------------------------------


def test_passes_follow_one_another() -> None:
    table = table_of(Sequential(), [3, 5, 4])
    assert (starts(table, 8) // 100).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert (starts(table, 2) // 100).tolist() == [2, 0]
    episode(table, 3, 300)  # comes after the others
    assert (starts(table, 4) // 100).tolist() == [1, 2, 3, 0]
    table = fill(Table(length=23, columns=COLUMNS, sampler=Sequential()), [5] * 4)
    assert (starts(table, 2) // 100).tolist() == [0, 1]
    for number in (4, 5):  # 0 and 1 are overwritten, the last one served among them
        episode(table, 5, 100 * number)
    assert (starts(table, 5) // 100).tolist() == [2, 3, 4, 5, 2]


def test_episodes_come_by_age(kind: Callable[[], Any]) -> None:
    table = Table(length=30, columns=COLUMNS, sampler=Sequential(), ejector=kind())
    for number in range(50):  # numbers of the index are used again and again
        episode(table, 2 + number % 4, 100 * number)
        episodes = np.unique(table.storage.arrays["reward"][np.flatnonzero(table.index.complete[:-1])] // 100)
        came = starts(table, len(episodes)) // 100
        begin = int(np.flatnonzero(episodes == came[0])[0])
        assert came.tolist() == np.roll(episodes, -begin).tolist()


def test_windows_follow_one_another() -> None:
    table = table_of(Sequential(per_episode=False, random_offset=False), [5, 1, 4])
    windows = table.sample(3, 2)["reward"].tolist() + table.sample(2, 2)["reward"].tolist()
    assert windows == [[0, 1], [2, 3], [200, 201], [202, 203], [0, 1]]
    rows = [0, 1, 2, 3, 4, 100, 200, 201, 202, 203]
    table = table_of(Sequential(per_episode=False, random_offset=False), [5, 1, 4])
    assert np.concatenate([starts(table, 4) for _ in range(4)]).tolist() == rows + rows[:6]


def test_walk_survives_overwritten_rows() -> None:
    table = Table(length=11, columns=COLUMNS, sampler=Sequential(per_episode=False, random_offset=False))  # 12 slots
    episode(table, 8, 0, over=False)
    assert table.sample(2, 2)["reward"].tolist() == [[0, 1], [2, 3]]
    episode(table, 8, 8, over=False)  # 16 rows, of which 4 … 15 are left
    assert table.sample(3, 2)["reward"].tolist() == [[4, 5], [6, 7], [8, 9]]
    episode(table, 8, 16, over=False)  # 12 … 23
    assert table.sample(2, 2)["reward"].tolist() == [[12, 13], [14, 15]]


def test_shifted_walk_reaches_every_window() -> None:
    table = table_of(Sequential(per_episode=False), [11])
    seen = set()
    for _ in range(60):
        windows = starts(table, 1, 4).tolist()
        while len(windows) < 2 or windows[-1] > windows[-2]:
            windows += starts(table, 1, 4).tolist()
        seen |= set(windows)
        assert (np.diff(windows[:-1]) == 4).all()
    assert seen == set(range(8))


def test_offsets_in_order_span_passes() -> None:
    table = table_of(Sequential(random_offset=False), [6, 2])
    assert starts(table, 5, 2).tolist() == [0, 100, 2, 100, 4]
    assert starts(table, 4, 2).tolist() == [100, 0, 100, 2]


def test_random_offsets_are_even() -> None:
    table = table_of(Sequential(), [12])
    counts = window_counts(table, 5000, 3, [12])
    assert_as_expected(counts, np.ones(10))


# -- recent -------------------------------------------------------------------------------------


def test_share_of_recent_rows_is_exact(kind: Callable[[], Any]) -> None:
    table = table_of(Recent(Uniform(), share=0.25, newest=20), [50, 50, 60], num_envs=2, ejector=kind())
    # a quarter on purpose, and 20 of 160 in what is drawn from all
    came = np.concatenate([starts(table, 64) for _ in range(100)])
    new = int((came >= 240).sum())  # the last 20 rows were 240 … 259
    assert_as_expected(np.array([new, 6400 - new]), [0.25 + 0.75 / 8, 0.75 * 7 / 8])
    counts = np.unique(came[came >= 240], return_counts=True)[1]
    assert_as_expected(counts, np.ones(20))


def test_newest_rows_span_all_envs() -> None:
    table = Table(length=300, num_envs=3, columns=COLUMNS, sampler=Recent(Uniform(), share=1.0, newest=6))
    for number in range(40):
        table.add(None, {"observation": number + np.array([0, 100, 200]), "reward": number + np.array([0, 100, 200])})
    assert set(starts(table, 100).tolist()) == {38, 138, 238}  # the rows of 39 have no next observation yet
    table.close(None, [40, 140, 240])
    assert set(starts(table, 200).tolist()) == {38, 138, 238, 39, 139, 239}


def test_share_is_rounded_up_and_exact() -> None:
    table = table_of(Recent(Sequential(per_episode=False, random_offset=False), share=0.07, newest=5), [50, 50])
    for count, new in ((30, 3), (1, 1), (10, 1), (15, 2)):
        rows = starts(table, count)
        assert (len(rows), int((rows >= 145).sum())) == (count, new)
    table = table_of(Recent(Sequential(per_episode=False, random_offset=False), share=0.07, newest=5), [50, 50])
    assert starts(table, 100)[7:].tolist() == [*range(50), *range(100, 143)]  # 0.07 * 100 is a little above 7


def test_newest_rows_may_begin_no_window() -> None:
    table = table_of(Recent(Uniform(), share=0.5, newest=3), [50, 2])
    came = starts(table, 40, 5)  # the newest rows begin no window of 5
    assert (len(came), int(came.max()) <= 45) == (40, True)
    recent, uniform = table_of(Recent(Uniform(), share=0.5, newest=60), [50, 50]), table_of(Uniform(), [50, 50])
    assert np.array_equal(starts(recent, 50), starts(uniform, 50))  # all rows are new


def test_reused_slot_counts_once() -> None:
    sampler = Recent(Uniform(), share=1.0, newest=12, seed=3)
    table = Table(length=12, columns=COLUMNS, sampler=sampler, ejector=Fifo(whole=True))
    for number in range(9):  # the log of 12 goes back over episodes that have left
        episode(table, 2 + number % 3, 100 * number)
    rows = {int(first) for first in starts(table, 400)}
    sampler.share = 0.999  # beside the shortcut for a table of new rows only
    sampler.clock += 0
    counts = np.unique(table.storage.arrays["reward"][sampler._starts(4000, 1)], return_counts=True)[1]
    assert len(counts) == len(rows) == len(table)
    assert_as_expected(counts, np.ones(len(counts)))


def test_feedback_reaches_the_inner_sampler() -> None:
    table = table_of(Recent(Prioritized(alpha=1.0, epsilon=1e-12), share=0.25, newest=4), [40, 40])
    assert "weight" in table.names()
    batch = table.sample(32)
    batch.feedback((reward := batch["reward"]) * 2.0 + 1)
    stored = table.storage.arrays["reward"]
    slots = np.flatnonzero(np.isin(stored, reward) & table.index.complete[:-1])
    assert np.allclose(table.sampler.sampler.tree.get(slots), stored[slots] * 2.0 + 1)  # type: ignore[attr-defined]
    assert (table.sample(32)["weight"][:8] == 1).all()
    alone = table_of(Recent(Prioritized(), share=1.0, newest=4), [40, 40])
    assert alone.sample(6)["weight"].tolist() == [1.0] * 6


def test_resizing_keeps_the_newest_rows(kind: Callable[[], Any]) -> None:
    sampler = Recent(Uniform(), share=0.99, newest=6)
    table = Table(length=40, num_envs=2, columns=COLUMNS, ejector=kind(), sampler=sampler)
    for number in range(31):
        table.add(None, {"observation": [number, number + 100], "reward": [number, number + 100]})
    table.resize(80)
    assert set(starts(table, 60)[:59].tolist()) == {28, 29, 128, 129}


def test_resizing_forgets_dropped_rows() -> None:
    def table() -> Table:
        sampler = Recent(Uniform(), share=0.9, newest=4)
        return Table(length=20, num_envs=2, columns=COLUMNS, sampler=sampler, min_length=3)

    original, restored = table(), table()
    episode(original, 4, 0)
    episode(original, 2, 100, env_index=1)  # too short: dropped
    for memory in (original, restored):
        memory.resize(40)
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    assert starts(original, 40).tolist() == starts(restored, 40).tolist()
    assert set(starts(original, 100)[:90].tolist()) == {2, 3}


def test_resuming_may_change_newest() -> None:
    table = table_of(Recent(Uniform(), share=0.99, newest=20), [50, 50])
    for newest, least in ((6, 144), (40, 130)):
        restored = table_of(Recent(Uniform(), share=0.99, newest=newest), [])
        restored.load_state_dict(copy.deepcopy(table.state_dict()))
        came = set(starts(restored, 400)[:396].tolist())
        assert came == set(range(least, 150))
        episode(restored, 2, 200)
        assert {200, 201} < set(starts(restored, 400)[:396].tolist())


# -- stratified ---------------------------------------------------------------------------------


def test_stratified_gives_envs_equal_counts() -> None:
    table = table_of(Stratified(), [5, 40, 2, 9], num_envs=4)
    for count, least in ((12, 3), (14, 3), (3, 0)):
        counts = np.bincount(starts(table, count) // 100, minlength=4)
        assert counts.sum() == count
        assert set(counts.tolist()) <= {least, least + 1}
    assert np.bincount(starts(table, 30, 4) // 100, minlength=4).tolist() == [10, 10, 0, 10]


def test_each_stratum_gives_one_window(kind: Callable[[], Any]) -> None:
    table = table_of(Stratified(), [10, 10, 20], ejector=kind())  # one env of 40 windows
    positions = {100 * e + k: 10 * e + k for e, rows in enumerate([10, 10, 20]) for k in range(rows)}
    for _ in range(20):
        drawn = sorted(positions[first] for first in starts(table, 8).tolist())
        assert [place // 5 for place in drawn] == list(range(8))


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize(("lengths", "envs"), [([4, 9, 3, 12], [0, 1, 0, 1]), ([5, 6, 7], [0, 1, 2])])
def test_windows_of_one_env_are_even(length: int, lengths: Any, envs: Any, kind: Callable[[], Any]) -> None:
    table = table_of(Stratified(), lengths, num_envs=max(envs) + 1, ejector=kind())
    counts = sum(window_counts(table, 4, length, lengths) for _ in range(1500))
    env_index = np.repeat(envs, [rows - length + 1 for rows in lengths])
    assert_as_expected(counts, 1.0 / np.bincount(env_index)[env_index])


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Coverage(alpha=-1), r"^alpha must be at least 0, not -1"),
        (lambda: CoverageEjector(alpha=-0.5), r"^alpha must be at least 0, not -0.5"),
        (lambda: Recent(Uniform(), share=0, newest=5), r"^share must be above 0 and at most 1, not 0"),
        (lambda: Recent(Uniform(), share=1.5, newest=5), r"^share must be above 0 and at most 1, not 1.5"),
        (lambda: Recent(Uniform(), share=0.5, newest=0), r"^newest must be at least 1, not 0"),
        (lambda: Uniform(weighting="episode"), r"did you mean 'episodes'"),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], Sampler], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
