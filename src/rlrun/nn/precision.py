"""Products of networks in bfloat16 while they learn."""

import threading
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from rlrun.core.errors import ConfigError
from rlrun.runs.manifest import has_bfloat16

# Multiplications a row in the widest hidden layer from which bfloat16 takes less time. Not of the batch: the same rows
# shall have the same numbers wherever they are learned from.
LARGE = 256 * 128


class _Now:
    """What networks of one thread learn in; a module's own state, for a compiled loss looks whether it is as it was."""

    kind: torch.dtype | None = None
    thread: int | None = None


_now = _Now()
_FLOAT32 = nullcontext()


class MixedPrecision:
    """Inside of it, hidden layers of this thread's networks compute as `precision` says.

    With bf16, products of hidden layers, convolutions and recurrent layers take bfloat16 numbers and add them up in
    float32. Parameters, gradients and optimizers are float32, and so is all that a network returns: its last layer
    computes as ever, and so do distributions, losses and targets. Networks whose hidden layers are all narrower than
    256 x 128 stay float32, for they would take longer.

    Acting stands outside of it, so evaluation and exports are float32: one row takes twice to three times as long in
    bfloat16.

    Args:
        precision: bf16, or another one, with which nothing changes.
        device: where networks lie.

    Raises:
        ConfigError: bf16, and the device has no instructions for it.
    """

    def __init__(self, precision: str, device: str) -> None:
        self.kind = torch.bfloat16 if precision == "bf16" else None
        self._before: list[tuple[torch.dtype | None, int | None]] = []  # of each time that it was entered
        if self.kind is not None and not has_bfloat16(device):
            raise ConfigError(
                f"precision=bf16: {device} of this machine has no bfloat16 instructions and would be slower with it; "
                "precision=highest, high and medium are for every machine"
            )

    def __enter__(self) -> None:
        if self.kind is not None:
            self._before.append((_now.kind, _now.thread))
            _now.kind, _now.thread = self.kind, threading.get_ident()

    def __exit__(self, *error: object) -> None:
        if self.kind is not None:
            _now.kind, _now.thread = self._before.pop()


def is_mixed() -> bool:
    """Return True inside of a `MixedPrecision` with bf16."""
    return _now.kind is not None


def lowered(work: int) -> torch.dtype | None:
    """Return what layers whose widest takes so many multiplications a row compute in now; None = float32."""
    if _now.kind is None or work < LARGE:
        return None
    # other threads act meanwhile; what is compiled is a loss, and the compiler does not know this call
    return _now.kind if torch.compiler.is_compiling() or _now.thread == threading.get_ident() else None


def products(value: Tensor, work: int) -> AbstractContextManager[object]:
    """Return what hidden layers are evaluated in, for a value on their device; cast what they give back.

    value: any tensor where the layers lie.
    work: multiplications a row in the widest layer.
    """
    kind = lowered(work)
    return _FLOAT32 if kind is None else torch.autocast(value.device.type, kind)


def widest(inputs: int, hidden: tuple[int, ...] | list[int]) -> int:
    """Return the multiplications a row in the widest of hidden layers; 0 where there is none."""
    return max((below * above for below, above in zip((inputs, *hidden), hidden, strict=False)), default=0)
