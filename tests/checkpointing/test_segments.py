"""Rows of memories on disk: what changed is written, what is there is shared, what nobody needs goes."""

import shutil

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.checkpointing import segments
from rlrun.core.errors import RlrunError, RunDirError
from rlrun.memory import Table
from rlrun.memory.table.ejectors import Fifo
from rlrun.memory.table.episodes import cut_off

COLUMNS = {"observation": {"shape": [3]}, "reward": {}, "image": {"shape": [2000], "dtype": "uint8"}}
KINDS = pytest.mark.parametrize("whole", [False, True], ids=["ring", "pool"])


def make(whole, num_envs=1, length=60, **options):
    return Table(length=length, num_envs=num_envs, columns=COLUMNS, ejector=Fifo(whole=whole), **options)


def play(table, random, steps, *, end=0.1):
    """Make random steps in every env; some end their episodes."""
    envs = table.index.num_envs
    for _ in range(steps):
        image = np.full((envs, 2000), random.integers(256), np.uint8)
        row = {"observation": random.normal(size=(envs, 3)), "reward": random.normal(size=envs), "image": image}
        table.add(None, row)
        for env_index in np.flatnonzero(random.random(envs) < end):
            table.close(int(env_index), random.normal(size=(1, 3)))


def keep(table, where):
    """Save a checkpoint as training does."""
    states = {"memory": table.checkpoint(storage.home_of(where.parent)), "count": {"n": 1}}
    storage.write(where, storage.snapshot(states, apart=["memory"]))


def sizes(folder):
    return {path.name: path.stat().st_size for path in (folder / "segments").iterdir()}


@KINDS
@pytest.mark.parametrize("longest", [2, 64])
@pytest.mark.parametrize(("num_envs", "min_length"), [(1, 1), (3, 1), (2, 4)])
def test_every_checkpoint_holds_what_the_table_held(tmp_path, monkeypatch, whole, longest, num_envs, min_length):
    monkeypatch.setattr(segments, "LONGEST", longest)
    random = np.random.default_rng(num_envs)
    table = make(whole, num_envs, min_length=min_length)
    for number in range(24):
        play(table, random, int(random.integers(14)), end=0.2)
        if number % 6 == 3:
            cut_off(table)
        if number == 10:
            table.resize(90)
        if number == 15:
            table.clear()
        where = tmp_path / str(number)
        keep(table, where)
        back, content = storage.load(where)["memory"], storage.digest(table.state_dict())
        assert storage.digest(back) == content
        assert len(table._chain) <= longest
        restored = make(whole, num_envs, length=table.index.size - num_envs, min_length=min_length)
        restored.load_state_dict(back)
        assert storage.digest(restored.state_dict()) == content
        assert storage.verify(where) == []
        if number % 5 == 2:
            table = restored  # the run was left, and goes on


@KINDS
def test_only_what_changed_is_written(tmp_path, whole):
    table, random = make(whole, length=200), np.random.default_rng(0)
    play(table, random, 150)
    keep(table, tmp_path / "1")
    first = sizes(tmp_path)
    keep(table, tmp_path / "2")
    assert sizes(tmp_path) == first
    play(table, random, 3, end=0)
    keep(table, tmp_path / "3")
    assert sum(sizes(tmp_path).values()) - sum(first.values()) < 3 * 2100 + 1000
    table.storage.put("reward", [5], 70)
    keep(table, tmp_path / "4")
    assert len(sizes(tmp_path)) == 3
    restored = make(whole, length=200)
    restored.load_state_dict(storage.load(tmp_path / "4")["memory"])
    assert restored.storage.arrays["reward"][5] == 70
    assert storage.load(tmp_path / "3")["memory"]["columns"]["blocks"]["packed rows"].numpy().shape[0] > 100


@KINDS
def test_the_chain_and_the_disk_stay_bounded(tmp_path, whole):
    table, random = make(whole, length=100), np.random.default_rng(0)
    for number in range(100):
        play(table, random, 3, end=0.2)
        keep(table, tmp_path / str(number))
        if number:
            storage.remove(tmp_path / str(number - 1))
        storage.collect(tmp_path)
        if number > 40:
            assert sum(sizes(tmp_path).values()) < 2.6 * 101 * 2050
    assert len(table._chain) <= segments.LONGEST


def test_rows_of_another_folder_are_all_written(tmp_path):
    table = make(False)
    play(table, np.random.default_rng(0), 40)
    keep(table, tmp_path / "here" / "1")
    restored = make(False)
    restored.load_state_dict(storage.load(tmp_path / "here" / "1")["memory"])
    keep(restored, tmp_path / "there" / "1")
    assert sum(sizes(tmp_path / "there").values()) == sum(sizes(tmp_path / "here").values())
    shutil.rmtree(tmp_path / "here")
    assert storage.digest(storage.load(tmp_path / "there" / "1")["memory"]) == storage.digest(table.state_dict())


def test_a_loaded_state_can_be_saved_as_it_is(tmp_path):
    table = make(True)
    play(table, np.random.default_rng(0), 90)
    keep(table, tmp_path / "here" / "1")
    before = sizes(tmp_path / "here")
    states = storage.load(tmp_path / "here" / "1")
    for place in ("here", "there"):
        storage.write(tmp_path / place / "2", storage.snapshot(states, apart=["memory"]))
        assert storage.digest(storage.load(tmp_path / place / "2")) == storage.digest(states)
    assert sizes(tmp_path / "here") == before


