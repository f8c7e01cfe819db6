"""Rounds over all rows of a memory, or over those that are new."""

from itertools import chain

import numpy as np
import pytest
from tests.identical import GROUPS, compare

import rlrun
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Prioritized, Shuffled, Table, WholeReplayLoader

SPACES = Spaces(Box((1,), low=-np.inf, high=np.inf, dtype="float32"), Discrete(2))


class Steps:
    """Writes rows whose observation is their number, in all envs together; episodes end after some steps."""

    def __init__(self, table, ends=()):
        self.table, self.steps, self.ends, self.observation = table, 0, ends, None

    def collect(self, steps, random=False):
        count = self.table.index.num_envs
        for _ in range(-(-steps // count)):
            number = np.arange(self.steps, self.steps + count)
            values = {
                "reward": np.zeros(count),
                "terminated": np.zeros(count, bool),
                "truncated": np.zeros(count, bool),
            }
            self.table.add(None, {"observation": number[:, None], "action": np.zeros(count, int), **values})
            self.steps += count
            if self.steps in self.ends:
                self.table.close(None, np.full((count, 1), -1.0))
        return steps


def made(num_envs=1, ends=(), batch=4, collect=8, length=1, **options):
    table = Table(length=400, num_envs=num_envs, spaces=SPACES, sampler=Shuffled(seed=3), short="skip")
    collector = Steps(table, ends)
    settings = {"batch": batch, "collect_steps": collect, "warm_up": 9, "length": length}
    return WholeReplayLoader(table=table, collector=collector, **settings, **options)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_round_has_every_row_once_a_pass(fresh):
    loader, rows = made(fresh=fresh, epochs=2), {}
    batches = iter(loader)
    for _ in range(16):
        batch = next(batches)["default"]["observation"].flatten().int().tolist()
        rows.setdefault(loader.collector.steps, []).append(batch)
    # nine steps have eight rows with a successor; a round has eight new ones, the first of which waited for its own
    assert [*rows][:3] == [9, 17, 25]
    for steps, before in ((9, 0), (17, 8), (25, 16)):
        wanted = [*range(before if fresh else 0, steps - 1)]
        passes = rows[steps]
        half = len(passes) // 2
        if steps < 25 or fresh:
            assert [sorted(chain(*part)) for part in (passes[:half], passes[half:])] == [wanted] * 2
    assert rows[9][:2] != rows[9][2:]


def test_batches_are_at_least_as_large_as_wanted_and_about_equal():
    loader = made(collect=264, batch=32)
    loader.warm_up = 265
    batches = iter(loader)
    assert [len(next(batches)["default"]["action"]) for _ in range(8)] == [33] * 8


def test_ends_of_episodes_and_several_envs_lose_no_row():
    loader = made(num_envs=3, ends=(15, 21, 30), collect=12)
    batches, rows = iter(loader), []
    for _ in range(10):
        rows += next(batches)["default"]["observation"].flatten().int().tolist()
    assert len(rows) == len({*rows})
    assert {*range(30)} <= {*rows}
    assert -1 not in rows


def test_windows_begin_at_every_row_that_has_enough_after_it():
    loader = made(length=3, ends=(9,))
    batches = iter(loader)
    starts = [row for _ in range(1) for row in next(batches)["default"]["observation"][:, 0].flatten().int().tolist()]
    assert sorted(starts) == [*range(7)]
    following = next(batches)["default"]["observation"][:, 0].flatten().int().tolist()
    assert {*following} <= {*range(9, 15)}


def test_a_sampler_alone_skips_rows_that_were_overwritten():
    table = Table(length=10, spaces=SPACES, sampler=Shuffled(seed=0))
    collector = Steps(table)
    collector.collect(11)
    first = table.sample(4)["observation"].flatten().tolist()
    collector.collect(6)
    rest = table.sample(20)["observation"].flatten().tolist()
    left = [row for row in range(6, 10) if row not in first]
    assert sorted(rest[: len(left)]) == left
    assert sorted(rest[len(left) : len(left) + 10]) == [*range(6, 16)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collector": None}, "no row is new; fresh=false"),
        ({"epochs": 0}, "epochs"),
        ({"table": Table(length=9, spaces=SPACES, sampler=Prioritized())}, "want rlrun.memory.Shuffled, not a Prior"),
        ({"table": Table(length=9, spaces=SPACES, sampler=Shuffled(), min_length=2)}, "memory.min_length"),
    ],
)
def test_impossible_rounds_are_refused(options, message):
    table = Table(length=9, spaces=SPACES, sampler=Shuffled())
    with pytest.raises(ConfigError, match=message):
        WholeReplayLoader(**{"table": table, "collector": Steps(table), "batch": 4} | options)


@pytest.mark.parametrize("algorithm", ["dqn", "dqn algorithm.recurrent=gru algorithm.unroll=4 algorithm.burn_in=1"])
def test_a_resumed_run_continues_its_round(tmp_path, algorithm):
    small = [f"algorithm={algorithm.split()[0]}", *algorithm.split()[1:], "preset=null", "env=cartpole"]
    small += ["+with=whole_replay", "algorithm.collect_steps=24", "whole.epochs=2", "algorithm.batch_size=5"]
    small += [
        "logger=[]",
        "algorithm.hidden=[8]",
        "algorithm.warmup_steps=20",
        "evaluation.every=0",
        "num_envs=2",
        "log.every=8",
    ]
    rlrun.train([*small, "stop.env_steps=null", "stop.updates=40"], run_dir=tmp_path / "whole")
    rlrun.train([*small, "stop.env_steps=null", "stop.updates=17"], run_dir=tmp_path / "part")
    rlrun.resume(tmp_path / "part", ["stop.updates=40"])
    assert compare(tmp_path / "whole", tmp_path / "part") == dict.fromkeys(GROUPS, True)
