"""A data set split into a training and a held-out part, and data sets for examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.core.errors import ConfigError, MissingExtra, did_you_mean
from rlrun.core.spaces import Composite, Discrete, Space, describe, flat, laid_out, map_tree
from rlrun.core.typing import Array, Tree
from rlrun.env import sprites as pictures
from rlrun.memory.formats.sources import PIXELS, leaf_of, space_of
from rlrun.memory.loaders.dataset import DatasetPart, TableRows, source_of

CHUNK = 1_024  # rows that are read at once


class Split:
    """A data set split into a training part and a held-out part.

    Each row is in exactly one part. A table or a stored memory is split by whole episodes, as their rows are alike. The
    draw depends on the seed alone, so all runs, ranks and resumed runs have the same parts.

    Args:
        dataset: as `DatasetLoader` takes it.
        fraction: of the rows, or episodes, in the held-out part; between 0 and 1.
        columns: as `DatasetLoader` takes them.
        stratify: a column of whole numbers, [R]: this fraction of each value's rows is held out, up to one row.
        layout: of images in the column `observation`, as `rlrun.core.spaces.laid_out` takes it.
        seed: of the draw.

    Attributes:
        train, held_out: the parts, for a `DatasetLoader`.

    Raises:
        ConfigError: the data set is invalid, a part would be empty, or the column to stratify by is missing.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        fraction: float,
        columns: Sequence[str] | None = None,
        stratify: str | None = None,
        layout: str | Mapping[str, str] = "auto",
        seed: int = 0,
    ) -> None:
        if not 0.0 < fraction < 1.0:
            raise ConfigError(f"data.fraction: wanted a number between 0 and 1, got {fraction}")
        source = source_of(dataset, columns)
        if isinstance(source, DatasetPart):
            raise ConfigError("data.dataset: it is a part of another split")
        self._source, self._layout = source, layout
        unit = source.episodes if isinstance(source, TableRows) else np.arange(len(source))
        _, first, unit = np.unique(unit, return_index=True, return_inverse=True)
        kinds = np.zeros(len(first), np.int64) if stratify is None else self._kinds(stratify)[first]
        chosen = drawn(kinds, fraction, seed)[unit]
        if not 0 < chosen.sum() < len(chosen):
            what = "episodes" if isinstance(source, TableRows) else "rows"
            raise ConfigError(f"data.fraction: {fraction} of {len(first):,} {what} leaves one of the parts empty")
        self.train, self.held_out = (
            DatasetPart(source, np.flatnonzero(chosen == held_out), source.names, held_out)
            for held_out in (False, True)
        )

    def _kinds(self, name: str) -> Array:
        """Return the values [R] of the column that the parts are stratified by."""
        names = self._source.names
        if name not in names:
            there = f"there are {', '.join(names)}{did_you_mean(name, names)}"
            raise ConfigError(f"data.stratify: there is no column '{name}'; {there}")
        values: Any = self._column(name)
        if isinstance(values, dict) or values.ndim != 1 or values.dtype.kind not in "biu":
            raise ConfigError(f"data.stratify: '{name}' is no column of whole numbers, one a row")
        return np.asarray(values)

    def _column(self, name: str, rows: int | None = None) -> Tree:
        """Return a column of all rows, or of the first ones, as arrays."""
        count = len(self._source) if rows is None else rows
        chunks = [np.arange(begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK)]
        read = [map_tree(np.asarray, self._source.batch(chunk)[name]) for chunk in chunks]
        return map_tree(lambda *parts: np.concatenate(parts), *read)

    @cached_property
    def spaces(self) -> dict[str, Space]:
        """The space of each column: images of bytes, floats without bounds, or choices up to the largest value."""
        spaces = {}
        for name in self._source.names:
            tree = self._column(name, rows=1)
            counted = any(leaf.dtype.kind in "biu" and leaf.dtype.name != PIXELS for leaf in flat(tree).values())
            tree = self._column(name) if counted else tree  # the largest choice may be in any row
            least = min((int(leaf.min()) for leaf in flat(tree).values() if leaf.dtype.kind == "i"), default=0)
            if least < 0:
                raise ConfigError(f"{name}: choices count from 0, the smallest is {least}; other numbers are floats")
            spaces[name] = space_of(map_tree(leaf_of, tree))
        if "observation" in spaces:
            spaces["observation"] = laid_out(spaces["observation"], self._layout)
        return spaces

    @property
    def space(self) -> Composite:
        """The space of all columns together."""
        return Composite(self.spaces)


