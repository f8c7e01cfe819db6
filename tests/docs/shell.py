"""A real shell, in which the programs of a page are called back here: no interpreter starts, and quoting is real."""

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

# Passes its arguments on, waits, and exits with the code that it gets.
CALL = """#!/bin/bash
mkfifo "$STORY/$$.code"
printf '%s\\0' "${0##*/}" "$PWD" "$@" > "$STORY/$$.words"
echo $$ > "$STORY/asked"
read -r code < "$STORY/$$.code"
cat "$STORY/$$.out"
cat "$STORY/$$.err" >&2
exit "$code"
"""
REAL = ("cat", "diff", "mkfifo", "mv")  # what runs as it is; no other program is found
LEAVE = '\ncode=$?; pwd > "$STORY/here"; exit $code\n'


class Answer(NamedTuple):
    """What a program came to."""

    code: int
    out: str = ""
    err: str = ""


class Shell:
    """A shell that keeps its folder from one line to the next.

    box: a folder for what it needs; programs: names of those that `answer` replaces; answer: takes a program,
    its overrides, and the folder in which it was called; scripts: programs that run in the shell, by name.
    """

    def __init__(
        self,
        folder: Path,
        box: Path,
        programs: Iterable[str],
        answer: Callable[[str, list[str], Path], Answer],
        scripts: Mapping[str, str],
    ) -> None:
        self.folder, self._box, self._answer, self._code = folder, box, answer, 0
        (box / "bin").mkdir(parents=True)
        for name, text in {**dict.fromkeys(programs, CALL), **scripts}.items():
            (box / "bin" / name).write_text(text)
            (box / "bin" / name).chmod(0o755)
        for name in REAL:
            (box / "bin" / name).symlink_to(shutil.which(name) or name)
        os.mkfifo(box / "asked")
        self._asked = os.open(box / "asked", os.O_RDWR | os.O_NONBLOCK)

    def close(self) -> None:
        os.close(self._asked)

    def run(self, line: str) -> Answer:
        """Run a line; `out` holds stdout and stderr, in any order."""
        overrides = ["/bin/bash", "-c", f"(exit {self._code})\n{line}{LEAVE}"]  # `$?` is of the line before
        about = {**os.environ, "STORY": str(self._box), "PATH": str(self._box / "bin")}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        shell = subprocess.Popen(overrides, cwd=self.folder, env=about, start_new_session=True, **streams)
        with shell:
            try:
                out = self._listen(shell.stdout.fileno())
            except BaseException:
                os.killpg(shell.pid, signal.SIGKILL)  # it waits for an answer
                raise
        here = self._box / "here"
        if here.exists():  # not after an error of syntax
            self.folder = Path(here.read_text().strip())
        self._code = shell.returncode
        return Answer(self._code, out)

    def _listen(self, printed: int) -> str:
        """Answer calls until the shell has ended."""
        out = b""
        while True:
            ready, _, _ = select.select([self._asked, printed], [], [])
            if self._asked in ready:
                for caller in os.read(self._asked, 4_096).decode().split():
                    self._call(caller)
            elif chunk := os.read(printed, 65_536):
                out += chunk
            else:
                return out.decode(errors="replace")

    def _call(self, caller: str) -> None:
        program, folder, *overrides, _ = (self._box / f"{caller}.words").read_text().split("\0")
        answer = self._answer(program, overrides, Path(folder))
        (self._box / f"{caller}.out").write_text(answer.out)
        (self._box / f"{caller}.err").write_text(answer.err)
        (self._box / f"{caller}.code").write_text(f"{answer.code}\n")


def whole_lines(lines: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Join lines that are one command: `if` to `fi`, and those that end in a backslash."""
    commands: list[tuple[int, str]] = []
    for number, line in lines:
        if commands and _goes_on(commands[-1][1]):
            commands[-1] = (commands[-1][0], f"{commands[-1][1]}\n{line}")
        else:
            commands.append((number, line))
    return commands


def _goes_on(text: str) -> bool:
    overrides = text.replace(";", " ; ").split()
    return (
        text.endswith("\\")
        or overrides.count("if") > overrides.count("fi")
        or overrides.count("for") > overrides.count("done")
    )
