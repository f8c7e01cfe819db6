"""Files of Emote, made by hand as its format says, and by us."""

import io
import json
import pickle
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest

from rlrun.core.errors import RequestError
from rlrun.memory import Table
from rlrun.memory.formats import emote
from rlrun.memory.formats.sources import import_rows
from rlrun.memory.table.episodes import Stored

from .tables import FLAGS, add_steps


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def ranges(ids: list[int], length: int) -> Any:
    return np.array([(number, length * row, length) for row, number in enumerate(ids)])


def example(
    path: Path, *, change: dict[str, Any] | None = None, compression: int = ZIP_STORED, **settings: Any
) -> Path:
    """100 episodes of 5 observations and 4 rewards; observation and reward count through the file."""
    ids = list(range(100))
    about = {
        "ejector_type": "FifoEjectionStrategy",
        "sampler_type": "UniformSampleStrategy",
        "length_key": "reward",
        "maxlen": 1000,
        "ids": ids,
        "part_keys": ["observation", "reward"],
        "columns": [[key, "Column", {"shape": [], "dtype": "float32"}] for key in ("observation", "reward")],
    }
    members = {
        "version": b"1",
        "configuration.json": json.dumps({**about, **settings}).encode(),
        "observation.npy": npy(np.arange(500, dtype=np.float32)),
        "observation.ranges.npy": npy(ranges(ids, 5)),
        "reward.npy": npy(np.arange(400, dtype=np.float32)),
        "reward.ranges.npy": npy(ranges(ids, 4)),
    }
    with ZipFile(path, "w", compression) as file:
        for name, data in {**members, **(change or {})}.items():
            if data is not None:
                file.writestr(name, data)
    return path


def table(length: int = 600, **columns: Any) -> Table:
    return Table(length=length, columns={"observation": {}, "reward": {}, **columns})


def test_documented_example_loads(tmp_path: Path) -> None:
    memory = table()
    import_rows(memory, str(example(tmp_path / "export-v1.zip")))
    assert (len(memory), memory.windows(4), memory.windows(5)) == (400, 100, 0)
    batch = memory.sample(1000)
    episode, step = batch["reward"] // 4, batch["reward"] % 4
    assert batch["observation"].equal(5 * episode + step)
    assert batch["next_observation"].equal(batch["observation"] + 1)


def test_episodes_keep_their_order(tmp_path: Path) -> None:
    shuffled = ranges(list(range(100)), 4)[::-1]
    for change in ({}, {"reward.ranges.npy": npy(shuffled)}):
        memory = table(length=20)
        import_rows(memory, str(example(tmp_path / "v1.zip", change=change)))
        assert [episode.row["reward"][0] for episode in Stored.of(memory)][-3:] == [388, 392, 396]


def test_terminal_tag_marks_truncation(tmp_path: Path) -> None:
    tag = np.zeros(100, np.float32)
    tag[3] = 1.0
    parts = {"terminal.npy": npy(tag), "terminal.ranges.npy": npy(ranges(list(range(100)), 1))}
    columns = [["terminal", "TagColumn", {"shape": [], "dtype": "float32"}]]
    keys = ["observation", "reward", "terminal"]
    memory = table(**FLAGS)
    import_rows(memory, str(example(tmp_path / "v1.zip", change=parts, columns=columns, part_keys=keys)))
    episodes = list(Stored.of(memory))
    assert [number for number, episode in enumerate(episodes) if episode.row["truncated"][-1]] == [3]
    assert sum(int(episode.row["terminated"].sum()) for episode in episodes) == 99


def test_masks_mark_truncation(tmp_path: Path) -> None:
    masks = np.ones((400, 1), np.float32)
    masks[3] = 0.0
    parts = {"masks.npy": npy(masks), "masks.ranges.npy": npy(ranges(list(range(100)), 4))}
    episodes = emote.read(example(tmp_path / "v1.zip", change=parts, part_keys=["observation", "reward", "masks"]))
    assert [episode.row["terminated"].tolist()[-1] for episode in episodes[:3]] == [True, False, False]


