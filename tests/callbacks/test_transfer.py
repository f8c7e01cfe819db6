"""Memories are imported before the first step, and exported periodically."""

import logging
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest

from rlrun.callbacks import MemoryExport, MemoryImport
from rlrun.commands import train as experiment
from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Table
from rlrun.memory.formats import emote
from rlrun.memory.formats.table_file import restore, store
from rlrun.memory.table.episodes import Stored
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer

SPACES = Spaces(Box((2,), np.zeros(2, np.float32), np.ones(2, np.float32)), Discrete(3))


def table(rows: int = 0, **settings: Any) -> Table:
    memory = Table(**{"length": 1000, "spaces": SPACES, **settings})
    for number in range(rows):
        add(memory, number)
    return memory


def row(number: int) -> dict[str, Any]:
    flags = {"terminated": [True], "truncated": [False]}
    return {"observation": np.full((1, 2), 0.5), "action": [number % 3], "reward": [number], **flags}


def add(made: Table, number: int) -> None:
    """One row, an episode of its own."""
    made.add(0, row(number))
    made.close(0, np.ones((1, 2)))


class Source(Callback):
    """A fake loader and collector: ten rows and ten steps an update."""

    provides = ("step",)

    def __init__(self, memory: Table, updates: int, at: Any = None) -> None:
        self.memory, self.updates, self.at, self.steps = memory, updates, at or {}, 0

    def names(self) -> dict[str, tuple[str, ...]]:
        return {}

    def __iter__(self) -> Any:
        for update in range(1, self.updates + 1):
            for _ in range(10):
                add(self.memory, self.steps)
                self.steps += 1
            self.at.get(update, lambda: None)()
            yield {}

    def begin_training(self) -> dict[str, int]:
        return {"step": self.steps}

    def begin_batch(self) -> dict[str, int]:
        return {"step": self.steps}


def train(source: Source, callback: Callback, run_dir: Path | None) -> None:
    trainer = Trainer({"source": source, "transfer": callback}, source)
    trainer.state["run_dir"] = run_dir
    trainer.train()


