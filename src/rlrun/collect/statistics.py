"""Statistics of collection: returns and lengths of episodes, and the size of observations."""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.core.errors import RlrunError, printable, require_counts
from rlrun.core.spaces import Box, Space, leaves, leaves_of
from rlrun.core.typing import Array, Tree
from rlrun.nn import Normalizer
from rlrun.nn.encoders import numbers
from rlrun.training.metrics import KINDS, Histogram, as_record, packed, unpacked

NAMES = 32  # names of infos, at most
LETTERS = 64  # of such a name, at most
OWN = frozenset({"env_id", "count", "return", "length", "truncated"})  # names of an episode that infos cannot have


class Tally:
    """Sums of rewards and steps of N envs, and results of the newest episodes.

    If rewards have several numbers, the return of an episode is the sum of the first number. The sums of the others are
    kept, too.

    Args:
        envs: N.
        rewards: numbers in a reward; 0 = a scalar.
        window: number of the newest episodes in means, also of the numbers in their infos.

    Attributes:
        total: rewards of the open episodes [N] or [N, R], and length: their steps [N].
        reward_sum, reward_steps: for rewards of several numbers, the sum [R] of all so far, and their count.
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
        self._window = window
        self._infos: dict[str, deque[float]] = {}  # numbers of the newest episodes that have them
        self._kinds: dict[str, Any] = {}  # histograms, images, videos and texts of the newest episode that has them

    def add(self, reward: Array, valid: Array | None) -> None:
        """Add the rewards [N] or [N, R] of a step of every env, or only where `valid` [N] holds."""
        if valid is None and len(self.length) == 1:  # ten times as fast as whole arrays
            self.total[0] += reward[0]
            self.length[0] += 1
        elif valid is None:
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

    def end(
        self, envs: Array, truncated: Array | None = None, infos: Mapping[int, Mapping[str, Any]] | None = None
    ) -> None:
        """Count the open episodes of envs [n] as complete, and begin new ones.

        truncated: [n], whether each was truncated; None if unknown.
        infos: env -> info of the last step, of envs with one.
        """
        self.count(self.returns(envs).tolist(), self.length[envs].tolist())
        if truncated is not None:
            self._truncated.extend(truncated.tolist())
        if self.rewards:
            self._totals.extend(self.total[envs].tolist())
        if infos:
            for info in last_infos(infos, envs[-self._window :]).values():
                self._add_info(info)
        self.drop(envs)

    def count(self, returns: list[float], lengths: list[int]) -> None:
        """Count complete episodes with these returns and lengths."""
        self.episodes += len(returns)
        self._returns.extend(returns)
        self._lengths.extend(lengths)

    def _add_info(self, info: Mapping[str, Any]) -> None:
        for name, number in info.items():
            if isinstance(number, KINDS):
                self._kinds |= {name: number} if name in self._kinds or len(self._kinds) < NAMES else {}
            elif name in self._infos or len(self._infos) < NAMES:
                self._infos.setdefault(name, deque(maxlen=self._window)).append(number)

    def drop(self, envs: Array) -> None:
        """Begin new episodes in envs [n], without counting the open ones."""
        self.total[envs] = 0.0
        self.length[envs] = 0

    @property
    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {"episode/count": self.episodes}
        if self._returns:
            metrics["episode/return"] = float(np.mean(self._returns))
            metrics["episode/length"] = float(np.mean(self._lengths))
        if self._truncated:
            metrics["episode/truncated"] = float(np.mean(self._truncated))
        metrics |= by_reward("episode", list(self._totals))
        metrics |= distributions({**self._infos, "return": self._returns, "length": self._lengths})
        kinds = {f"episode/{name}": value for name, value in self._kinds.items()}
        return {f"episode/{name}": float(np.mean(numbers)) for name, numbers in self._infos.items()} | kinds | metrics

    def state_dict(self) -> dict[str, Any]:
        state = {
            "episodes": self.episodes,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "truncated": list(self._truncated),
            "return": self.total,
            "length": self.length,
        }
        if self._infos:
            state["infos"] = {name: list(numbers) for name, numbers in self._infos.items()}
        if self._kinds:
            state["kinds"] = packed(as_record(self._kinds)[0])
        if self.rewards:
            state |= {"totals": list(self._totals), "reward_sum": self.reward_sum, "reward_steps": self.reward_steps}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_counts({"episodes": state["episodes"]})
        self.episodes = state["episodes"]
        self.total[:], self.length[:] = state["return"], state["length"]
        history: deque[Any]
        for history, name in ((self._returns, "returns"), (self._lengths, "lengths"), (self._truncated, "truncated")):
            history.clear()
            history.extend(saved_numbers(state.get(name, [])))  # older runs did not count truncations
        infos, self._kinds = state.get("infos", {}), unpacked(state.get("kinds", {}))
        self._infos = {name: deque(saved_numbers(numbers), self._window) for name, numbers in infos.items()}
        if self.rewards:
            self._totals.clear()
            self._totals.extend(saved_numbers(total, self.rewards) for total in state["totals"])
            self.reward_sum[:], self.reward_steps = state["reward_sum"], state["reward_steps"]


def saved_numbers(values: Any, count: int | None = None) -> list[Any]:
    """Return the numbers of a saved list; count: the required length.

    Raises:
        RlrunError: the length differs, or an entry is not a number.
    """
    numbers = all(isinstance(value, int | float | np.number | np.bool_) for value in values)
    if not numbers or count not in (None, len(values)) or any(type(v) is int and abs(v) >> 63 for v in values):
        raise RlrunError(f"wanted a list of numbers, got {printable(f'{values}'[:40])}")
    return list(values)


def distributions(numbers: Mapping[str, Iterable[float]]) -> dict[str, Any]:
    """Return histograms of the newest episodes as metrics."""
    return {f"distribution/{name}": Histogram(list(values)) for name, values in numbers.items() if values}


def last_infos(infos: Mapping[int, Mapping[str, Any]], envs: Array) -> dict[int, dict[str, Any]]:
    """Return the numbers and other metrics in the infos of envs [n], by name, for envs with some."""
    numbers = {env_index: _numbers_in(infos.get(env_index) or {}) for env_index in envs.tolist()}
    return {env_index: named for env_index, named in numbers.items() if named}


def _numbers_in(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finite numbers, flags, histograms, images, videos and texts in an info.

    Gymnasium's own names, which begin with `_` or have a dot, are left out.
    """
    numbers: dict[str, Any] = {}
    for name, value in info.items():
        kind = isinstance(value, KINDS)
        array = isinstance(value, np.ndarray | np.generic) and value.size == 1 and value.dtype.kind in "biuf"
        if not (array or kind or isinstance(value, int | float)):
            continue
        if isinstance(name, str) and len(name) <= LETTERS and re.fullmatch(r"[^\W_][\w-]*", name) and name not in OWN:
            with suppress(OverflowError):  # too large for a float
                number = deepcopy(value) if kind else float(np.ravel(value)[0])  # environments use arrays again
                if kind or math.isfinite(number):
                    numbers[name] = number
    return numbers


