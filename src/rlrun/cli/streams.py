"""Standard output and standard error, whatever a shell, a terminal or a scheduler made of them."""

import errno
import io
import os
import sys
from typing import Any

OUTPUTS = ("standard output", "standard error")  # as the files of errors
NAMES = ("stdin", "stdout", "stderr")  # by number


class Output(io.FileIO):
    """The file behind standard output or standard error.

    What is written to a terminal that is gone is lost, and the run continues.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.is_terminal = self.isatty()  # which one that is gone no longer says

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno == errno.EIO and self.is_terminal:
                return len(data)
            error.filename = OUTPUTS[self.fileno() - 1]
            raise


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
            raw = io.BufferedWriter(Output(number))
            at_once = stream.line_buffering
            stream = io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=at_once)
            setattr(sys, name, stream)


def drop() -> None:
    """Let what cannot be written lead nowhere: python would end with code 120 when it tries again."""
    for number, name in enumerate(NAMES):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
