"""Dense layers one after the other, several stacks of them on the same input, as one step of autograd.

For small layers, what torch does around each of them takes as long as the product itself, and its tanh takes longer on
many processors. One step for whole stacks, tanh(x) = 2 σ(2x) - 1, whose factor 2 the product takes along, and products
by the faster library (`rlrun.nn.products`) spare up to half of an update. All of it is the same but for rounding: 2e-7
at most of a tanh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from rlrun.nn import precision, products

Kind = Literal["relu", "tanh"]
Layers = list[tuple[Tensor, Tensor]]  # weight [out, in] and bias [out] of each
Parts = Sequence[tuple[Tensor | None, Tensor | None]]  # gradients of these

_TANH_BACKWARD = torch.ops.aten.tanh_backward.default
_RELU_BACKWARD = torch.ops.aten.threshold_backward.default
_MINUS_ONE = torch.tensor(-1.0)


class Form(NamedTuple):
    """How the layers of several stacks are told by one list of parameters, and what stands behind them."""

    kinds: tuple[Kind, ...]  # of each stack
    depths: tuple[int, ...]  # layers of each stack
    open: bool  # no activation behind the last layer
    members: int = 0  # of a stacked ensemble, whose parameters are [M, in, out] and [M, 1, out]; 0 = apart
    low: torch.dtype | None = None  # what hidden layers compute in, where it is not single precision

    def layers(self, parameters: Sequence[Tensor]) -> list[Layers]:
        """Return the layers of each stack."""
        left = _pairs(parameters)
        if not self.members:
            return [list(islice(left, depth)) for depth in self.depths]
        apart = [(weights.transpose(1, 2).unbind(), biases.flatten(1).unbind()) for weights, biases in left]
        return [[(weights[one], biases[one]) for weights, biases in apart] for one in range(self.members)]

    def hidden(self, stack: int, layer: int) -> bool:
        """Tell whether an activation stands behind a layer."""
        return not self.open or layer < self.depths[stack] - 1


def tandem(x: Tensor, *stacks: Iterable[nn.Module]) -> tuple[Tensor, ...]:
    """Return what each stack of layers makes of x [B, F]: [B, its width]; in one step where all are dense and plain."""
    if x.dim() == 2 and plain_input(x):
        found = [_plain(tuple(stack)) for stack in stacks]
        if all(one is not None for one in found) and len({one[1] for one in found if one}) == 1:
            kinds, _, parameters = zip(*(one for one in found if one), strict=True)
            depths = tuple(len(one) // 2 for one in parameters)
            is_open = found[0] is not None and found[0][1]
            work = max(_widest(one[:-2] if is_open else one) for one in parameters)
            form = Form(kinds, depths, open=is_open, low=precision.lowered(work))
            return through(x, form, list(chain.from_iterable(parameters)))
    if len(stacks) == 1:
        return (_layer_by_layer(x, tuple(stacks[0])),)
    return tuple(tandem(x, stack)[0] for stack in stacks)


def plain_input(x: Tensor) -> bool:
    """Tell whether these layers may take x: of single precision, on a CPU, and nobody compiles or transforms it."""
    if x.dtype != torch.float32 or not x.is_cpu or torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    forward_mode = forward_ad._current_level >= 0
    return not (forward_mode or torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active())


def watched(*modules: nn.Module) -> bool:
    """Tell whether somebody wants to see what goes into modules or comes out of them."""
    for each in modules:  # a generator takes twice as long, beside every step of an environment
        if each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks:
            return True
    return False


def kind_of(activations: Iterable[nn.Module]) -> Kind | None:
    """Return what activations are, all of them; None for others than these layers know."""
    kinds = {type(activation) for activation in activations}
    return "relu" if kinds <= {nn.ReLU} else "tanh" if kinds == {nn.Tanh} else None


def through(
    x: Tensor, form: Form, parameters: Sequence[Tensor], layers: list[Layers] | None = None
) -> tuple[Tensor, ...]:
    """Return what stacks make of x [B, in], the same for all, or of [M, B, in], each its own: [B, out] of each.

    layers: views of the parameters by `form.layers`, where somebody has them at hand.
    """
    if layers is None:
        layers = form.layers(parameters)
    if torch.is_grad_enabled():
        found: tuple[Tensor, ...] = _Stacks.apply(x, form, layers, *parameters)  # type: ignore[no-untyped-call]
        return found
    return tuple(outputs[-1].float() for outputs in _run(x, form, layers))


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


def _plain(layers: tuple[nn.Module, ...]) -> tuple[Kind, bool, list[Tensor]] | None:
    """Return activation, openness and weight, bias, weight, … of dense layers whose inside nobody wants to see."""
    kind = kind_of(layers[1::2])
    if kind is None or not layers:
        return None
    found: list[Tensor] = []
    for layer in layers[::2]:
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if type(layer) is not nn.Linear or weight is None or bias is None or bias.dtype != torch.float32:
            return None
        found += (weight, bias)
    return None if watched(*layers) else (kind, len(layers) % 2 == 1, found)


def _pairs(parameters: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    left = iter(parameters)
    return zip(left, left, strict=True)


def _run(x: Tensor, form: Form, stacks: list[Layers]) -> list[list[Tensor]]:
    """Return the outputs of every layer of every stack."""
    found = []
    for number, layers in enumerate(stacks):
        below, outputs = x if x.dim() == 2 else x[number], []
        for depth, (weight, bias) in enumerate(layers):
            if not form.hidden(number, depth):
                below = products.affine(below.float(), weight, bias)
            elif form.low is not None:
                relu = form.kinds[number] == "relu"
                below = products.affine(below.to(form.low), weight, bias, rectified=relu)
                below = below if relu else below.tanh_()  # the other way is as exact as numbers near one half are
            elif form.kinds[number] == "relu":
                below = products.affine(below, weight, bias, rectified=True)
            else:
                half = products.affine(below, weight, bias, times=2.0).sigmoid_()
                below = torch.add(_MINUS_ONE, half, alpha=2.0)
            outputs.append(below)
        found.append(outputs)
    return found


class _Stacks(torch.autograd.Function):
    """Whole stacks; what is not asked for is not computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, form: Form, layers: list[Layers], *parameters: Tensor) -> tuple[Tensor, ...]:
        found = _run(x, form, layers)
        ctx.form, ctx.layers = form, layers
        ctx.set_materialize_grads(bool(form.members))  # of a stack that no loss reached, there is no gradient
        # what no activation stands behind is not needed again, and others may change it in place
        kept = [outputs[:-1] if form.open else outputs for outputs in found]
        ctx.save_for_backward(x, *parameters, *chain.from_iterable(kept))
        return tuple(outputs[-1].float() for outputs in found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        form: Form = ctx.form
        count = len(ctx.needs_input_grad) - 3
        parameters, outputs = saved[:count], saved[count:]
        if torch.is_grad_enabled():  # somebody wants gradients of these; what lies between layers has no graph here
            return _with_graph(x, form, parameters, gradients)
        wanted = [_is_wanted(node) for node, _ in ctx.next_functions]
        of_x, of_parameters = wanted[0], any(wanted[1:])
        left = iter(outputs)
        parts: list[Parts] = []
        of_inputs: list[Tensor] = []
        for number, (layers, gradient) in enumerate(zip(ctx.layers, gradients, strict=True)):
            below = [x if x.dim() == 2 else x[number], *(next(left) for _ in layers[form.open :])]
            if gradient is None:
                parts.append([(None, None)] * len(layers))
                continue
            part, of_input = _back(gradient, form, number, layers, below, of_x, of_parameters)
            parts.append(part)
            of_inputs += [] if of_input is None else [of_input]
        told = _told(parts, form) if of_parameters else [None] * count
        return (_together(of_inputs, x), None, None, *told)


def _back(
    gradient: Tensor,
    form: Form,
    number: int,
    layers: Layers,
    values: list[Tensor],
    of_x: bool,
    of_parameters: bool,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
    """Go down a stack; return the gradients of its layers in their order, and that of its input.

    values: the input and the output of each layer.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for layer in range(len(layers) - 1, -1, -1):
        if form.hidden(number, layer):
            reached = values[layer + 1]
            relu, gradient = form.kinds[number] == "relu", gradient.to(reached.dtype)
            gradient = _RELU_BACKWARD(gradient, reached, 0.0) if relu else _TANH_BACKWARD(gradient, reached)
        if of_parameters:
            below = values[layer].to(gradient.dtype)
            sides = (below, gradient) if form.members else (gradient, below)
            found.append((products.of_weight(*sides), gradient.sum(0, dtype=torch.float32)))
        if layer or of_x:
            gradient = products.of_input(gradient, layers[layer][0])
    return found[::-1], gradient.float() if of_x else None


def _told(parts: list[Parts], form: Form) -> Iterator[Tensor | None]:
    """Tell gradients of layers as the parameters are told."""
    if not form.members:
        yield from chain.from_iterable(chain.from_iterable(parts))
        return
    for layers in zip(*parts, strict=True):
        weights, biases = zip(*layers, strict=True)
        yield torch.stack(weights) if len(weights) > 1 else weights[0].unsqueeze(0)
        yield (torch.stack(biases) if len(biases) > 1 else biases[0].unsqueeze(0)).unsqueeze(1)


def _together(of_inputs: list[Tensor], x: Tensor) -> Tensor | None:
    """Return the gradient of x: the sum over stacks, or side by side where each had an input of its own."""
    if not of_inputs:
        return None
    if x.dim() == 3:
        return torch.stack(of_inputs)
    found = of_inputs[0]
    for other in of_inputs[1:]:
        found = found + other
    return found


def _is_wanted(node: Any) -> bool:
    """Tell whether the running backward pass wants what a node leads to, and is not another network's loss."""
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf that is asked for by `torch.autograd.grad`
        return True


def _with_graph(
    x: Tensor, form: Form, parameters: Sequence[Tensor], gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Return what `backward` does, with a graph of its own."""
    # by other names: what x was made of may be these parameters, too, and is reached by x's own gradient
    x, *parameters = (part.view_as(part) for part in (x, *parameters))
    tops: list[Tensor] = []
    reached = [gradient for gradient in gradients if gradient is not None]
    for number, layers in enumerate(form.layers(parameters)):
        if gradients[number] is None:
            continue
        below = x if x.dim() == 2 else x[number]
        for depth, (weight, bias) in enumerate(layers):
            below = F.linear(below, weight, bias)
            if form.hidden(number, depth):
                below = below.relu() if form.kinds[number] == "relu" else below.tanh()
        tops.append(below)
    wanted = [part for part in (x, *parameters) if part.requires_grad]
    found = iter(torch.autograd.grad(tops, wanted, reached, create_graph=True, allow_unused=True))
    of_x, *others = [next(found) if part.requires_grad else None for part in (x, *parameters)]
    return (of_x, None, None, *others)
