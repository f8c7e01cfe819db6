"""Mirror images of sampled observations, and of whole transitions."""

import copy
from typing import Any

import torch

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Batch, Tree
from rlrun.memory.adaptors.adaptor import FURTHER, MIRRORS
from rlrun.memory.table.sample import Sample
from rlrun.memory.table.samplers import Rows
from rlrun.nn import Mirror

OBSERVATIONS = ("observation", "next_observation", *FURTHER)
ACTIONS = ("action", "later_action")
BEFORE = ("previous", "next_previous")  # the action before, as `value`


class Mirrored:
    """Adds `mirrored`, the mirror image of each observation; with `double`, the mirror image of each transition.

    Doubled batches have the rows, [B, …], followed by their mirror images: observations, next observations and actions
    are mirrored, other columns are repeated. Doubled rollouts have twice as many environments, [2 N, T]. `Advantages`
    later computes values, advantages and log-probabilities of the mirrored observations and actions. So ratios of
    mirrored actions, π(M a | M s) / π_then(M a | M s), begin at 1 like all others.

    Args:
        mirror: of the environment.
        network: policy; a recurrent one is refused, as its state cannot be mirrored.
        double: add mirrored transitions.

    Raises:
        ConfigError: the network is recurrent, or the mirror lacks a map of observations.
    """

    tier = MIRRORS
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    keeps = ("mirrored",)

    def __init__(self, mirror: Mirror, network: Any, *, double: bool = False) -> None:
        require_no_state(network)
        self.mirror = copy.deepcopy(mirror).to("cpu")  # samples are adapted there
        self.mirror.require_observation()
        self.double, self.rowwise, self.copies = double, not double, 1 + double
        why = "it is of the actions that were taken, not of mirrored ones; remove +with=async, or take +with=symmetry"
        self.excludes = {"log_prob": why} if double else {}
        self.requires = ("observation", "action") if double else ("observation",)
        self.provides = ("mirrored", *self.requires) if double else ("mirrored",)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        batch = self.evaluate(batch, rows)
        if not self.double:
            return batch
        pairs = {name: (value, self._image(name, value)) for name, value in batch.items()}
        doubled = batch | {name: map_tree(lambda *parts: torch.cat(parts), *pair) for name, pair in pairs.items()}
        if isinstance(doubled, Sample):
            doubled.copies *= self.copies
        return doubled

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Return the batch with the mirror images of its observations, without doubling rows."""
        return batch | {"mirrored": self.mirror.observation(batch["observation"])}

    def _image(self, name: str, value: Tree) -> Tree:
        """Return a column of the mirrored rows."""
        if name in OBSERVATIONS:
            return self.mirror.observation(value)
        if name in BEFORE:
            return value | {"value": self.mirror.action(value["value"])}
        return self.mirror.action(value) if name in ACTIONS else value


def require_no_state(network: Any) -> None:
    """Raise a ConfigError for a recurrent network, and for one without a policy."""
    if network is not None and not hasattr(network, "codec"):
        raise ConfigError(f"symmetry: a {type(network).__name__} has no policy whose mirror image could be compared")
    if getattr(network, "state_size", 0):
        raise ConfigError(
            "symmetry: the state of a recurrent network has no mirror image; leave algorithm.recurrent, algorithm.core "
            "or encoder=recurrent away"
        )