def by_opponent(prefix: str, scores: Iterable[Any]) -> dict[str, float]:
    """Return the scores of games as metrics: PREFIX/OPPONENT/SIDE/won, …, without empty parts."""
    return {
        "/".join(filter(None, (prefix, score.opponent, score.side, name))): value
        for score in scores
        for name, value in score.shares.items()
    }


def by_reward(prefix: str, totals: list[list[float]]) -> dict[str, float]:
    """Return the means of episodes' rewards [episodes][R] as metrics: PREFIX/return_0, …"""
    if not totals:
        return {}
    return {f"{prefix}/return_{index}": float(mean) for index, mean in enumerate(np.mean(totals, 0))}


@torch.no_grad()
def observed(tree: Tree, space: Space, preprocess: Sequence[Any] = ()) -> dict[str, float]:
    """Return the root mean square of observations [N, …], after normalizers, as a metric.

    Images and choices are left out. The result is empty if nothing remains, or if preprocessing has other functions
    than normalizers.
    """
    if not all(isinstance(function, Normalizer) for function in preprocess):
        return {}
    if preprocess:
        device = next((buffer.device for buffer in preprocess[0].buffers()), "cpu")
        values = to_tensors(tree, device)
        for normalizer in preprocess:
            values = normalizer(values)
        tree = to_arrays(values)
    boxes = zip(leaves(space), leaves_of(space, tree), strict=True)
    parts = [
        numbers(leaf, torch.as_tensor(part)) for (_, leaf), part in boxes if isinstance(leaf, Box) and not leaf.image
    ]
    if not (count := sum(part.numel() for part in parts)):
        return {}
    total = sum(float(part.double().square().sum()) for part in parts)
    return {"observation/size": (total / count) ** 0.5}
