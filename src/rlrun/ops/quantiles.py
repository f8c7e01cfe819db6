"""Distributions encoded by their quantiles, and distances between them."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rlrun.ops.losses import Distance, distance

Least = Literal["quantile", "member", "deviation"]
LEAST = ("quantile", "member", "deviation")


class Fractions(NamedTuple):
    """Fractions of quantiles: each point is the middle of a share of the probability."""

    points: Tensor  # τ̂ in (0, 1), rising, [..., N]
    widths: Tensor  # of the shares, which sum to 1, [..., N]


def fixed_fractions(count: int, *, like: Tensor) -> Fractions:
    """Return N equal shares, [N], with middles (j + 1/2) / N, on the device and of the type of `like`."""
    steps = torch.arange(count, device=like.device, dtype=like.dtype)
    return Fractions((steps + 0.5) / count, torch.full_like(steps, 1.0 / count))


def sampled_fractions(lead: tuple[int, ...], count: int, *, like: Tensor, least: float = 0.1) -> Fractions:
    """Draw N shares for each element, [*lead, N]: uniform numbers over their sum.

    least: added to each number first, so that no share is tiny.
    """
    raised = torch.rand((*lead, count), device=like.device, dtype=like.dtype) + least
    widths = raised / raised.sum(-1, keepdim=True)
    return Fractions(widths.cumsum(-1) - 0.5 * widths, widths)


def quantile_distance(
    value: Tensor,
    target: Tensor,
    *,
    points: Tensor,
    huber: float | None = 1.0,
    widths: Tensor | None = None,
    summed: bool = False,
    by: Distance | None = None,
) -> Tensor:
    """Return the quantile regression loss |τ̂_j - 1[u < 0]| h(u) with u = target_i - value_j: [...].

    It is the mean over targets i and values j (Dabney et al. 2018, arXiv 1710.10044 eq. 10 and arXiv 1806.06923 eq. 3).

    value: [..., N] quantiles. target: [..., N'] quantiles of the other distribution, or draws from it. Leading
        dimensions
        broadcast: one target may serve all members of an ensemble, and a reward of D numbers may have [B, D, N].
    points: τ̂ of the values, [N] or [..., N].
    huber: up to this distance h is u² / (2 huber), beyond it |u| - huber / 2; None: |u| everywhere.
    widths: shares of probability of the targets, which sum to 1, [N'] or [..., N']; None: all equal.
    summed: sum over values in place of their mean, as in the papers: N times as much.
    by: a function of values and targets in place of h.
    """
    targets, values = target.unsqueeze(-1), value.unsqueeze(-2)
    error = targets - values  # [..., N', N]
    points = points.unsqueeze(-2)
    with torch.no_grad():
        share = torch.where(error < 0.0, 1.0 - points, points)
    if by is not None:
        sizes = by(values.expand_as(error), targets.expand_as(error))
    else:
        sizes = error.abs() if huber is None else distance(error, error.new_zeros(()), huber=huber) / huber
    pairs = share * sizes
    losses = pairs.mean(-2) if widths is None else (pairs * widths.unsqueeze(-1)).sum(-2)
    return losses.sum(-1) if summed else losses.mean(-1)


def least_of(quantiles: Tensor, *, by: Least = "quantile", widths: Tensor | None = None) -> Tensor:
    """Return the cautious quantiles of several members, [M, B, N] -> [B, N].

    by: "quantile", the smallest of each quantile; "member", the member with the smallest mean; "deviation", each
        quantile's mean over members less its standard deviation, which is 0 for a single member.
    widths: their shares of probability, [N] or [B, N]; None: all equal.
    """
    if by == "quantile":
        return quantiles.amin(0)
    if by == "deviation":
        return quantiles.mean(0) - quantiles.std(0) if len(quantiles) > 1 else quantiles[0]
    mean = quantiles.mean(-1) if widths is None else (quantiles * widths).sum(-1)
    return quantiles.take_along_dim(mean.argmin(0)[None, ..., None], 0).squeeze(0)
