"""Checkpoints that somebody else made: what is wrong with them is said in one line, and nothing of theirs runs."""

import hashlib
import json
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.checkpointing import MANIFEST, STATE, TENSORS
from rlrun.core.errors import RunDirError
from rlrun.memory import Table

DEEP = 200_000


def test_a_manifest_larger_than_any_is_not_taken_apart(tmp_path):
    (tmp_path / MANIFEST).write_bytes(b"[" + b"[]," * (3 << 20) + b"[]]")
    with pytest.raises(RunDirError, match=r"manifest\.json is damaged: it has more than 8,388,608 bytes"):
        storage.read_manifest(tmp_path)


class Checkpoint:
    """A good checkpoint, to be changed and sealed anew."""

    def __init__(self, folder):
        self.path = folder / "checkpoints" / "0000000010-0000000001"
        self.table = make()
        for step in range(6):
            self.table.add(None, {"observation": [step], "reward": [1]})
        self.table.close(None, [6])
        memory = self.table.checkpoint(storage.home_of(self.path.parent))
        states = {"network": {"w": torch.ones(4), "array": np.arange(3)}, "memory": memory}
        storage.write(self.path, storage.snapshot(states, about={"env_steps": 10, "updates": 1}, apart=["memory"]))
        self.note = json.loads((self.path / MANIFEST).read_bytes())
        self.tree = json.loads((self.path / STATE).read_bytes())
        (self.segment,) = (self.path.parent / "segments").iterdir()

    def put(self, name, data):
        """Replace a file, with the size and hash that it should have."""
        path = self.segment.with_name(name) if len(name) > 60 else self.path / name
        path.write_bytes(data)
        group = self.note["segments" if len(name) > 60 else "files"]
        group[name] = group.get(name, {}) | {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def seal(self):
        """Write tree and manifest as if they were right."""
        if self.tree is not None:
            self.put(STATE, json.dumps(self.tree).encode())
        self.note.pop("sha256", None)
        data = json.dumps(self.note, indent=1).encode()
        whole = {**self.note, "sha256": hashlib.sha256(data).hexdigest()}
        (self.path / MANIFEST).write_bytes(json.dumps(whole, indent=1).encode())

    def swap(self, data):
        """Put another segment in the place of the one there is."""
        name = hashlib.sha256(data).hexdigest() + ".safetensors"
        self.note["segments"], self.tree["rows"][0]["segments"] = {}, [name]
        self.put(name, data)

    def refused(self, match):
        self.seal()
        with pytest.raises(RunDirError, match=match) as error:
            storage.load(self.path)
        assert "\n" not in str(error.value)
        assert str(self.path.parent) in str(error.value)
        assert storage.verify(self.path) != []


def make():
    return Table(length=9, columns={"observation": {}, "reward": {}})


@pytest.fixture
def given(tmp_path):
    return Checkpoint(tmp_path)


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(4,), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("canary"),))


