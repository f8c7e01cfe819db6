"""Running statistics, and normalization by them.

Updating and normalizing are separate calls: the owner of the data updates, its readers normalize. All statistics are
buffers, so they are saved, exported and moved like weights.
"""

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RlrunError, SpaceError, did_you_mean, require_one_of
from rlrun.core.spaces import (
    UNSEEN,
    Box,
    Composite,
    Discrete,
    MultiDiscrete,
    Space,
    Spaces,
    describe,
    leaves,
)
from rlrun.core.typing import Array, Tree

MODES = ("adaptive", "cumulative", "em", "window")
FORMS = ("standard", "deviation", "rms", "centered")
EPSILON = 1e-10  # added to a variance: a constant is divided by 1e-5, so clip where it may vary later


class Nonnegative(nn.Module):
    """A module that refuses to load impossible counts.

    Attributes:
        nonnegative: names of its buffers whose numbers are from 0 to below 2**62.
    """

    nonnegative: tuple[str, ...]

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        for name in self.nonnegative:
            value = self.get_buffer(name)
            if not bool(((value >= 0) & (value < 1 << 62)).all()):
                raise RlrunError(f"'{name}' of a {type(self).__name__} holds numbers that no run has")


class Statistics(nn.Module):
    """Running mean and mean square of one array, with the shift and scale to normalize by.

    Modes weigh updates, each counted once, except in mode cumulative. adaptive: update k (from 0) gets the share
    speed / (speed + k), so an update at time t of T weighs as (t / T) ** (speed - 1); speed 1 is the plain mean of
    all. cumulative: each element of all updates counts alike. em: an exponential mean of this rate,
    corrected for its start. window: the mean of the newest `window` updates. None: cumulative for rollouts, adaptive
    otherwise.

    Args:
        shape: of one element.
        mode: how updates are weighed, see above.
        speed: of mode adaptive.
        rate: share of the newest update, of mode em.
        window: updates that count, of mode window.
        form: what `normalized` subtracts and divides by.
    """

    moments: Tensor  # [2, *shape] mean and mean square
    recent: Tensor  # [window, 2, *shape], or [0] without a window
    shift: Tensor  # [*shape], like scale: normalized = (x - shift) * scale
    scale: Tensor

    def __init__(
        self, shape: Sequence[int], *, mode: str | None, speed: float, rate: float, window: int, form: str = "standard"
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.mode = mode
        self.speed = speed
        self.rate = rate
        self.form = form
        self.updates = 0
        self.elements = 0  # of all updates, in all ranks
        # single precision would lose a variance next to the square of a mean a thousand times as large
        self.register_buffer("moments", torch.zeros(2, *self.shape, dtype=torch.float64))
        recent_shape = (window, 2, *self.shape) if mode == "window" else (0,)
        self.register_buffer("recent", torch.zeros(recent_shape, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(self.shape))
        self.register_buffer("scale", torch.ones(self.shape))

    def update(self, value: Tensor, *, rollout: bool = False) -> None:
        """Update by elements [..., *shape] of all ranks; nothing changes if there are none.

        rollout: True if they are all elements since the last update, each of them once.
        """
        moments = self.moments
        elements = value.shape[: value.dim() - len(self.shape)].numel()
        flat = value.to(moments.device, torch.float64).reshape(elements, *self.shape)
        newest = torch.stack([flat.sum(0), flat.square().sum(0)])
        count = distributed.pooled_(newest, len(flat))
        if count == 0:
            return
        newest.div_(count)
        self.elements += count
        if self.mode == "window":
            self._slide(newest)
        else:
            moments.lerp_(newest, self._share(count, rollout))
        self.updates += 1
        self._set_form()

    def _set_form(self) -> None:
        """Set shift and scale from the moments."""
        mean, square = self.moments.unbind()
        if self.form in ("standard", "centered"):
            self.shift.copy_(mean)
        if self.form != "rms":
            square = torch.addcmul(square, mean, mean, value=-1).clamp_min_(0)
        if self.form != "centered":
            self.scale.copy_(square.add(EPSILON).rsqrt_())

    def _share(self, count: int, rollout: bool) -> float:
        """Return the share of the newest update, of `count` elements, in the average."""
        if self.mode == "cumulative" or (self.mode is None and rollout):
            return count / self.elements
        if self.mode in (None, "adaptive"):
            return self.speed / (self.speed + self.updates)
        return self.rate / (1.0 - (1.0 - self.rate) ** (self.updates + 1))  # corrects for the start at zero

    def _slide(self, newest: Tensor) -> None:
        window = len(self.recent)
        slot, count = self.updates % window, min(self.updates, window)
        total = self.moments * count + newest - self.recent[slot]
        self.recent[slot] = newest
        # computed in full once a round, so that rounding errors do not accumulate
        full = slot == window - 1
        self.moments.copy_(self.recent.mean(0) if full else total / min(count + 1, window))

    def get_extra_state(self) -> list[int]:
        return [self.updates, self.elements]

    def set_extra_state(self, state: Any) -> None:
        self.updates, self.elements = state if isinstance(state, list) else (int(state), 0)  # of older versions
        self.shift.zero_()  # this state is loaded last; that of a parent run may have another form
        self.scale.fill_(1.0)
        if self.updates:
            self._set_form()


class Normalizer(nn.Module):
    """Normalize the numbers of a tree by running statistics of each of its elements.

    standard: (x - mean) / deviation; deviation: x / deviation; rms: x / root mean square; centered: x - mean. Numbers
        pass unchanged before the first update, and other leaves always.

    Args:
        space: spaces (their observation), a space, or the shape of an array.
        leaves: paths to normalize, such as "camera.position"; null = every Box but images.
        mode: how updates are weighed: adaptive, cumulative, em or window (see `Statistics`); null = cumulative for
            rollouts, adaptive for samples.
        speed: of mode adaptive.
        rate: of mode em.
        window: updates that mode window looks back.
        form: standard, deviation, rms or centered.
        clip: largest size of a normalized number; null = none.
        needed: False = a space without a leaf to normalize is accepted, and passes unchanged.

    Raises:
        ConfigError: a setting is out of range.
        SpaceError: a chosen leaf is missing or not a Box, or there is nothing to normalize.
    """

    def __init__(
        self,
        space: Spaces | Space | Sequence[int],
        *,
        leaves: Sequence[str] | None = None,
        mode: str | None = None,
        speed: float = 8.0,
        rate: float = 1e-4,
        window: int = 10_000,
        form: str = "standard",
        clip: float | None = None,
        needed: bool = True,
    ) -> None:
        super().__init__()
        if mode is not None:
            require_one_of("mode", mode, MODES)
        require_one_of("form", form, FORMS)
        if not (speed > 0 and 0 < rate <= 1 and window >= 1 and (clip is None or clip > 0)):
            raise ConfigError(
                f"Normalizer: wanted speed > 0, 0 < rate <= 1, window >= 1 and clip > 0, "
                f"got speed={speed}, rate={rate}, window={window}, clip={clip}"
            )
        self.form = form
        self.clip = clip
        statistics = {
            path: Statistics(shape, mode=mode, speed=speed, rate=rate, window=window, form=form)
            for path, shape in _shapes(space, leaves, needed).items()
        }
        self.leaves = tuple(statistics)
        self.statistics = nn.ModuleList(statistics.values())
        self._by_path = statistics  # a path may have dots in it, a name of a module may not

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self._by_path[self.leaves[0]].updates if self.leaves else 0

    @property
    def scale(self) -> Tensor:
        """Scale of the first leaf, [*shape]."""
        return self._by_path[self.leaves[0]].scale

    @torch.no_grad()
    def update(self, tree: Tree, valid: Tensor | None = None, *, rollout: bool = False) -> None:
        """Update the statistics by a tree of tensors [..., *shape]; `valid` [...] flags the elements that count."""
        for path, statistics in self._by_path.items():
            value: Tensor = reduce(getitem, path.split(".") if path else (), tree)
            statistics.update(value if valid is None else value[valid], rollout=rollout)

    def forward(self, tree: Tree, path: str = "") -> Tree:
        """Normalize a tree of tensors [..., *shape], or the part of it that lies at `path`."""
        if isinstance(tree, dict):
            return {name: self.forward(part, f"{path}.{name}" if path else name) for name, part in tree.items()}
        statistics = self._by_path.get(path)
        if statistics is None:
            return tree
        shift = statistics.shift
        moved = (tree.to(shift) - shift).mul_(statistics.scale)
        return moved if self.clip is None else moved.clamp_(-self.clip, self.clip)

    def extra_repr(self) -> str:
        return f"{', '.join(path or 'all' for path in self.leaves)}; form={self.form}, clip={self.clip}"


class ReturnNormalizer(Normalizer):
    """Divide rewards by the deviation of the running discounted return, as VecNormalize of stable-baselines3 does.

    In each environment G ← γ G + r, and 0 after the end of an episode. Every G of the run counts alike.

    Args:
        discount: γ.
        num_envs: environments.
        clip: largest size of a normalized reward; null = none.
    """

    def __init__(self, *, discount: float, num_envs: int, clip: float | None = 10.0) -> None:
        if not isinstance(discount, float | int):
            key = "memory.adaptors.return_norm.normalizer.discount"
            raise ConfigError(f"{key}: wanted one number, of the weighed sum of rewards, got {list(discount)}")
        super().__init__([], mode="cumulative", form="deviation", clip=clip)
        self.discount = discount
        self.running = np.zeros(num_envs)

    def advance(self, reward: Array, episode_end: Array, valid: Array, env: Array) -> None:
        """Update by steps [n, T] of environments [n] in order of time; valid [n, T] flags the real steps."""
        running, returns = self.running[env], np.zeros(reward.shape)
        for at in range(reward.shape[1]):
            counts = valid[:, at]
            running = np.where(counts, self.discount * running + reward[:, at], running)
            returns[:, at] = running
            running = np.where(counts & episode_end[:, at], 0.0, running)
        self.running[env] = running
        self.update(torch.from_numpy(returns[valid]))

    def get_extra_state(self) -> list[float]:
        return self.running.tolist()  # type: ignore[no-any-return]

    def set_extra_state(self, state: Any) -> None:
        if len(state) == len(self.running):  # with another number of environments all begin at 0
            self.running = np.array(state)


def _shapes(
    space: Spaces | Space | Sequence[int], chosen: Sequence[str] | None, needed: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each leaf that is normalized, by path."""
    if isinstance(space, Spaces):
        space = space.observation
    if not isinstance(space, (Box, Discrete, MultiDiscrete, Composite)):
        return {"": tuple(space)}
    there = dict(leaves(space))
    if chosen is None:
        chosen = [
            path for path, leaf in leaves(space) if isinstance(leaf, Box) and not leaf.image and path not in UNSEEN
        ]
    for path in chosen:
        if path not in there:
            raise SpaceError(f"Normalizer: no leaf '{path}' in {describe(space)}{did_you_mean(path, there)}")
        if not isinstance(there[path], Box):
            raise SpaceError(f"Normalizer: leaf '{path}' is {describe(there[path])}, wanted a Box")
    if needed and not chosen:
        raise SpaceError(f"Normalizer: nothing to normalize in {describe(space)}; it has no Box but images")
    return {path: there[path].shape for path in chosen}
