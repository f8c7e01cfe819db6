"""Losses of single numbers, and what is done to their gradients."""

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
SMALL = 65_536  # numbers of gradients up to which one norm of a copy takes less time than a norm of each
ACTOR_Q = ("first", "min", "mean")


def distance(value: Tensor, target: Tensor, *, huber: float | None = None, by: Distance | None = None) -> Tensor:
    """Return the square of each difference; with `huber` h the half of it up to h, a line of slope h beyond.

    value: [M, B] or [B]; target: [B].
    by: a function of values and targets in its place.
    """
    if by is not None:
        return by(value, target.expand_as(value))
    if huber is None:
        return F.mse_loss(value, target.expand_as(value), reduction="none")
    return F.huber_loss(value, target.expand_as(value), reduction="none", delta=huber)


def expectile_distance(value: Tensor, target: Tensor, *, expectile: float, advantage: Tensor | None = None) -> Tensor:
    """Return the square of each difference, times `expectile` where the value is too low, one minus that elsewhere.

    The value that makes it least on average is the target's expectile: its mean at one half, near its largest at one.
    advantage: says where the value is too low; one of all rewards for values of each [..., R], averaged over rewards.
    """
    difference = target - value
    squares, advantage = difference.square(), difference if advantage is None else advantage
    squares = squares if squares.dim() == advantage.dim() else squares.mean(-1)
    return torch.where(advantage > 0.0, expectile, 1.0 - expectile) * squares


def guiding(value: Tensor, actor_q: ActorQ) -> Tensor:
    """Return what leads a policy of M critics' values: the first one's, the smallest, or the mean, [M, …] -> […]."""
    if value.shape[0] == 1:  # one is all of these, and taking it costs a tenth of a reduction
        return value.squeeze(0)
    if actor_q == "first":
        return value[0]
    return value.amin(0) if actor_q == "min" else value.mean(0)


def least_weighed(value: Tensor, weights: Tensor) -> Tensor:
    """Return what counts least once it is weighed, of M critics' values of R rewards, [M, R, …] -> [R, …].

    The smallest value of a reward whose weight [R] is not negative, and the largest of the others.
    """
    negative = (weights < 0.0).reshape(-1, *(1,) * (value.dim() - 2))
    return torch.where(negative, value.amax(0), value.amin(0))


def error_size(loss: Tensor, *, huber: float | None = None) -> Tensor:
    """Return how far value and target lie apart where `distance` gives this loss; any shape, from zero."""
    if huber is None:
        return loss.sqrt()
    return torch.where(loss <= 0.5 * huber**2, (2.0 * loss).sqrt(), loss / huber + 0.5 * huber)


def clip_(
    gradients: list[Tensor], *, largest: float | None, by: Clip = "global", parameters: list[Tensor] | None = None
) -> Tensor:
    """Shrink gradients to a limit; return their common norm before.

    By the norm of all together the same as `torch.nn.utils.clip_grad_norm_` in half its time, which shows for
    small networks.

    largest: norm, number, or share of the parameter's norm, as `by` says; of no account where that is "none".
    by: "global", the norm of all together; "parameter", that of each tensor by itself; "value", each number;
        "adaptive", that of each tensor as a share of its parameter's, which counts as at least 0.001 (Brock et al.
        2021, arXiv 2102.06171, eq. 3, for whole tensors); "none".
    parameters: whose gradients they are, which "adaptive" compares them with.
    """
    norms: Tensor | None = None  # of each
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
    """Multiply gradients so that a norm of them all is no larger than it may be."""
    if norm.device.type != "cpu" or torch.compiler.is_compiling():
        torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))
        return
    factor = largest / (float(norm) + 1e-6)  # nobody waits for a number on a CPU
    if not factor >= 1.0:
        torch._foreach_mul_(gradients, torch.tensor(factor))  # a number would be made a tensor for each gradient


def _norms(tensors: list[Tensor]) -> Tensor:
    norms: Tensor = torch.stack(torch._foreach_norm(tensors))
    return norms


def normalized(advantage: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 over all entries, or over those that are valid.

    With several ranks over the entries of all of them.
    """
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
    """Return the mean of all entries, or of those that are valid: flags of the same shape."""
    return value.mean() if valid is None else (value * valid).sum() / valid.sum()


def over_valid(loss: Tensor, valid: Tensor) -> Tensor:
    """Return losses whose mean is that of the valid entries, flags of the same shape; of the entries of all ranks."""
    return loss * (valid / distributed.mean_(valid.float().mean()))


def surrogate(log_ratio: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """Return the clipped objective [...] to be made large (Schulman et al. 2017, arXiv 1707.06347, eq. 7).

    log_ratio: of the probabilities of the actions taken, now to then.
    """
    ratio = log_ratio.exp()
    objective = ratio * advantage
    # where the clipped one is the smaller, the ratio is beyond a bound and has no gradient
    clipped = ratio.detach().clamp(1.0 - clip, 1.0 + clip) * advantage
    return torch.where(objective <= clipped, objective, clipped)


def with_gradient_clipped(value: Tensor, action: Tensor, limit: float) -> Tensor:
    """Return values [B] whose gradient by actions [B, A] is clamped to ± limit; nothing else has a gradient."""
    (gradient,) = torch.autograd.grad(value.sum(), action, retain_graph=True)
    linear = (gradient.clamp(-limit, limit).detach() * action).sum(-1)
    return value.detach() + linear - linear.detach()


def moved_moments(
    mean: Tensor, variance: Tensor, new_mean: Tensor, new_variance: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of what was seen, of which newer rows with their own get a share."""
    change = new_mean - mean
    return mean + share * change, (1.0 - share) * (variance + share * change.square()) + share * new_variance
