"""Distributions told by the probabilities of equal bins, from `least` to `largest`."""

from __future__ import annotations

import torch
from torch import Tensor


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
