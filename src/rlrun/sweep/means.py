"""What a sweep is made with, beside its jobs: `launcher=slurm launcher.partition=long`, `+sweep=optuna`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun import config as configuration
from rlrun.build import Builder
from rlrun.config.composition import OF_SWEEPS
from rlrun.errors import ConfigError
from rlrun.files import known

if TYPE_CHECKING:
    from rlrun.sweep.search import Optuna

PRIMARY = "multirun"  # the file that lists the groups
# Words that are taken from a sweep's folder, which may be somebody else's: none is code, and none names a place.
PLAIN = re.compile(
    r"launcher(\.(cluster|partition|account|qos|constraint|time|signal_delay|memory|cpus|gpus|parallel))?=[\w.-]{1,64}",
    re.ASCII,
)


def apart(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the words of the jobs, and those of the sweep itself."""
    all_words = list(words)
    own = [word for word in all_words if word.strip().lstrip("+~").partition("=")[0].split(".")[0] in OF_SWEEPS]
    return [word for word in all_words if word not in own], own


def of_launcher(words: Iterable[str]) -> list[str]:
    """Return those of some words that choose or set the launcher."""
    return [word for word in words if word.strip().lstrip("+~").partition("=")[0].split(".")[0] == "launcher"]


def recalled(words: Iterable[str], about: Path) -> list[str]:
    """Return words of a sweep that is gone on with, and the launcher's of its beginning, unless they have some.

    about: the file in which these were noted.

    Raises:
        ConfigError: a noted word is one that the user has to type.
    """
    typed, noted = list(words), known(about).get("launcher", [])
    if of_launcher(typed) or not isinstance(noted, list):
        return typed
    for word in noted:
        if not isinstance(word, str) or not PLAIN.fullmatch(word):
            raise ConfigError(
                f"this sweep was begun with {str(word)[:80]!r}, which is not taken from its folder: "
                "type all words of the launcher again, or launcher=local"
            )
    return [*noted, *typed]


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

    def search(self) -> Optuna | None:
        """Return how values are searched; None: all combinations are jobs."""
        return None if self.choices.get("sweep") is None else self._builder.get("sweep")