def classes(data: Split, column: str) -> int:
    """Return the number of classes in a column of labels.

    Raises:
        ConfigError: there is no such column, or it does not have one integer a row.
    """
    if column not in data.spaces:
        raise ConfigError(f"there is no column '{column}'; there are {', '.join(data.spaces)}")
    space = data.spaces[column]
    if not isinstance(space, Discrete):
        raise ConfigError(f"{column}: a classifier wants one integer a row, such as int64, and not {describe(space)}")
    return space.n


def drawn(kinds: Array, fraction: float, seed: int) -> Array:
    """Return flags of the units to hold out: this fraction of each kind, rounded so that the total is right.

    Args:
        kinds: of the units, [U].
        fraction: between 0 and 1.
        seed: of the draw.
    """
    _, kinds, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    wanted = counts * fraction
    quota = np.floor(wanted).astype(np.int64)
    missing = round(len(kinds) * fraction) - quota.sum()
    quota[np.argsort(quota - wanted, kind="stable")[:missing]] += 1  # the largest remainders first
    order = np.random.default_rng(seed).permutation(len(kinds))
    order = order[np.argsort(kinds[order], kind="stable")]  # by kind, shuffled within each
    place = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
    flags = np.zeros(len(kinds), np.bool_)
    flags[order] = place < np.repeat(quota, counts)
    return flags


def digits() -> dict[str, Array]:
    """Return the digits of scikit-learn: `observation`, uint8 [1797, 8, 8] from 0 to 255, and `label`, [1797].

    The images count pixels of a finer one, from 0 to 16 (Alpaydin and Kaynak 1998, doi 10.24432/C50P49).

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("data=digits", "scikit-learn", "digits") from None
    bunch = load_digits()
    images = np.round(bunch.images * (255.0 / 16.0)).astype(np.uint8)
    return {"observation": images, "label": bunch.target.astype(np.int64)}


def gaussians(*, rows: int, size: int, correlation: float, seed: int = 0) -> dict[str, Array]:
    """Return standard normal `x` and `y`, float32 [rows, size]: number i of x and of y have this correlation.

    Their mutual information is -size / 2 · log(1 - correlation²) nats.

    Raises:
        ConfigError: the correlation is not between -1 and 1.
    """
    if not -1.0 < correlation < 1.0:
        raise ConfigError(f"data.dataset.correlation: wanted a number between -1 and 1, got {correlation}")
    x, noise = np.random.default_rng(seed).standard_normal((2, rows, size), np.float32)
    return {"x": x, "y": np.float32(correlation) * x + np.float32(1.0 - correlation**2) ** 0.5 * noise}


def sprites(*, rows: int, seed: int = 0) -> dict[str, Array]:
    """Return pictures of two sprites, which differ in shape and color, in front of a plain background.

    `observation` is uint8 [rows, 32, 32, 3], `segmentation` uint8 [rows, 32, 32]: what each pixel shows, 0 the
    background, 1 the sprite behind, 2 the one in front.
    """
    draw, side = np.random.default_rng(seed), pictures.SIDE
    images, segmentations = np.empty((rows, side, side, 3), np.uint8), np.empty((rows, side, side), np.uint8)
    for image, segmentation in zip(images, segmentations, strict=True):
        image[:], segmentation[:] = pictures.drawn(*pictures.placed(draw))
    return {"observation": images, "segmentation": segmentations}
