"""Dense layers one after the other, several stacks of them on the same input, as one step of autograd.

For small layers, what torch does around each of them takes as long as the product itself. One step for whole stacks,
by tensors (`rlrun.nn.products`) or by numpy's arrays (`rlrun.nn.arrays`), spares up to half of an update. All of it is
the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.nn import arrays, products
from rlrun.nn.precision import lowered
from rlrun.nn.products import Kind

Layers = list[tuple[Tensor, Tensor]]  # weight [out, in] and bias [out] of each
Views = Sequence[Sequence[tuple[Any, Any]]]  # the same of each stack: all of them tensors, or all of them arrays
Parts = Sequence[tuple[Tensor | None, Tensor | None]]  # gradients of these

_WEIGHT_AND_BIAS = itemgetter("weight", "bias")  # in whatever order a module has them, and whatever else it has


class Form(NamedTuple):
    """How the layers of several stacks are told by one list of parameters, and what stands behind them."""

    kinds: tuple[Kind, ...]  # of each stack
    depths: tuple[int, ...]  # layers of each stack
    open: bool  # no activation behind the last layer
    members: int = 0  # of a stacked ensemble, whose parameters are [M, in, out] and [M, 1, out]; 0 = apart
    low: torch.dtype | None = None  # what hidden layers compute in, where it is not single precision

    def layers(self, parameters: Sequence[Tensor]) -> list[Layers]:
        """Return the layers of each stack."""
        pairs = _pairs(parameters)
        if not self.members:
            return [list(islice(pairs, depth)) for depth in self.depths]
        apart = [(weights.transpose(1, 2).unbind(), biases.flatten(1).unbind()) for weights, biases in pairs]
        return [[(weights[member], biases[member]) for weights, biases in apart] for member in range(self.members)]

    @property
    def way(self) -> Any:
        """Return what makes the products now: `products` of tensors, or `arrays`; numpy has no shorter numbers."""
        return arrays if self.low is None and products.in_use() == "numpy" else products

    def views(self, parameters: Sequence[Tensor]) -> Views:
        """Return the layers of each stack as products are made of them now: tensors, or their arrays."""
        read = self.way.read
        return [[(read(weight), read(bias)) for weight, bias in stack] for stack in self.layers(parameters)]

    def hidden(self, stack: int, layer: int) -> bool:
        """Return True if an activation follows a layer."""
        return not self.open or layer < self.depths[stack] - 1


class CachedStacks:
    """Stacks with cached views of their weights, valid while the parameters keep their memory addresses.

    Args:
        form: of the stacks; its `low` is ignored.
        owners: the parameters of each layer by name, weight and bias, as their modules have them.
        work: multiplications a row in the widest layer that may compute in shorter numbers.
    """

    def __init__(self, form: Form, owners: Sequence[dict[str, Any]], work: int) -> None:
        self._form, self._owners, self._work = form, owners, work
        self._parameters: list[Tensor] = list(chain.from_iterable(map(_WEIGHT_AND_BIAS, owners)))
        self._places = list(map(Tensor.data_ptr, self._parameters))
        self._sizes = list(map(Tensor.size, self._parameters))
        self._views: dict[Any, Views] = {}  # by what makes the products

    def in_place(self) -> bool:
        """Tell whether the parameters are the same, and lie where they lay."""
        try:
            now = list(chain.from_iterable(map(_WEIGHT_AND_BIAS, self._owners)))
        except KeyError:  # a parametrized layer makes them of others
            return False
        if not all(map(is_, self._parameters, now)) or list(map(Tensor.data_ptr, now)) != self._places:
            return False
        return list(map(Tensor.size, now)) == self._sizes

    def is_of(self, owners: Sequence[dict[str, Any]]) -> bool:
        """Tell whether these are still the layers."""
        return len(owners) == len(self._owners) and all(map(is_, owners, self._owners))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what the stacks make of x, as `through` does."""
        low = lowered(self._work)
        form = self._form if low is None else self._form._replace(low=low)
        way = form.way
        views = self._views.get(way)
        if views is None:
            views = self._views[way] = form.views([parameter.detach() for parameter in self._parameters])
        return _through(x, form, way, self._parameters, views)


