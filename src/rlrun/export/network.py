"""A network in place of a policy: held-out data are what it observes, and what it returns stands for an action."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from rlrun.callbacks import Validation
from rlrun.collect.agents import PolicyAgent, to_arrays, to_tensors
from rlrun.core.errors import RequestError
from rlrun.core.typing import Tree
from rlrun.env.descriptions import containers
from rlrun.export import play_onnx
from rlrun.export.checking import Columns, Reference, Run, columns, differing
from rlrun.export.graph import Outer


class NetworkAgent(PolicyAgent):
    """A network that a file holds as it would hold a policy."""

    policy: Any

    def _act(self, observation: Tree, *more: Any) -> Any:
        return self.policy(observation)


def outer_of(network: torch.nn.Module, rows: Tree) -> Outer:
    """Return the spaces of what a network takes, tensors [N, …], and of what it returns.

    Raises:
        RequestError: it does not take these, or returns neither a tensor nor tensors by name.
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


def validated(run: Run, reference: Reference, validation: Validation) -> dict[str, Any]:
    """Return the metrics of a file on all held-out rows, and its largest difference from the network there.

    Raises:
        RlrunError: it differs by more than the tolerance.
    """
    ports, largest = reference.graph.inputs, [0.0]

    def answer(rows: Tree) -> Tree:
        values = columns(ports, to_arrays(rows))
        inputs: Columns = {port.name: values[port.name].astype(port.dtype) for port in ports}
        outputs = run(inputs)
        largest.append(differing(outputs, inputs, reference))
        return to_tensors(play_onnx.nested(containers(reference.outer.action), outputs, "action"))

    metrics = validation.measure(answer)
    return {"rows": len(validation.loader), "metrics": metrics, "largest": max(largest)}