HEADERS = {
    "giant header": (b"\xff" * 7 + b"\x7f", "header cannot have"),
    "no header": (b"abc", "header cannot have"),
    "nothing": (b"", "header cannot have"),
    "pickle": (pickle.dumps(Bomb()) + b" " * 100, "header cannot have"),
    "pickle behind a header": (file_of(pickle.dumps(Bomb())), "is damaged"),
    "deep json": (file_of(b"[" * DEEP), "nested too deeply"),
    "a list": (file_of([1]), "is damaged"),
    "no dtype": (file_of({"network/w": {"shape": [4], "data_offsets": [0, 16]}}, b" " * 16), "no 'dtype'"),
    "object dtype": (file_of({"network/w": entry("O")}, b" " * 16), "no type or shape"),
    "negative": (file_of({"network/w": entry(shape=(-4,))}, b" " * 16), "no type or shape"),
    "truth as a size": (file_of({"network/w": entry(shape=(True,), offsets=(0, 4))}, b" " * 4), "no type or shape"),
    "too large a shape": (file_of({"network/w": entry(shape=(1 << 60, 1 << 60))}, b" " * 16), "does not fit"),
    "beyond the end": (file_of({"network/w": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}), "ends behind"),
    "a gap": (file_of({"network/w": entry(offsets=(8, 24))}, b" " * 24), "does not match its hash"),
    "overlap": (file_of({"a": entry(), "network/w": entry()}, b" " * 16), "does not match its hash"),
    "more behind": (file_of({"network/w": entry()}, b" " * 17), "does not match its hash"),
    "other offsets": (file_of({"network/w": entry(offsets=(0,))}, b" " * 16), "is damaged"),
    "an empty tensor of many dimensions": (
        file_of({"network/w": entry(shape=(0, 1 << 62, 1 << 62), offsets=(0, 0))}),
        "is damaged",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_tensor_file_is_refused(given, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, match = HEADERS[name]
    tensors = (given.path / TENSORS).read_bytes()
    given.put(TENSORS, data)
    given.refused(match)
    given.put(TENSORS, tensors)
    if name != "an empty tensor of many dimensions":
        given.swap(data)
        given.refused("is damaged")
    assert not Path("canary").exists()


def segment(slots, count=None, **other):
    """Return a segment of the table's columns, with rows of zeros."""
    slots = np.asarray(slots, np.int32)
    rows = len(slots) if count is None else count
    sizes = {"slots": ("I32", [len(slots)]), "rows/packed rows": ("U8", [rows, 8])}
    sizes |= {"rows/stamps of slots": ("I32", [rows])} | other
    header, data = {}, b""
    for key, (dtype, shape) in sizes.items():
        more = slots.tobytes() if key == "slots" else bytes(int(np.prod(shape)) * (1 if dtype == "U8" else 4))
        header[key] = entry(dtype, shape, (len(data), len(data) + len(more)))
        data += more
    return file_of(header, data)


SEGMENTS = {
    "too few": (segment([0, 1, 2]), "rows are in no segment"),
    "beyond": (segment([0, 1, 2, 3, 4, 5, 10]), "are not slots"),
    "negative": (segment([-1, 1, 2, 3, 4, 5, 6]), "are not slots"),
    "unordered": (segment([1, 0, 2, 3, 4, 5, 6]), "are not slots"),
    "twice": (segment([0, 1, 1, 3, 4, 5, 6]), "are not slots"),
    "rows missing": (segment(range(7), 6), "not as the checkpoint says"),
    "another column": (segment(range(7), more=("U8", [7])), "is damaged: it holds"),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_have_to_fit_the_table(given, name):
    data, match = SEGMENTS[name]
    given.swap(data)
    given.refused(match)


def change(*keys, to):
    def apply(tree):
        for key in keys[:-1]:
            tree = tree[key]
        if to is None:
            del tree[keys[-1]]
        else:
            tree[keys[-1]] = to

    return apply


MANIFESTS = {
    "upwards": (change("files", "../tensors.safetensors", to={}), "not a name of one of its files"),
    "a newline": (change("files", "tensors.safetensors\n", to={}), "not a name of one of its files"),
    "segment upwards": (change("segments", f"../{'0' * 64}.safetensors", to={}), "not a name of one of its segments"),
    "files a list": (change("files", to=[]), "does not list its files"),
    "no segments": (change("segments", to=None), "does not list its segments"),
    "no state": (change("files", STATE, to=None), "lacks"),
    "entry a list": (change("files", STATE, to=[]), "is not a size and hash"),
    "size negative": (change("files", TENSORS, "size", to=-1), "is not a size and hash"),
    "size a truth": (change("files", TENSORS, "size", to=True), "is not a size and hash"),
    "size beyond memory": (change("files", TENSORS, "size", to=1 << 60), "its manifest says"),
    "hash a number": (change("files", TENSORS, "sha256", to=5), "is not a size and hash"),
    "hash of another length": (change("files", TENSORS, "sha256", to="00"), "is not a size and hash"),
    "parts of a file": (change("files", "tensors.1.safetensors", "parts", to="memory"), "is not a size and hash"),
    "parts a word": (change("parts", to="memory"), "does not list its parts"),
    "parts of numbers": (change("parts", to=[1]), "does not list its parts"),
    "a part too many": (change("parts", to=["network", "memory", "x"]), "there is no 'x'"),
    "no format": (change("format", to=None), "it is not a manifest"),
    "format of before": (change("format", to=1), "has format 1; this version of rlrun reads 2"),
    "steps a word": (change("env_steps", to="many"), "its env_steps is not a number"),
    "updates negative": (change("updates", to=-4), "its updates is not a number"),
    "created a list": (change("created", to=[]), "is not a text"),
    "evaluation a word": (change("evaluation", to="good"), "its evaluation is none"),
    "return a list": (change("evaluation", to={"mean_return": []}), "its evaluation is none"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_not_believed(given, name):
    apply, match = MANIFESTS[name]
    given.seal()
    given.tree = None  # only the manifest changes
    apply(given.note)
    given.refused(match)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b'"x"', b"null", b"[" * DEEP, b'{"a":' * DEEP, b"\xff\xfe", b'{"format": NaN}']
)
@pytest.mark.parametrize("name", [MANIFEST, STATE])
def test_what_is_no_json_of_ours_is_refused(given, name, data):
    given.seal()
    given.tree = None
    if name == STATE:
        given.put(STATE, data)
        given.refused("is damaged")
    else:
        (given.path / MANIFEST).write_bytes(data)
        with pytest.raises(RunDirError, match=r"manifest\.json is damaged"):
            storage.read_manifest(given.path)


MARKERS = {
    "no tensor": {"$tensor": "x"},
    "tensor a list": {"$tensor": ["network/w"]},
    "complex of others": {"$complex": "network/w"},
    "bits of floats": {"$bits": ["network/w", [4]]},
    "bits too many": {"$bits": ["network/array", [999]]},
    "bits negative": {"$bits": ["network/array", [-8, -24]]},
    "objects": {"$array": ["network/array", {"dtype": "|O8", "shape": [3], "scalar": False}]},
    "dtype a list": {"$array": ["network/array", {"dtype": [["a", "O"]], "shape": [3], "scalar": False}]},
    "no dtype": {"$array": ["network/array", {"shape": [3], "scalar": False}]},
    "another shape": {"$array": ["network/array", {"dtype": "<i8", "shape": [4], "scalar": False}]},
    "negative shape": {"$array": ["network/array", {"dtype": "<i8", "shape": [-3, -1], "scalar": False}]},
    "giant shape": {"$array": ["network/array", {"dtype": "<i8", "shape": [0, 1 << 62, 1 << 62], "scalar": False}]},
    "array of floats": {"$array": ["network/w", {"dtype": "<f4", "shape": [4], "scalar": False}]},
    "array without note": {"$array": ["network/array"]},
    "float a word": {"$float": "x"},
    "bytes of no hex": {"$bytes": "zz"},
    "bytes a number": {"$bytes": 7},
    "dict a number": {"$dict": 7},
    "dict of lists": {"$dict": [[[1], 2]]},
    "no rows": {"$rows": [7, "x"]},
    "rows by a truth": {"$rows": [True, "x"]},
    "rows by a negative": {"$rows": [-1, "x"]},
    "no column": {"$rows": [0, "x"]},
    "column a list": {"$rows": [0, []]},
}

ROWS = {
    "not a list": change("rows", to=5),
    "no size": change("rows", 0, "size", to=None),
    "size negative": change("rows", 0, "size", to=-10),
    "size giant": change("rows", 0, "size", to=1 << 62),
    "size a truth": change("rows", 0, "size", to=True),
    "used no tensor": change("rows", 0, "used", to="x"),
    "used of numbers": change("rows", 0, "used", to="network/w"),
    "blocks a list": change("rows", 0, "blocks", to=[1]),
    "block of objects": change("rows", 0, "blocks", "packed rows", to=["|O8", [1]]),
    "block of words": change("rows", 0, "blocks", "packed rows", to=["|u1", "8"]),
    "block giant": change("rows", 0, "blocks", "packed rows", to=["|u1", [1 << 40, 1 << 40]]),
    "block wider": change("rows", 0, "blocks", "packed rows", to=["|u1", [16]]),
    "segments a number": change("rows", 0, "segments", to=4),
    "no such segment": change("rows", 0, "segments", to=["0" * 64 + ".safetensors"]),
    "upwards": change("rows", 0, "segments", to=["../../x"]),
    "without segments": change("rows", 0, "segments", to=[]),
    "parts a list": change("parts", to=[]),
    "no parts": change("parts", to=None),
}

TREES = {**ROWS, **{name: change("parts", "network", "w", to=marker) for name, marker in MARKERS.items()}}


@pytest.mark.parametrize("name", TREES)
def test_hostile_state_is_refused(given, name):
    TREES[name](given.tree)
    given.refused(r"state\.json is damaged" if name in MARKERS else "is damaged")


def test_links_pipes_and_folders_in_place_of_files_are_refused(given, tmp_path):
    given.seal()
    for path in (given.path / MANIFEST, given.path / STATE, given.path / TENSORS, given.segment):
        data = path.read_bytes()
        path.rename(tmp_path / "elsewhere")
        for put in (lambda p: p.symlink_to(tmp_path / "elsewhere"), os.mkfifo, Path.mkdir):
            put(path)
            with pytest.raises(RunDirError, match=r"it is (a symbolic link|not a plain file)"):
                storage.load(given.path)
            path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(data)
    folder = given.segment.parent
    folder.rename(tmp_path / "segments")
    folder.symlink_to(tmp_path / "segments")
    with pytest.raises(RunDirError):
        storage.load(given.path)


def test_a_file_larger_than_memory_is_not_read(given):
    with open(given.path / TENSORS, "wb") as file:
        text = json.dumps({"network/w": entry("U8", (1 << 40,), (0, 1 << 40))}).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + (1 << 40))
    given.note["files"][TENSORS]["size"] = 8 + len(text) + (1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    given.seal()
    with pytest.raises(RunDirError, match="this machine has"):
        storage.load(given.path)
    assert "this machine has" in storage.verify(given.path)[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 2