def through(x: Tensor, form: Form, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return what stacks make of x [B, in], the same for all, or of [M, B, in], each its own: [B, out] of each."""
    return _through(x, form, form.way, parameters, form.views(parameters))


def _through(x: Tensor, form: Form, way: Any, parameters: Sequence[Tensor], views: Views) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        tops: tuple[Tensor, ...] = _Stacks.apply(x, form, way, views, *parameters)  # type: ignore[no-untyped-call]
        return tops
    return tuple([way.to_tensor(outputs[-1]) for outputs in _run(way.read(x), form, views, way)])


def _pairs(parameters: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    remaining = iter(parameters)
    return zip(remaining, remaining, strict=True)


def _run(x: Any, form: Form, stacks: Views, way: Any) -> list[list[Any]]:
    """Return the outputs of every layer of every stack; way: `products` for tensors, `arrays` for arrays."""
    results = []
    for number, layers in enumerate(stacks):
        below, outputs = x if x.ndim == 2 else x[number], []
        for depth, (weight, bias) in enumerate(layers):
            if form.hidden(number, depth):
                below = way.hidden(below, weight, bias, form.kinds[number], form.low)
            else:
                below = way.last(below, weight, bias)
            outputs.append(below)
        results.append(outputs)
    return results


class _Stacks(torch.autograd.Function):
    """Whole stacks; what is not asked for is not computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, form: Form, way: Any, views: Views, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.form, ctx.way, ctx.views = form, way, views
        ctx.set_materialize_grads(bool(form.members))  # of a stack that no loss reached, there is no gradient
        results = _run(way.read(x), form, views, way)
        tops = tuple(way.to_tensor(outputs[-1]) for outputs in results)
        # what no activation stands behind is not needed again, and others may change it in place
        activations = list(chain.from_iterable(outputs[:-1] if form.open else outputs for outputs in results))
        if way is products:
            ctx.save_for_backward(x, *parameters, *activations)
        else:  # nobody else has arrays, but for those of the last layers
            ctx.activations = activations
            ctx.save_for_backward(x, *parameters, *(() if form.open else tops))
        return tops

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        form: Form = ctx.form
        count = len(ctx.needs_input_grad) - 4
        parameters, outputs = saved[:count], saved[count:]
        if torch.is_grad_enabled():  # somebody wants gradients of these; what lies between layers has no graph here
            return _with_graph(x, form, parameters, gradients)
        wanted = [_is_wanted(node) for node, _ in ctx.next_functions]
        of_x, of_parameters = wanted[0], any(wanted[1:])
        way, views, activations = ctx.way, ctx.views, outputs if ctx.way is products else ctx.activations
        if way is arrays and not all(grad is None or arrays.takes(grad) for grad in gradients):
            way, views, activations = products, form.layers(parameters), map(arrays.to_tensor, activations)
        bottom, remaining = way.read(x), iter(activations)
        whole: list[Any] = []
        if way is arrays and form.members > 1 and of_parameters:  # so that members need not be put behind one another
            whole = [arrays.read(torch.empty_like(parameter)) for parameter in parameters]
        parts: list[Parts] = []
        of_inputs: list[Tensor] = []
        for number, (layers, gradient) in enumerate(zip(views, gradients, strict=True)):
            values = [bottom if x.dim() == 2 else bottom[number], *islice(remaining, len(layers) - form.open)]
            if gradient is None:
                parts.append([(None, None)] * len(layers))
                continue
            room = [(weights[number], biases[number, 0]) for weights, biases in _pairs(whole)]
            part, of_input = _back(gradient, form, number, layers, values, way, of_x, of_parameters, room)
            parts.append(part)
            of_inputs += [] if of_input is None else [of_input]
        grads = map(way.to_tensor, whole) if whole else _gradients(parts, form) if of_parameters else [None] * count
        return (_together(of_inputs, x), None, None, None, *grads)


def _back(
    top: Tensor,
    form: Form,
    number: int,
    layers: Sequence[tuple[Any, Any]],
    values: Sequence[Any],
    way: Any,
    of_x: bool,
    of_parameters: bool,
    rooms: Sequence[tuple[Any, Any]],
) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
    """Go down a stack; return the gradients of its layers in their order, and that of its input.

    values: the input and the output of each layer.
    rooms: where the gradients of each layer go, if there is any such place.
    """
    grads: list[tuple[Tensor, Tensor]] = []
    gradient = way.read(top)
    for layer in range(len(layers) - 1, -1, -1):
        if form.hidden(number, layer):
            above = layer < len(layers) - 1  # another layer's gradient is nobody else's
            gradient = way.before(gradient, values[layer + 1], form.kinds[number], own=above)
        if rooms:
            way.of_weight(gradient, values[layer], turned=True, out=rooms[layer][0])
            way.of_bias(gradient, out=rooms[layer][1])
        elif of_parameters:
            of_weight = way.of_weight(gradient, values[layer], turned=form.members > 0)
            grads.append((way.to_tensor(of_weight), way.to_tensor(way.of_bias(gradient))))
        if layer or of_x:
            gradient = way.of_input(gradient, layers[layer][0])
    return grads[::-1], way.to_tensor(gradient) if of_x else None


def _gradients(parts: list[Parts], form: Form) -> Iterator[Tensor | None]:
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
    total = of_inputs[0]
    for part in of_inputs[1:]:
        total = total + part
    return total


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
    grads = iter(torch.autograd.grad(tops, wanted, reached, create_graph=True, allow_unused=True))
    of_x, *of_parameters = [next(grads) if part.requires_grad else None for part in (x, *parameters)]
    return (of_x, None, None, None, *of_parameters)
