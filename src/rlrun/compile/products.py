"""Products of a compiled update on a CPU, made by numpy where that is fastest.

torch's compiler hands products to MKL, which on some processors takes twice as long as numpy's OpenBLAS (see
`rlrun.nn.products`). They are an operator of its own here, so that the compiler fuses all that stands between them.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx

_ATEN = torch.ops.aten
_PLAIN = (_ATEN.mm.default, _ATEN.bmm.default)
_ADDED = (_ATEN.addmm.default, _ATEN.baddbmm.default)


def by_numpy(graph: fx.Graph) -> None:
    """Have numpy make all products of single precision; what is added to one is left to the compiler."""
    product = _operator()
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _PLAIN + _ADDED or node.kwargs:
            continue
        if node.meta["val"].dtype != torch.float32:
            continue
        if node.target in _ADDED:
            with graph.inserting_before(node):
                matmul = graph.call_function(product, node.args[1:])
            matmul.meta.update(node.meta)
            node.target, node.args = _ATEN.add.Tensor, (matmul, node.args[0])
        else:
            node.target = product


@functools.cache
def _operator() -> Any:
    """Return the operator of products; it is known to torch once."""
    library: Any = torch.library.Library("rlrun", "DEF")  # type: ignore[no-untyped-call]
    library.define("product(Tensor left, Tensor right) -> Tensor")
    library.impl("product", _product, "CPU")
    library.impl("product", _room, "Meta")
    _kept.append(library)
    operator = torch.ops.rlrun.product.default
    with suppress(ImportError):  # what torch keeps for itself; without it this is an operator like others
        _called_directly(operator)
    return operator


_kept: list[Any] = []  # with its last reference the library would be gone


def _called_directly(operator: Any) -> None:
    """Have compiled code call what makes products by itself, into room of its own: an operator is 3 µs more each."""
    from torch._inductor.ir import ExternKernelOut, TensorBox
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.lowering import register_lowering
    from torch._inductor.select_algorithm import extern_kernels

    settings: Any = mm_args
    vars(extern_kernels).update(rlrun_product=_write)

    def product(left: Any, right: Any) -> Any:
        layout, left, right = settings(left, right)[3:]
        kernel = "extern_kernels.rlrun_product"
        return TensorBox.create(ExternKernelOut(layout, [left, right], python_kernel_name=kernel))

    register_lowering(operator, type_promotion_kind=None)(product)


def _write(left: Tensor, right: Tensor, *, out: Tensor) -> None:
    """Write left [B, K] times right [K, N], or that of each member [M, …]."""
    left_array, right_array, room = left.numpy(), right.numpy(), out.numpy()
    if left_array.ndim == 2:
        left_array.dot(right_array, room)  # 0.5 µs less than matmul
    elif len(left_array) == 1:
        left_array[0].dot(right_array[0], room[0])
    else:
        for left_matrix, right_matrix, place in zip(left_array, right_array, room, strict=True):
            left_matrix.dot(right_matrix, place)


def _product(left: Tensor, right: Tensor) -> Tensor:
    out = _room(left, right)
    _write(left, right, out=out)
    return out


def _room(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(*left.shape[:-1], right.shape[-1])
