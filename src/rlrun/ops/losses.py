"""Losses of single numbers, and what is done to their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def distance(value: Tensor, target: Tensor, *, huber: float | None = None) -> Tensor:
    """Return the square of each difference; with `huber` h the half of it up to h, a line of slope h beyond.

    value: [M, B] or [B]; target: [B].
    """
    if huber is None:
        return (value - target).square()
    return F.huber_loss(value, target.expand_as(value), reduction="none", delta=huber)


def error_size(loss: Tensor, *, huber: float | None = None) -> Tensor:
    """Return how far value and target lie apart where `distance` gives this loss; any shape, from zero."""
    if huber is None:
        return loss.sqrt()
    return torch.where(loss <= 0.5 * huber**2, (2.0 * loss).sqrt(), loss / huber + 0.5 * huber)


@torch.no_grad()
def clip_(gradients: Sequence[Tensor | None], *, largest: float) -> Tensor:
    """Shrink gradients together so that their norm is at most `largest`; return the norm before.

    The same as `torch.nn.utils.clip_grad_norm_` in half its time, which shows for small networks.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(present)))
    torch._foreach_mul_(present, (largest / (norm + 1e-6)).clamp(max=1.0))
    return norm


def normalised(advantage: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 over all entries, or over those that are valid."""
    if valid is None:
        deviation, mean = torch.std_mean(advantage, correction=0)
    else:
        mean = mean_of(advantage, valid)
        deviation = mean_of((advantage - mean).square(), valid).sqrt()
    return (advantage - mean) / (deviation + 1e-8)


def mean_of(value: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean of all entries, or of those that are valid: flags of the same shape."""
    return value.mean() if valid is None else (value * valid).sum() / valid.sum()


def surrogate(log_ratio: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """Return the clipped objective [...] to be made large (Schulman et al. 2017, arXiv 1707.06347, eq. 7).

    log_ratio: of the probabilities of the actions taken, now to then.
    """
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