def test_a_snapshot_that_was_never_written_leaves_nothing_out(tmp_path):
    table, random = make(False), np.random.default_rng(0)
    play(table, random, 20)
    keep(table, tmp_path / "1")
    play(table, random, 5)
    table.checkpoint(storage.home_of(tmp_path))
    keep(table, tmp_path / "2")
    assert storage.digest(storage.load(tmp_path / "2")["memory"]) == storage.digest(table.state_dict())


def test_rows_can_be_read_after_their_checkpoint_was_deleted(tmp_path):
    table = make(False)
    play(table, np.random.default_rng(0), 40)
    keep(table, tmp_path / "1")
    back = storage.load(tmp_path / "1")["memory"]
    storage.remove(tmp_path / "1")
    storage.collect(tmp_path)
    assert sizes(tmp_path) == {}
    restored = make(False)
    restored.load_state_dict(back)
    assert storage.digest(restored.state_dict()) == storage.digest(table.state_dict())


def test_stamps_that_become_wider_are_all_written(tmp_path):
    table = Table(length=70_000, columns={"observation": {}, "reward": {}})
    for number, count in enumerate((65_000, 2_000)):  # one episode, longer than its steps have bits at first
        for begin in range(0, count, 1000):
            slots = table.index.extend(0, 1000)
            table.storage.write(slots, {"observation": begin + np.arange(1000), "reward": np.ones(1000)})
        assert table.index.stamp.dtype == (np.int32, np.int64)[number]
        keep(table, tmp_path / str(number))
        back = storage.load(tmp_path / str(number))["memory"]
        assert storage.digest(back) == storage.digest(table.state_dict())
    assert len(table._chain) == 1


def collected(tmp_path):
    """Make two checkpoints with a segment each, and one that nobody needs."""
    table, random = make(False), np.random.default_rng(0)
    for number in (1, 2):
        play(table, random, 5)
        keep(table, tmp_path / str(number))
    orphan = tmp_path / "segments" / ("0" * 64 + ".safetensors")
    orphan.write_bytes(b"")
    (tmp_path / "segments" / ".7-7.tmp").write_bytes(b"")
    (tmp_path / "segments" / "notes.txt").write_bytes(b"")
    return sizes(tmp_path).keys() - {orphan.name, ".7-7.tmp"}


def test_what_no_checkpoint_needs_is_deleted(tmp_path):
    needed = collected(tmp_path)
    storage.sweep(tmp_path)
    assert sizes(tmp_path).keys() == needed
    shutil.copytree(tmp_path / "2", tmp_path / "a copy of mine")
    storage.remove(tmp_path / "2")
    storage.collect(tmp_path)
    assert sizes(tmp_path).keys() == needed


@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_nothing_is_deleted_while_a_manifest_cannot_be_read(tmp_path, damage):
    collected(tmp_path)
    before, path = sizes(tmp_path), tmp_path / "2" / storage.MANIFEST
    text = path.read_bytes()
    path.write_bytes(text.replace(b"1", b"2", 1)) if damage == "flip" else path.unlink()
    storage.sweep(tmp_path)
    assert sizes(tmp_path) == before


def test_any_damaged_byte_is_found(tmp_path):
    table = Table(length=8, columns={"observation": {}, "reward": {}})
    for number in (1, 2):
        table.add(None, {"observation": [number], "reward": [1]})
        keep(table, tmp_path / str(number))
    (tmp_path / "2" / "notes.txt").write_text("extra files are nobody's business")
    assert storage.verify(tmp_path / "2") == []
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "1" not in path.parts[-2:-1]]
    for path in files:
        data = path.read_bytes()
        for place in range(0, len(data), 5):
            path.write_bytes(data[:place] + bytes([data[place] ^ 32]) + data[place + 1 :])
            problems = storage.verify(tmp_path / "2")
            assert len(problems) == (path.name != "notes.txt"), (path, place)
            assert all(str(path) in message for message in problems)
        path.write_bytes(data[:-1])
        assert len(storage.verify(tmp_path / "2")) == (path.name != "notes.txt")
        path.unlink()
        assert len(storage.verify(tmp_path / "2")) == (path.name != "notes.txt")
        path.write_bytes(data)


def test_damage_is_found_before_a_table_changes(tmp_path):
    table, random = make(False), np.random.default_rng(0)
    for number in (1, 2):
        play(table, random, 5)
        keep(table, tmp_path / str(number))
    path = tmp_path / "segments" / table._chain.links[0].name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert storage.load(tmp_path / "2", ["count"]) == {"count": {"n": 1}}
    with pytest.raises(RunDirError, match=rf"{path.name} is damaged"):
        storage.load(tmp_path / "2")


def test_digest_is_of_the_content_without_clocks():
    state = {"loss": 1.5, "seconds": 3.0, "time/update": 2, "rows_per_second": 5, "deep": [{"seconds": 1}]}
    same = {"deep": [{"seconds": 7}], "seconds": 4.0, "loss": 1.5}
    assert storage.digest(state) == storage.digest(same)
    assert storage.digest(state) != storage.digest({**same, "loss": 1.25})
    assert storage.digest({"x": torch.ones(2)}) != storage.digest({"x": np.ones(2, np.float32)})
    assert storage.digest({"x": torch.ones(2)}) != storage.digest({"x": torch.ones(2).double()})
    assert storage.digest([1]) != storage.digest((1,))
    assert storage.digest([0.0]) != storage.digest([-0.0])
    assert storage.digest(["ab", "c"]) != storage.digest(["a", "bc"])


def test_rows_that_changed_are_no_state_to_read(tmp_path):
    table = make(False)
    play(table, np.random.default_rng(0), 5)
    with pytest.raises(RlrunError, match="can be written only"):
        storage.digest(table.checkpoint(storage.home_of(tmp_path)))
