"""Layers one after the other, as modules: those that are dense and plain go by `rlrun.nn.stacks`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from rlrun.nn import precision
from rlrun.nn.products import Kind
from rlrun.nn.stacks import CachedStacks, Form, through


class _Line(NamedTuple):
    """Layers that a module holds somewhere below it, as long as they are what they were."""

    inside: list[dict[str, Any]]  # modules that each module on the way holds, by name
    modules: list[nn.Module | None]  # all of these
    hooks: tuple[Any, ...]
    cached: CachedStacks

    def fits(self) -> bool:
        """Tell whether the same modules lie on the way, and nobody looks inside."""
        now = list(chain.from_iterable(map(dict.values, self.inside)))
        return now == self.modules and not any(self.hooks) and self.cached.in_place()


_lines: WeakKeyDictionary[nn.Module, dict[tuple[tuple[str, ...], ...], _Line]] = WeakKeyDictionary()


def across(owner: nn.Module, x: Tensor, *stacks: tuple[str, ...]) -> tuple[Tensor, ...] | None:
    """Return what stacks of layers below a module make of x [B, F], in one step: [B, width] of each.

    stacks: the places of each one's layers, in their order: `trunk.layers` stands for all that this holds, and nothing
        for all that the module holds itself.
    Returns None where they are not all dense and plain, x is no such input, or somebody looks inside.
    """
    if x.dim() != 2 or not plain_input(x):
        return None
    known = _lines.get(owner)
    line = None if known is None else known.get(stacks)
    if line is None or not line.fits():
        line = _line(owner, stacks)
        if line is None:
            if known is not None:  # hooks often know their network, and would keep it alive from here
                known.pop(stacks, None)
            return None
        _lines.setdefault(owner, {})[stacks] = line
    return line.cached(x)


def plain_input(x: Tensor) -> bool:
    """Tell whether these layers may take x: of single precision, on a CPU, and nobody compiles or transforms it."""
    if x.dtype != torch.float32 or not x.is_cpu or torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    if type(x) is not Tensor and type(x) is not nn.Parameter:  # who knows what others stand for
        return False
    forward_mode = forward_ad._current_level >= 0
    return not (forward_mode or torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active())


def watched(*modules: nn.Module) -> bool:
    """Tell whether somebody wants to see what goes into modules or comes out of them."""
    return any(map(any, map(hooks_of, modules)))


def hooks_of(layer: nn.Module) -> tuple[Any, ...]:
    """Return those who see, or change, what goes into a module or comes out of it."""
    return layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks


def kind_of(activations: Iterable[nn.Module]) -> Kind | None:
    """Return what activations are, all of them; None for others than these layers know."""
    kinds = {type(activation) for activation in activations}
    return "relu" if kinds <= {nn.ReLU} else "tanh" if kinds == {nn.Tanh} else None


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what one layer of weight [out, in] and bias [out] makes of x [..., in]."""
    if x.dim() == 2 and plain_input(x) and weight.dtype == torch.float32:
        return through(x, Form(("relu",), (1,), open=True), [weight, bias])[0]
    return F.linear(x, weight, bias)


def layer_by_layer(x: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """Return what layers of any kind make of x; a dense one at the end computes in single precision in any case."""
    hidden = layers[:-1] if layers and isinstance(layers[-1], nn.Linear) else layers
    below = x
    with precision.products(x, _widest(layer.weight for layer in hidden if isinstance(layer, nn.Linear))):
        for layer in hidden:
            below = _apply_layer(layer, below)
    below = below.to(x.dtype)
    return below if len(hidden) == len(layers) else _apply_layer(layers[-1], below)


def _apply_layer(layer: nn.Module, x: Tensor) -> Tensor:
    if type(layer) is nn.Linear and layer.bias is not None and not watched(layer):
        return affine(x, layer.weight, layer.bias)
    output: Tensor = layer(x)
    return output


def _widest(weights: Iterable[Tensor]) -> int:
    """Return the multiplications a row in the widest of layers, biases or not."""
    return max([0, *[weight.numel() for weight in weights]])  # as the compiler knows it


def _line(owner: nn.Module, places: Iterable[Iterable[str]]) -> _Line | None:
    on_the_way: dict[str, nn.Module] = {}
    stacks = []
    for stack in places:
        layers: list[nn.Module] = []
        for place in stack or ("",):
            names = place.split(".")
            on_the_way |= {part: owner.get_submodule(part) for part in accumulate(names, "{}.{}".format) if part}
            last = owner.get_submodule(place)
            layers += [*last] if isinstance(last, nn.Sequential) else [last]
        stacks.append(tuple(layers))
    cached = _cached_stacks(stacks)
    if cached is None or watched(*on_the_way.values()):
        return None
    inside = [module._modules for module in (owner, *on_the_way.values())]
    modules: list[nn.Module | None] = list(chain.from_iterable(map(dict.values, inside)))
    parts = (*on_the_way.values(), *chain.from_iterable(stacks))
    return _Line(inside, modules, tuple(chain.from_iterable(map(hooks_of, parts))), cached)


def _cached_stacks(stacks: list[tuple[nn.Module, ...]]) -> CachedStacks | None:
    kinds = [_kind(stack) for stack in stacks]
    lengths = {len(stack) % 2 for stack in stacks}
    if not all(stacks) or None in kinds or len(lengths) > 1 or any(watched(*stack) for stack in stacks):
        return None
    dense = [stack[::2] for stack in stacks]
    is_open = lengths == {1}
    work = max(_widest(layer.weight for layer in stack[: len(stack) - is_open]) for stack in dense)  # type: ignore[misc]
    form = Form(tuple(kinds), tuple(map(len, dense)), open=is_open)  # type: ignore[arg-type]
    return CachedStacks(form, [layer._parameters for layer in chain.from_iterable(dense)], work)


def _kind(layers: tuple[nn.Module, ...]) -> Kind | None:
    """Return the activation between dense layers of single precision with biases; None where there are others."""
    for layer in layers[::2]:
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if type(layer) is not nn.Linear or weight is None or bias is None:
            return None
        if {weight.dtype, bias.dtype} != {torch.float32}:
            return None
    return kind_of(layers[1::2])
