"""The config files of a search path: each is read once, and what was merged is kept."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from hydra.core.object_type import ObjectType
from omegaconf import DictConfig

from rlrun.config.layering import Files, hydra_as_of_now, list_files, listed_groups
from rlrun.config.merging import merge
from rlrun.config.origins import Layer
from rlrun.config.overrides import Override
from rlrun.config.places import ConfigFolder
from rlrun.config.sources import Repository

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


class Library:
    """What the files of a search path come to, by the overrides that choose from groups."""

    def __init__(self, places: Sequence[ConfigFolder], primary: str) -> None:
        self.repository = Repository(places)
        self._primary = primary
        self._files: dict[tuple[str, ...], Files] = {}
        self._merged: dict[tuple[str, ...], bytes] = {}  # pickled: a copy is made in a fifth
        with hydra_as_of_now():
            self.listed = listed_groups(self.repository, primary)
        self.groups = self.repository.get_group_options("", ObjectType.GROUP)

    def files(self, chosen: Sequence[Override]) -> Files:
        """Return the files that settled overrides ask for.

        Raises: ConfigError for whatever Hydra refuses.
        """
        key = _names(chosen)
        if key not in self._files:
            self._files[key] = list_files(self.repository, chosen, primary=self._primary)
        files = self._files[key]
        return files._replace(choices=dict(files.choices))

    def merged(self, chosen: Sequence[Override]) -> tuple[DictConfig, list[Layer]]:
        """Return the files merged, and what each of them put in: copies, which are the caller's to change.

        Raises: ConfigError for whatever Hydra refuses, and if a file does not fit what came before it.
        """
        key = _names(chosen)
        if key not in self._merged:
            self._merged[key] = pickle.dumps(merge(self.repository, self.files(chosen).defaults))
        config, layers = pickle.loads(self._merged[key])
        return config, layers


def library(places: Sequence[ConfigFolder], primary: str) -> Library:
    """Return the library of a search path.

    What comes with rlrun alone is shared by all who compose in this process, as long as none of its files changes;
    so is the work of a process with those that are forked from it.
    """
    if [place.packaged for place in places] == [True]:
        return _shared(places[0], primary, _stamp(places[0].path))
    return Library(places, primary)


@lru_cache(maxsize=4)
def _shared(place: ConfigFolder, primary: str, stamp: Stamp) -> Library:
    return Library([place], primary)


def _stamp(folder: Path) -> Stamp:
    """Return what tells apart a folder's files from those that were read before."""
    paths = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
    entries = [(path, os.stat(path, follow_symlinks=False)) for path in paths]
    return tuple((path, about.st_ino, about.st_size, about.st_mtime_ns) for path, about in entries)


def _names(chosen: Sequence[Override]) -> tuple[str, ...]:
    return tuple(f"{override.sign}{override.key}={override.value}" for override in chosen)
