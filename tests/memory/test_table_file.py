"""Tables on disk and back: the same future, and nothing from a damaged file."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.core.errors import RequestError, RlrunError
from rlrun.core.spaces import Composite, Discrete, MultiDiscrete, Spaces
from rlrun.memory import Table
from rlrun.memory.formats import archive, table_file
from rlrun.memory.formats.table_file import restore, store
from rlrun.memory.table.episodes import Stored, cut_off

from .tables import EJECTORS, SAMPLERS, STEP, add_steps

COLUMNS = {
    "observation.near": {"shape": [2]},
    "observation.far": {"dtype": "uint8"},
    "action": {"dtype": "int64"},
    **STEP,
}


class Play:
    """Writes the same random rows to any table; every number is drawn anew."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table, self.rng = table, np.random.default_rng(seed)

    def run(self, steps: int) -> Play:
        envs = self.table.index.num_envs
        for _ in range(steps):
            episode_end = self.rng.random(envs) < 0.15
            flags = {"terminated": episode_end, "truncated": np.zeros(envs, bool)}
            row = {
                "observation": self.look(envs),
                "action": self.rng.integers(0, 9, envs),
                "reward": self.rng.random(envs),
            }
            self.table.add(None, row | flags)
            if episode_end.any():
                count = int(episode_end.sum())
                tags = {"skill": self.rng.random(count), "interrupted": np.zeros(count)}
                self.table.close(episode_end, self.look(count), tags)
        return self

    def look(self, count: int) -> dict[str, Any]:
        return {"near": self.rng.random((count, 2)), "far": self.rng.integers(0, 255, count)}


def make(sampler: str = "uniform", ejector: str = "fifo by rows", *, columns: Any = COLUMNS, **settings: Any) -> Table:
    settings = {"length": 120, "num_envs": 3, **settings}
    return Table(columns=columns, sampler=SAMPLERS[sampler](1), ejector=EJECTORS[ejector](3), **settings)


def future(table: Table) -> list[Any]:
    """What the table will give, with priorities fed back and new rows in between."""
    play, digests = Play(table, seed=9), []
    for round_ in range(12):
        batch = table.sample(16, 1 + round_ % 3)
        batch.feedback(torch.linspace(0.1, 3.0, 16))
        digests.append(storage.digest(batch))
        play.run(round_)
    return digests


def contents(table: Table) -> list[Any]:
    return [
        [ep.row["reward"].tolist(), ep.row["observation"]["near"].tolist(), ep.last["near"].tolist(), ep.tags]
        for ep in Stored.of(table)
    ]


def filled(*kinds: str, steps: int = 100, **settings: Any) -> Table:
    table = make(*kinds, **settings)
    Play(table, seed=0).run(steps)
    for _ in range(5):
        table.sample(8, 2).feedback(torch.arange(8.0))
    return table


TAGGED = {**COLUMNS, "skill": {"tag": True}}
TABLES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # settings, and what differs in the copy
    ({"sampler": "recent and prioritized", "ejector": "coverage"}, {}),
    ({"min_length": 4, "columns": TAGGED}, {}),
    ({"short": "pad", "columns": TAGGED}, {}),
    ({"storage": "disk", "columns": TAGGED}, {}),
    ({"storage": "disk", "columns": TAGGED}, {"storage": "ram"}),
]


@pytest.mark.parametrize(("settings", "other"), TABLES)
def test_restored_tables_have_the_same_future(tmp_path: Path, settings: Any, other: Any) -> None:
    settings = {**settings, "directory": str(tmp_path)}
    table, copy = filled(**settings), make(**{**settings, **other})
    store(table, tmp_path / "memory.zip")
    Play(copy, seed=5).run(30)  # its rows are replaced
    assert restore(copy, tmp_path / "memory.zip") is True
    assert future(copy) == future(table)


