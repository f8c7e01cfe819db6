"""Standard output and standard error, whatever a shell, a terminal or a scheduler made of them."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

from rlrun.core.errors import RlrunError
from rlrun.runs.files import reason

NAMES = ("stdin", "stdout", "stderr")  # by number


class Terminal(io.FileIO):
    """A terminal's file. When the terminal is gone, what is written to it is lost, and the run continues."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(data)


def prepare() -> None:
    """Let every text be written: closed streams lead nowhere, and characters that an encoding lacks are escaped.

    Without a file of their own the numbers of closed streams would go to the next files that a run opens.
    """
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number: this one
        stream = getattr(sys, name)
        if stream is None:
            mode, coding = "w" if number else "r", "utf-8"
            setattr(sys, name, open(number, mode, encoding=coding, closefd=False))  # noqa: SIM115
        elif number and isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            if stream.isatty():
                raw = io.BufferedWriter(Terminal(number, "w", closefd=False))
                stream = io.TextIOWrapper(raw, encoding=stream.encoding, line_buffering=True)
                setattr(sys, name, stream)
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write what is still buffered.

    Raises:
        BrokenPipeError: nobody reads standard output any more.
        RlrunError: standard output takes no more, as on a full disk.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RlrunError(f"standard output cannot be written: {reason(error)}") from error
    finally:
        with suppress(OSError):
            sys.stderr.flush()


def drop() -> None:
    """Let what cannot be written lead nowhere: python would end with code 120 when it tries again."""
    for number, name in enumerate(NAMES):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
