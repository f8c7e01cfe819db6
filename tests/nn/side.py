"""Several stacks on one input, as networks that hold them compute them."""

from __future__ import annotations

from torch import Tensor, nn

from rlrun.nn.tandem import across, layer_by_layer


def outputs_of(x: Tensor, *stacks: nn.Sequential) -> tuple[Tensor, ...]:
    """Return the outputs of each stack for x, in one step where that is possible."""
    outputs = across(nn.ModuleList(stacks), x, *((str(place),) for place in range(len(stacks))))
    return tuple(layer_by_layer(x, tuple(stack)) for stack in stacks) if outputs is None else outputs