def test_stacked_frames_are_restored(tmp_path: Path) -> None:
    columns = {"observation": {"shape": [3, 4]}, **STEP}
    table, copy = (Table(length=40, columns=columns, frame_stack=3) for _ in range(2))
    for first in (0, 10, 20, 30):
        frames = [np.maximum(np.arange(step - 2, step + 1), 0) + first for step in range(8)]
        row = [{"observation": np.repeat(stack[:, None], 4, 1)[None], "reward": [first]} for stack in frames]
        add_steps(table, 7, row.__getitem__, last=row[7]["observation"])
    store(table, tmp_path / "memory.zip")
    assert table_file.about(tmp_path / "memory.zip")["table"]["columns"]["observation"][0] == [4]
    assert restore(copy, tmp_path / "memory.zip") is True
    larger = Table(length=80, columns=columns, frame_stack=3)
    assert restore(larger, tmp_path / "memory.zip") is False
    assert [episode.row["observation"].tolist() for episode in Stored.of(larger)] == [
        episode.row["observation"].tolist() for episode in Stored.of(table)
    ]
    assert copy.sample(50)["next_observation"].equal(table.sample(50)["next_observation"])


@pytest.mark.parametrize(
    "other", [{"length": 400}, {"num_envs": 5, "length": 400}, {"sampler": "sequential"}, {"ejector": "fifo"}]
)
def test_other_tables_take_the_episodes(tmp_path: Path, other: dict[str, Any]) -> None:
    columns = {**COLUMNS, "skill": {"tag": True}}
    table = filled(columns=columns, steps=25)
    store(table, tmp_path / "memory.zip")
    copy = make(columns=columns, **{"length": 240, **other})
    Play(copy, seed=5).run(20)
    assert restore(copy, tmp_path / "memory.zip") is False
    assert sorted(contents(copy), key=str) == sorted(contents(table), key=str)
    assert len(copy) == len(table)
    assert len(future(copy)) == 12


def test_smaller_table_keeps_the_newest(tmp_path: Path) -> None:
    table = filled(num_envs=1, length=300, steps=150)
    store(table, tmp_path / "memory.zip")
    copy = make(num_envs=1, length=40)
    restore(copy, tmp_path / "memory.zip")
    rewards = [reward for episode in contents(table) for reward in episode[0]]
    newest = [reward for episode in contents(copy) for reward in episode[0]]
    assert 25 < len(newest) <= 40
    assert newest == rewards[-len(newest) :]


def test_open_episodes_are_restored_cut_off(tmp_path: Path) -> None:
    row = [{"observation": {"near": [[i, 0]], "far": [i]}, "action": [0], "reward": [i]} for i in range(3)]
    table = add_steps(make(num_envs=1), 3, row.__getitem__)
    store(table, tmp_path / "memory.zip")
    copy = make(num_envs=1, length=60)
    restore(copy, tmp_path / "memory.zip")
    (episode,) = Stored.of(copy)
    assert (episode.row["reward"].tolist(), episode.last["near"].tolist()) == ([0, 1], [2, 0])
    assert (episode.row["truncated"].tolist(), episode.row["terminated"].any()) == ([False, True], False)


def test_appending_keeps_what_is_there(tmp_path: Path) -> None:
    table = filled("coverage", "coverage", length=300, steps=20)
    store(table, tmp_path / "memory.zip")
    copy = make("coverage", "coverage", length=600)
    Play(copy, seed=4).run(12)
    copy.close(None, {"near": np.zeros((3, 2)), "far": np.zeros(3)})
    wanted = contents(copy)
    for _ in range(3):
        assert restore(copy, tmp_path / "memory.zip", append=True) is False
        wanted += contents(table)
        assert sorted(contents(copy), key=str) == sorted(wanted, key=str)
    assert len(future(copy)) == 12


