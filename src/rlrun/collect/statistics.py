"""Statistics of collection: returns and lengths of episodes, and the size of observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.core.spaces import Box, Composite, Space
from rlrun.core.typing import Array, Tree
from rlrun.nn import Normalizer


class Tally:
    """Add up rewards and steps of N envs, and keep the newest episodes.

    If rewards have several numbers, the return of an episode is the sum of the first number. The sums of the others are
    kept, too.

    Args:
        envs: N.
        rewards: numbers in a reward; 0 = it is a plain number.
        window: number of the newest episodes in means.

    Attributes:
        total: rewards of the open episodes [N] or [N, R], and length: their steps [N].
        reward_sum, reward_steps: sum of all rewards so far, [R] where they have several numbers, and their number.
    """

    def __init__(self, envs: int, rewards: int, *, window: int) -> None:
        self.rewards = rewards
        self.total = np.zeros((envs, rewards) if rewards else envs)
        self.length = np.zeros(envs, dtype=np.int64)
        self.episodes = 0
        self.reward_sum, self.reward_steps = np.zeros(rewards), 0
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._truncated: deque[bool] = deque(maxlen=window)
        self._totals: deque[list[float]] = deque(maxlen=window)  # [R] of an episode

    def add(self, reward: Array, valid: Array | None) -> None:
        """Add the rewards [N] or [N, R] of a step that every env made, or those where `valid` [N] holds."""
        if valid is None:
            self.total += reward
            self.length += 1
        else:
            reward = reward * (valid[:, None] if self.rewards else valid)
            self.total += reward
            self.length += valid
        if self.rewards:
            self.reward_sum += reward.sum(0, dtype=np.float64)
            self.reward_steps += len(reward) if valid is None else int(valid.sum())

    def returns(self, envs: Array) -> Array:
        """Return the returns of open episodes [n] so far."""
        total: Array = self.total[envs]
        return total[:, 0] if self.rewards else total

    def end(self, envs: Array, truncated: Array | None = None) -> None:
        """Count the open episodes of envs [n] as complete, and begin new ones.

        truncated: [n], whether each was truncated; None if unknown.
        """
        self.episodes += len(envs)
        if truncated is not None:
            self._truncated.extend(truncated.tolist())
        self._returns.extend(self.returns(envs).tolist())
        self._lengths.extend(self.length[envs].tolist())
        if self.rewards:
            self._totals.extend(self.total[envs].tolist())
        self.drop(envs)

    def drop(self, envs: Array) -> None:
        """Begin new episodes in envs [n]; the open ones are not counted."""
        self.total[envs] = 0.0
        self.length[envs] = 0

    def agrees(self, total: Array, length: Array) -> Array:
        """Return for each env [N] whether its open episode has these rewards and steps."""
        equal = total == self.total
        agreed: Array = (equal.all(-1) if self.rewards else equal) & (length == self.length)
        return agreed

    @property
    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {"episode/count": self.episodes}
        if self._returns:
            metrics["episode/return"] = float(np.mean(self._returns))
            metrics["episode/length"] = float(np.mean(self._lengths))
        if self._truncated:
            metrics["episode/truncated"] = float(np.mean(self._truncated))
        return metrics | by_reward("episode", list(self._totals))

    def state_dict(self) -> dict[str, Any]:
        state = {
            "episodes": self.episodes,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "truncated": list(self._truncated),
            "return": self.total,
            "length": self.length,
        }
        if self.rewards:
            state |= {"totals": list(self._totals), "reward_sum": self.reward_sum, "reward_steps": self.reward_steps}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.episodes = state["episodes"]
        self.total[:], self.length[:] = state["return"], state["length"]
        history: deque[Any]
        for history, name in ((self._returns, "returns"), (self._lengths, "lengths"), (self._truncated, "truncated")):
            history.clear()
            history.extend(state.get(name, []))  # older runs did not count truncations
        if self.rewards:
            self._totals.clear()
            self._totals.extend(state["totals"])
            self.reward_sum[:], self.reward_steps = state["reward_sum"], state["reward_steps"]


def by_reward(prefix: str, totals: list[list[float]]) -> dict[str, float]:
    """Return the means of episodes' rewards [episodes][R] as metrics: PREFIX/return_0, …"""
    if not totals:
        return {}
    return {f"{prefix}/return_{index}": float(mean) for index, mean in enumerate(np.mean(totals, 0))}


@torch.no_grad()
def observed(tree: Tree, space: Space, preprocess: Sequence[Any] = ()) -> dict[str, float]:
    """Return the root mean square of observations [N, …] as a metric, after normalizers and before any network.

    Images and choices do not count. The result is empty if there is nothing else, or if other functions than
    normalizers are applied first.
    """
    if not all(isinstance(function, Normalizer) for function in preprocess):
        return {}
    if preprocess:
        values = to_tensors(tree, _device(preprocess[0]))
        for normalizer in preprocess:
            values = normalizer(values)
        tree = to_arrays(values)
    parts = _numbers(tree, space)
    count = sum(part.size for part in parts)
    if not count:
        return {}
    total = sum(float((part.astype(float) ** 2).sum()) for part in parts)
    return {"observation/size": (total / count) ** 0.5}


def _numbers(tree: Tree, space: Space) -> list[Array]:
    if isinstance(space, Composite):
        return [part for name, below in space.parts.items() for part in _numbers(tree[name], below)]
    return [tree] if isinstance(space, Box) and not space.image else []


def _device(normalizer: Normalizer) -> torch.device:
    return next((buffer.device for buffer in normalizer.buffers()), torch.device("cpu"))
