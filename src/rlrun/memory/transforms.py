"""Adaptors for rewards and pixels: one formula each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.typing import Array, Batch
from rlrun.memory.adaptors import AHEAD, WEIGHTS, PerStep, Scale
from rlrun.memory.samplers import Rows
from rlrun.nn.value_heads import Rewards, ValueHead
from rlrun.runs.files import counted


class RewardClip(PerStep):
    """Keep rewards between two bounds."""

    def __init__(self, lowest: float = -1.0, highest: float = 1.0) -> None:
        super().__init__("reward")
        if lowest >= highest:
            raise ConfigError(f"memory.adaptors: RewardClip: lowest {lowest} is not below highest {highest}")
        self.lowest, self.highest = lowest, highest

    def change(self, value: Tensor) -> Tensor:
        return value.clamp(self.lowest, self.highest)


class RewardScale(Scale):
    """Multiply rewards by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__("reward", factor=factor)


class RewardShift(PerStep):
    """Add the same number to every reward; it changes which policy is best where episodes can end."""

    def __init__(self, bias: float) -> None:
        super().__init__("reward")
        self.bias = bias

    def change(self, value: Tensor) -> Tensor:
        return value + self.bias


class WeighRewards(PerStep):
    """Make one reward of several: Σ weight · reward, by the weights of now, whatever they were when it was stored.

    Args:
        weights: one for each number in the environment's reward, or what returns them as a tensor [R].
        apart: what critics tell, for which rewards stay several: these weigh the value of each. None = make them one.

    Raises:
        ConfigError: critics tell the value of one reward.
    """

    def __init__(self, weights: Sequence[float] | Callable[[], Tensor], *, apart: ValueHead | None = None) -> None:
        super().__init__("reward")
        if not isinstance(apart, Rewards | None):
            raise ConfigError(
                "memory.adaptors: WeighRewards.apart: the critics of this algorithm learn the value of one reward; "
                "leave +with=reward_critics away"
            )
        self.tier = WEIGHTS
        self.apart = apart is not None
        self.learns = callable(weights) and not self.apart
        self.weights = weights if callable(weights) else torch.tensor(list(weights), dtype=torch.float32, device="cpu")

    def require(self, rewards: int) -> None:
        """Refuse another number of rewards a step than there are weights; 0 = the reward is a plain number.

        Raises:
            ConfigError: with both numbers.
        """
        count = self._now().numel()
        if count != rewards:
            there = f"{rewards} numbers a step" if rewards else "one plain number a step"
            raise ConfigError(
                f"memory.adaptors: WeighRewards has {counted(count, 'weight')}, and the reward has {there}"
            )

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        return batch if self.apart else super().__call__(batch, rows)

    @torch.no_grad()
    def change(self, value: Tensor) -> Tensor:
        return value @ self._now().to(value.device)  # [..., R] -> [...]

    def _now(self) -> Tensor:
        return self.weights() if callable(self.weights) else self.weights


class RewardFunction(PerStep):
    """Put rewards through a function of a tensor [...] or [..., R], such as `torch.sign`.

    It sees every reward by itself or a whole block of them, so it must not look across the batch; the
    last dimension of rewards of several dimensions it may sum up.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__("reward")
        self.function = function

    def change(self, value: Tensor) -> Tensor:
        return self.function(value)


class ImageScale(PerStep):
    """Turn pixels 0 … 255 into numbers from `lowest` to `highest`.

    Encoders of this package take pixels as they are and scale them to [0, 1] on their own device; this is for
    another range, or for networks that expect numbers. Agents must see the same: `agent.preprocess`.

    Args:
        lowest, highest: the range of the result.
        leaves: of the observation; null = all of uint8.
    """

    def __init__(self, lowest: float = -1.0, highest: float = 1.0, *, leaves: Sequence[str] | None = None) -> None:
        super().__init__("observation", leaves)
        self.lowest = lowest
        self.factor = (highest - lowest) / 255.0

    def change(self, value: Tensor) -> Tensor:
        if value.dtype == torch.uint8:
            return value.to(torch.float32).mul_(self.factor).add_(self.lowest)
        if self.leaves is not None:
            raise RlrunError(f"memory.adaptors: ImageScale.leaves: wanted pixels of uint8, got {value.dtype}")
        return value


class NStep:
    """Look up to `steps` steps ahead, fewer where the episode (as far as it is stored) ends before.

    reward becomes the discounted sum over these steps, next_observation the one after them,
    terminated and truncated those of the last of them, and discount what the value there counts:
    `discount ** steps made`. Rewards of several dimensions are summed one by one.
    """

    tier = AHEAD
    removes = ()

    def __init__(self, *, steps: int, discount: float) -> None:
        if steps < 1:
            raise ConfigError(f"memory.adaptors: NStep.steps must be at least 1, not {steps}")
        self.steps = steps
        self.powers = np.power(discount, np.arange(steps + 1)).astype(np.float32)
        self.counted = np.tril(np.tile(self.powers[:-1], (steps + 1, 1)), -1)  # steps made -> what each reward counts
        ahead = () if steps == 1 else ("next_observation", "terminated", "truncated")
        self.requires: tuple[str, ...] = ("reward", *ahead)
        self.provides: tuple[str, ...] = ("discount",) if steps == 1 else ("reward", *ahead, "discount")
        self.replaces: tuple[str, ...] = ahead and ("reward", *ahead)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: NStep looks ahead in a table, and this batch comes from none")
        if self.steps == 1:  # everything is as it should be
            return batch | {"discount": torch.full(rows.index.shape, float(self.powers[1]))}
        return batch | self.ahead(rows)[0]

    def ahead(self, rows: Rows, most: Array | None = None) -> tuple[Batch, Array]:
        """Return what becomes of rows, and how many steps of each are joined [B]; most: [B], where there is a limit."""
        slots, reach = rows.onward(self.steps)  # [B, n + 1], [B] or [B, T, n + 1], [B, T]
        if most is not None:
            reach = np.minimum(reach, most)
        if rows.altered("terminated"):  # what was stored ends the episode anyway
            terminated = rows.gather("terminated", slots[..., :-1]).numpy()  # [..., n]
            reach = np.where(terminated.any(-1), np.minimum(reach, terminated.argmax(-1) + 1), reach)
        flat, first = slots.reshape(-1), np.arange(0, slots.size, self.steps + 1).reshape(reach.shape)
        successor, last = flat[first + reach], flat[first + reach - 1]
        batch = {
            "reward": torch.from_numpy(self._sum(rows.gather("reward", slots[..., :-1]).numpy(), reach)),
            "next_observation": rows.gather("observation", successor),
            "terminated": rows.gather("terminated", last),
            "truncated": rows.gather("truncated", last),
            "discount": torch.from_numpy(self.powers[reach]),
        }
        return batch, reach

    def _sum(self, reward: Array, reach: Array) -> Array:
        counted = self.counted[reach]
        if reward.ndim == counted.ndim:
            return np.einsum("...n,...n->...", reward, counted)  # type: ignore[no-any-return]
        return np.einsum("...nr,...n->...r", reward, counted)  # type: ignore[no-any-return]
