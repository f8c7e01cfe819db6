"""What tests of several folders share."""

import functools
import gc
import hashlib
import importlib
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from tests.command import code_of, forget

from rlrun.config import composition
from rlrun.export import during, making

SLOW = {  # files whose tests take four fifths of the time; `.ci/run --quick` leaves them out
    *("resume/test_completeness.py", "resume/test_exact.py", "values/test_values.py", "export/test_parity.py"),
    *("export/test_during.py", "compile/test_algorithms.py", "compile/test_update.py", "docs/test_stories.py"),
    *("sweep/test_sweeps.py", "sweep/test_launchers.py", "sweep/test_search.py", "memory/test_model.py"),
    *("memory/test_samplers.py", "docs/test_handbook.py", "conf/test_every_config.py"),
    *(f"../benchmarks/tests/test_{name}.py" for name in ("cost", "memory", "outcomes")),
    *("commands/test_train.py", "collect/test_async.py", "cli/test_async.py", "checkpointing/test_crashes.py"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files."""
    for item in items:
        if Path(os.path.relpath(item.path, Path(__file__).parent)).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)


def unskipped(report: Any) -> None:
    """Fail what is skipped in the gate, which installs all that tests need."""
    if report.skipped and "RLRUN_GATE" in os.environ:
        report.outcome, report.longrepr = "failed", f"the gate skips no test: {report.longrepr[-1]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    unskipped(report)
    return report


pytest_make_collect_report = pytest_runtest_makereport  # of files that are skipped as a whole


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not in what stays: a tenth of all time is gone into that otherwise.

    A failure shows messages from INFO on. The option `log_level` would set it anew for each phase of each test, and
    python empties the caches of all loggers each time, which are thousands.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    logging.getLogger().setLevel(logging.INFO)


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """The disk need not really have what this process writes: nobody cuts the power. Other processes do wait for it."""
    connect = sqlite3.connect

    def quick(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(sqlite3, "connect", quick)
        yield


@pytest.fixture(scope="session", autouse=True)
def operators() -> Iterator[None]:
    """Read the exporter's tables of operators once in this process, which takes as long as writing a file."""
    write = making.onnx_bytes

    def once(*graph: Any, **options: Any) -> bytes:
        from torch._export import utils
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        if not hasattr(ONNXRegistry.from_torchlib, "cache_info"):
            ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
            composite = functools.cache(utils._collect_all_valid_cia_ops_for_namespace)
            utils._collect_all_valid_cia_ops_for_namespace = lambda namespace: {*composite(namespace)}
        return write(*graph, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "onnx_bytes", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests are remembered among themselves, not in the folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("RLRUN_TRUST", raising=False)
        yield


class Shared(dict[Any, bytes]):
    """What is composed of packaged files, by what chose them; all processes of a test run compose it once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def file(self, key: Any) -> Path:
        return self.folder / hashlib.sha256(repr(key).encode()).hexdigest()

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key) and (file := self.file(key)).exists():
            super().__setitem__(key, file.read_bytes())
        return super().__contains__(key)

    def __setitem__(self, key: Any, value: bytes) -> None:
        super().__setitem__(key, value)
        own = self.folder / f"{os.getpid()}"
        own.write_bytes(value)
        own.replace(self.file(key))


@pytest.fixture(scope="session", autouse=True)
def selections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Choices of packaged files are composed once by all workers, as that takes a tenth of a second each."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "selections"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composition, "_of_packaged", Shared(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_imports() -> Iterator[None]:
    """Processes that tests start read what the first of them compiled, which takes each half a second otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


def imports() -> Iterator[None]:
    """Afterwards no folder that a test stood in is searched, and no module of it is known, any more."""
    known = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        yield
    forget(known)


imports_of_a_file = pytest.fixture(scope="module", autouse=True)(imports)  # whose fixtures stand somewhere, too
imports_of_a_test = pytest.fixture(autouse=True)(imports)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def rlrun(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call the command in this process, from an empty folder."""

    def call(*overrides: str) -> Outcome:
        capfd.readouterr()
        return Outcome(code_of(*map(str, overrides)), *capfd.readouterr())

    return call


@pytest.fixture
def write(project: Path) -> Callable[[str, str], Path]:
    """Write a file of the project."""

    def write_file(name: str, text: str) -> Path:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_file


@pytest.fixture(autouse=True)
def plain_loggers() -> None:
    """Take off what a command before has put on: its messages go to a standard error that is closed by now."""
    for name in ("rlrun", "rlrun.output", "rlrun.commands.fork"):
        messages = logging.getLogger(name)
        messages.handlers, messages.propagate = [], True
        if messages.level:
            messages.setLevel(logging.NOTSET)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no file during training, which takes seconds: tests/export/test_during.py does."""
    monkeypatch.setattr(during, "write_file", lambda *parts, **options: parts[2].touch())


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that starts processes which cost little."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])
        return importlib.import_module("tests.forked")


@pytest.fixture
def forked(children: ModuleType) -> Any:
    """Start a command in a process that costs little."""
    return children.Forked
