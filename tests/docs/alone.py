"""A program in this process, which leaves no more behind than one of its own would."""

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import torch

from rlrun.runs import processes

from .shell import Answer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def called(program: Callable[[], object], overrides: list[str], folder: Path, *, script: bool = False) -> Answer:
    """Call a program with overrides in a folder; return its exit code and its output.

    script: it finds modules of the folder before all others, as what `python FILE` runs does.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with _alone(overrides, folder), redirect_stdout(out), redirect_stderr(err):
        if script:
            sys.path.insert(0, str(folder))
        try:
            program()
        except SystemExit as error:
            code = error.code
        except Exception:
            traceback.print_exc()
            code = 1
    printed, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Answer(code if isinstance(code, int) else int(code is not None), printed, errors)


@contextmanager
def _alone(overrides: list[str], folder: Path) -> Iterator[None]:
    """Work in a folder with these arguments; forget afterwards what was imported from there."""
    here, argv, path, known = Path.cwd(), sys.argv, list(sys.path), set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    environment, bytecode, threads = dict(os.environ), sys.dont_write_bytecode, torch.get_num_threads()
    os.chdir(folder)
    sys.argv, sys.dont_write_bytecode = overrides, True
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.chdir(here)
        sys.argv, sys.path[:], sys.dont_write_bytecode = argv, path, bytecode
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(threads)
        processes.received.clear()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name in set(sys.modules) - known:
            if not _installed(name):
                del sys.modules[name]


def _installed(name: str) -> bool:
    """Say whether a module is none of a page's folder."""
    namespace = getattr(sys.modules[name], "__dict__", {})  # some modules answer to any attribute
    places = [namespace.get("__file__"), *(namespace.get("__path__") or [])]
    return all(place is None or _library(str(place)) for place in places)


def _library(place: str) -> bool:
    return place.startswith((sys.prefix, sys.base_prefix)) or str(Path(__file__).parents[2]) in place
