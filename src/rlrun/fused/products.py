"""Products of a compiled update on a CPU, made by numpy where that is fastest.

torch's compiler hands products to MKL, which on some processors takes twice as long as numpy's OpenBLAS (see
`rlrun.nn.products`). They are an operator of its own here, so that the compiler fuses all that stands between them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from rlrun.nn.arrays import Array

_ATEN = torch.ops.aten
_PLAIN = (_ATEN.mm.default, _ATEN.bmm.default)
_ADDED = (_ATEN.addmm.default, _ATEN.baddbmm.default)


def by_numpy(graph: fx.Graph) -> None:
    """Have numpy make all products of single precision."""
    plain, added = _operators()
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _PLAIN + _ADDED or node.kwargs:
            continue
        if node.meta["val"].dtype == torch.float32:
            node.target = added if node.target in _ADDED else plain


@functools.cache
def _operators() -> tuple[Any, Any]:
    """Return the operators of products, and of such that something is added to; they are known to torch once."""
    library: Any = torch.library.Library("rlrun", "DEF")  # type: ignore[no-untyped-call]
    library.define("product(Tensor left, Tensor right) -> Tensor")
    library.define("affine(Tensor bias, Tensor left, Tensor right) -> Tensor")
    library.impl("product", _product, "CPU")
    library.impl("affine", _affine, "CPU")
    library.impl("product", _shape, "Meta")
    library.impl("affine", lambda bias, left, right: _shape(left, right), "Meta")
    _kept.append(library)
    return torch.ops.rlrun.product.default, torch.ops.rlrun.affine.default


_kept: list[Any] = []  # with its last reference the library would be gone


def _product(left: Tensor, right: Tensor) -> Tensor:
    return torch.from_numpy(_made(left.numpy(), right.numpy()))


def _affine(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    made = _made(left.numpy(), right.numpy())
    made += bias.numpy()
    return torch.from_numpy(made)


def _made(left: Array, right: Array) -> Array:
    """Return left [B, K] times right [K, N], or that of each member [M, …]."""
    made: Array
    if left.ndim == 2:
        made = left.dot(right)  # 0.5 µs less than matmul
        return made
    if len(left) == 1:
        made = left[0].dot(right[0])
        return made[np.newaxis]
    made = np.empty((*left.shape[:2], right.shape[2]), np.float32)
    for one, other, place in zip(left, right, made, strict=True):
        one.dot(other, place)
    return made


def _shape(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(*left.shape[:-1], right.shape[-1])
