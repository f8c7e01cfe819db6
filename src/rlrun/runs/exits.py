"""Code that asks python to exit while there is work to be done: an environment, a callback, whatever they import."""

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rlrun.core.errors import RlrunError

HOOKS = (__file__, "<frozen _sitebuiltins>", os.path.join("wandb", "sdk", "lib", "exit_hooks.py"))  # replace an exit
leave = os._exit  # the original, also while `refused` replaces it


def describe_error(error: BaseException) -> str:
    """Return in one line what went wrong; of an exit, which line of code asked for it."""
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)
        callers = [frame for frame in frames if not frame.filename.endswith(HOOKS)]
        name = "os._exit" if frames and frames[-1].filename == __file__ else "sys.exit"
        return _exit_at((callers or frames)[-1], name, error.code or 0)
    notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))  # of the hook that it came out of
    text = str(error) if isinstance(error, RlrunError) else f"{notes}{type(error).__name__}: {error}"
    return " ".join(text.split()).removesuffix(":")


def _exit_at(caller: traceback.FrameSummary, name: str, code: object) -> str:
    where = f"{caller.filename}:{caller.lineno} in {caller.name}"
    return f"{where} called {name}({code}) before the work was complete"


@contextmanager
def refused() -> Iterator[None]:
    """Make a failure of `sys.exit` and `os._exit`, whatever the code; a process forked meanwhile leaves by them.

    Code that is not python's can still end the process. Where `os._exit` is called in another thread, the process ends
    with code 1 at least, after a line that names the caller.

    Raises:
        RlrunError: naming the line of code that asked to exit.
    """
    before, owner = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != owner:
            before(status)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(status)
        print("rlrun:", _exit_at(traceback.extract_stack()[-2], "os._exit", status), file=sys.stderr, flush=True)
        before(status or 1)

    if threading.current_thread() is threading.main_thread():
        os._exit = refuse
    try:
        yield
    except BaseException as error:
        if os.getpid() != owner:
            before(_code_of(error))
        if isinstance(error, SystemExit):
            raise RlrunError(describe_error(error)) from error
        raise
    finally:
        if os._exit is refuse:
            os._exit = before


def _code_of(error: BaseException) -> int:
    """Return the exit code of a process that ends by an error, which is shown unless it is an exit."""
    leaving = error if isinstance(error, SystemExit) else error.__cause__
    if not isinstance(leaving, SystemExit):
        traceback.print_exception(error)
        return 1
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr, flush=True)
    return 1