BROKEN = {
    "a range beyond the rows": ({"reward.ranges.npy": npy(ranges(list(range(100)), 5))}, {}, "or leave its"),
    "a negative start": ({"reward.ranges.npy": npy(ranges(list(range(100)), 4) - [0, 1, 0])}, {}, "or leave its"),
    "the same rows in each episode": (
        {"reward.ranges.npy": npy(ranges(list(range(100)), 4) * [1, 0, 1] + [0, 0, 100])},
        {},
        "ranges that overlap",
    ),
    "ranges beyond 64 bits": (
        {"reward.ranges.npy": npy(ranges(list(range(100)), 4) * [1, 0, 0] + [0, 2**63 - 2, 2**63 - 2])},
        {},
        "or leave its",
    ),
    "rows of no width": ({"reward.npy": npy(np.zeros((400, 0), np.float32))}, {}, "or leave its"),
    "other ids": ({"reward.ranges.npy": npy(ranges(list(range(1, 101)), 4))}, {}, "damaged: there is no 0"),
    "uneven lengths": (
        {"observation.ranges.npy": npy(ranges(list(range(100)), 5) - [0, 0, 1] * (np.arange(100)[:, None] == 4))},
        {},
        "'observation' has 4 rows in episode 4 of 4 steps",
    ),
    "no rows of a part": ({"reward.npy": None}, {}, "no member 'reward.npy'"),
    "no version": ({"version": None}, {}, "no member 'version'"),
    "a newer version": ({"version": b"2"}, {}, "version 2; this version of rlrun reads 1"),
    "no length key": ({}, {"length_key": "actions"}, "damaged: there is no 'actions'"),
    "no columns": ({}, {"columns": None}, "damaged: 'NoneType' object is not iterable"),
    "python objects": ({"reward.npy": npy(np.array([{}], object))}, {}, "a pickle: not read"),
    "compressed members": ({}, {"compression": ZIP_DEFLATED}, "compressed"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_contradictions_are_refused(tmp_path: Path, name: str) -> None:
    change, settings, message = BROKEN[name]
    with pytest.raises(RequestError, match=message):
        emote.read(example(tmp_path / "v1.zip", change=change, **settings))


def test_legacy_format_is_not_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it was loaded",))

    with ZipFile(tmp_path / "old.zip", "w") as file:
        file.writestr("data.pickle", pickle.dumps(Trap()))
    (tmp_path / "old.pickle").write_bytes(pickle.dumps(Trap(), protocol=4))
    with pytest.raises(RequestError, match=r"legacy format, a pickle: .* export it as V1 with Emote"):
        import_rows(table(), str(tmp_path / "old.zip"))
    with pytest.raises(RequestError, match="is a pickle"):
        import_rows(table(), str(tmp_path / "old.pickle"))


def test_flipped_data_changes_no_table(tmp_path: Path) -> None:
    path = example(tmp_path / "v1.zip")
    data = bytearray(path.read_bytes())
    data[data.index(np.float32(300).tobytes())] ^= 4
    path.write_bytes(bytes(data))
    memory = table()
    memory.add(0, {"observation": np.ones(1), "reward": np.ones(1)})
    memory.close(0, np.ones(1))
    with pytest.raises(RequestError, match="damaged"):
        import_rows(memory, str(path))
    assert len(memory) == 1


def test_written_files_are_read(tmp_path: Path) -> None:
    columns = {"observation.near": {"shape": [2]}, "observation.far": {}, "action": {"dtype": "int64"}}
    memory = Table(length=60, num_envs=2, columns={**columns, "reward": {}, **FLAGS})
    rng = np.random.default_rng(0)
    for step in range(20):
        row = {"near": rng.random((2, 2)), "far": rng.random(2)}
        episode_end = np.array([step % 4 == 3, step == 8])
        flags = {"terminated": episode_end & (step != 8), "truncated": episode_end & (step == 8)}
        memory.add(None, {"observation": row, "action": [1, 2], "reward": [step, -step], **flags})
        memory.close(episode_end, {name: part[episode_end] + 1 for name, part in row.items()})
    emote.write(memory, tmp_path / "out.zip")
    copy = Table(length=60, columns={**columns, "reward": {}, **FLAGS})
    import_rows(copy, str(tmp_path / "out.zip"))
    assert str(list(Stored.of(copy))) == str(list(Stored.of(memory)))


def test_layout_is_that_of_emote(tmp_path: Path) -> None:
    memory = Table(length=60, columns={"observation": {"shape": [3]}, "action": {"shape": [2]}, "reward": {}, **FLAGS})
    row = {"observation": np.ones((1, 3)), "action": np.zeros((1, 2)), "reward": [1.0]}
    add_steps(memory, 2, lambda step: row, end="truncated", last=np.full((1, 3), 9.0))
    add_steps(memory, 1, lambda step: row)  # not over
    emote.write(memory, tmp_path / "out.zip")
    with ZipFile(tmp_path / "out.zip") as file:
        members = {name: file.read(name) for name in file.namelist()}
    about = json.loads(members["configuration.json"])
    assert (members["version"], about["ids"], about["length_key"]) == (b"1", [0], "actions")
    assert about["ejector_state"] == {"identities": [0], "sequence_lengths": [[0, 2]]}
    loaded = {key: np.load(io.BytesIO(members[f"{key}.npy"]), allow_pickle=False) for key in about["part_keys"]}
    shapes = {"obs": (3, 3), "actions": (2, 2), "rewards": (2, 1), "terminal": (1,)}
    assert {key: array.shape for key, array in loaded.items()} == shapes
    assert loaded["terminal"].tolist() == [1.0]
    assert np.load(io.BytesIO(members["obs.ranges.npy"])).tolist() == [[0, 0, 3]]
