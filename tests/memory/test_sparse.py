"""States that are stored once a window: which value a row has, bytes, growth, checkpoints, files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun import checkpointing
from rlrun.core.errors import RlrunError
from rlrun.core.spaces import Spaces
from rlrun.memory import Past, Table
from rlrun.memory.table.ejectors import Fifo

from .test_table import box

SIZE, LENGTH, BURN_IN = 3, 5, 2
STRIDE = LENGTH - BURN_IN
SPACES = Spaces(box(1), box(1))


def table_of(length=40, *, envs=2, burn_in=BURN_IN, size=SIZE, **options):
    past = Past(SimpleNamespace(state_size=size), length=LENGTH, burn_in=burn_in)
    return Table(spaces=SPACES, length=length, num_envs=envs, adaptors=[past], seed=1, **options)


def fill(table, steps, *, seed=0, begin=0):
    """Add rows whose observation and state are a number of their own, with episodes of random lengths."""
    dice, envs = np.random.default_rng(seed), table.index.num_envs
    for step in range(begin, begin + steps):
        number = np.arange(envs, dtype=np.float32)[:, None] + 100.0 * step + 1.0
        off = np.zeros(envs, np.bool_)
        row = {"observation": number, "action": number, "reward": number[:, 0], "terminated": off, "truncated": off}
        table.add(None, {**row, "state": np.repeat(number, SIZE, 1)})
        ends = np.flatnonzero(dice.random(envs) < 0.12)
        if len(ends):
            table.close(ends, number[ends] + 50.0)
    return table


def assert_right(table):
    """Compare every row that can be sampled with the rule: the newest value at or before it, in steps of STRIDE."""
    index = table.index
    slots = np.flatnonzero(index.complete[: index.size])
    number = table.storage.gather("observation", slots)[:, 0].numpy()
    step = index.step(slots)
    begin = step // STRIDE * STRIDE
    expected = np.where(begin > 0, number - 100.0 * (step - begin), 0.0)
    states = table.storage.gather("state", slots).numpy()
    assert len(slots) > 10
    assert (begin > 0).any()
    assert np.array_equal(states, np.repeat(expected[:, None], SIZE, 1))


@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("length", [22, 23, 24, 60])
def test_rows_have_the_newest_state(envs, length):
    table = table_of(length * envs, envs=envs)
    for begin in range(0, 150, 10):
        fill(table, 10, seed=begin, begin=begin)
        if begin > 40:
            assert_right(table)
    batch = table.sample(300)
    seen, state = batch["observation"]["observation"][:, 0, 0], batch["observation"]["recurrent_state"]
    lag = ((seen - state[:, 0]) / 100.0)[state[:, 0] > 0]
    assert {*lag.tolist()} <= {0.0, 1.0, 2.0}  # older only where the first rows were overwritten


@pytest.mark.parametrize("envs", [1, 2])
def test_states_take_the_bytes_of_windows(envs):
    with_states, without = table_of(3000, envs=envs, size=64), table_of(3000, envs=envs, size=0)
    entries = (3000 // envs + 1) // STRIDE + 3
    assert with_states.nbytes - without.nbytes == entries * envs * 64 * 4
    assert with_states.nbytes - without.nbytes < 3000 * 64 * 4 / 2.9


def test_resizing_keeps_states():
    table = fill(table_of(48), 70)
    table.resize(80)
    assert_right(table)
    fill(table, 30, seed=3, begin=70)
    assert_right(table)
    table.resize(200)
    fill(table, 150, seed=4, begin=100)
    assert_right(table)


@pytest.mark.parametrize("storage", ["ram", "disk"])
@pytest.mark.parametrize("steps", [[9], [30, 7], [70, 31]])
def test_checkpoints_are_exact(storage, steps, tmp_path):
    table, begin = table_of(storage=storage, directory=str(tmp_path)), 0
    for number, count in enumerate(steps):
        fill(table, count, seed=number, begin=begin)
        begin += count
        taken = checkpointing.snapshot({"memory": table.checkpoint(checkpointing.home_of(tmp_path))}, apart=["memory"])
        fill(table, 2, seed=number, begin=begin)  # after it was taken
        checkpointing.write(tmp_path / str(number), taken)
        begin += 2
    again = table_of(storage=storage, directory=str(tmp_path))
    again.load_state_dict(checkpointing.load(tmp_path / str(len(steps) - 1))["memory"])
    fill(again, 2, seed=len(steps) - 1, begin=begin - 2)
    for part in (table, again):
        fill(part, 20, seed=9, begin=begin)
    assert np.array_equal(table.storage.sparse["state"].values, again.storage.sparse["state"].values)
    assert_right(again)
    for first, second in zip(table.sample(20)["state"], again.sample(20)["state"], strict=True):
        assert first.tolist() == second.tolist()


def test_states_are_whole_at_any_step():
    table, again = table_of(envs=1), table_of(envs=1)
    for step in range(60):
        fill(table, 1, seed=step, begin=step)
        again.load_state_dict(table.state_dict())
        assert np.array_equal(table.storage.sparse["state"].values, again.storage.sparse["state"].values)


@pytest.mark.parametrize("length", [40, 30])
def test_files_keep_states(length, tmp_path):
    table, again = fill(table_of(), 70), table_of(length)
    table.store(tmp_path / "memory.zip")
    assert again.restore(tmp_path / "memory.zip") is (length == 40)
    if length == 40:
        assert np.array_equal(table.storage.sparse["state"].values, again.storage.sparse["state"].values)
    else:  # whole episodes, whose first rows may be missing, as new ones
        states = again.storage.gather("state", np.flatnonzero(again.index.complete[:-1]))
        assert float(states.max()) > 0.0


def test_states_of_each_row_are_refused():
    table, dense = table_of(), Table(spaces=SPACES, length=40, num_envs=2, columns={"state": {"shape": SIZE}})
    fill(dense, 10)
    for differing in (dense, fill(table_of(burn_in=1), 10)):
        with pytest.raises(RlrunError, match=r"the saved table has columns .*state.*; this one has"):
            table.load_state_dict(differing.state_dict())


def test_pools_store_each_row():
    table = fill(table_of(ejector=Fifo(whole=True)), 70)
    slots = np.flatnonzero(table.index.complete[:-1])
    numbers = table.storage.gather("observation", slots).numpy()
    assert np.array_equal(table.storage.gather("state", slots).numpy(), np.repeat(numbers, SIZE, 1))


def test_only_whole_columns_are_rewritten():
    table = fill(table_of(), 30)
    batch = table.sample(4)
    with pytest.raises(RlrunError, match="'state' cannot be rewritten"):
        batch.rewrite({"state": batch["state"]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shift", value) for value in (torch.zeros(0), torch.zeros(1, 1), torch.zeros(2), torch.tensor(0))),
        *(("values", value) for value in (torch.zeros(2), torch.zeros(3, 4, SIZE), torch.zeros(2, 4, SIZE + 1))),
        *(("values", value) for value in (torch.zeros(2, 99, SIZE), torch.zeros(2, 4, SIZE, dtype=torch.int64))),
    ],
    ids=str,
)
def test_forged_states_are_refused(name, value):
    table = fill(table_of(), 30)
    before, state = table.storage.sparse["state"].values.copy(), table.state_dict()
    state["columns"]["sparse"]["state"][name] = value
    with pytest.raises(RlrunError, match="'state' does not fit"):
        table.load_state_dict(state)
    assert np.array_equal(table.storage.sparse["state"].values, before)
