"""The states of random generators, and the generators that belong to the whole process: python's, numpy's, torch's."""

import random
from typing import Any

import numpy as np
import torch


class Seeded:
    """A part that draws from a random generator of its own, which checkpoints hold."""

    def __init__(self, seed: Any = 0) -> None:
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.generator.bit_generator.state = state["generator"]


class Generators:
    """The generators of the whole process, as a part that checkpoints hold: a resumed run draws the next number."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all generators, with those of CUDA devices."""
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
        """Set all generators; skip those of devices that this machine lacks."""
        python = state["python"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            torch.cuda.set_rng_state_all(state.get("cuda", [])[:count])
