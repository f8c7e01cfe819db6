"""What a sweep is made with, beside its jobs: `launcher=slurm launcher.partition=long`, `+sweep=optuna`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlrun import config as configuration
from rlrun.build import Builder
from rlrun.config.composition import OF_SWEEPS

PRIMARY = "multirun"  # the file that lists the groups


def apart(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the words of the jobs, and those of the sweep itself."""
    given = list(words)
    own = [word for word in given if word.strip().lstrip("+~").partition("=")[0].split(".")[0] in OF_SWEEPS]
    return [word for word in given if word not in own], own


class Means:
    """What the words of a sweep itself choose and set.

    Args:
        words: of `apart`.
        config_dir: the user's own conf folder.

    Raises:
        ConfigError: a word is wrong.
    """

    def __init__(self, words: Sequence[str] = (), config_dir: Path | None = None) -> None:
        composed = configuration.compose(words, config_dir, primary=PRIMARY, roots=OF_SWEEPS)
        self.words = composed.words
        self.choices = composed.choices
        self._builder = Builder(composed.config)

    def launcher(self) -> Any:
        """Return the recipe of the launcher, to be called with the sweep's folder."""
        return self._builder.get("launcher")

    def prepare(self) -> None:
        """Let the launcher begin with what takes time before its first job."""
        prepare = getattr(self.launcher().func, "prepare", None)
        if prepare is not None:
            prepare()
