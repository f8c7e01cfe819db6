"""A graph of what functions do with tensors, and what a compiler makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx

from rlrun.fused.products import by_numpy
from rlrun.nn import products
from rlrun.remembered import folder

Compiled = Callable[..., Sequence[Tensor]]


def traced(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Return the graph of what a function does with stand-ins of tensors; those themselves stay as they are."""
    from torch.fx.experimental.proxy_tensor import make_fx

    table = {torch.ops.aten._foreach_norm.Scalar: _norms}  # which the compiler leaves apart
    # a stand-in draws nothing; what is not one must not draw for it
    with torch.random.fork_rng(devices=[]), torch.compiler._compile_session_context():
        made = make_fx(function, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    made.graph.eliminate_dead_code()
    return made


def used(made: fx.GraphModule) -> list[int]:
    """Take out the inputs that the graph does not read, and return the numbers of the others."""
    found = []
    for number, node in enumerate(made.graph.find_nodes(op="placeholder")):
        if node.users:
            found.append(number)
        else:
            made.graph.erase_node(node)
    return found


def compiled(made: fx.GraphModule, inputs: Sequence[Tensor], device: str) -> Compiled:
    """Return the graph as a function of its inputs, compiled for a device."""
    if device == "cpu" and products.in_use() == "numpy":
        by_numpy(made.graph)
    made.recompile()
    with suppress(RuntimeError):  # there is no home
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "compiled"))
    from torch._inductor import standalone_compile

    # drawn as ever, so that a run is the same as without compiling but for rounding
    settings: Mapping[str, Any] = {
        "fallback_random": True,
        "cpp.threads": torch.get_num_threads(),
        "size_asserts": False,  # our operators keep to what they promise
        "alignment_asserts": False,
    }
    with torch.no_grad():
        found: Compiled = standalone_compile(
            made, list(inputs), dynamic_shapes="from_example_inputs", options={"config_patches": settings}
        )
    return found


def _norms(tensors: Sequence[Tensor], order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]
