"""Layers one after the other, as modules: those that are dense and plain go by `rlrun.nn.stacks`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from rlrun.nn import precision
from rlrun.nn.products import Kind
from rlrun.nn.stacks import Form, Held, through


class _Plan(NamedTuple):
    """What layers are to `rlrun.nn.stacks`, as long as they are what they were."""

    insides: list[dict[str, Any]]  # of each layer: its own, not a copy, which does not keep it alive
    hooks: tuple[Any, ...]  # of all layers
    held: Held

    def fits(self, layers: Sequence[nn.Module]) -> bool:
        """Tell whether layers are those that this was made of, and nobody looks inside."""
        same = all(layer.__dict__ is inside for layer, inside in zip(layers, self.insides, strict=True))
        return same and not any(self.hooks) and self.held.lies()


# By the first layer, and by how many there are in each stack.
_plans: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], _Plan]] = WeakKeyDictionary()


def tandem(x: Tensor, *stacks: Iterable[nn.Module]) -> tuple[Tensor, ...]:
    """Return what each stack of layers makes of x [B, F]: [B, its width]; in one step where all are dense and plain."""
    layers = [tuple(stack) for stack in stacks]
    if x.dim() == 2 and plain_input(x):
        held = _held(layers)
        if held is not None:
            return held(x)
    if len(layers) == 1:
        return (_layer_by_layer(x, layers[0]),)
    return tuple(tandem(x, stack)[0] for stack in layers)


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
    return any(map(any, map(_hooks, modules)))


def kind_of(activations: Iterable[nn.Module]) -> Kind | None:
    """Return what activations are, all of them; None for others than these layers know."""
    kinds = {type(activation) for activation in activations}
    return "relu" if kinds <= {nn.ReLU} else "tanh" if kinds == {nn.Tanh} else None


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what one layer of weight [out, in] and bias [out] makes of x [..., in]."""
    if x.dim() == 2 and plain_input(x) and weight.dtype == torch.float32:
        return through(x, Form(("relu",), (1,), open=True), [weight, bias])[0]
    return F.linear(x, weight, bias)


def _layer_by_layer(x: Tensor, layers: tuple[nn.Module, ...]) -> Tensor:
    """Return what layers of any kind make of x; a dense one at the end computes in single precision in any case."""
    hidden = layers[:-1] if layers and isinstance(layers[-1], nn.Linear) else layers
    below = x
    with precision.products(x, _widest(layer.weight for layer in hidden if isinstance(layer, nn.Linear))):
        for layer in hidden:
            below = _one(layer, below)
    below = below.to(x.dtype)
    return below if len(hidden) == len(layers) else _one(layers[-1], below)


def _one(layer: nn.Module, x: Tensor) -> Tensor:
    if type(layer) is nn.Linear and layer.bias is not None and not watched(layer):
        return affine(x, layer.weight, layer.bias)
    made: Tensor = layer(x)
    return made


def _widest(weights: Iterable[Tensor]) -> int:
    """Return the multiplications a row in the widest of layers, biases or not."""
    return max([0, *[weight.numel() for weight in weights]])  # as the compiler knows it


def _held(stacks: list[tuple[nn.Module, ...]]) -> Held | None:
    """Return stacks as one step, if they are dense layers whose inside nobody wants to see."""
    layers = stacks[0] if len(stacks) == 1 else tuple(chain.from_iterable(stacks))
    if not all(stacks):
        return None
    known, depths = _plans.get(layers[0]), tuple(map(len, stacks))
    plan = None if known is None else known.get(depths)
    if plan is not None and plan.fits(layers):
        return plan.held
    held = _made(stacks)
    if held is not None:
        plan = _Plan([layer.__dict__ for layer in layers], tuple(chain.from_iterable(map(_hooks, layers))), held)
        _plans.setdefault(layers[0], {})[depths] = plan
    elif known is not None:  # hooks often know their network, and would keep it alive from here
        _plans.pop(layers[0], None)
    return held


def _made(stacks: list[tuple[nn.Module, ...]]) -> Held | None:
    kinds = [_kind(stack) for stack in stacks]
    lengths = {len(stack) % 2 for stack in stacks}
    if None in kinds or len(lengths) > 1 or any(watched(*stack) for stack in stacks):
        return None
    dense = [stack[::2] for stack in stacks]
    is_open = lengths == {1}
    work = max(_widest(layer.weight for layer in stack[: len(stack) - is_open]) for stack in dense)  # type: ignore[misc]
    form = Form(tuple(kinds), tuple(map(len, dense)), open=is_open)  # type: ignore[arg-type]
    return Held(form, [layer._parameters for layer in chain.from_iterable(dense)], work)


def _kind(layers: tuple[nn.Module, ...]) -> Kind | None:
    """Return the activation between dense layers of single precision with biases; None where there are others."""
    for layer in layers[::2]:
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if type(layer) is not nn.Linear or weight is None or bias is None:
            return None
        if {weight.dtype, bias.dtype} != {torch.float32}:
            return None
    return kind_of(layers[1::2])


def _hooks(layer: nn.Module) -> tuple[Any, ...]:
    return layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
