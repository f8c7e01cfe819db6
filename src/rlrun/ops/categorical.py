"""Categorical distributions: choices, one-hot codes, and bins that encode a number."""

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


def bin_centres(count: int, *, least: float, largest: float, like: Tensor) -> Tensor:
    """Return the middles of K bins, [K], on the device and of the type of `like`."""
    half = 0.5 * (largest - least) / count
    return torch.linspace(least + half, largest - half, count, device=like.device, dtype=like.dtype)


def smoothed_bins(target: Tensor, count: int, *, least: float, largest: float, deviation: float) -> Tensor:
    """Return what of a Gaussian around each target falls into each of K bins: [...] -> [..., K], which sum to 1.

    Farebrother et al. 2024, arXiv 2403.03950, section 3.1. Targets beyond the bins count as their ends.

    deviation: of the Gaussian, in the unit of targets.
    """
    edges = torch.linspace(least, largest, count + 1, device=target.device, dtype=target.dtype)
    below: Tensor = torch.special.ndtr((edges - target.clamp(least, largest).unsqueeze(-1)) / deviation)  # [..., K + 1]
    return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])
