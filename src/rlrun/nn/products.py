"""The products behind dense layers, by whichever of two libraries is faster on this processor.

torch multiplies matrices on a CPU by MKL, which on some processors reaches half of what oneDNN does, a part of the same
build: on a Zen 5 core 90 against 200 GFLOP/s. Both compute in single precision. oneDNN is called by an operator that
torch's own compiler uses; where it is missing, everything goes by torch's usual way. Small products always do:
what oneDNN does around a product takes longer than they do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WAYS = ("torch", "onednn")
# Multiplications in a product from which oneDNN is the faster of the two where it is faster at all. One thread, both
# in µs: 38 / 25 at 1.0 M (256 × 64 × 64), 33 / 27 at 1.5 M (256 × 23 × 256), 47 / 37 at 2.1 M, 338 / 166 at 16.8 M;
# the gradient of weights loses below that: 24 / 52 at 1.0 M, 108 / 62 at 1.5 M.
LARGE = 1_400_000
GAIN = 1.2  # of speed, from which on another library is worth other roundings
_PROBE = 256  # rows, inputs and outputs of the product that is timed
_ROUNDS = 12

_operator: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
_by_onednn = False


def use(way: str) -> str:
    """Have large products made by `torch` or by `onednn`, or by the faster one (`auto`); return which it is."""
    global _by_onednn
    _by_onednn = faster() if way == "auto" else way == "onednn" and _operator is not None
    return WAYS[_by_onednn]


def in_use() -> str:
    """Return by what large products are made."""
    return WAYS[_by_onednn]


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, rectified: bool = False, times: float = 1.0) -> Tensor:
    """Return x [B, in] times weight [out, in] plus bias [out], and that so many times; or what of it is above zero."""
    low = x.dtype != weight.dtype  # then torch goes to oneDNN anyway
    if low:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    made: Tensor
    if _large(x, weight) or (low and _operator is not None):
        made = _operator(x, weight, bias, "none", [], "")
        made = made if times == 1.0 else made.mul_(times)
    else:
        made = torch.addmm(bias, x, weight.t(), beta=times, alpha=times)
    return made.relu_() if rectified else made  # oneDNN's own makes a zero of what is no number


def of_input(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient [B, in] of what was multiplied with weight [out, in], from that of the product [B, out]."""
    if gradient.dtype != weight.dtype:
        weight = weight.to(gradient.dtype)
    if _large(gradient, weight.t()):
        made: Tensor = _operator(gradient, weight.t(), None, "none", [], "")
        return made
    if weight.shape[1] < weight.shape[0]:  # MKL takes several times as long for a narrow result as for a flat one
        return weight.t().mm(gradient.t()).t()
    return gradient.mm(weight)


def of_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient [out, in] of what x [B, in] was multiplied with, from that of the product [B, out].

    Both of one type; the gradient is of single precision whatever that is.
    """
    if x.dtype != torch.float32:
        return gradient.t().mm(x).float()
    if _large(gradient.t(), x.t()):
        made: Tensor = _operator(gradient.t(), x.t(), None, "none", [], "")
        return made
    if x.shape[1] < gradient.shape[1]:
        return x.t().mm(gradient).t().contiguous()
    return gradient.t().mm(x)


def _large(x: Tensor, weight: Tensor) -> bool:
    return _by_onednn and x.dtype == torch.float32 and x.shape[0] * weight.shape[0] * weight.shape[1] >= LARGE


@functools.cache
def faster() -> bool:
    """Tell whether oneDNN makes a product of usual size so much faster as matters, and as exactly; timed once."""
    if _operator is None:
        return False
    generator = torch.Generator().manual_seed(0)  # the run's own numbers stay as they are
    x, weight = (torch.randn(_PROBE, _PROBE, generator=generator) for _ in range(2))
    bias = torch.zeros(_PROBE)

    def by_torch() -> Tensor:
        return torch.addmm(bias, x, weight.t())

    def by_onednn() -> Tensor:
        made: Tensor = _operator(x, weight, bias, "none", [], "")
        return made

    with torch.no_grad():
        exact = x.double() @ weight.double().t()
        errors = [float((way().double() - exact).abs().max()) for way in (by_torch, by_onednn)]
        if errors[1] > 8.0 * errors[0]:  # a processor's own shorter numbers
            return False
        times = [[_timed(way) for way in (by_torch, by_onednn)] for _ in range(_ROUNDS)]
    fastest = [min(column) for column in zip(*times, strict=True)]
    return bool(fastest[0] > GAIN * fastest[1])


def _timed(way: Callable[[], Tensor]) -> float:
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun
