"""Make standard output and standard error robust: against closed streams, lost terminals and narrow encodings."""

import errno
import io
import os
import sys
from typing import Any

OUTPUTS = ("standard output", "standard error")  # file names in errors
NAMES = ("stdin", "stdout", "stderr")  # by file descriptor


class Output(io.FileIO):
    """The file behind standard output or standard error.

    Output to a closed terminal is discarded, and the run continues.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.is_terminal = self.isatty()  # read now, as it becomes False when the terminal closes

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno == errno.EIO and self.is_terminal:
                return len(data)
            error.filename = OUTPUTS[self.fileno() - 1]
            raise


def prepare() -> None:
    """Make all text writable: closed streams are opened on /dev/null, and unencodable characters are escaped.

    Otherwise the next files that a run opens would get the descriptors of closed streams.
    """
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
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
    """Discard output that cannot be flushed; otherwise Python would try again at exit and end with code 120."""
    for number, name in enumerate(NAMES):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
