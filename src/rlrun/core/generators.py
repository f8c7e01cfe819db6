"""The states of random generators, and the generators that belong to the whole process: python's, numpy's, torch's."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import RlrunError

# The position of a generator in its block of numbers. Numpy believes it, and would read beyond the block.
PLACES = {"MT19937": ("state", "pos", 624), "Philox": (None, "buffer_pos", 4)}
TORCH_BYTES = 5056  # of a generator on the CPU: seed, numbers left, whether seeded, place, 624 words, and more
WORDS = 624


def checked(state: Any) -> Any:
    """Return the state of a numpy generator, if it can be one.

    Raises:
        RlrunError: it is none, or its position is outside of its numbers.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("bit_generator"), str):
        raise RlrunError("the state of a random generator is none")
    if (entry := PLACES.get(state["bit_generator"])) is not None:
        inner, name, last = entry
        place = (state if inner is None else state[inner])[name]
        if not isinstance(place, int | np.integer) or not 0 <= place <= last:
            raise RlrunError(f"the state of a random generator is damaged: {name} {str(place)[:40]} is not 0 to {last}")
    return state


def put_back(generator: np.random.Generator, state: Any) -> None:
    """Set a generator to a state that a checkpoint holds.

    Raises:
        RlrunError: it is none.
    """
    generator.bit_generator.state = checked(state)


class Seeded:
    """What draws random numbers from a generator of its own, which checkpoints hold."""

    def __init__(self, seed: Any = 0) -> None:
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def state_dict(self) -> dict[str, Any]:
        """Return what influences the next draw."""
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        put_back(self.generator, state["generator"])


def checked_torch(state: Any) -> Tensor:
    """Return the state of torch's generator on the CPU, if it can be one; torch itself looks at each number alone.

    Raises:
        RlrunError: it is none, or its position is outside of its numbers.
    """
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.shape != (TORCH_BYTES,):
        raise RlrunError("the state of torch's random generator is none")
    remaining, place = state[8:12].numpy().view(np.int32)[0], state[16:24].numpy().view(np.uint64)[0]
    if remaining < 1 or int(remaining) + int(place) > WORDS + 1:
        raise RlrunError(f"the state of torch's random generator is damaged: {remaining} numbers left from {place} on")
    return state


class Generators:
    """A part like others, so that a checkpoint holds them and a resumed run draws the next number."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all generators; of CUDA's where there are any."""
        version, numbers, gauss = random.getstate()
        states: dict[str, Any] = {
            "python": {"version": version, "words": np.array(numbers, np.uint64), "gauss": gauss},
            "numpy": np.random.get_state(legacy=False),
            "torch": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state_all()
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set all generators; those of devices that this machine lacks are left out.

        Raises:
            RlrunError: a state is none.
        """
        python = state["python"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        np.random.set_state(checked(state["numpy"]))
        torch.set_rng_state(checked_torch(state["torch"]))
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            torch.cuda.set_rng_state_all(state.get("cuda", [])[:count])
