"""Random augmentation of images in samples; agents see images unchanged.

An image and the next one are changed separately. A stack of frames is changed as one, and so is a window of images. A
recurrent network reads a window and the steps after it as one path, which is changed as one, too.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError, SpaceError, did_you_mean, require_at_least
from rlrun.core.generators import Seeded
from rlrun.core.spaces import Box, Spaces, describe, leaves, map_tree
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors.adaptor import VIEWS
from rlrun.memory.table.samplers import Rows
from rlrun.training.metrics import Image


class Augmentation(Seeded):
    """The base of adaptors that change images of observations at random.

    Args:
        spaces: of the environment.
        leaves: paths of a dict observation; None = all images.
        seed: of the draws.

    Raises:
        SpaceError, ConfigError: the observation has no images, or lacks these."""

    provides = ("observation", "next_observation")
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    moves = False  # True: it only moves pixels, so they may be of any type; False: they must be bytes

    def __init__(self, spaces: Spaces, *, leaves: Sequence[str] | None = None, seed: int = 0) -> None:
        self.images = images_of(type(self).__name__, spaces, leaves, any_kind=self.moves)
        self.requires = tuple(f"observation.{path}" if path else "observation" for path in self.images)
        self._newest: Tensor | None = None  # an image beside its changed version, [H, 2 W, C]
        # each class draws from a branch of its own, as all augmentations of a run may have the same seed
        super().__init__(np.random.SeedSequence(seed, spawn_key=tuple(type(self).__name__.encode())))

    @abstractmethod
    def change(self, images: Tensor, count: int) -> Tensor:
        """Return changed images; images: uint8 [count, T, H, W, C], of which the T of a window change alike."""

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        window = rows is not None and rows.index.ndim == 2
        if rows is not None and rows.parted:
            length, parts = rows.index.shape[1], (batch[name] for name in self.provides)
            path = self.apply(map_tree(lambda *values: torch.cat(values, 1), *parts), window)
            return batch | {
                "observation": map_tree(lambda value: value[:, :length], path),
                "next_observation": map_tree(lambda value: value[:, length:], path),
            }
        return batch | {name: self.apply(batch[name], window) for name in self.provides if name in batch}

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Return the batch unchanged."""
        return batch

    def apply(self, tree: Tree, window: bool, path: str = "") -> Tree:
        """Return an observation, or its part at `path`, with changed images; window: [B, T, …], each changed alike."""
        if isinstance(tree, dict):
            return {name: self.apply(part, window, f"{path}.{name}" if path else name) for name, part in tree.items()}
        if path not in self.images:
            return tree
        leaf = self.images[path]
        if tree.dtype != getattr(torch, leaf.dtype):
            raise RlrunError(
                f"memory.adaptors: {type(self).__name__} changes pixels of {leaf.dtype}, and got {tree.dtype}; "
                "its +with= comes before image_scale, and does not go with representation"
            )
        count = len(tree) if window else tree[(..., *[0] * len(leaf.shape))].numel()
        images = tree.reshape(count, -1, *leaf.shape)
        assert leaf.picture is not None
        images = leaf.picture.channels_first(images).movedim(2, -1)
        changed = self.change(images, count)
        self._newest = torch.cat((images[0, 0], changed[0, 0]), 1)
        restored: Tensor = leaf.picture.restored(changed.movedim(-1, 2)).reshape(tree.shape)
        return restored

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Return an image of the newest sample beside its changed version."""
        if self._newest is None:
            return {}
        channels = slice(None) if self._newest.shape[-1] in (1, 3) else slice(-1, None)  # the last of stacked frames
        return {f"augmentation/{type(self).__name__}": Image(self._newest[..., channels])}


def images_of(owner: str, spaces: Spaces, chosen: Sequence[str] | None, *, any_kind: bool) -> dict[str, Box]:
    """Return the images of an observation by path; any_kind: also images of other numbers than bytes.

    Raises:
        SpaceError, ConfigError: the observation has no images, or lacks these.
    """
    images = {path: leaf for path, leaf in leaves(spaces.observation) if isinstance(leaf, Box) and leaf.image}
    images = {path: leaf for path, leaf in images.items() if any_kind or leaf.dtype == "uint8"}
    if not images:
        kind = "8 pixels a side" if any_kind else "uint8, 8 pixels a side"
        raise SpaceError(f"{owner} wants images ({kind}) in {describe(spaces.observation)}")
    if chosen is not None and not chosen:
        raise ConfigError(f"memory.adaptors: {owner}.leaves: wanted paths of images, or null for all of them; got []")
    there = "it is an image itself; leaves=null takes it" if "" in images else f"there are {', '.join(images)}"
    for path in chosen or ():
        if path not in images:
            raise ConfigError(
                f"memory.adaptors: {owner}.leaves: '{path}' is no image of the observation; {there}"
                f"{did_you_mean(path, images)}"
            )
    return images if chosen is None else {path: images[path] for path in chosen}


def _require_shares(name: str, *shares: float) -> None:
    if not all(0.0 < share <= 1.0 for share in shares) or list(shares) != sorted(shares):
        raise ConfigError(
            f"memory.adaptors: {name} must lie above 0 up to 1, in order, not {', '.join(map(str, shares))}"
        )


def _picked(images: Tensor, rows: Array, columns: Array) -> Tensor:
    """Return images with pixels taken from rows [count, H] and columns [count, W]."""
    pixels = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).reshape(len(images), 1, -1)
    first = np.arange(images[..., 0, 0, 0].numel()).reshape(*images.shape[:2], 1) * math.prod(images.shape[2:4])
    taken = np.take(images.reshape(-1, images.shape[-1]).numpy(), (first + pixels).ravel(), axis=0)
    return torch.from_numpy(taken).reshape(images.shape)


class RandomShift(Augmentation):
    """Shifts images by up to `pixels` in both directions; pixels of the border are repeated (DrQ, arXiv 2004.13649)."""

    moves = True

    def __init__(self, spaces: Spaces, *, pixels: int = 4, **options: Any) -> None:
        super().__init__(spaces, **options)
        require_at_least("pixels", pixels, 0)
        self.pixels = pixels

    def change(self, images: Tensor, count: int) -> Tensor:
        shift = self.generator.integers(-self.pixels, self.pixels + 1, (2, count, 1))
        rows, columns = (
            np.clip(np.arange(size) + by, 0, size - 1) for size, by in zip(images.shape[2:4], shift, strict=True)
        )
        return _picked(images, rows, columns)


class RandomCrop(Augmentation):
    """Crops images to a share of each side from `least` to 1, and scales the crop to the size of the image."""

    moves = True

    def __init__(self, spaces: Spaces, *, least: float = 0.8, **options: Any) -> None:
        super().__init__(spaces, **options)
        _require_shares("RandomCrop.least", least)
        self.least = least

    def change(self, images: Tensor, count: int) -> Tensor:
        share = self.generator.uniform(self.least, 1.0, (count, 1))
        corner = self.generator.random((2, count, 1)) * (1.0 - share)
        rows, columns = (
            ((first * size) + (np.arange(size) + 0.5) * share).astype(np.int64)
            for size, first in zip(images.shape[2:4], corner, strict=True)
        )
        return _picked(images, rows, columns)


class CutOut(Augmentation):
    """Cuts a rectangle out of each image (arXiv 1708.04552).

    Args:
        least, largest: bounds of the share of each side; equal ones = a fixed size.
        color: of the rectangle, 0 to 255.
    """

    def __init__(
        self, spaces: Spaces, *, least: float = 0.2, largest: float = 0.4, color: int = 0, **options: Any
    ) -> None:
        super().__init__(spaces, **options)
        _require_shares("CutOut.least and largest", least, largest)
        if not 0 <= color <= 255:
            raise ConfigError(f"memory.adaptors: CutOut.color must lie from 0 to 255, not {color}")
        self.least, self.largest, self.color = least, largest, color

    def change(self, images: Tensor, count: int) -> Tensor:
        inside = [self._inside(size, count) for size in images.shape[2:4]]
        cut = torch.from_numpy(inside[0][:, None, :, None, None] & inside[1][:, None, None, :, None])
        return images.masked_fill(cut, self.color)

    def _inside(self, size: int, count: int) -> Array:
        """Return flags [count, size] of the pixels to cut out along a side."""
        share = self.generator.uniform(self.least, self.largest, (count, 1))
        length = np.maximum(np.rint(share * size), 1.0)
        first = np.floor(self.generator.random((count, 1)) * (size - length + 1.0))
        inside: Array = (first <= np.arange(size)) & (np.arange(size) < first + length)
        return inside


class PixelNoise(Augmentation):
    """Adds normal noise to all pixels of a share of the batches.

    Args:
        deviation: of the noise, as a share of the range 0 to 255.
        chance: that a batch gets noise.
    """

    def __init__(self, spaces: Spaces, *, deviation: float = 0.015, chance: float = 0.25, **options: Any) -> None:
        super().__init__(spaces, **options)
        if not (deviation >= 0.0 and 0.0 <= chance <= 1.0):
            values = f"{deviation} and {chance}"
            raise ConfigError(f"memory.adaptors: PixelNoise wants deviation ≥ 0 and chance from 0 to 1, not {values}")
        self.deviation, self.chance = deviation, chance

    def change(self, images: Tensor, count: int) -> Tensor:
        if self.generator.random() >= self.chance:
            return images
        noise = torch.from_numpy(self.generator.standard_normal(images.shape, np.float32))
        return (images + noise * (255.0 * self.deviation)).round_().clamp_(0.0, 255.0).to(torch.uint8)


class ColorJitter(Augmentation):
    """Changes the light of each image: pixels times a contrast, plus a brightness, times a factor of each channel.

    Args:
        brightness, contrast, tint: largest change of each, as a share; 0 = none. Contrast is around the image's mean.
    """

    def __init__(
        self, spaces: Spaces, *, brightness: float = 0.2, contrast: float = 0.2, tint: float = 0.0, **options: Any
    ) -> None:
        super().__init__(spaces, **options)
        self.most = {"brightness": brightness, "contrast": contrast, "tint": tint}
        for name, most in self.most.items():
            if not 0.0 <= most <= 1.0:
                raise ConfigError(f"memory.adaptors: ColorJitter.{name} must lie from 0 to 1, not {most}")

    def change(self, images: Tensor, count: int) -> Tensor:
        brightness, contrast = (self._drawn(self.most[name], count, 1, 1, 1, 1) for name in ("brightness", "contrast"))
        tint = self._drawn(self.most["tint"], count, 1, 1, 1, images.shape[-1])
        pixels = images.float()
        mean = pixels.mean((1, 2, 3, 4), keepdim=True)
        pixels = (mean + (pixels - mean) * (1.0 + contrast) + 255.0 * brightness) * (1.0 + tint)
        return pixels.round_().clamp_(0.0, 255.0).to(torch.uint8)

    def _drawn(self, most: float, *shape: int) -> Tensor:
        return torch.from_numpy(self.generator.uniform(-most, most, shape).astype(np.float32))


class Views:
    """Adds two views of each observation, `anchor` and `positive`, by two random changes of its images.

    Args:
        spaces: of the environment.
        changes: recipes of augmentations, by name, in the order of their calls; they get `spaces`, `leaves` and `seed`.
        augment_anchor: False: the anchor is the unchanged observation.
        leaves: paths of a dict observation; None = all images.
        seed: of the draws; other adaptors with the same seed draw other numbers.

    Raises:
        SpaceError, ConfigError: there are no changes, or the observation has no images, or lacks these.
    """

    tier = VIEWS
    provides: tuple[str, ...] = ("anchor", "positive")
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    def __init__(
        self,
        spaces: Spaces,
        *,
        changes: Mapping[str, Callable[..., Augmentation] | None],
        augment_anchor: bool = True,
        leaves: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        recipes = {name: recipe for name, recipe in changes.items() if recipe is not None}
        if not recipes and "positive" in self.provides:
            raise ConfigError("memory.adaptors: Views.changes: without a change both views are the same")
        for name, recipe in recipes.items():
            if not callable(recipe):
                raise ConfigError(f"memory.adaptors: Views.changes.{name}: wanted a recipe of a change, got {recipe!r}")
        kind = type(self).__name__.encode()
        seeds = np.random.SeedSequence(seed, spawn_key=tuple(kind)).generate_state(len(recipes)).tolist()
        self.changes: dict[str, Augmentation] = {}
        for (name, recipe), number in zip(recipes.items(), seeds, strict=True):
            try:
                self.changes[name] = change = recipe(spaces=spaces, leaves=leaves, seed=number)
            except TypeError as error:  # it lacks an argument, or takes none of these
                raise ConfigError(f"memory.adaptors: Views.changes.{name}: {error}") from error
            if not isinstance(change, Augmentation):
                kind = type(change).__name__
                raise ConfigError(f"memory.adaptors: Views.changes.{name}: a {kind} is no rlrun.memory.Augmentation")
        self.requires = next((change.requires for change in self.changes.values()), ("observation",))
        self.augment_anchor = augment_anchor

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        window = rows is not None and rows.index.ndim == 2
        observation = batch["observation"]
        anchor = self.changed(observation, window) if self.augment_anchor else observation
        return batch | {"anchor": anchor, "positive": self.changed(observation, window)}

    def changed(self, tree: Tree, window: bool = False) -> Tree:
        """Return observations [...] after all changes; window: [B, T, …], each changed alike."""
        for change in self.changes.values():
            tree = change.apply(tree, window)
        return tree

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Return the batch with unchanged observations as views."""
        return batch | dict.fromkeys(self.provides, batch["observation"])

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Return an image of the newest sample beside the result of each change."""
        changes = self.changes.items()
        return {f"augmentation/view_{name}": image for name, change in changes for image in change.metrics.values()}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the changes' generators."""
        return {name: change.state_dict() for name, change in self.changes.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name, change in self.changes.items():
            change.load_state_dict(state[name])


class Later(Views):
    """Adds views of an observation and of the next K ones, whose latents may be predicted.

    `origin` [B, …] is the observation, `later` [B, K, …] has the next ones, `later_action` [B, K, …] the actions
    between them. `later_valid` [B, K] is False beyond the end of the episode and beyond the newest row. For windows all
    begin with [B, T].

    Args:
        spaces: of the environment.
        steps: K.
        options: of `Views`; without changes the views are unchanged observations.
    """

    provides = ("origin", "later", "later_action", "later_valid")

    def __init__(self, spaces: Spaces, *, steps: int = 5, **options: Any) -> None:
        require_at_least("steps", steps, 1)
        super().__init__(spaces, **options)
        self.steps = steps
        self.requires = (*self.requires, "action")

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        views = self._views(batch, rows)
        window = rows is not None and rows.index.ndim == 2
        changed = {"origin": self.changed(views["origin"], window), "later": self.changed(views["later"])}
        return batch | views | changed

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Return the batch with unchanged observations as views."""
        return batch | self._views(batch, rows)

    def _views(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Later looks ahead in a table, and this batch is not of one")
        slots, reach = rows.onward(self.steps)  # [B, K + 1], [B]
        step, reach = np.arange(self.steps), reach[..., None]
        acted, seen = np.minimum(step, reach - 1), np.minimum(step + 1, reach)
        return {
            "origin": batch["observation"],
            "later": rows.gather("observation", np.take_along_axis(slots, seen, -1)),
            "later_action": rows.gather("action", np.take_along_axis(slots, acted, -1)),
            "later_valid": torch.from_numpy(step < reach),
        }
