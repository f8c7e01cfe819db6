"""Tracing: the graph of a function of tensors."""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

import torch
from torch import Tensor, fx, nn

from rlrun.core.errors import printable

Result = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]  # of the graph's outputs and inputs
Place = tuple[Any, Any]  # a dict or list of tensors, and a name or number in it
ATEN = torch.ops.aten
NARROW = 8  # size of an operand up to which sums are faster than a product on a CPU
OUTSIDE = ("rlrun.memory", "rlrun.collect", "rlrun.env", "rlrun.core", "torch.optim", "torch.utils")


class Untraceable(Exception):
    """A hook does something that a graph cannot hold.

    Attributes:
        step: number of the hook; None = all of them.
    """

    def __init__(self, step: int | None, why: str) -> None:
        super().__init__(why)
        self.step = step


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without control characters."""
    return printable(next(iter(str(error).strip().splitlines()), type(error).__name__))


class Inputs:
    """Values that hooks read in one update: tensors, numbers, texts, None, and dicts of these.

    Args:
        values: of the hooks.
        device: of numbers that become tensors.

    Attributes:
        form: values of the same form share a graph.
        tensors: of the values; floats become tensors, too, so that schedules keep the graph.

    Raises:
        Untraceable: a value is of another type.
    """

    def __init__(self, values: Sequence[Any], device: str) -> None:
        form: list[Any] = []
        self.tensors: list[Tensor] = []
        self._device = device
        for value in values:
            self._take(value, form)
        self.form = tuple(form)

    def _take(self, value: Any, form: list[Any]) -> None:
        if isinstance(value, Tensor):
            if value.requires_grad:
                raise Untraceable(None, "they read a tensor with a gradient, which ends at the border of a graph")
            form += (value.shape, value.dtype, value.device)
            self.tensors.append(value)
        elif isinstance(value, float):
            form.append(float)
            self.tensors.append(torch.tensor(value, device=self._device))
        elif isinstance(value, dict):
            form.append(tuple(value))
            for entry in value.values():
                self._take(entry, form)
        elif isinstance(value, str | int | NoneType):
            form.append(value)
        else:
            raise Untraceable(None, f"they read a {type(value).__name__}")

    @property
    def pattern(self) -> tuple[Any, ...]:
        """The form without sizes."""
        return tuple(len(part) if isinstance(part, torch.Size) else part for part in self.form)


def varying(shapes: Sequence[Sequence[torch.Size]]) -> list[list[int]]:
    """Return the dimensions of each input that had more than one size; shapes: of all inputs in each call."""
    return [
        [axis for axis, sizes in enumerate(zip(*sides, strict=True)) if len({*sizes}) > 1]
        for sides in zip(*shapes, strict=True)
    ]


def laid_out(tensors: Sequence[Tensor], strides: Sequence[tuple[int, ...] | None]) -> list[Tensor]:
    """Return tensors with the strides that a graph assumes; None = contiguous."""
    return [
        tensor if tensor.stride() == wanted else _copied(tensor, wanted)
        for tensor, wanted in zip(tensors, strides, strict=True)
    ]


def _copied(tensor: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    if strides is None:
        return tensor.contiguous()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a value of `Inputs` with its tensors replaced."""
    if isinstance(value, dict):
        return {name: rebuilt(entry, tensors) for name, entry in value.items()}
    return next(tensors) if isinstance(value, Tensor | float) else value


