"""What a table keeps besides rows: frames once, tags, long enough episodes; padding, growing, disks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.algorithms.sarsa import BurnIn
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Table
from rlrun.memory.ejectors import Fifo

COLUMNS = {"observation": {"dtype": "int64"}, "reward": {"dtype": "int64"}}
KINDS = pytest.mark.parametrize("whole", [False, True])


def write(table: Table, *lengths: int, first: int = 0, tags: bool = False) -> None:
    """Write episodes to env 0; observation and reward count 100 e + step, the last observation included."""
    for episode, length in enumerate(lengths, first):
        for step in range(length):
            table.add(0, {"observation": [100 * episode + step], "reward": [100 * episode + step]})
        table.close(0, [100 * episode + length], {"quality": [episode]} if tags else None)


def frames_table(*, length: int = 40, whole: bool = False) -> tuple[Table, list[np.ndarray]]:
    """Return a table of stacks of 3 frames [2, 2], and by reward the stacks before and after each step."""
    shape = (3, 2, 2)
    box = Box(shape, np.zeros(shape), np.full(shape, 255), "uint8")
    table = Table(length=length, spaces=Spaces(box, Discrete(2)), frame_stack=3, ejector=Fifo(whole=whole))
    stacks, number = [], 0
    for size in (5, 2, 7, 12, 9):
        frames = [np.full((2, 2), number + step, np.uint8) for step in range(size + 1)]
        whole_stacks = []
        for step in range(size + 1):
            stack = [frames[max(step - back, 0)] for back in (2, 1, 0)]
            whole_stacks.append(np.stack(stack))
        for step in range(size):
            row = {"observation": whole_stacks[step][None], "action": [0], "reward": [len(stacks)]}
            table.add(None, row | {"terminated": [step == size - 1], "truncated": [False]})
            stacks.append(np.stack([whole_stacks[step], whole_stacks[step + 1]]))
        table.close(None, whole_stacks[-1][None])
        number += size + 1
    return table, stacks


@KINDS
def test_stacks_come_back_as_they_were(whole: bool) -> None:
    table, stacks = frames_table(whole=whole)
    batch = table.sample(300)
    for number, now, after in zip(
        batch["reward"].int().tolist(), batch["observation"], batch["next_observation"], strict=True
    ):
        assert np.array_equal(stacks[number][0], now.numpy())
        assert np.array_equal(stacks[number][1], after.numpy())
    assert table.storage.arrays["observation"].shape[1:] == (2, 2)


def test_windows_and_ahead_see_stacks() -> None:
    table, stacks = frames_table()
    batch = table.sample(50, 2)
    number = batch["reward"][3, 1].int().tolist()
    assert np.array_equal(batch["observation"][3, 1].numpy(), stacks[number][0])
    assert batch["next_observation"].shape == (50, 2, 3, 2, 2)


def test_stacks_that_lost_frames_are_not_served() -> None:
    table, stacks = frames_table(length=12)  # 13 slots: the last episode's 10, and 3 of the one before
    numbers = set(table.sample(400)["reward"].int().tolist())
    assert numbers == set(range(len(stacks) - 9, len(stacks)))
    assert len(table) == 9


def test_channels_joined_along_the_last_axis_are_taken_apart() -> None:
    shape = (9, 8, 6)  # three frames [9, 8, 2]
    box = Box(shape, np.zeros(shape), np.full(shape, 255), "uint8")
    table = Table(length=20, spaces=Spaces(box, Discrete(2)), frame_stack=3)
    frames = [np.full((9, 8, 2), step, np.uint8) for step in range(7)]
    stacks = [np.concatenate([frames[max(step - back, 0)] for back in (2, 1, 0)], -1) for step in range(7)]
    for step in range(6):
        row = {"observation": stacks[step][None], "action": [0], "reward": [step]}
        table.add(None, row | {"terminated": [False], "truncated": [False]})
    table.close(None, stacks[6][None])
    batch = table.sample(40)
    assert table.storage.arrays["observation"].shape[1:] == (9, 8, 2)
    for number, after in zip(batch["reward"].int().tolist(), batch["next_observation"], strict=True):
        assert np.array_equal(stacks[number + 1], after.numpy())


def test_what_is_no_stack_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory.frame_stack: observation \[\] is no stack of 4 frames"):
        Table(length=9, columns=COLUMNS, frame_stack=4)


@KINDS
def test_tags_belong_to_their_episode(whole: bool) -> None:
    columns = COLUMNS | {"quality": {"tag": True, "dtype": "int64"}}
    table = Table(length=30, columns=columns, ejector=Fifo(whole=whole))
    write(table, *[3, 5, 2] * 8, tags=True)
    table.add(0, {"observation": [9000], "reward": [9000]})
    table.add(0, {"observation": [9001], "reward": [9001]})
    batch = table.sample(200)
    assert torch.equal(batch["quality"], torch.where(batch["reward"] == 9000, 0, batch["reward"] // 100))
    assert table.sample(20, 2)["quality"].shape == (20,)
    assert "quality" in table.names()


def test_missing_tag_is_named() -> None:
    table = Table(length=9, columns=COLUMNS | {"quality": {"tag": True}})
    table.add(0, {"observation": [1], "reward": [1]})
    with pytest.raises(RlrunError, match="an episode ended without its tag 'quality'"):
        table.close(0, [2])


@KINDS
def test_short_episodes_are_dropped(whole: bool) -> None:
    table = Table(length=30, columns=COLUMNS, min_length=3, ejector=Fifo(whole=whole))
    write(table, 2, 4, 1, 3)
    assert set(table.sample(100)["reward"].tolist()) == {100, 101, 102, 103, 300, 301, 302}
    assert table.metrics["memory/too_short"] == 2
    assert len(table) == 7


@KINDS
def test_open_episode_is_served_once_it_is_long_enough(whole: bool) -> None:
    table = Table(length=30, num_envs=2, columns=COLUMNS, min_length=3, ejector=Fifo(whole=whole))
    for step in range(2):
        table.add(None, {"observation": [step, 10 + step], "reward": [step, 10 + step]})
    assert len(table) == 0
    table.add(1, {"observation": [12], "reward": [12]})
    assert set(table.sample(50)["reward"].tolist()) == {10, 11}


@KINDS
def test_padding_repeats_the_last_row_and_says_so(whole: bool) -> None:
    table = Table(length=30, columns=COLUMNS, short="pad", ejector=Fifo(whole=whole))
    write(table, 2)
    batch = table.sample(60, 4)
    from_start = batch["reward"][:, 0] == 0
    assert batch["reward"][from_start][0].tolist() == [0, 1, 1, 1]
    assert batch["next_observation"][from_start][0].tolist() == [1, 2, 2, 2]
    assert batch["valid"][from_start][0].tolist() == [True, True, False, False]
    # the first row lies in one of the two windows, the second one in both
    assert batch["weight"][from_start][0].tolist() == [4.0, 2.0, 0.0, 0.0]
    assert batch["weight"][~from_start][0].tolist() == [2.0, 0.0, 0.0, 0.0]
    assert set(table.names(4)) == {*table.names(), "valid", "weight"} == set(batch)
    assert set(table.sample(3)) == set(table.names())


@KINDS
@pytest.mark.parametrize("length", [2, 4, 16])
@pytest.mark.parametrize("burn_in", [None, 0.25])
def test_windows_hold_the_last_rows_of_episodes_at_their_real_share(whole: bool, length: int, burn_in: float) -> None:
    adaptors = [] if burn_in is None else [BurnIn(burn_in)]
    columns = {"observation": {}, "last": {"dtype": "bool"}}
    table = Table(length=900, columns=columns, short="pad", ejector=Fifo(whole=whole), adaptors=adaptors)
    ends = np.random.default_rng(3).random(1500) < 0.1
    for end in ends.tolist():  # more rows than the table keeps
        table.add(None, {"observation": [0.0], "last": [end]})
        if end:
            table.close(None, [0.0])
    batch = table.sample(40_000, length)
    share = float((batch["weight"] * batch["last"]).sum() / batch["weight"].sum())
    stored = table.index.complete[:-1]
    real = float(table.storage.gather("last", np.flatnonzero(stored)).float().mean())
    assert share == pytest.approx(real, rel=0.03)
    assert float(batch["weight"].mean()) == pytest.approx(1.0 - int((burn_in or 0.0) * length) / length, rel=0.03)


@KINDS
@pytest.mark.parametrize("rows", [6, 9, 40])
def test_growing_keeps_what_is_stored(whole: bool, rows: int) -> None:
    table = Table(length=12, columns=COLUMNS, ejector=Fifo(whole=whole))
    write(table, *[3] * (rows // 3))
    before = set(table.sample(200)["reward"].tolist())
    table.add(0, {"observation": [9000], "reward": [9000]})
    table.resize(60)
    table.add(0, {"observation": [9001], "reward": [9001]})
    table.close(0, [9002])
    after = set(table.sample(900)["reward"].tolist())
    assert after - before == {9000, 9001}
    assert len(before - after) <= 4  # the rows that left for the two
    write(table, *[3] * 5, first=200)
    assert set(table.sample(900)["reward"].tolist()) == after | {100 * e + s for e in range(200, 205) for s in range(3)}


def test_shrinking_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory\.length can only grow: it is 12, and 6 is less"):
        Table(length=12, columns=COLUMNS).resize(6)


@KINDS
def test_cleared_table_is_empty_and_works_on(whole: bool) -> None:
    table = Table(length=12, columns=COLUMNS, ejector=Fifo(whole=whole))
    write(table, 3, 3, 3, 3)
    table.add(0, {"observation": [9000], "reward": [9000]})
    table.clear()
    assert len(table) == 0
    write(table, 4, first=50)
    assert set(table.sample(100)["reward"].tolist()) == {5000, 5001, 5002, 5003}


@KINDS
@pytest.mark.parametrize("length", [2, 7, 40])
def test_whole_episodes_can_be_added(whole: bool, length: int) -> None:
    table = Table(length=20, num_envs=2, columns=COLUMNS, ejector=Fifo(whole=whole))
    for episode in range(4):
        rows = 100 * episode + np.arange(length)
        table.add_episode({"observation": rows, "reward": rows}, 100 * episode + length)
    batch = table.sample(300)
    pairs = set(zip(batch["reward"].tolist(), batch["next_observation"].tolist(), strict=True))
    assert all(after == now + 1 for now, after in pairs)
    assert {300 + length - 1, 300 + length - 2} <= {now for now, _ in pairs}


def test_pool_drops_the_oldest_episodes_whole() -> None:
    table = Table(length=10, columns=COLUMNS, ejector=Fifo(whole=True))  # 11 slots
    write(table, 4, 3)  # 9 of them
    table.add(0, {"observation": [200], "reward": [200]})
    table.add(0, {"observation": [201], "reward": [201]})
    assert set(table.sample(99)["reward"].tolist()) == {0, 1, 2, 3, 100, 101, 102, 200}
    table.add(0, {"observation": [202], "reward": [202]})
    assert set(table.sample(99)["reward"].tolist()) == {100, 101, 102, 200, 201}


def test_pool_shortens_an_open_episode_when_nothing_else_is_left() -> None:
    table = Table(length=6, columns=COLUMNS, ejector=Fifo(whole=True))
    for step in range(50):
        table.add(0, {"observation": [step], "reward": [step]})
    assert set(table.sample(99)["reward"].tolist()) == set(range(43, 49))
    table.close(0, [50])
    assert set(table.sample(99)["next_observation"].tolist()) == set(range(45, 51))


@KINDS
def test_disk_gives_the_same_samples(whole: bool, tmp_path: object) -> None:
    tables = [
        Table(length=60, columns=COLUMNS, seed=3, storage=kind, directory=str(tmp_path), ejector=Fifo(whole=whole))
        for kind in ("ram", "disk")
    ]
    for table in tables:
        write(table, *[7, 3] * 10)
        table.resize(80)
    ram, disk = (table.sample(50, 2) for table in tables)
    assert all(torch.equal(ram[name], disk[name]) for name in ram)
    assert isinstance(tables[1].storage.arrays["reward"].base, np.memmap)


def test_disk_that_cannot_hold_it_is_refused(tmp_path: object) -> None:
    with pytest.raises(ConfigError, match=r"memory.directory: .* GB do not fit in"):
        Table(length=10**5, columns={"observation": {"shape": [10**8]}}, storage="disk", directory=str(tmp_path))
    with pytest.raises(ConfigError, match=r"memory.directory: nowhere cannot be written: No such file"):
        Table(length=10, columns=COLUMNS, storage="disk", directory="nowhere")


@pytest.mark.parametrize("whole", [True])
def test_saved_pool_goes_on_bit_for_bit(whole: bool) -> None:
    table = Table(length=20, columns=COLUMNS, ejector=Fifo(whole=whole))
    write(table, *[3, 5, 2] * 4)
    restored = Table(length=20, columns=COLUMNS, seed=9, ejector=Fifo(whole=whole))
    restored.load_state_dict(table.state_dict())
    for episode in range(20, 30):
        for memory in (table, restored):
            write(memory, 4, first=episode)
        assert torch.equal(table.sample(9, 2)["reward"], restored.sample(9, 2)["reward"])


@KINDS
@pytest.mark.parametrize("num_envs", [1, 3])
def test_stamps_grow_wider_with_long_and_with_many_episodes(
    whole: bool, num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(table: Table, ends: range) -> list[list[int]]:
        drawn = []
        for step in range(160):
            numbers = np.arange(num_envs) * 1000 + step
            table.add(None, {"observation": numbers, "reward": numbers})
            if step in ends:
                table.close(None, numbers + 500)
            if step % 7 == 6:
                drawn.append(table.sample(9, 2)["next_observation"].flatten().tolist())
        return drawn

    for ends, bits in ((range(50, 60, 3), 5), (range(0, 160, 2), 27)):  # 51 rows in 5 bits; 80 episodes in 4 bits
        tables = [Table(length=90, num_envs=num_envs, columns=COLUMNS, ejector=Fifo(whole=whole)) for _ in range(2)]
        wide = play(tables[0], ends)
        monkeypatch.setattr("rlrun.memory.index.NARROW", bits)
        tables[1] = Table(length=90, num_envs=num_envs, columns=COLUMNS, ejector=Fifo(whole=whole))
        assert play(tables[1], ends) == wide
        assert (tables[0].index.stamp.itemsize, tables[1].index.stamp.itemsize) == (4, 8)
        monkeypatch.undo()


@KINDS
def test_no_lane_is_a_step_of_nobody(whole: bool) -> None:
    table = Table(length=9, num_envs=2, columns=COLUMNS, ejector=Fifo(whole=whole))
    nobody = np.empty(0, np.int64)
    table.add(nobody, {"observation": nobody, "reward": nobody})
    table.close(np.zeros(2, np.bool_), nobody)
    assert len(table) == 0


@KINDS
@pytest.mark.parametrize("length", [65534, 65535, 65536])
def test_windows_stay_within_episodes_of_many_steps(whole: bool, length: int) -> None:
    table = Table(length=70_000, columns=COLUMNS, ejector=Fifo(whole=whole))
    for rows in (np.arange(length), 100_000 + np.arange(6)):
        table.add_episode({"observation": rows, "reward": rows}, rows[-1] + 1)
    slots = np.arange(table.index.size)
    begins = table.index.unbroken(slots, table.index.after(slots, 3), 3)
    assert np.count_nonzero(begins) == table.windows(3) == length - 2 + 4


def test_many_lanes_have_stamps_of_their_own() -> None:
    table = Table(length=80_000, num_envs=40_000, columns=COLUMNS)
    numbers = np.arange(40_000)
    table.add(None, {"observation": numbers, "reward": numbers})
    table.close(None, numbers + 1)
    batch = table.sample(500)
    assert torch.equal(batch["next_observation"], batch["observation"] + 1)


@pytest.mark.parametrize("value", [0, 6])
def test_more_than_a_lane_holds_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=r"memory.min_length must be from 1 to the 5 transitions"):
        Table(length=10, num_envs=2, columns=COLUMNS, min_length=value)


def test_parts_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory.sampler wants a rlrun.memory.Sampler .*, not a Fifo"):
        Table(length=10, columns=COLUMNS, sampler=Fifo())


def test_columns_of_the_spaces_cannot_be_replaced() -> None:
    spaces = Spaces(Box((1,), np.zeros(1), np.ones(1)), Discrete(2))
    with pytest.raises(ConfigError, match=r"memory.columns.reward: the memory has that column already"):
        Table(length=10, spaces=spaces, columns={"reward": {}})


@pytest.mark.parametrize("given", [5, {"shape": "a"}])
def test_columns_without_sense_are_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"memory.columns.x"):
        Table(length=10, columns=COLUMNS | {"x": given})


@pytest.mark.parametrize(("name", "value"), [("storage", "dsik"), ("short", "padd")])
def test_misspelt_choices_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"memory.{name}: wanted one of .*did you mean"):
        Table(length=10, columns=COLUMNS, **{name: value})


def test_names_that_a_batch_has_already_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory.columns.next_observation: a batch has another value"):
        Table(length=10, num_envs=2, columns=COLUMNS | {"next_observation": {}})


def test_table_of_large_columns_alone_is_served() -> None:
    table = Table(length=10, columns={"observation": {"shape": [40, 40], "dtype": "uint8"}, "packed": {"shape": [999]}})
    for step in range(3):
        table.add(0, {"observation": np.full((1, 40, 40), step), "packed": np.full((1, 999), step)})
    batch = table.sample(20)
    assert torch.equal(batch["next_observation"][:, 0, 0].float(), batch["packed"][:, 0] + 1)


def test_state_of_another_kind_changes_nothing() -> None:
    ring, pool = (Table(length=10, columns=COLUMNS, ejector=Fifo(whole=whole)) for whole in (False, True))
    write(ring, 4)
    write(pool, 3)
    with pytest.raises(RlrunError, match="the saved table is of another kind"):
        ring.load_state_dict(pool.state_dict())
    assert len(ring) == 4
    assert set(ring.sample(50)["reward"].tolist()) == {0, 1, 2, 3}


def test_cleared_ring_is_not_full() -> None:
    table = Table(length=5, columns=COLUMNS)
    write(table, 4, 4)
    assert table.full()
    table.clear()
    assert not table.full()
