"""Choices: one-hot codes, sampling from logits, epsilon-greedy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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


def gumbel_argmax(logits: Tensor) -> Tensor:
    """Draw from softmax(logits) over the last dimension, without forming probabilities."""
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def epsilon_greedy(greedy: Tensor, choices: Sequence[int], epsilon: float) -> Tensor:
    """Replace a share `epsilon` of the rows by uniformly drawn choices.

    greedy: [..., D]; choices: how many each of the D decisions has.
    """
    uniform = torch.rand((*greedy.shape[:-1], len(choices) + 1), device=greedy.device)
    counts = torch.tensor(choices, device=greedy.device)
    drawn = (uniform[..., 1:] * counts).long()
    return torch.where(uniform[..., :1] < epsilon, drawn, greedy)
