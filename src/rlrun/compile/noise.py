"""Random numbers of compiled hooks: tensors become inputs of the graph, other draws are refused."""

import functools
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from rlrun.compile.graph import ATEN, Untraceable


class Draw(NamedTuple):
    """Random numbers that are an input of a graph.

    Attributes:
        like: a tensor of their shape and kind.
        function: draws them.
    """

    like: Tensor
    function: Callable[[], Tensor]


def draws(module: fx.GraphModule) -> list[Draw]:
    """Turn the random numbers of a graph into its last inputs, in the order in which the hooks draw them.

    Within a graph the compiler chooses the order of draws. If the probabilities of some numbers depend on data, all
    numbers stay in the graph, as otherwise their order would change.
    """
    random = torch.Tag.nondeterministic_seeded
    nodes = [node for node in module.graph.nodes if random in getattr(node.target, "tags", ())]
    drawn = [draw for draw in map(_draw, nodes) if draw is not None]
    if len(drawn) < len(nodes):
        return []
    inputs = module.graph.find_nodes(op="placeholder")
    for number, node in enumerate(nodes):
        with module.graph.inserting_after(inputs[-1]):
            inputs.append(module.graph.placeholder(f"noise_{number}"))
        inputs[-1].meta.update(node.meta)
        filled = [node.args[0]] if node.target._schema.is_mutable else []
        for old in (node, *filled):
            old.replace_all_uses_with(inputs[-1], lambda user, node=node: user is not node)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    return drawn


def _draw(node: fx.Node) -> Draw | None:
    """Return the draw of a node; None if it depends on other numbers of the graph."""
    operator: Any = node.target
    value = node.meta["val"]
    inputs, rest = node.all_input_nodes, node.args
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return None
    # with the same strides, as numbers are drawn in the order of memory
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if not inputs:
        return Draw(like, functools.partial(operator, *rest, **node.kwargs))
    if inputs != [rest[0]]:
        return None
    if operator._schema.is_mutable:
        if inputs[0].target not in (ATEN.empty_like.default, ATEN.empty.memory_format):
            return None
        return Draw(like, lambda: operator(torch.empty_like(like), *rest[1:], **node.kwargs))
    return Draw(like, lambda: operator(like, *rest[1:], **node.kwargs)) if "_like" in operator.__name__ else None


@contextmanager
def repeatable() -> Iterator[None]:
    """Restore random generators of the host afterwards.

    Raises:
        Untraceable: the block drew numbers, which a graph would repeat, or set a seed, which it would skip.
    """
    python, arrays, before = random.getstate(), np.random.get_state(), _random_states()
    try:
        yield
        if _random_states() != before:
            raise Untraceable(None, "it seeds a generator, or draws numbers that are no tensors")
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def _random_states() -> bytes:
    with _disable_current_modes():  # otherwise torch's state would be a stand-in
        return pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()))
