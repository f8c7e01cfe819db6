"""Stacks of dense layers with tanh on the same input, as one step of autograd.

For layers of some 64 units, what torch does around each of them takes as long as the product itself, and its tanh
longer on many processors. One step for two whole stacks, and tanh(x) = 2 σ(2x) - 1, whose factor 2 the product takes
along, spare a tenth of an update. Both are the same but for rounding: 2e-7 at most of a tanh.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.nn.mlp import Hidden
from rlrun.nn.precision import lowered

_BACKWARD = torch.ops.aten.tanh_backward.default
_MINUS_ONE = torch.tensor(-1.0)


def tandem(x: Tensor, *stacks: Hidden) -> tuple[Tensor, ...]:
    """Return what each stack makes of x [B, F]: [B, its width]; in one step where all are dense layers with tanh."""
    plain = x.dim() == 2 and x.dtype == torch.float32 and x.is_cpu and not torch.compiler.is_compiling()
    if plain and not any(lowered(stack.work) for stack in stacks):
        parameters = [_parameters(stack) for stack in stacks]
        if all(parameters):
            depths = [len(stack) // 2 for stack in stacks]
            found: tuple[Tensor, ...] = _Tandem.apply(x, depths, *chain.from_iterable(parameters))  # type: ignore[no-untyped-call]
            return found
    return tuple(stack(x) for stack in stacks)


def _parameters(stack: nn.Sequential) -> list[Tensor]:
    """Return weight, bias, weight, … of dense layers with tanh behind each, whose inside nobody wants to see."""
    layers = list(stack._modules.values())
    found: list[Tensor] = []
    for dense, activation in zip(layers[::2], layers[1::2], strict=False):
        if type(dense) is not nn.Linear or type(activation) is not nn.Tanh or _watched(dense) or _watched(activation):
            return []
        found += dense._parameters.values()  # type: ignore[arg-type]
    plain = len(found) == len(layers) and all(each is not None and each.dtype == torch.float32 for each in found)
    return found if plain else []


def _watched(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


class _Tandem(torch.autograd.Function):
    """Of stacks that follow each other in weights and biases [weight, bias, weight, …]; `depths` tells them apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depths: list[int], *parameters: Tensor) -> tuple[Tensor, ...]:
        left = iter(parameters)
        outputs: list[Tensor] = []
        tops: list[Tensor] = []
        for depth in depths:
            below = x
            for weight, bias in islice(zip(left, left, strict=True), depth):
                half = torch.addmm(bias, below, weight.t(), beta=2.0, alpha=2.0).sigmoid_()
                below = torch.add(_MINUS_ONE, half, alpha=2.0)
                outputs.append(below)
            tops.append(below)
        ctx.depths = depths
        ctx.save_for_backward(x, *parameters, *outputs)
        return tuple(tops)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        last = len(saved) // 3
        parameters, outputs = saved[: 2 * last], saved[2 * last :]
        if torch.is_grad_enabled():  # somebody wants gradients of these; what lies between layers has no graph here
            return _with_graph(x, ctx.depths, parameters, gradients)
        of_input: Tensor | None = None
        found: list[Tensor] = []  # from the last parameter to the first
        for depth, gradient in zip(reversed(ctx.depths), reversed(gradients), strict=True):
            first = last - depth
            for layer in range(last - 1, first - 1, -1):
                gradient = _BACKWARD(gradient, outputs[layer])
                below = outputs[layer - 1] if layer > first else x
                found += (gradient.sum(0), gradient.t().mm(below))
                if layer > first:
                    gradient = gradient.mm(parameters[2 * layer])
                elif ctx.needs_input_grad[0]:
                    part = gradient.mm(parameters[2 * layer])
                    of_input = part if of_input is None else of_input + part
            last = first
        return (of_input, None, *reversed(found))


def _with_graph(
    x: Tensor, depths: list[int], parameters: list[Tensor], gradients: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Return what `backward` does, with a graph of its own."""
    left = iter(parameters)
    tops: list[Tensor] = []
    for depth in depths:
        below = x
        for weight, bias in islice(zip(left, left, strict=True), depth):
            below = F.linear(below, weight, bias).tanh()
        tops.append(below)
    wanted = [x, *parameters] if x.requires_grad else parameters
    found = torch.autograd.grad(tops, wanted, gradients, create_graph=True)
    return (found[0], None, *found[1:]) if x.requires_grad else (None, None, *found)
