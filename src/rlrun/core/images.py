"""Which arrays are images, which of their axes are channels, and how whole numbers scale to [0, 1].

`rlrun.core.spaces.Box` answers these questions for networks, the memory, wrappers and messages, by these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.core.typing import Array

LAYOUTS = ("auto", "vector", "gray", "channels_first", "channels_last", "stack_last")
AXES = {"gray": 2, "channels_first": 2, "channels_last": 3, "stack_last": 4}  # number of axes from the height on
SIDE = 8  # pixels a side of the smallest image that is recognized
WIDEST = 2**24  # between useful bounds; float32 tells neighbors apart up to here


@dataclass(frozen=True)
class Picture:
    """An array that is an image: two neighboring axes are height and width, all others have channels.

    Args:
        shape: of the array.
        rows: axis of the height; the width's follows.
    """

    shape: tuple[int, ...]
    rows: int

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        return self.shape[self.rows], self.shape[self.rows + 1]

    @property
    def channels(self) -> int:
        """Number of channels of all frames together."""
        return int(np.prod(self.shape[: self.rows])) * int(np.prod(self.shape[self.rows + 2 :]))

    @property
    def frames(self) -> int:
        """Size of the first axis, if it precedes the height and may hold stacked frames; else 1."""
        return self.shape[0] if self.rows > 0 else 1

    @property
    def name(self) -> str:
        """Its layout, one of `LAYOUTS`."""
        after = len(self.shape) - self.rows - 2
        if len(self.shape) == 2:
            return "gray"
        return ("channels_first", "channels_last", "stack_last")[after]

    def channels_first(self, array: Any) -> Any:
        """Return tensors [..., *shape] as images [..., C, H, W]."""
        axes = len(self.shape)
        if axes == 2:
            return array.unsqueeze(-3)
        moved = array.movedim((self.rows - axes, self.rows + 1 - axes), (-2, -1))
        return moved if axes == 3 else moved.flatten(-axes, -3)

    def restored(self, images: Any) -> Any:
        """Return images [..., C, H, W] as tensors [..., *shape]; the inverse of `channels_first`."""
        axes = len(self.shape)
        if axes == 2:
            return images.squeeze(-3)
        others = (*self.shape[: self.rows], *self.shape[self.rows + 2 :])
        return images.unflatten(-3, others).movedim((-2, -1), (self.rows - axes, self.rows + 1 - axes))


def picture_of(shape: Sequence[int], dtype: str, low: Array, high: Array, layout: str) -> Picture | None:
    """Return the axes of an array that is an image; None for other arrays.

    Args:
        shape, dtype, low, high: of its space.
        layout: one of `LAYOUTS`; auto = guessed from the others. An array with two axes and channels is a signal.
    """
    shape, axes = tuple(shape), len(shape)
    if layout == "vector" or axes < 2 or (axes == 2 and layout.startswith("channels")):
        return None
    if layout != "auto":
        return Picture(shape, max(0, axes - AXES[layout]))
    kind, size = np.dtype(dtype).kind, np.dtype(dtype).itemsize
    if kind == "f":
        is_pixels = axes == 3 and bool((low == 0).all() and ((high == 1).all() or (high == 255).all()))
    else:
        is_pixels = axes in (2, 3, 4) and (size == 1 or (axes > 2 and bool(useful(dtype, low, high).all())))
    if not is_pixels or 0 in shape:
        return None
    picture = Picture(shape, guessed_rows(shape, low, high))
    return picture if min(picture.sides) >= SIDE else None


def guessed_rows(shape: Sequence[int], low: Array, high: Array) -> int:
    """Return the axis of the height of an array with two to four axes, if it is an image.

    Sides have at least 8 pixels. Bounds that differ along an axis mark it as channels. Two neighboring axes of equal
    size are the sides; else the two of the largest area. In doubt the channels are last, also in a stack of images.
    """
    axes = len(shape)
    candidates = [*range(axes - 1)]
    candidates = [at for at in candidates if min(shape[at : at + 2]) >= SIDE] or candidates
    varying = {axis for axis in range(axes) for bound in (low, high) if (bound != np.take(bound, [0], axis)).any()}
    if varying:
        candidates = [at for at in candidates if not varying & {at, at + 1}] or candidates
    candidates = [at for at in candidates if shape[at] == shape[at + 1]] or candidates
    order = {axes - 3: 2, axes - 2: 1}
    best: int = max(candidates, key=lambda at: (shape[at] * shape[at + 1], order.get(at, 0)))
    return best


def useful(dtype: str, low: Array, high: Array) -> Array:
    """Return for each number whether its bounds are its true range: they differ, by at most `WIDEST`.

    The limits of int16 itself do not count as a range.
    """
    width = high.astype(np.float64) - low.astype(np.float64)
    is_useful: Array = (width > 0) & (width <= WIDEST)
    if np.dtype(dtype) == np.int16:
        limits = np.iinfo(np.int16)
        is_useful &= (low != limits.min) | (high != limits.max)
    return is_useful


def unit_range(dtype: str, low: Array, high: Array) -> tuple[Any, Any]:
    """Return offset and factor that scale whole numbers to [0, 1]: (number - offset) * factor.

    Each is a scalar where it is the same for all numbers, else an array. Numbers without useful bounds stay unchanged.
    """
    is_useful = useful(dtype, low, high)
    first = np.where(is_useful, low, 0).astype(np.int64)
    factor = np.where(is_useful, 1.0 / np.where(is_useful, high.astype(np.float64) - low.astype(np.float64), 1.0), 1.0)
    if first.size and (first == first.flat[0]).all() and (factor == factor.flat[0]).all():
        return int(first.flat[0]), float(factor.flat[0])
    return first, factor.astype(np.float32)
