"""Words between a coordinator and the keepers of its jobs on other machines: names of empty files.

The sweep's folder is all that those machines share. A word is there or is not, so none can be read by halves; one
listing of the folder tells of all jobs, however many there are.

    begun            the job's process is at work                           said by the keeper
    again            it was stopped and saved; the scheduler starts it again
    ended.CODE       it ended with this exit code
    leave, kill      it shall leave in order; it shall be ended             said by the coordinator
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ENDED = "ended."


@dataclass(frozen=True)
class Notes:
    """The folder of these files.

    Attributes:
        folder: of one coordinator, made by it; nobody else knew its name before.
    """

    folder: Path

    def say(self, ticket: str, word: str) -> None:
        """Say a word of a job."""
        (self.folder / f"{ticket}.{word}").touch()

    def take_back(self, ticket: str, word: str) -> None:
        """Say a word no more."""
        (self.folder / f"{ticket}.{word}").unlink(missing_ok=True)

    def said(self, ticket: str, word: str) -> bool:
        """Tell whether a word was said of a job."""
        return (self.folder / f"{ticket}.{word}").exists()

    def all(self) -> dict[str, set[str]]:
        """Return the words that were said of each job."""
        words: dict[str, set[str]] = defaultdict(set)
        for name in os.listdir(self.folder):
            ticket, _, word = name.partition(".")
            words[ticket].add(word)
        return words

    def forget(self, ticket: str) -> None:
        """Remove what was said of a job that ended."""
        for path in self.folder.glob(f"{ticket}.*"):
            path.unlink(missing_ok=True)


def code_in(words: set[str]) -> int | None:
    """Return the exit code that was said; None where none was."""
    codes = [int(word.removeprefix(ENDED)) for word in words if word.startswith(ENDED)]
    return codes[0] if codes else None