def test_empty_rows_take_no_space(tmp_path: Path) -> None:
    store(filled(length=120_000, steps=10), tmp_path / "memory.zip")
    assert (tmp_path / "memory.zip").stat().st_size < 20_000


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    store(make(), tmp_path / "memory.zip")
    before = (tmp_path / "memory.zip").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RlrunError, match="cannot be written: No space left"):
        store(filled(), tmp_path / "memory.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["memory.zip"]
    assert (tmp_path / "memory.zip").read_bytes() == before


def refused(path: Path, message: str, table: Table | None = None, **options: Any) -> None:
    table = table if table is not None else filled("coverage", "coverage", steps=10)
    before = storage.digest(table.state_dict())
    with pytest.raises(RequestError, match=message):
        restore(table, path, **options)
    assert storage.digest(table.state_dict()) == before


def test_any_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path, original = tmp_path / "memory.zip", filled("coverage", "coverage", steps=4)
    store(original, path)
    data, copy, empty = path.read_bytes(), make("coverage", "coverage"), make("coverage", "coverage")
    stored, before = (storage.digest(table.state_dict()) for table in (original, empty))
    refusals = 0
    with open(path, "r+b", buffering=0) as file:
        for place, byte in enumerate(data):
            os.pwrite(file.fileno(), bytes([byte ^ (1 << place % 8)]), place)
            try:
                assert restore(copy, path) is True  # a date, for one, is of no account
                assert storage.digest(copy.state_dict()) == stored
                copy = make("coverage", "coverage")
            except RequestError:
                refusals += 1
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert storage.digest(copy.state_dict()) == before
    assert refusals > 0.8 * len(data)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path, table = tmp_path / "memory.zip", filled(steps=10)
    refused(path, "cannot be read: No such file", table)
    refused(tmp_path, "it is not a plain file", table)
    store(filled(steps=4), path)
    data = path.read_bytes()
    cuts = [data[:size] for size in range(0, len(data), 97)]
    for changed in (*cuts, data[:-64] + bytes(64)):
        path.write_bytes(changed)
        refused(path, "damaged|does not begin like one", table)
    path.write_bytes(b"reward,action\n1,2\n" * 100)
    refused(path, "does not begin like one", table)
    path.write_bytes(pickle.dumps([1]))
    refused(path, "is a pickle: not read, because loading it runs whatever code it holds", table)
    torch.save({"a": torch.ones(3)}, path)
    refused(path, "no member 'table.json'|is compressed", table)


def forge(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write a file whose members somebody changed."""
    store(filled("coverage", "coverage", steps=10), path)
    with ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with archive.create(path) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def note(members: dict[str, bytes], **changes: Any) -> None:
    members["table.json"] = json.dumps({**json.loads(members["table.json"]), **changes}).encode()


def table_note(members: dict[str, bytes], **changes: Any) -> None:
    """Change what the note says of the table; None: leave the entry out."""
    table = {**json.loads(members["table.json"])["table"], **changes}
    note(members, table={name: value for name, value in table.items() if value is not None})


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text


FORGED: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "newer": (lambda file: note(file, format=3), "has format 3; this version of rlrun reads 2"),
    "other kind": (
        lambda file: note(file, kind="checkpoint"),
        "is no stored memory: it is a 'checkpoint';",
    ),
    "no note": (lambda file: file.pop("table.json"), "no member 'table.json'"),
    "no json": (lambda file: file.update({"table.json": b"[" * 100_000}), "is no JSON"),
    **{
        str(change): (lambda file, change=change: note(file, **change), "does not describe a table")
        for change in ({"table": []}, {"rows": -1}, {"rows": "10"})
    },
    **{
        str(change): (lambda file, change=change: table_note(file, **change), "does not describe a table")
        for change in (
            *({"sampler": 7}, {"sampler": None}, {"tags": "ab"}, {"tags": [1]}),
            *(
                {"columns": columns}
                for columns in ([], {"reward": [[]]}, {"reward": [[], "real"]}, {"reward": [[], "object_"]})
            ),
        )
    },
    "no state": (lambda file: file.update({"state.safetensors": b"x" * 20}), "its state cannot be taken back"),
    "no column": (lambda file: file.pop("columns/reward.npy"), "no member 'columns/reward.npy'"),
    "short column": (lambda file: file.update({"columns/reward.npy": file["columns/reward.npy"][:-4]}), "fit its size"),
    "large shape": (lambda file: file.update({"columns/reward.npy": header(f"({10**15},)")}), "does not fit its size"),
    "giant header": (
        lambda file: file.update({"columns/reward.npy": header("(3," + " " * 99_999 + ")")}),
        "is no array",
    ),
    "negative shape": (lambda file: file.update({"columns/reward.npy": header("(-3,)")}), "wanted rows"),
    "slots outside": (
        lambda file: file.update({"slots.npy": file["slots.npy"][:-2] + b"\0\1"}),
        "slots.npy does not fit",
    ),
    "pickle": (lambda file: file.update({"data.pickle": b"x"}), "is in Emote's legacy format"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_file_is_refused(tmp_path: Path, name: str) -> None:
    change, message = FORGED[name]
    refused(forge(tmp_path / "memory.zip", change), message)
    assert [path.name for path in tmp_path.iterdir()] == ["memory.zip"]


def choosing(choices: int, ejector: str = "fifo by rows") -> Table:
    spaces = Spaces(Discrete(9), Composite({"hand": Discrete(choices), "foot": MultiDiscrete(np.full(2, 9), 0)}))
    return Table(length=40, spaces=spaces, ejector=EJECTORS[ejector](3))


@pytest.mark.parametrize(("ejector", "by_file"), [("fifo by rows", False), ("fifo by rows", True), ("fifo", True)])
def test_choices_that_do_not_exist_are_refused(tmp_path: Path, ejector: str, by_file: bool) -> None:
    action = {"hand": [7], "foot": [[8, 8]]}
    table = add_steps(choosing(8), 5, lambda step: {"observation": [8], "action": action, "reward": [1.0]}, last=[8])
    store(table, tmp_path / "memory.zip")
    for choices, refusal in (
        (8, nullcontext()),
        (7, pytest.raises(RequestError, match=r"'action.hand' from .* \[7\]")),
    ):
        taker = choosing(choices, ejector)
        with refusal:
            restore(taker, tmp_path / "memory.zip") if by_file else taker.load_state_dict(table.state_dict())
        assert not by_file or len(taker) == (5 if choices == 8 else 0)


def test_moved_classes_are_known(tmp_path: Path) -> None:
    def moved(members: dict[str, bytes]) -> None:
        table = json.loads(members["table.json"])["table"]
        kinds = {"sampler": "rlrun.memory.visits.Coverage", "ejector": "rlrun.memory.ejection.CoverageEjector"}
        note(members, table={**table, **kinds, "index": "rlrun.memory.indices.PoolIndex"})

    assert restore(make("coverage", "coverage"), forge(tmp_path / "memory.zip", moved)) is True


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"log_prob": {}}, "no column 'log_prob', which the memory stores; it has observation.near"),
        ({"reward": {"shape": [3]}}, r"'reward' of shape \[\]; the memory has \[3\]"),
        ({"reward": {"dtype": "uint8"}}, "'reward' of type float32; the memory has uint8"),
        ({"action": {"dtype": "float32", "shape": [1]}}, "'action' of type int.*; the memory has float32"),
        ({"skill": {"tag": True}}, "no tag 'skill'"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, columns: Any, message: str) -> None:
    store(filled(steps=10), tmp_path / "memory.zip")
    refused(tmp_path / "memory.zip", message, make(columns={**COLUMNS, **columns}))


def test_columns_are_converted_or_refused(tmp_path: Path) -> None:
    path, doubles = tmp_path / "memory.zip", {**COLUMNS, "reward": {"dtype": "float64", "shape": [1]}}
    row = {"observation": {"near": [[0, 1]], "far": [2]}, "action": [3], "reward": [[0.1]]}
    table = add_steps(make(columns=doubles, num_envs=1), 1, lambda step: row, last=row["observation"])
    store(table, path)
    fewer = make(columns={name: column for name, column in COLUMNS.items() if name != "action"}, num_envs=1)
    refused(path, "has the column 'action', which the memory does not store", fewer)
    restore(copy := make(num_envs=1), path)
    assert copy.sample(1)["reward"].tolist() == [np.float32(0.1)]


@pytest.mark.parametrize("ejector", EJECTORS)
@pytest.mark.parametrize("settings", [{}, {"min_length": 4}])
def test_cut_off_ends_open_episodes(ejector: str, settings: dict[str, Any]) -> None:
    columns = {**COLUMNS, "interrupted": {"tag": True}}
    table, before_cut = (filled("prioritized", ejector, columns=columns, length=300, **settings) for _ in range(2))
    episodes = Stored.of(before_cut)
    least = np.where(episodes.open, settings.get("min_length", 1), 1)
    before = [episode for episode, rows in zip(episodes, least, strict=True) if len(episode) >= rows]
    for _ in range(2):  # the second time there is nothing more to cut
        cut_off(table)
    assert not Stored.of(table, partial=True).open.any()
    for old, new in zip(before, Stored.of(table), strict=True):
        assert (old.row["reward"].tolist(), old.tags) == (new.row["reward"].tolist(), new.tags)
        assert old.row["truncated"].tolist() == new.row["truncated"].tolist()
    assert len(table) == sum(len(episode) for episode in before)
    assert len(future(table)) == 12