class Results:
    """Hooks' results for the host, trees of tensors, as functions of the graph's outputs and inputs.

    Attributes:
        tensors: the outputs of the graph.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.tensors: list[Tensor] = []
        self._inputs = {id(tensor): number for number, tensor in enumerate(inputs)}

    def of(self, tree: Any) -> Result:
        """Return a function that rebuilds a tree with the tensors of an update.

        Raises:
            Untraceable: the tree contains a size, which may change.
        """
        if isinstance(tree, Tensor):
            number = self._inputs.get(id(tree))
            if number is not None:
                return lambda outputs, inputs: inputs[number]
            index = len(self.tensors)
            self.tensors.append(tree.detach() if tree.requires_grad else tree)
            return lambda outputs, inputs: outputs[index]
        if isinstance(tree, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise Untraceable(None, "they return a size, and sizes differ")
        if isinstance(tree, dict):
            entries = [(name, self.of(entry)) for name, entry in tree.items()]
            return lambda outputs, inputs: {name: entry(outputs, inputs) for name, entry in entries}
        if isinstance(tree, tuple | list):  # includes metrics that are tuples
            parts, plain = [self.of(part) for part in tree], tuple if isinstance(tree, tuple) else list
            make = getattr(type(tree), "_make", plain)
            return lambda outputs, inputs: make([part(outputs, inputs) for part in parts])
        if isinstance(tree, functools.partial):  # its arguments may be tensors
            function, arguments, named = tree.func, list(map(self.of, tree.args)), self.of(tree.keywords)
            return lambda outputs, inputs: functools.partial(
                function, *[argument(outputs, inputs) for argument in arguments], **named(outputs, inputs)
            )
        return lambda outputs, inputs: tree


def modules_of(owners: Iterable[Any]) -> list[nn.Module]:
    """Return the modules that callbacks or other owners hold, directly or indirectly, in a fixed order."""
    return [part for part in parts_of(owners) if isinstance(part, nn.Module)]


def places_of(parts: Iterable[Any]) -> list[Place]:
    """Return the containers and names of the tensors of modules, losses and target networks."""
    places: list[Place] = []
    for part in parts:
        if isinstance(part, nn.Module):
            holders = (part._parameters, part._buffers)
            places += [(holder, name) for holder in holders for name, tensor in holder.items() if tensor is not None]
        else:
            lists = getattr(part, "tensor_lists", ())  # of a `Follow`
            places += [(tensors, number) for tensors in lists for number in range(len(tensors))]
    return places


def parts_of(owners: Iterable[Any]) -> list[Any]:
    """Return all objects that owners hold, except tensors and parts of memory, collection and environments."""
    parts: dict[int, Any] = {}
    pending: list[Any] = list(owners)[::-1]
    while pending:
        part = pending.pop()
        if id(part) in parts or isinstance(part, Tensor | str | int | float | type) or part is None:
            continue
        parts[id(part)] = part
        pending += _parts(part)[::-1]
    return list(parts.values())


def _parts(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, list | tuple):
        return list(part)
    if isinstance(part, functools.partial):
        return [part.func, *part.args, *part.keywords.values()]
    if hasattr(part, "__self__"):  # a bound method
        return [part.__self__]
    if type(part).__module__.startswith(OUTSIDE) or not hasattr(part, "__dict__"):
        return []
    return list(vars(part).values())


@contextmanager
def swapped(places: Sequence[Place], stand_in: Mapping[int, Tensor]) -> Iterator[None]:
    """Replace the tensors at some places by stand-ins, by their ids, during the context."""
    before = [holder[name] for holder, name in places]
    try:
        for (holder, name), tensor in zip(places, before, strict=True):
            holder[name] = stand_in[id(tensor)]
        yield
    finally:
        for (holder, name), tensor in zip(places, before, strict=True):
            holder[name] = tensor


class Sizes:
    """Sizes of a graph's inputs, some of which may vary.

    Args:
        inputs: of a graph.
        varying: the dimensions of each input that may vary; those of equal size always stay equal.
    """

    def __init__(self, inputs: Sequence[Tensor], varying: Sequence[Sequence[int]]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

        self._shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=self._shapes, allow_non_fake_inputs=True)
        self.stand_ins: list[Tensor] = []
        self._symbols: list[tuple[int, int, Any]] = []  # number of an input, dimension, and symbol of its size
        self._fixed: list[tuple[int, int, int]] = []  # likewise, and the size
        for number, (tensor, free) in enumerate(zip(inputs, varying, strict=True)):
            kinds = [DimDynamic.DUCK if dim in free else DimDynamic.STATIC for dim in range(tensor.dim())]
            self.stand_ins.append(
                mode.from_tensor(_bare(tensor), symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))
            )
            for dimension in free:
                size: Any = self.stand_ins[-1].shape[dimension]
                self._symbols.append((number, dimension, size.node.expr))
            self._fixed += [(number, dim, size) for dim, size in enumerate(tensor.shape) if dim not in free]
        self._known: dict[tuple[Any, ...], bool] = {}

    def allow(self, shapes: tuple[torch.Size, ...]) -> bool:
        """Return True if the graph accepts inputs of these shapes; it may hold for some sizes only."""
        if shapes not in self._known:
            fixed = all(shapes[number][dimension] == size for number, dimension, size in self._fixed)
            sizes = {symbol: shapes[number][dimension] for number, dimension, symbol in self._symbols}
            alike = all(shapes[number][dimension] == sizes[symbol] for number, dimension, symbol in self._symbols)
            holds = all(guard.expr.subs(sizes) == True for guard in self._shapes.guards)  # noqa: E712, a symbol's truth
            self._known[shapes] = fixed and alike and holds and min(sizes.values()) > 1
        return self._known[shapes]


def traced(
    function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], sizes: Sizes | None = None
) -> fx.GraphModule:
    """Return the graph of a function, traced with stand-ins for its tensors, which stay unchanged."""
    from torch.fx.experimental.proxy_tensor import make_fx

    table: dict[Any, Callable[..., Any]] = {
        ATEN._foreach_norm.Scalar: _norms,
        ATEN._foreach_lerp_.Scalar: _lerp,
        ATEN._foreach_copy_.default: _copy,
        ATEN.tanh.default: _tanh,
        ATEN._local_scalar_dense.default: _refuse_number,
        ATEN.mm.default: _narrow_product,
        ATEN.bmm.default: _narrow_product,
        ATEN.addmm.default: _narrow_layer,
        ATEN.baddbmm.default: _narrow_layer,
    }
    mode: Any = "fake" if sizes is None else "symbolic"
    # torch would print a traceback if a stand-in does not fit; its message is reported elsewhere
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    # drawing a stand-in must not change the real generator
    with torch.random.fork_rng(devices=[]), _compiling():
        module = make_fx(function, table, tracing_mode=mode, _allow_non_fake_inputs=True)(
            *(map(_bare, inputs) if sizes is None else sizes.stand_ins)
        )
    module.graph.eliminate_dead_code()
    return module


@contextmanager
def _compiling() -> Iterator[None]:
    """Make `torch.compiler.is_compiling` return True; before torch 2.12 only `torch.compile` does so."""
    compiler: Any = torch.compiler
    before, compiler._is_compiling_flag = compiler._is_compiling_flag, True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


def _bare(tensor: Tensor) -> Tensor:
    """Return a tensor without its `grad`, which would get a stand-in of its own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def used(module: fx.GraphModule) -> list[int]:
    """Remove the inputs that the graph does not read; return the numbers of the others."""
    numbers = []
    for number, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if node.users:
            numbers.append(number)
        else:
            module.graph.erase_node(node)
    return numbers


