"""Losses of single numbers, clipping of gradients, and statistics over valid entries."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.core import distributed

Clip = Literal["global", "parameter", "value", "adaptive", "none"]
CLIPS = ("global", "parameter", "value", "adaptive", "none")
ActorQ = Literal["first", "min", "mean"]
Distance = Callable[[Tensor, Tensor], Tensor]  # of values and targets, entry by entry
SMALL = 65_536  # below this many numbers, one norm of a concatenated copy is faster than a norm of each tensor
ACTOR_Q = ("first", "min", "mean")


def distance(value: Tensor, target: Tensor, *, huber: float | None = None, by: Distance | None = None) -> Tensor:
    """Return the square of each difference; with `huber` h half the square up to h, a line of slope h beyond.

    value: [M, B] or [B]; target: [B].
    by: a function of values and targets to use instead.
    """
    if by is not None:
        return by(value, target.expand_as(value))
    if huber is None:
        return F.mse_loss(value, target.expand_as(value), reduction="none")
    return F.huber_loss(value, target.expand_as(value), reduction="none", delta=huber)


def expectile_distance(value: Tensor, target: Tensor, *, expectile: float, advantage: Tensor | None = None) -> Tensor:
    """Return the square of each difference, times `expectile` where the value is too low, times 1 - `expectile` else.

    Its minimum is the expectile of the targets: their mean at 0.5, near their maximum at 1.
    advantage: positive where the value is too low. For values [..., R] of R rewards it is joint, and squares are
        averaged.
    """
    difference = target - value
    squares, advantage = difference.square(), difference if advantage is None else advantage
    squares = squares if squares.dim() == advantage.dim() else squares.mean(-1)
    return torch.where(advantage > 0.0, expectile, 1.0 - expectile) * squares


def guiding(value: Tensor, actor_q: ActorQ) -> Tensor:
    """Return the value that a policy maximizes: of M critics the first, the smallest, or the mean, [M, …] -> […]."""
    if value.shape[0] == 1:  # a squeeze costs a tenth of a reduction
        return value.squeeze(0)
    if actor_q == "first":
        return value[0]
    return value.amin(0) if actor_q == "min" else value.mean(0)


def least_weighed(value: Tensor, weights: Tensor) -> Tensor:
    """Return the most cautious of M critics' values for each of R weighted rewards, [M, R, …] -> [R, …].

    It is the largest value where the reward's weight [R] is negative, else the smallest.
    """
    negative = (weights < 0.0).reshape(-1, *(1,) * (value.dim() - 2))
    return torch.where(negative, value.amax(0), value.amin(0))


def error_size(loss: Tensor, *, huber: float | None = None) -> Tensor:
    """Return |value - target| from the loss that `distance` gave; any shape."""
    if huber is None:
        return loss.sqrt()
    return torch.where(loss <= 0.5 * huber**2, (2.0 * loss).sqrt(), loss / huber + 0.5 * huber)


def clip_(
    gradients: list[Tensor], *, largest: float | None, by: Clip = "global", parameters: list[Tensor] | None = None
) -> Tensor:
    """Clip gradients in place; return their joint norm before.

    By "global" it equals `torch.nn.utils.clip_grad_norm_` in half its time, which matters for small networks.

    largest: limit of the norm, the number, or the share of the parameter's norm, by `by`; unused for "none".
    by: "global", the joint norm; "parameter", each tensor's norm; "value", each number; "adaptive", each tensor's norm
        as a share of its parameter's, which counts as at least 0.001 (Brock et al. 2021, arXiv 2102.06171, eq. 3, for
        whole tensors); "none".
    parameters: of these gradients, for "adaptive".
    """
    norms: Tensor | None = None  # one a tensor
    norm: Tensor
    if by in ("global", "none") and sum(map(Tensor.numel, gradients)) < SMALL:
        norm = torch.linalg.vector_norm(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    else:
        norms = _norms(gradients)
        norm = torch.linalg.vector_norm(norms)
    if largest is None or by == "none":
        return norm
    if by == "value":
        torch._foreach_clamp_min_(gradients, -largest)
        torch._foreach_clamp_max_(gradients, largest)
    elif by == "global":
        _shrink_(gradients, norm, largest)
    else:
        limit: float | Tensor = largest
        if by == "adaptive" and parameters:
            limit = largest * _norms([parameter.detach() for parameter in parameters]).clamp(min=1e-3)
        assert norms is not None
        torch._foreach_mul_(gradients, list((limit / (norms + 1e-6)).clamp(max=1.0).unbind()))
    return norm


def _shrink_(gradients: list[Tensor], norm: Tensor, largest: float) -> None:
    """Scale gradients so that their joint norm is at most the limit."""
    if norm.device.type != "cpu" or torch.compiler.is_compiling():
        torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))
        return
    factor = largest / (float(norm) + 1e-6)  # on a CPU, reading a number waits for nothing
    if not factor >= 1.0:
        torch._foreach_mul_(gradients, torch.tensor(factor))  # a number would be made a tensor for each gradient


def _norms(tensors: list[Tensor]) -> Tensor:
    norms: Tensor = torch.stack(torch._foreach_norm(tensors))
    return norms


def normalized(advantage: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 over all entries, or over the valid ones, of all ranks."""
    if distributed.world_size() > 1:
        counted = advantage.double() if valid is None else advantage[valid].double()
        sums = torch.stack([counted.sum(), counted.square().sum()])
        mean, square = sums.div_(distributed.pooled_(sums, counted.numel())).unbind()
        deviation = (square - mean.square()).clamp(min=0.0).sqrt()
        return ((advantage - mean) / (deviation + 1e-8)).to(advantage.dtype)
    if valid is None:
        deviation, mean = torch.std_mean(advantage, correction=0)
    else:
        mean = mean_of(advantage, valid)
        deviation = mean_of((advantage - mean).square(), valid).sqrt()
    return (advantage - mean) / (deviation + 1e-8)


def mean_of(value: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean of all entries, or of the valid ones.

    valid: flags of the same shape.
    """
    return value.mean() if valid is None else (value * valid).sum() / valid.sum()


def over_valid(loss: Tensor, valid: Tensor) -> Tensor:
    """Return losses scaled so that their mean is that of the valid entries of all ranks.

    valid: flags of the same shape.
    """
    return loss * (valid / distributed.mean_(valid.float().mean()))


def surrogate(log_ratio: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """Return PPO's clipped objective [...], to be maximized (Schulman et al. 2017, arXiv 1707.06347, eq. 7).

    log_ratio: of the probabilities of the actions taken, current over collecting policy.
    """
    ratio = log_ratio.exp()
    objective = ratio * advantage
    # where the clipped objective is smaller, the ratio is beyond a bound and has no gradient
    clipped = ratio.detach().clamp(1.0 - clip, 1.0 + clip) * advantage
    return torch.where(objective <= clipped, objective, clipped)


def with_gradient_clipped(value: Tensor, action: Tensor, limit: float) -> Tensor:
    """Return values [B] whose gradient by actions [B, A] is clamped to ± limit; they have no other gradient."""
    (gradient,) = torch.autograd.grad(value.sum(), action, retain_graph=True)
    linear = (gradient.clamp(-limit, limit).detach() * action).sum(-1)
    return value.detach() + linear - linear.detach()


def moved_moments(
    mean: Tensor, variance: Tensor, new_mean: Tensor, new_variance: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Return running mean and variance, in which newer rows (their mean and variance) get a share."""
    change = new_mean - mean
    return mean + share * change, (1.0 - share) * (variance + share * change.square()) + share * new_variance
