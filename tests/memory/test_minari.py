"""Datasets of Minari, made and read on this machine."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from minari.data_collector import EpisodeBuffer

from rlrun.core.errors import MissingExtra, RequestError
from rlrun.core.spaces import Spaces
from rlrun.env.spaces import from_gymnasium
from rlrun.memory import Table
from rlrun.memory.formats import minari as ours
from rlrun.memory.formats.sources import import_rows, spaces_in
from rlrun.memory.table.episodes import Stored

from .tables import add_steps

OBSERVATION = Dict({"position": Box(-1.0, 1.0, (2,), np.float64), "key": Discrete(3, start=5)})
ACTION = Tuple([Box(np.float32([-2, 0]), np.float32([2, 10])), Discrete(4, start=-1)])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def spaces(observation: Any = OBSERVATION, action: Any = ACTION) -> Spaces:
    return Spaces(from_gymnasium(observation, "observation"), from_gymnasium(action, "action", action=True))


def episode(length: int, first: int, *, terminated: bool) -> EpisodeBuffer:
    """Numbers that count on from `first`."""
    count = np.arange(first, first + length + 1)
    over = np.arange(length) == length - 1
    return EpisodeBuffer(
        observations={"position": np.stack([count / 100, -count / 100], 1), "key": 5 + count % 3},
        actions=(np.stack([count[:-1] % 5 - 2.0, count[:-1] % 11], 1).astype(np.float32), count[:-1] % 4 - 1),
        rewards=count[:-1].astype(float),
        terminations=over & terminated,
        truncations=over & (not terminated),
    )


def dataset(name: str = "lab/walk-v0") -> None:
    buffer = [episode(4, 0, terminated=True), episode(3, 10, terminated=False)]
    with warnings.catch_warnings(action="ignore"):  # it would like to know the author
        minari.create_dataset_from_buffers(name, buffer, observation_space=OBSERVATION, action_space=ACTION)


def read(source: str = "minari:lab/walk-v0", **settings: Any) -> list[Any]:
    table = Table(**{"length": 50, "spaces": spaces(), **settings})
    import_rows(table, source)
    return list(Stored.of(table))


def test_dataset_becomes_episodes(folder: Path) -> None:
    dataset()
    first, second = read()
    assert first.row["reward"].tolist() == [0, 1, 2, 3]
    assert first.row["terminated"].tolist() == [False, False, False, True]
    assert second.row["truncated"].tolist() == [False, False, True]
    assert second.last["position"].tolist() == pytest.approx([0.13, -0.13])
    actions = [pytest.approx([(count % 5 - 2) / 2, (count % 11 - 5) / 5]) for count in range(4)]
    assert first.row["action"]["0"].tolist() == actions
    assert first.row["action"]["1"].tolist() == [0, 1, 2, 3]
    assert first.row["observation"]["key"].tolist() == [0, 1, 2, 0]
    assert len(read(f"minari:{folder / 'lab/walk-v0'}")) == len(read(f"minari:{folder / 'lab/walk-v0/data'}")) == 2


@pytest.mark.parametrize("target", ["copy-v0", "lab/deep/copy-v1", "./copy-v3"])
def test_written_datasets_are_read(tmp_path: Path, monkeypatch: Any, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    dataset()
    table = Table(length=50, spaces=spaces())
    import_rows(table, "minari:lab/walk-v0")
    path = ours.write(table, target, spaces())
    copy = minari.MinariDataset(path / "data")
    for old, new in zip(minari.load_dataset("lab/walk-v0"), copy, strict=True):
        assert np.allclose(old.observations["position"], new.observations["position"])
        assert np.array_equal(old.observations["key"], new.observations["key"])
        assert np.allclose(old.actions[0], new.actions["0"], atol=1e-6)
        assert np.array_equal(old.actions[1], new.actions["1"])
        assert np.array_equal(old.terminations, new.terminations)
    assert [ep.row["reward"].tolist() for ep in read(f"minari:{target}")] == [[0, 1, 2, 3], [10, 11, 12]]
    assert copy.total_steps == 7


def write_step(name: str, observation: Any, frames: Any) -> Spaces:
    """Write one step between two observations as a dataset; return the spaces."""
    both = spaces(observation, Discrete(2))
    row = {"observation": frames[:1], "action": [1], "reward": [1.0]}
    table = add_steps(Table(length=20, spaces=both), 1, lambda step: row, end="terminated", last=frames[1:])
    ours.write(table, name, both)
    return both


def test_images_are_not_changed() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    both = write_step("image-v0", Box(0, 255, (32, 32, 3), np.uint8), frames)
    (ep,) = read("minari:image-v0", spaces=both)
    assert np.array_equal(ep.row["observation"], frames[:1])
    assert np.array_equal(ep.last, frames[1])


def test_damaged_and_missing_datasets_are_refused(folder: Path) -> None:
    dataset()
    with pytest.raises(RequestError, match="no column 'observation', which the memory stores"):
        read(spaces=spaces(Box(-1.0, 1.0, (3,)), ACTION))
    data = folder / "lab/walk-v0/data/main_data.hdf5"
    data.write_bytes(data.read_bytes()[:2000])
    with pytest.raises(RequestError, match="cannot be read"):
        read()
    with pytest.raises(RequestError, match=r"no Minari dataset 'lab/none-v0' on.*minari download lab/none-v0"):
        read("minari:lab/none-v0")


def test_missing_spaces_run_no_code(folder: Path) -> None:
    dataset()
    metadata = folder / "lab/walk-v0/data/metadata.json"
    contents = json.loads(metadata.read_text())
    del contents["action_space"]
    spec = {**json.loads(gymnasium.spec("CartPole-v1").to_json()), "entry_point": "pytest:fail"}
    metadata.write_text(json.dumps({**contents, "env_spec": json.dumps(spec)}))
    with pytest.raises(RequestError, match="does not name its spaces"):
        read()


@pytest.mark.parametrize("name", ["no version", "x", "a/b"])
def test_malformed_id_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="is no Minari id"):
        ours.target_of(name)


def test_without_minari_the_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtra, match=r"\[minari\]'"):
        ours.read("lab/walk-v0")


def test_spaces_are_those_of_the_dataset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bits = from_gymnasium(Box(0, 1, (3,), np.uint8), "seen")
    spaces = Spaces(bits, from_gymnasium(Discrete(5), "action", action=True))
    table = Table(length=9, spaces=spaces)
    row = {"observation": np.ones((1, 3), np.uint8), "action": [1], "reward": [0.0]}
    for _ in range(3):
        table.add(None, {**row, "terminated": [False], "truncated": [False]})
    table.close(None, np.ones((1, 3), np.uint8))
    ours.write(table, str(tmp_path / "bits-v0"), spaces)
    read: Any = spaces_in(f"minari:{tmp_path / 'bits-v0'}")
    assert (read.observation.high.max(), read.action.n) == (1, 5)
    assert not caplog.records