def constants(module: fx.GraphModule) -> list[Tensor]:
    """Return the tensors that a graph holds itself, beside its inputs.

    Raises:
        Untraceable: it would train one or write to it; a compiled graph has only copies.
    """
    tensors = []
    for node in module.graph.find_nodes(op="get_attr"):
        tensor = getattr(module, node.target, None)
        if not isinstance(tensor, Tensor):
            continue
        if isinstance(tensor, nn.Parameter) or _written(node):
            raise Untraceable(None, "they train or write tensors that no module of theirs owns")
        tensors.append(tensor)
    return tensors


def _written(node: fx.Node) -> bool:
    """Return True if the graph writes to a node's tensor, or to a view of it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            value = user.args[position] if position < len(user.args) else user.kwargs.get(argument.name)
            if argument.alias_info is None or not (value is node or (isinstance(value, list) and node in value)):
                continue
            if argument.alias_info.is_write or _written(user):
                return True
    return False


def _refuse_number(x: Tensor) -> Any:
    raise Untraceable(None, "it reads a number of a tensor (if, print, item(), float()); a graph has tensors alone")


def _tanh(x: Tensor) -> Any:
    """Return tanh(x) = 2 σ(2x) - 1, 2e-7 off at most: compiled for a CPU, torch's own takes three times as long."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return NotImplemented  # torch's own stays
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


def _narrow_layer(bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = _narrow_product(x, weight) if beta == alpha == 1 else NotImplemented
    return product if product is NotImplemented else product + bias


def _narrow_product(x: Tensor, weight: Tensor) -> Any:
    """Return x [..., B, in] times weight [..., in, out] as sums if one size is NARROW; else leave it as a product.

    The compiler fuses sums with the operations around them. MKL takes 3 to 12 µs more for 256 × 256 × (1 to 8).
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return NotImplemented
    rows, inner, columns = [type(size) is int and 0 < size <= NARROW for size in (*x.shape[-2:], weight.shape[-1])]
    if inner:
        x, weight = _by_rows(x), _by_rows(weight)
        return sum(x[..., n : n + 1] * weight[..., n : n + 1, :] for n in range(x.shape[-1]))
    if columns and x.stride(-1) == 1:
        x = _by_rows(x)
        return torch.stack([(x * weight[..., None, :, n]).sum(-1) for n in range(weight.shape[-1])], -1)
    if rows and weight.stride(-1) == 1:
        weight = _by_rows(weight)
        return torch.stack([(x[..., n, :, None] * weight).sum(-2) for n in range(x.shape[-2])], -2)
    if columns and x.stride(-2) == 1:
        product = _narrow_product(weight.mT, x.mT)
        return product if product is NotImplemented else product.mT.contiguous()
    return NotImplemented


def _by_rows(x: Tensor) -> Tensor:
    """Return x computed once and stored by rows; otherwise every use might compute it again, or read with gaps."""
    from torch._inductor import inductor_prims

    strides = torch.empty(x.shape, device="meta").stride()
    forced: Tensor = inductor_prims.force_stride_order(x, strides)
    return forced


def _lerp(slow: Sequence[Tensor], fast: Sequence[Tensor], rate: float) -> None:
    """Move tensors one by one, for fusion like `_norms`."""
    for tensor, other in zip(slow, fast, strict=True):
        tensor.lerp_(other, rate)


def _copy(tensors: Sequence[Tensor], others: Sequence[Tensor], non_blocking: bool = False) -> None:
    """Copy tensors one by one, for fusion like `_norms`."""
    for tensor, other in zip(tensors, others, strict=True):
        tensor.copy_(other)


def _norms(tensors: Sequence[Tensor], order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return norms one by one; the compiler fuses these, but not the norms of a list."""
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]
