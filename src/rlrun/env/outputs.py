"""Checks of environments' outputs: refuse those that cannot be stored, and remark on those that are cast.

Shapes, choices, rewards, flags and infos are checked at every step, dtypes and bounds at the first step and at the last
step of each episode.
"""

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.errors import DataError, describe_error
from rlrun.core.typing import Array
from rlrun.env.spaces import key_of, named, parts_of

_messages = logging.getLogger("rlrun")

# Types of rewards and flags that are one number.
NUMBERS = frozenset((bool, int, float, np.bool_, *(np.dtype(code).type for code in "bBhHiIlLqQefd")))

# Gymnasium's signatures, and texts of errors of environments for Gym.
_SIGNATURES = {
    "reset": "reset(*, seed=None, options=None) -> (observation, info)",
    "step": "step(action) -> (observation, reward, terminated, truncated, info)",
}
_OF_GYM = ("values to unpack (expected", "cannot unpack", "argument 'seed'", "argument 'options'")


def explained(event: str, cause: str) -> str:
    """Return a cause, with Gymnasium's signature of `reset` or `step` if the environment seems to use Gym's API."""
    of_gym = event in _SIGNATURES and any(sign in cause for sign in _OF_GYM)
    return f"{cause}; Gymnasium expects {_SIGNATURES[event]}" if of_gym else cause


class Outputs:
    """Compares the outputs of an environment with its spaces; raises a DataError for those that cannot be stored.

    Args:
        space: of observations.
        rewards: numbers in a reward; 0 = a scalar.
    """

    def __init__(self, space: gymnasium.Space[Any], rewards: int) -> None:
        self.space, self.rewards = space, rewards
        self.begun = False  # True after the first observation
        self.remarks: dict[str, str] = {}  # outputs that are cast or clipped: kind -> message

    def reset(self, result: Any) -> None:
        """Check the result of a reset."""
        if not isinstance(result, tuple | list) or len(result) != 2:  # an array of two numbers can be unpacked, too
            raise DataError(f"it gave {type(result).__name__}; Gymnasium expects {_SIGNATURES['reset']}")
        self.observation(result[0])
        self._info(result[1])

    def observation(self, value: Any) -> None:
        """Check an observation."""
        self.begun = True
        self._part(self.space, value, "it gave an observation")

    def step(self, result: Any) -> None:
        """Check the result of a step."""
        self.observation(result[0])
        self.numbers(result)

    def numbers(self, result: Any) -> None:
        """Check the reward, the flags and the info of a step."""
        _, reward, terminated, truncated, info = result
        self._info(info)
        if {reward.__class__, terminated.__class__, truncated.__class__} <= NUMBERS and not self.rewards:
            return
        spec = f"its reward_space says {[self.rewards]}" if self.rewards else "wanted one number, such as float(reward)"
        _array(reward, (self.rewards,) if self.rewards else (), "it gave a reward", spec)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if flag is None:
                self.remarks[name] = f"it gave {name}=None, which counts as False"
            else:
                _array(flag, (), f"it gave {name}", "wanted True or False")

    def explain(self, error: BaseException, result: Any) -> BaseException:
        """Return a DataError about a step's result if it is the cause of an error, else the error itself."""
        try:
            if result is not None:
                self.step(result)
        except DataError as fault:
            return fault
        except Exception:
            return error
        return error

    def _info(self, info: Any) -> None:
        if info is None:
            self.remarks["info"] = "it gave info=None, which counts as {}"
        elif not isinstance(info, Mapping):
            raise DataError(f"it gave an info of {type(info).__name__} {str(info)[:40]!r}; wanted a dict")

    def _part(self, space: gymnasium.Space[Any], value: Any, what: str) -> None:
        parts = parts_of(space)
        if not parts:
            self._leaf(space, value, what)
        for name, part in parts.items():
            try:
                inner = value[key_of(space, name)]
            except (TypeError, LookupError) as error:
                lacking = f"without the part '{name}' of its observation_space"
                raise DataError(f"{what} of type {type(value).__name__}, {lacking}") from error
            self._part(part, inner, f"{what} with part '{name}'")

    def _leaf(self, space: gymnasium.Space[Any], value: Any, what: str) -> None:
        spec = named(space)
        array = _array(value, space.shape or (), what, spec)
        if (array.dtype.kind == "f") != (np.dtype(space.dtype).kind == "f"):
            self.remarks["dtype"] = f"{what} of dtype {array.dtype}, which is cast; {spec}"
        elif array.dtype.kind == "f":
            array = array.astype(space.dtype, copy=False)
        if isinstance(space, gymnasium.spaces.Box):
            is_within = not ((array < space.low).any() or (array > space.high).any())
        else:
            is_within = space.contains(array.astype(space.dtype))
        if is_within:
            return
        least, largest = array.astype(np.float64).min(), array.astype(np.float64).max()
        between = f"{what} from {least:g} to {largest:g}, out of its bounds; {spec}"
        if not isinstance(space, gymnasium.spaces.Box):  # a choice outside the space
            raise DataError(between)
        self.remarks["bounds"] = between


def _array(value: Any, shape: tuple[int, ...], what: str, spec: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise DataError(
            f"{what} of {type(value).__name__} that is no array: {describe_error(error)}; {spec}"
        ) from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} of {type(value).__name__} {str(value)[:40]!r}; {spec}")
    if array.shape != shape:
        raise DataError(f"{what} of shape {list(array.shape)}; {spec}")
    return array


def warn(place: str, remarks: Mapping[str, str], remarked: set[str]) -> None:
    """Log each kind of remark once."""
    for kind in remarks.keys() - remarked:
        _messages.warning("%s: %s", place, remarks[kind])
    remarked.update(remarks)
