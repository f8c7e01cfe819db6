"""Large matrix products of a compiled graph by oneDNN, which is faster than MKL on some processors."""

import functools
from contextlib import suppress
from typing import Any

import torch
from torch import fx

from rlrun.nn import fast_linear

ATEN = torch.ops.aten
PRODUCTS = (ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default, ATEN.baddbmm.default)
_libraries: list[Any] = []  # with its last reference a library is gone


def use_onednn(nodes: fx.Graph) -> None:
    """Have oneDNN make large products of single precision, which torch's compiler hands to MKL.

    A batched product, as of an ensemble, becomes one product for each member.
    """
    for node in list(nodes.nodes):
        if node.op != "call_function" or node.target not in PRODUCTS or node.kwargs:
            continue
        left, right = (part.meta["val"] for part in node.args[-2:])
        if left.dtype != torch.float32 or left.shape[-2] * left.shape[-1] * right.shape[-1] < fast_linear.LARGE:
            continue
        with nodes.inserting_before(node):
            if left.dim() == 2:
                result = _product(nodes, *node.args)
            else:
                members = range(left.shape[0])
                parts = [[_call(nodes, ATEN.select.int, part, 0, member) for part in node.args] for member in members]
                result = _call(nodes, ATEN.stack.default, [_product(nodes, *part) for part in parts])
        node.replace_all_uses_with(result)
        nodes.erase_node(node)


def _product(nodes: fx.Graph, *parts: Any) -> fx.Node:
    """Return a new node: x times weight, with the last two of the parts; a first one is added."""
    *bias, x, weight = parts
    added = bias[0] if bias and bias[0].meta["val"].dim() == 1 else None
    result = _call(nodes, _operator(), x, _call(nodes, ATEN.t.default, weight), added)
    return result if added is not None or not bias else _call(nodes, ATEN.add.Tensor, result, bias[0])


def _call(nodes: fx.Graph, operator: Any, *arguments: Any) -> fx.Node:
    """Return a new node that calls an operator, with what stands for its result."""
    node = nodes.call_function(operator, arguments)
    node.meta["val"] = operator(*fx.map_arg(arguments, lambda argument: argument.meta["val"]))
    return node


@functools.cache
def _operator() -> Any:
    """Return oneDNN's product under a name of ours: torch's compiler wants constant weights for its own."""
    library: Any = torch.library.Library("rlrun", "DEF")  # type: ignore[no-untyped-call]
    library.define("dense(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    onednn = torch.ops.mkldnn._linear_pointwise.default
    library.impl("dense", lambda x, weight, bias: onednn(x, weight, bias, "none", [], ""), "CPU")
    library.impl("dense", lambda x, weight, bias: x.new_empty(x.shape[0], weight.shape[0]), "Meta")
    _libraries.append(library)
    with suppress(ImportError, AttributeError):  # without it a graph calls the product by way of Python
        _lower(torch.ops.rlrun.dense.default)
    return torch.ops.rlrun.dense.default


def _lower(operator: Any) -> None:
    """Have compiled code call oneDNN directly: 6 to 10 µs less for each product."""
    from torch._inductor import ir, lowering, mkldnn_ir

    def lowered(x: Any, weight: Any, bias: Any) -> Any:
        inputs: list[Any] = [
            ir.ExternKernel.realize_input(tensor) for tensor in (x, weight, bias) if tensor is not None
        ]
        for tensor in inputs:
            tensor.freeze_layout()
        size = [inputs[0].get_size()[0], inputs[1].get_size()[0]]
        layout = ir.FixedLayout(device=inputs[0].get_device(), dtype=inputs[0].get_dtype(), size=size)
        settings = [*([None] if bias is None else []), "none", [-1], ""]  # no activation
        node: Any = mkldnn_ir.LinearUnary(layout=layout, inputs=inputs, constant_args=settings)
        return ir.TensorBox.create(mkldnn_ir._create_output_node(node))  # type: ignore[no-untyped-call]

    lowering.register_lowering(operator, type_promotion_kind=None)(lowered)
