"""A network in place of a policy: held-out data are its observations, and its output is the action."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from rlrun.collect.agents import PolicyAgent
from rlrun.core.errors import RequestError
from rlrun.core.typing import Tree
from rlrun.export.graph import Outer


class NetworkAgent(PolicyAgent):
    """An agent around a network, so that it is exported like a policy."""

    policy: Any

    def _act(self, observation: Tree, *more: Any) -> Any:
        return self.policy(observation)


def outer_of(network: torch.nn.Module, rows: Tree) -> Outer:
    """Return the spaces of a network's inputs, tensors [N, …], and of its outputs.

    Raises:
        RequestError: the network does not take these inputs, or returns neither a tensor nor tensors by name.
    """
    try:
        with torch.no_grad():
            output = network(rows)
        return Outer(_space(rows), _space(output))
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise RequestError(f"the network has no outputs for the held-out data: {first}") from error


def _space(tree: Any) -> gymnasium.Space[Any]:
    if isinstance(tree, Mapping):
        return gymnasium.spaces.Dict({name: _space(part) for name, part in tree.items()})
    array = tree.numpy()
    low, high = (-np.inf, np.inf) if array.dtype.kind == "f" else (array.min(), array.max())
    low, high = (0, 255) if array.dtype == np.uint8 else (low, high)
    return gymnasium.spaces.Box(low, high, array.shape[1:], array.dtype)
