"""Losses of single numbers, and what is done to their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Clip = Literal["global", "parameter", "value", "adaptive", "none"]
CLIPS = ("global", "parameter", "value", "adaptive", "none")


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
def clip_(parameters: Sequence[Tensor], *, largest: float | None, by: Clip = "global") -> Tensor:
    """Shrink the gradients of parameters to a limit; return their common norm before.

    By the norm of all together the same as `torch.nn.utils.clip_grad_norm_` in half its time, which shows for
    small networks.

    largest: norm, number, or share of the parameter's norm, as `by` says; of no account where that is "none".
    by: "global", the norm of all together; "parameter", that of each tensor by itself; "value", each number;
        "adaptive", that of each tensor as a share of its parameter's, which counts as at least 0.001 (Brock et al.
        2021, arXiv 2102.06171, eq. 3, for whole tensors); "none".
    """
    present = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in present if parameter.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(norms)
    if largest is None or by == "none":
        return norm
    if by == "value":
        torch._foreach_clamp_min_(gradients, -largest)
        torch._foreach_clamp_max_(gradients, largest)
    elif by == "global":
        torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))
    else:
        limit = largest * torch.stack(torch._foreach_norm(present)).clamp(min=1e-3) if by == "adaptive" else largest
        torch._foreach_mul_(gradients, list((limit / (norms + 1e-6)).clamp(max=1.0).unbind()))
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
