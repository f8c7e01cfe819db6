"""The states of random generators, and the generators that belong to the whole process: python's, numpy's, torch's."""

import random
from typing import Any

import numpy as np
import torch


class Seeded:
    """What draws random numbers from a generator of its own, which checkpoints hold."""

    def __init__(self, seed: Any = 0) -> None:
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def state_dict(self) -> dict[str, Any]:
        """Return what influences the next draw."""
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.generator.bit_generator.state = state["generator"]


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
        """Set all generators; those of devices that this machine lacks are left out."""
        python = state["python"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            torch.cuda.set_rng_state_all(state.get("cuda", [])[:count])
