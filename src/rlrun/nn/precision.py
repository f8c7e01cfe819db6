"""Precision of matrix products in training: bfloat16, or float32 by the faster of two libraries."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rlrun.core.errors import ConfigError
from rlrun.core.machine import cpu_facts, has_bfloat16

# Multiplications a row in the widest hidden layer from which bfloat16 or oneDNN is faster. The size of the batch is
# left out, so that a row has the same outputs in every batch.
LARGE = 256 * 128
ZEN_5 = 26  # family of AMD's first processors with full 512-bit units, of which MKL uses half


class _Now:
    """The current precision of one thread's networks, in an object that a compiled loss can check for changes."""

    kind: torch.dtype | None = None
    onednn = False
    thread: int | None = None


_now = _Now()
_FLOAT32 = nullcontext()


class MixedPrecision:
    """A context in which hidden layers of this thread's networks compute in a `precision`.

    With bf16, products of hidden layers, convolutions and recurrent layers take bfloat16 numbers and add them up in
    float32. Parameters, gradients, optimizers, last layers, distributions, losses and targets stay float32. Networks
    whose hidden layers are all narrower than 256 x 128 stay float32, as bfloat16 would be slower.

    With highest, oneDNN makes the float32 products of wide networks, where `onednn_pays` (see `look_at`).

    Acting is outside of it, so evaluation and exports are float32: one row takes two to three times as long in
    bfloat16.

    Args:
        precision: bf16; others change nothing but the library of products.
        device: of the networks.

    Raises:
        ConfigError: bf16, and the device has no instructions for it.
    """

    def __init__(self, precision: str, device: str) -> None:
        self.kind = torch.bfloat16 if precision == "bf16" else None
        self.by_onednn = False
        self._may_gain = precision == "highest" and device == "cpu"
        self._before: list[tuple[torch.dtype | None, bool, int | None]] = []  # a stack: it may be entered again inside
        if self.kind is not None and not has_bfloat16(device):
            raise ConfigError(
                f"precision=bf16: {device} of this machine has no bfloat16 instructions and would be slower with it; "
                "precision=highest, high and medium are for every machine"
            )

    def look_at(self, parts: Iterable[object]) -> None:
        """Use oneDNN from now on if a network among the parts is wide and the processor gains by it."""
        parameters = (parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters())
        matrices = (weight.shape[-2:] for weight in parameters if not is_lazy(weight) and weight.dim() > 1)
        self.by_onednn = self._may_gain and any(a * b >= LARGE for a, b in matrices) and onednn_pays()

    def __enter__(self) -> None:
        if self.kind is not None or self.by_onednn:
            self._before.append((_now.kind, _now.onednn, _now.thread))
            _now.kind, _now.onednn, _now.thread = self.kind, self.by_onednn, threading.get_ident()
        if self.by_onednn:
            _by_onednn()

    def __exit__(self, *error: object) -> None:
        if self.by_onednn:
            _by_mkl()
        if self.kind is not None or self.by_onednn:
            _now.kind, _now.onednn, _now.thread = self._before.pop()


def _by_onednn(_: object = None) -> None:
    torch.set_float32_matmul_precision("medium")


def _by_mkl(_: object = None) -> None:
    torch.set_float32_matmul_precision("highest")


@cache
def onednn_pays() -> bool:
    """Return True if oneDNN is as exact as MKL and faster: on AMD processors from Zen 5 on it takes half the time.

    torch multiplies by MKL on a CPU, and lets oneDNN do it with "medium". Both are float32 there. On processors with
    AMX, and maybe in other versions of torch, oneDNN would round to bfloat16: so the error of one product is compared.
    """
    family = cpu_facts("cpu family") or ""
    if cpu_facts("vendor_id") != "AuthenticAMD" or not family.isdecimal() or int(family) < ZEN_5:
        return False
    numbers = torch.arange(256.0 * 256.0, device="cpu").sin().view(256, 256)
    exact = numbers.double() @ numbers.double()
    before, errors = torch.get_float32_matmul_precision(), []
    try:
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            errors.append(float((numbers @ numbers - exact).abs().max()))
    finally:
        torch.set_float32_matmul_precision(before)
    return errors[1] <= 8.0 * errors[0]


def is_mixed() -> bool:
    """Return True inside a `MixedPrecision` in which hidden layers compute differently from the last layer."""
    return _now.kind is not None or _now.onednn


def at_last(layer: Callable[[Sequence[Tensor]], Sequence[Tensor]], values: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return a last layer's outputs, multiplied by MKL: for a few outputs, oneDNN takes three times as long.

    Hooks do the same for its gradients, and let oneDNN multiply those of the layers below.
    """
    if not _now.onednn or _now.thread != threading.get_ident():
        return layer(values)
    _by_mkl()
    outputs = layer(values)
    _by_onednn()
    for tensors, hook in ((values, _by_onednn), (outputs, _by_mkl)):
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    return outputs


def lowered(work: int) -> torch.dtype | None:
    """Return the type in which hidden layers compute now; None = float32.

    work: multiplications a row in the widest layer.
    """
    if _now.kind is None or work < LARGE:
        return None
    # Other threads act meanwhile, in float32. A compiled function is a loss; the compiler cannot trace get_ident.
    return _now.kind if torch.compiler.is_compiling() or _now.thread == threading.get_ident() else None


def products(value: Tensor, work: int) -> AbstractContextManager[object]:
    """Return the context in which to evaluate hidden layers; their results must be cast back.

    value: any tensor on the device of the layers.
    work: multiplications a row in the widest layer.
    """
    kind = lowered(work)
    return _FLOAT32 if kind is None else torch.autocast(value.device.type, kind)


def widest(inputs: int, hidden: tuple[int, ...] | list[int]) -> int:
    """Return the multiplications a row in the widest of hidden layers; 0 without any."""
    return max((below * above for below, above in zip((inputs, *hidden), hidden, strict=False)), default=0)
