"""Adaptors of rewards, pixels and n-step returns, and normalization by running statistics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError, require_at_least, require_one_of
from rlrun.core.files import counted
from rlrun.core.spaces import UNSEEN, Box, Space, Spaces, map_tree
from rlrun.core.spaces import leaves as space_leaves
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors.adaptor import AHEAD, RETURNS, WEIGHTS, PerStep, Scale
from rlrun.memory.table.samplers import Rows
from rlrun.nn.encoders import numbers
from rlrun.nn.normalizer import Normalizer, ReturnNormalizer
from rlrun.nn.value_heads import Rewards, ValueHead


class RewardClip(PerStep):
    """Keep rewards between two bounds."""

    rowwise = True

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
    """Add the same number to every reward; where episodes can terminate, this changes the best policy."""

    rowwise = True

    def __init__(self, bias: float) -> None:
        super().__init__("reward")
        self.bias = bias

    def change(self, value: Tensor) -> Tensor:
        return value + self.bias


class WeighRewards(PerStep):
    """Combines several rewards by the current weights: Σ weight · reward.

    Args:
        weights: one for each number in the environment's reward, or a function that returns them as a tensor [R].
        apart: the value head of critics that learn each reward and weigh the values; rewards are not combined then.

    Raises:
        ConfigError: the critics learn one reward.
    """

    def __init__(self, weights: Sequence[float] | Callable[[], Tensor], *, apart: ValueHead | None = None) -> None:
        super().__init__("reward")
        if not isinstance(apart, Rewards | None):
            raise ConfigError(
                "memory.adaptors: WeighRewards.apart: the critics of this algorithm learn the value of one reward; "
                "remove +with=reward_critics"
            )
        self.tier = WEIGHTS
        self.apart = apart is not None
        self.learns = callable(weights) and not self.apart
        self.weights = weights if callable(weights) else torch.tensor(list(weights), dtype=torch.float32, device="cpu")

    def require(self, rewards: int) -> None:
        """Refuse a number of rewards that differs from that of weights; 0 = the reward is a scalar.

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
    """Applies a function of a tensor [...] or [..., R] to rewards, such as `torch.sign`.

    It must treat steps independently. It may sum over the last dimension of several rewards.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__("reward")
        self.function = function

    def change(self, value: Tensor) -> Tensor:
        return self.function(value)


class ImageScale(PerStep):
    """Scales pixels, and other whole numbers with useful bounds, to numbers from `lowest` to `highest`.

    Encoders of this package scale them to [0, 1] themselves. This adaptor is for another range, or for other networks.
    Agents need the same scaling: `agent.preprocess`.

    Args:
        lowest, highest: the range of the result.
        spaces: of the environment, for the bounds; null = only bytes are scaled, from 0 to 255.
        leaves: of the observation; null = all.

    Raises:
        ConfigError: a leaf is not of whole numbers with such bounds.
    """

    def __init__(
        self,
        lowest: float = -1.0,
        highest: float = 1.0,
        *,
        spaces: Spaces | None = None,
        leaves: Sequence[str] | None = None,
    ) -> None:
        super().__init__("observation", leaves)
        self.lowest, self.width = lowest, highest - lowest
        self.boxes = None if spaces is None else _whole(spaces.observation)
        for path in leaves if leaves is not None and self.boxes is not None else ():
            if not any(f"{box}.".startswith(f"{path}.") for box in self.boxes or ()):
                there = f"there are {', '.join(self.boxes)}" if self.boxes else "there are none"
                raise ConfigError(
                    f"memory.adaptors: ImageScale.leaves: '{path}' has no whole numbers with bounds; {there}"
                )

    def apply(self, tree: Tree, path: str = "") -> Tree:
        if isinstance(tree, dict) or self.boxes is None:
            return super().apply(tree, path)
        chosen = self.leaves is None or any(f"{path}.".startswith(f"{leaf}.") for leaf in self.leaves)
        return self._scaled(self.boxes[path], tree) if chosen and path in self.boxes else tree

    def change(self, value: Tensor) -> Tensor:
        if value.dtype == torch.uint8:
            return self._scaled(_BYTES, value)
        if self.leaves is not None:
            raise RlrunError(f"memory.adaptors: ImageScale.leaves: wanted pixels of uint8, got {value.dtype}")
        return value

    def _scaled(self, leaf: Box, value: Tensor) -> Tensor:
        return value if value.is_floating_point() else numbers(leaf, value).mul_(self.width).add_(self.lowest)


_BYTES = Box((), np.zeros((), np.uint8), np.full((), 255, np.uint8), "uint8")


def _whole(space: Space) -> dict[str, Box]:
    """Return the parts of whole numbers with useful bounds, by path, without an action mask."""
    boxes = {path: leaf for path, leaf in space_leaves(space) if isinstance(leaf, Box) and path not in UNSEEN}
    return {path: leaf for path, leaf in boxes.items() if np.dtype(leaf.dtype).kind != "f" and leaf.in_unit}


class NStep:
    """Joins up to `steps` steps, fewer if the stored episode ends before.

    `reward` becomes the discounted sum over these steps, `next_observation` the one after them; `terminated` and
    `truncated` are those of the last step. `discount` is γ ** steps, the factor of the next value. Several rewards are
    summed separately, and may have a discount each.
    """

    tier = AHEAD
    rowwise = True
    removes = ()

    def __init__(self, *, steps: int, discount: float | Sequence[float]) -> None:
        require_at_least("steps", steps, 1)
        self.steps = steps
        rewards = (1,) * np.ndim(discount)
        self.powers = np.power(discount, np.arange(steps + 1).reshape(-1, *rewards)).astype(np.float32)  # [n + 1, …]
        # number of steps -> factor of each reward
        self.counted = np.tri(steps + 1, steps, -1, np.float32).reshape(steps + 1, steps, *rewards) * self.powers[:-1]
        ahead = () if steps == 1 else ("next_observation", "terminated", "truncated")
        self.requires: tuple[str, ...] = ("reward", *ahead)
        self.provides: tuple[str, ...] = ("discount",) if steps == 1 else ("reward", *ahead, "discount")
        self.replaces: tuple[str, ...] = ahead and ("reward", *ahead)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if self.steps == 1:  # only the discount is missing
            shape = batch["terminated"].shape if rows is None else rows.index.shape
            power = self.powers[1]
            return batch | {"discount": torch.from_numpy(np.full((*shape, *power.shape), power))}
        if rows is None:
            raise RlrunError("memory.adaptors: NStep looks ahead in a table, and this batch is not of one")
        return batch | self.ahead(rows)[0]

    def ahead(self, rows: Rows, most: Array | None = None) -> tuple[Batch, Array]:
        """Return the changed columns of rows, and the number of joined steps [B]; most: [B], its limit.

        Windows of recurrent networks get the observation after all `steps`, and find the next one on the way there.
        """
        slots, stored = rows.onward(self.steps)  # [B, n + 1], [B] or [B, T, n + 1], [B, T]
        reach = stored if most is None else np.minimum(stored, most)
        if rows.altered("terminated"):  # stored terminations are ends of episodes already
            terminated = rows.gather("terminated", slots[..., :-1]).numpy()  # [..., n]
            reach = np.where(terminated.any(-1), np.minimum(reach, terminated.argmax(-1) + 1), reach)
        flat, first = slots.reshape(-1), np.arange(0, slots.size, self.steps + 1).reshape(reach.shape)
        successor, last = flat[first + (stored if rows.parted else reach)], flat[first + reach - 1]
        rows.reach = reach
        reward, counted = rows.gather("reward", slots[..., :-1]).numpy(), self.counted[reach]
        rewards, factors = (("...n", "...nr")[array.ndim > slots.ndim] for array in (reward, counted))
        summed = np.einsum(f"{rewards},{factors}->{rewards.replace('n', '')}", reward, counted)
        batch = {
            "reward": torch.from_numpy(summed),
            "next_observation": rows.gather("observation", successor),
            "terminated": rows.gather("terminated", last),
            "truncated": rows.gather("truncated", last),
            "discount": torch.from_numpy(self.powers[reach]),
        }
        return batch, reach


Update = Literal["replay", "rollout", "never"]
UPDATES = ("replay", "rollout", "never")


class Normalize(PerStep):
    """Normalizes a column by running statistics of one source, `update`.

    replay: every sampled batch, before it is normalized. rollout: every row that enters the table. never: constant
        statistics. Acting and evaluation only read them; `agent.preprocess` gives the agent the same normalizer.

    On-policy, replay and rollout both use every rollout once. Observations are normalized before the statistics change,
    so that the policy first learns from the numbers on which it acted.

    Args:
        column: observation, reward or another name.
        normalizer: holds the statistics; the run saves it separately.
        update: replay, rollout or never.
        limit: updates after which statistics do not change; null = none.

    Raises:
        ConfigError: there is no such source.
    """

    def __init__(
        self, column: str, normalizer: Normalizer, *, update: Update = "replay", limit: int | None = None
    ) -> None:
        super().__init__(column)
        require_one_of("update", update, UPDATES)
        self.requires = tuple(f"{column}.{path}" if path else column for path in normalizer.leaves)
        self.normalizer = normalizer
        self.update = update
        self.limit = limit
        self.observe: Callable[[Mapping[str, Tree]], None] | None = self._observe if update == "rollout" else None

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if self.update == "replay":
            self._learn(batch[self.column], batch.get("valid"))
        return super().__call__(batch, rows)

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Normalize a batch without updating the statistics."""
        return super().__call__(batch, rows)

    def rollout(self, batch: Batch) -> Batch:
        """Normalize a rollout, and update the statistics by it."""
        acted_on = self.column == "observation"
        if not acted_on:
            self._learn_rollout(batch)
        normalized = super().__call__(batch, None)
        if acted_on:
            self._learn_rollout(batch)
        return normalized

    def _learn_rollout(self, batch: Batch) -> None:
        if self.update != "never":
            self._learn(batch[self.column], batch["valid"], rollout=True)

    def _observe(self, row: Mapping[str, Tree]) -> None:
        self._learn(map_tree(torch.as_tensor, row[self.column]))

    def _learn(self, value: Tree, valid: Tensor | None = None, *, rollout: bool = False) -> None:
        if self.limit is None or self.normalizer.updates < self.limit:
            self.normalizer.update(value, valid, rollout=rollout)

    def apply(self, tree: Tree, path: str = "") -> Tree:
        return self.normalizer(tree, path)

    def change(self, value: Tensor) -> Tensor:
        return self.normalizer(value)  # type: ignore[no-any-return]


class ObservationNormalize(Normalize):
    """Normalize observations and next observations by the statistics of observations."""

    def __init__(self, normalizer: Normalizer, *, update: Update = "replay", limit: int | None = None) -> None:
        super().__init__("observation", normalizer, update=update, limit=limit)


class RewardNormalize(Normalize):
    """Normalizes each step's reward before sums over steps; a normalizer of form rms keeps the signs."""

    def __init__(self, normalizer: Normalizer, *, update: Update = "replay", limit: int | None = None) -> None:
        super().__init__("reward", normalizer.to("cpu"), update=update, limit=limit)  # where rewards are summed
        self.rescales = normalizer.form in ("rms", "deviation")


class ReturnNormalize(Normalize):
    """Divide each step's reward by the deviation of the running discounted return; see `ReturnNormalizer`.

    Statistics are of rewards as they enter the memory; on-policy, as the adaptors before this one leave them.
    """

    normalizer: ReturnNormalizer

    weigh: Callable[[Tensor], Tensor] | None = None  # of several rewards: all are divided by the deviation of their sum

    def __init__(self, normalizer: ReturnNormalizer) -> None:
        super().__init__("reward", normalizer.to("cpu"), update="rollout")
        self.tier = RETURNS
        self.requires = (*self.requires, "terminated", "truncated")

    def _learn_rollout(self, batch: Batch) -> None:
        reward = batch["reward"] if self.weigh is None else self.weigh(batch["reward"])
        valid = batch["valid"].numpy()
        episode_end = (batch["terminated"] | batch["truncated"]).numpy()
        self.normalizer.advance(reward.numpy(), episode_end, valid, np.arange(len(reward)))

    def _observe(self, row: Mapping[str, Tree]) -> None:
        env, reward, episode_end = (
            row["env"],
            np.asarray(row["reward"]),
            np.asarray(row["terminated"] | row["truncated"]),
        )
        episode = len(env) > 1 and env[0] == env[-1]  # a whole episode enters at once
        shape = (1, -1) if episode else (-1, 1)
        steps = reward.reshape(shape)
        self.normalizer.advance(steps, episode_end.reshape(shape), np.ones(steps.shape, np.bool_), env[: len(steps)])

    def break_off(self, env: Array) -> None:
        """Begin the returns of environments [n] at 0 again."""
        self.normalizer.running[env] = 0.0
