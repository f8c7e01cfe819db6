"""What an environment gives, looked at once: its first observation and its first step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.errors import DataError
from rlrun.typing import Array

_messages = logging.getLogger("rlrun")


class Outputs:
    """Compare what an environment gives with its spaces; what cannot be stored is refused with a DataError.

    Args:
        space: of observations.
        rewards: numbers in a reward; 0 = it is a plain number.
    """

    def __init__(self, space: gymnasium.Space[Any], rewards: int) -> None:
        self.space, self.rewards = space, rewards
        self.begun = False  # whether an observation was looked at
        self.remarks: dict[str, str] = {}  # what is stored as something else: kind -> message

    def observation(self, value: Any) -> None:
        self.begun = True
        self._part(self.space, value, "it gave an observation")

    def step(self, result: Any) -> None:
        observation, reward, terminated, truncated, _ = result
        self.observation(observation)
        spec = f"its reward_space says {[self.rewards]}" if self.rewards else "wanted one number, such as float(reward)"
        _array(reward, (self.rewards,) if self.rewards else (), "it gave a reward", spec)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if flag is None:
                self.remarks[name] = f"it gave {name}=None, which counts as False"
            else:
                _array(flag, (), f"it gave {name}", "wanted True or False")

    def _part(self, space: gymnasium.Space[Any], value: Any, what: str) -> None:
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            self._leaf(space, value, what)
            return
        for name, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            try:
                inner = value[name]
            except (TypeError, LookupError) as error:
                lacking = f"without the part '{name}' of its observation_space"
                raise DataError(f"{what} of type {type(value).__name__}, {lacking}") from error
            self._part(part, inner, f"{what} with part '{name}'")

    def _leaf(self, space: gymnasium.Space[Any], value: Any, what: str) -> None:
        spec = f"its observation_space says {type(space).__name__}{list(space.shape or ())} {space.dtype}"
        array = _array(value, space.shape or (), what, spec)
        if (array.dtype.kind == "f") != (np.dtype(space.dtype).kind == "f"):
            self.remarks["dtype"] = f"{what} of dtype {array.dtype}, which is cast; {spec}"
        elif array.dtype.kind == "f":
            array = array.astype(space.dtype)
        numbers = array.astype(np.float64)
        least, largest = numbers.min(initial=np.inf), numbers.max(initial=-np.inf)
        between = f"{what} from {least:g} to {largest:g}, out of its bounds; {spec}"
        if not isinstance(space, spaces.Box):
            if not space.contains(array.astype(space.dtype)):  # a choice that no network has
                raise DataError(between)
        elif (array < space.low).any() or (array > space.high).any():
            self.remarks["bounds"] = between


def _array(value: Any, shape: tuple[int, ...], what: str, spec: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} of {type(value).__name__} {str(value)[:40]!r}; {spec}")
    if array.shape != shape:
        raise DataError(f"{what} of shape {list(array.shape)}; {spec}")
    return array


def warn(place: str, remarks: Mapping[str, str], remarked: set[str]) -> None:
    """Log remarks of kinds that were not logged before."""
    for kind in remarks.keys() - remarked:
        _messages.warning("%s: %s", place, remarks[kind])
    remarked.update(remarks)
