"""Choices: one-hot codes, and sampling from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlrun.ops.noise import gumbel_like


def one_hot(index: Tensor, choices: Sequence[int]) -> Tensor:
    """Code decisions as zeros and ones.

    index: [..., D] zero-based; choices: how many each decision has.
    Returns float32 [..., sum of choices].
    """
    if len(set(choices)) == 1:  # comparing needs no range check, which F.one_hot makes by a copy to the host
        count = torch.arange(choices[0], device=index.device)
        return (index.unsqueeze(-1) == count).flatten(-2).float()
    parts = [index[..., d : d + 1] == torch.arange(n, device=index.device) for d, n in enumerate(choices)]
    return torch.cat(parts, -1).float()


def gumbel_argmax(logits: Tensor, *, keepdim: bool = False) -> Tensor:
    """Draw from softmax(logits) over the last dimension, without forming probabilities."""
    return (logits + gumbel_like(logits)).argmax(-1, keepdim)


def choice_divergence(log_probabilities: Tensor, reference: Tensor) -> Tensor:
    """Return KL(choices ‖ reference) [...] from log-probabilities [..., width], summed over branches."""
    return (log_probabilities.exp() * (log_probabilities - reference)).sum(-1)
