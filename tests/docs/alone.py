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
from unittest import mock

import pytest
import torch
from tests.command import forget

from rlrun.core import processes

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
    known, threads = set(sys.modules), torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ), warnings.catch_warnings():
        patch.chdir(folder)
        patch.setattr(sys, "argv", overrides)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "dont_write_bytecode", True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            processes.received.clear()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            forget(known)
