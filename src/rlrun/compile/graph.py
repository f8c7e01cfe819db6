"""A graph of what functions do with tensors, and what a compiler makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx

from rlrun.compile.untraceable import Untraceable
from rlrun.runs.machine_cache import folder
from rlrun.runs.manifest import instructions

Compiled = Callable[..., Sequence[Tensor]]


def keep_compiled() -> None:
    """Have torch's compiler keep what it makes among the user's caches, so that the next run starts sooner.

    It makes code for this very processor and tells others apart but roughly, and machines may share a home.
    """
    with suppress(RuntimeError):  # there is no home
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "compiled" / instructions()))


class Sizes:
    """Sizes of inputs that may be others the next time.

    Args:
        inputs: of a graph.
        varying: the dimensions of each input that may have another size; those of the same size now always have.
    """

    def __init__(self, inputs: Sequence[Tensor], varying: Sequence[Sequence[int]]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

        self._shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=self._shapes, allow_non_fake_inputs=True)
        self.stand_ins: list[Tensor] = []
        self._symbols: list[tuple[int, int, Any]] = []  # number of an input, dimension, and what stands for its size
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
        """Tell whether inputs of these shapes can go by the graph, which may hold for some sizes only."""
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
    """Return the graph of what a function does with stand-ins of tensors; those themselves stay as they are."""
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    table: dict[Any, Callable[..., Any]] = {aten._foreach_norm.Scalar: _norms, aten.tanh.default: _tanh}
    mode: Any = "fake" if sizes is None else "symbolic"
    # a stand-in draws nothing; what is not one must not draw for it
    with torch.random.fork_rng(devices=[]), torch.compiler._compile_session_context():
        module = make_fx(function, table, tracing_mode=mode, _allow_non_fake_inputs=True)(
            *(map(_bare, inputs) if sizes is None else sizes.stand_ins)
        )
    module.graph.eliminate_dead_code()
    return module


def _bare(tensor: Tensor) -> Tensor:
    """Return a tensor without its gradient, for which another stand-in would be made."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def used(module: fx.GraphModule) -> list[int]:
    """Take out the inputs that the graph does not read, and return the numbers of the others."""
    numbers = []
    for number, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if node.users:
            numbers.append(number)
        else:
            module.graph.erase_node(node)
    return numbers


def constants(module: fx.GraphModule) -> list[Tensor]:
    """Return the tensors that a graph holds by itself, which are no inputs.

    Raises:
        Untraceable: it would learn from one, or write to it; it has copies of them once it is compiled.
    """
    tensors = []
    for node in module.graph.find_nodes(op="get_attr"):
        tensor = getattr(module, node.target, None)
        if not isinstance(tensor, Tensor):
            continue
        if isinstance(tensor, torch.nn.Parameter) or _written(node):
            raise Untraceable(None, "they learn from tensors, or write to some, that are out of sight")
        tensors.append(tensor)
    return tensors


def _written(node: fx.Node) -> bool:
    """Tell whether something writes to what a node stands for, or to a view of it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            value = user.args[position] if position < len(user.args) else user.kwargs.get(argument.name)
            if argument.alias_info is None or not (value is node or (isinstance(value, list) and node in value)):
                continue
            if argument.alias_info.is_write or _written(user):
                return True
    return False


def compiled(module: fx.GraphModule, inputs: Sequence[Tensor], device: str, *, sized: bool) -> Compiled:
    """Return the graph as a function of its inputs, compiled for a device.

    sized: inputs always have these sizes.
    """
    module.recompile()
    from torch._inductor import standalone_compile

    # drawn as ever, so that a run is the same as without compiling but for rounding
    settings: Mapping[str, Any] = {
        "fallback_random": True,
        "cpp.threads": torch.get_num_threads(),
        "size_asserts": False,  # our operators keep to what they promise
        "alignment_asserts": False,
    }
    with torch.no_grad():
        function: Compiled = standalone_compile(
            module,
            list(inputs),
            dynamic_shapes="from_example_inputs" if sized else "from_graph",
            options={"config_patches": settings},
        )
    return function


def _tanh(x: Tensor) -> Any:
    """Return tanh(x) = 2 σ(2x) - 1, 2e-7 off at most: compiled for a CPU, torch's own takes three times as long."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return NotImplemented  # then it is not taken apart
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


def _norms(tensors: Sequence[Tensor], order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return norms one by one, which the compiler fuses; it leaves those of a list apart."""
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]
