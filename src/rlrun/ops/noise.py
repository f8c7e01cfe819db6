"""The random numbers that acting takes; whoever exports a policy gives them instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["normal", "gumbel"]
Source = Callable[[Kind, Tensor], Tensor]

_source: Source | None = None


def normal_like(value: Tensor) -> Tensor:
    """Draw standard normal numbers in the shape of a tensor."""
    return torch.randn_like(value) if _source is None else _source("normal", value)


def gumbel_like(value: Tensor) -> Tensor:
    """Draw standard Gumbel numbers in the shape of a tensor: added to logits, the largest is a draw from these."""
    return torch.empty_like(value).exponential_().log_().neg_() if _source is None else _source("gumbel", value)


def drawn(kind: Kind, value: Tensor) -> Tensor:
    """Draw by the generator of this process, in the shape of a tensor, whatever stands for it."""
    return torch.randn_like(value) if kind == "normal" else torch.empty_like(value).exponential_().log_().neg_()


def is_given() -> bool:
    """Tell whether something stands for the generator of this process."""
    return _source is not None


@contextmanager
def given(source: Source) -> Iterator[None]:
    """Let a function of kind and shape stand for the generator of this process, as long as the block lasts."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