class Clock:
    """A clock that a test moves; keeps the size of the table at each export."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now, self.stored = 1000.0, []
        monkeypatch.setattr("rlrun.callbacks.transfer.time.monotonic", lambda: self.now)
        monkeypatch.setattr(
            "rlrun.callbacks.transfer.table_file.store", lambda memory, *_, **__: self.stored.append(len(memory))
        )


@pytest.fixture
def clock(monkeypatch: Any) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(("updates", "stored"), [(12, [50, 100, 120]), (5, [50])])
def test_export_is_periodic_and_final(updates: int, stored: list[int], clock: Clock, tmp_path: Path) -> None:
    memory = table()
    train(Source(memory, updates), MemoryExport(memory, every=50, min_seconds=0), tmp_path)
    assert clock.stored == stored


def test_export_waits_for_the_clock(clock: Clock, tmp_path: Path) -> None:
    memory = table()
    moves = {7: lambda: setattr(clock, "now", 1600.0), 8: lambda: setattr(clock, "now", 2199.0)}
    train(Source(memory, 20, moves), MemoryExport(memory, every=50), tmp_path)
    assert clock.stored == [70, 200]


@pytest.mark.parametrize(("settings", "count"), [({}, 0), ({"every": 0}, 1), ({"path": "x.zip"}, 1)])
def test_export_only_at_the_end(clock: Clock, tmp_path: Path, settings: dict[str, Any], count: int) -> None:
    memory = table()
    callback = MemoryExport(memory, **settings)
    train(Source(memory, 5), callback, tmp_path)
    assert (clock.stored, callback.cycle) == ([50] * count, 0)


@pytest.mark.parametrize("path", ["x.zip", "minari:some/thing-v0"])
def test_run_without_steps_warns_of_export(clock: Clock, monkeypatch: Any, caplog: Any, path: str) -> None:
    monkeypatch.setattr("rlrun.callbacks.transfer.minari.target_of", lambda dataset: None)
    callback = MemoryExport(table(3), path=path, spaces=SPACES)
    callback.end_training(ValueError(), 7, 0)
    assert caplog.messages == []  # it says itself why it failed
    callback.end_training(Stop("enough"), 7, 0)
    assert clock.stored == []
    (message,) = caplog.messages
    assert message.endswith(f"{path.removeprefix('minari:')} is not written: the run ended before its first step")


def test_resumed_export_keeps_its_interval(clock: Clock, tmp_path: Path) -> None:
    first, second = (MemoryExport(table(), every=50, min_seconds=0, path="x.zip") for _ in range(2))
    first.end_cycle(6, 60)
    second.load_state_dict(first.state_dict())
    for step in (90, 99, 100, 120):
        second.end_cycle(step // 10, step)
    assert clock.stored == [0, 0]


def test_export_is_in_the_run(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / ".memory.zip.1-1.tmp").write_text("left by a killed process")
    memory = table()
    train(Source(memory, 3), MemoryExport(memory, every=20, min_seconds=0), tmp_path)
    assert [path.name for path in (tmp_path / "exports").iterdir()] == ["memory.zip"]
    copy = table()
    assert restore(copy, tmp_path / "exports" / "memory.zip") is True
    assert len(copy) == 30


@pytest.mark.parametrize(("public", "mode"), [(True, 0o644), (False, 0o600)])
def test_export_is_public_only_if_asked(tmp_path: Path, public: bool, mode: int) -> None:
    memory = table()
    train(Source(memory, 1), MemoryExport(memory, path=str(tmp_path / "a/b.zip"), public=public), None)
    assert (tmp_path / "a/b.zip").stat().st_mode & 0o777 == mode


def test_export_in_emotes_layout_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "memory.zip"
    export = MemoryExport(table(6), path=str(path), layout="emote", public=True)
    export.begin_training(None)
    export.end_training(None, update=1)
    assert path.stat().st_mode & 0o077 == 0o044
    again = table()
    MemoryImport(again, str(path)).restore_state()
    assert [episode.row["reward"].item() for episode in emote.read(path)] == [*map(float, range(6))]
    assert len(again) == 6
    with pytest.raises(ConfigError, match=r"memory\.export\.layout: wanted one of rlrun, emote, got 'v1'"):
        MemoryExport(table(), path=str(path), layout="v1")
    with pytest.raises(ConfigError, match=r"memory\.export\.layout=emote: nothing is exported"):
        MemoryExport(table(), layout="emote")


def test_import_precedes_the_first_step(tmp_path: Path, caplog: Any) -> None:
    store(table(7), tmp_path / "memory.zip")
    memory = table(2)
    with caplog.at_level(logging.INFO, "rlrun"):
        train(Source(memory, 1), MemoryImport(memory, str(tmp_path / "memory.zip")), None)
    assert len(memory) == 17
    assert "7 transitions" in caplog.text
    assert [record.name for record in caplog.records] == ["rlrun.output"]  # which commands print


def test_several_imports_are_appended(tmp_path: Path) -> None:
    for rows in (7, 4):
        store(table(rows), tmp_path / f"{rows}.zip")
    memory = table(2)
    first = MemoryImport(memory, [str(tmp_path / "7.zip"), str(tmp_path / "4.zip")])
    first.restore_state()
    rewards = [episode.row["reward"].tolist() for episode in Stored.of(memory)]
    assert rewards == [[number] for number in (*range(7), *range(4))]
    first.restore_state()  # once only
    MemoryImport(memory).restore_state()  # of nothing
    assert len(memory) == 11


@pytest.mark.parametrize("stored", [store, lambda memory, path: emote.write(memory, path)])
def test_import_takes_newest_episodes_up_to_limit(stored: Any, tmp_path: Path) -> None:
    source = table(4)  # rows 0, 1, 2, 3, and an episode of two rows
    source.add_episode({name: np.repeat(column, 2, 0) for name, column in row(9).items()}, np.ones(2))
    stored(source, tmp_path / "memory.zip")
    for limit, rewards in ((None, [[0], [1], [2], [3], [9, 9]]), (4, [[2], [3], [9, 9]]), (2, [[9, 9]])):
        memory = table()
        MemoryImport(memory, str(tmp_path / "memory.zip"), limit).restore_state()
        assert [episode.row["reward"].tolist() for episode in Stored.of(memory)] == rewards
    memory = table(5)
    with pytest.raises(
        RequestError, match=r"memory.zip: the newest episode has 2 transitions; a limit of 1 takes none"
    ):
        MemoryImport(memory, str(tmp_path / "memory.zip"), 1).restore_state()
    assert len(memory) == 5


def test_resumed_run_imports_missing_memory_only(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    store(table(7), "memory.zip")
    first = MemoryImport(table(), "memory.zip")
    first.restore_state()
    monkeypatch.chdir("/")  # the file is found all the same
    for rows, wanted in ((3, 3), (0, 7)):
        memory = table(rows)
        second = MemoryImport(memory, "memory.zip")
        second.load_state_dict(first.state_dict())
        second.restore_state()
        assert len(memory) == wanted


def test_minari_dataset_is_written_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    memory = table()
    callback = MemoryExport(memory, path="minari:lab/rows-v0", spaces=SPACES)
    train(Source(memory, 3), callback, None)
    assert minari.load_dataset("lab/rows-v0").total_steps == 30
    again = MemoryExport(memory, path="minari:lab/rows-v0", spaces=SPACES)
    with pytest.raises(RequestError, match="never overwritten"):
        again.restore_state()
    again.load_state_dict(callback.state_dict())  # a run that goes on after its end
    train(Source(memory, 4), again, None)
    assert minari.load_dataset("lab/rows-v0").total_steps == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"every": 5, "spaces": SPACES}, "written once, at the end"), ({}, "needs the environment's spaces")],
)
def test_periodic_minari_dataset_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryExport(table(), path="minari:lab/rows-v0", **settings)


def test_transfer_needs_a_table() -> None:
    assert MemoryImport({"demonstrations": table()}).sources == []
    assert not MemoryExport({"demonstrations": table()}).wanted
    for callback in (MemoryImport, MemoryExport):
        with pytest.raises(ConfigError, match=r"the memory is a dict"):
            callback({"demonstrations": table()}, path="a.zip")


WORDS = ("algorithm=dqn", "env=cartpole", "algorithm.hidden=[8]", "evaluation.every=0", "logger=[]")


@pytest.mark.parametrize(("name", "message"), [("cut", "damaged or cut short"), ("other", r"of shape \[2\]")])
def test_bad_import_ends_a_run_early(tmp_path: Path, monkeypatch: Any, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    store(table(5), "other.zip")
    Path("cut.zip").write_bytes(Path("other.zip").read_bytes()[:-100])
    with pytest.raises(RequestError, match=f"^memory.import: .*{name}.zip .*{message}") as raised:
        experiment.train([*WORDS, f"memory.import={name}.zip"], run_dir="run")
    assert raised.value.exit_code == 2
    assert not Path("run").exists()
