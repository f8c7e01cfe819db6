"""The products behind dense layers, by one of three libraries (`rlrun.nn.ways` finds the fastest).

torch multiplies matrices on a CPU by MKL, which on some processors reaches half of what others do: on a Zen 5 core 90
GFLOP/s, where oneDNN, a part of the same build, and numpy's OpenBLAS reach 200. All compute in single precision.

With `numpy`, whole stacks of layers (`rlrun.nn.stacks`) are computed on its arrays, see `rlrun.nn.arrays`. This also
saves the overhead of torch around small products. With `onednn`, large products use an operator of torch's compiler.
Small ones then use torch's usual products, because oneDNN's overhead is longer than the product.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["relu", "tanh"]

WAYS = ("torch", "onednn", "numpy")
# Multiplications in a product from which oneDNN is the faster of the two where it is faster at all. One thread, both
# in µs: 38 / 25 at 1.0 M (256 × 64 × 64), 33 / 27 at 1.5 M (256 × 23 × 256), 47 / 37 at 2.1 M, 338 / 166 at 16.8 M;
# the gradient of weights loses below that: 24 / 52 at 1.0 M, 108 / 62 at 1.5 M.
LARGE = 1_400_000

_TANH_BACKWARD = torch.ops.aten.tanh_backward.default
_RELU_BACKWARD = torch.ops.aten.threshold_backward
_MINUS_ONE = torch.tensor(-1.0)
_operator: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
_low_operator = _operator is not None and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # needs AVX-512 or newer
_now = "torch"


def use(way: str) -> str:
    """Have products made by one of `WAYS`; return by which they are: torch, where oneDNN is missing."""
    global _now
    _now = "torch" if way == "onednn" and _operator is None else way
    return _now


def in_use() -> str:
    """Return by what products are made."""
    return _now


def read(tensor: Tensor) -> Tensor:
    """Return a tensor as what products are made of."""
    return tensor


def to_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in single precision."""
    return tensor.float()


def hidden(below: Tensor, weight: Tensor, bias: Tensor, kind: Kind, low: torch.dtype | None) -> Tensor:
    """Return what a layer makes of below [B, in], [B, out], with the activation behind it; low: what it computes in."""
    if low is not None:
        above = affine(below.to(low), weight, bias)
        return above.relu_() if kind == "relu" else above.tanh_()  # the other way is as exact as numbers near half are
    if kind == "relu":
        return affine(below, weight, bias).relu_()  # oneDNN's own makes a zero of what is no number
    # tanh(x) = 2 σ(2x) - 1: torch's own tanh takes eight times as long on many processors, this one is 2e-7 off at most
    return torch.add(_MINUS_ONE, affine(below, weight, bias, times=2.0).sigmoid_(), alpha=2.0)


def last(below: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what a layer without an activation makes of below [B, in]: [B, out], in single precision."""
    return affine(below.float(), weight, bias)


def before(gradient: Tensor, reached: Tensor, kind: Kind, *, own: bool = False) -> Tensor:
    """Return the gradient [B, out] in front of an activation, from that behind it and from what it gave.

    own: whether nobody else has the gradient, which is then written over.
    """
    gradient = gradient.to(reached.dtype)
    result: Tensor
    if own and kind == "relu" and not is_batch(gradient):
        result = _RELU_BACKWARD.grad_input(gradient, reached, 0.0, grad_input=gradient)
    else:
        result = _RELU_BACKWARD.default(gradient, reached, 0.0) if kind == "relu" else _TANH_BACKWARD(gradient, reached)
    return result


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, times: float = 1.0) -> Tensor:
    """Return x [B, in] times weight [out, in] plus bias [out], and that so many times."""
    low = x.dtype != weight.dtype  # then torch uses oneDNN anyway, where the processor can
    if low:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    if (_now == "onednn" and _large(x, weight)) or (low and _low_operator):
        output: Tensor = _operator(x, weight, bias, "none", [], "")
        return output if times == 1.0 else output.mul_(times)
    if times == 1.0:
        return F.linear(x, weight, bias)
    return torch.addmm(bias, x, weight.t(), beta=times, alpha=times)


def of_input(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient [B, in] of what was multiplied with weight [out, in], from that of the product [B, out]."""
    if gradient.dtype != weight.dtype:
        weight = weight.to(gradient.dtype)
    if _now == "onednn" and _large(gradient, weight.t()):
        product: Tensor = _operator(gradient, weight.t(), None, "none", [], "")
        return product
    if weight.shape[1] < weight.shape[0]:  # MKL takes several times as long for a narrow result as for a flat one
        return weight.t().mm(gradient.t()).t()
    return gradient.mm(weight)


def of_weight(gradient: Tensor, below: Tensor, *, turned: bool = False) -> Tensor:
    """Return the gradient [out, in] of what below [B, in] was multiplied with, from that of the product [B, out].

    turned: as [in, out]. It is of single precision, whatever these two are.
    """
    below = below.to(gradient.dtype)
    left, right = (below, gradient) if turned else (gradient, below)
    if gradient.dtype != torch.float32:
        return left.t().mm(right).float()
    if _now == "onednn" and _large(left.t(), right.t()):
        product: Tensor = _operator(left.t(), right.t(), None, "none", [], "")
        return product
    if right.shape[1] < left.shape[1]:
        return right.t().mm(left).t().contiguous()
    return left.t().mm(right)


def of_bias(gradient: Tensor) -> Tensor:
    """Return the gradient [out] of what was added, from that of the sum [B, out]."""
    return gradient.sum(0, dtype=torch.float32)


def is_batch(gradient: Tensor) -> bool:
    """Return True for a batch of gradients, as `is_grads_batched` and vmap have it."""
    kinds = torch._C._functorch
    return kinds.is_legacy_batchedtensor(gradient) or kinds.is_functorch_wrapped_tensor(gradient)


def _large(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == torch.float32 and x.shape[0] * weight.shape[0] * weight.shape[1] >= LARGE
