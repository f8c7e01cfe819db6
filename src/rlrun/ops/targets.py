"""Targets of learning: bootstrapped values, target entropies, Polyak averages of parameters."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.core.spaces import Box, Space, leaves


def bootstrap(reward: Tensor, *, discount: float | Tensor, terminated: Tensor, value: Tensor) -> Tensor:
    """Return reward + discount * value, without the value where the episode terminated.

    reward, terminated: [B]; value: [B] or [M, B], of the next state. For an n-step target pass the discounted sum of n
        rewards, and γ^n as the discount.
    """
    # fill instead of multiplying: an infinite value at a terminal state would become NaN
    return reward + discount * value.masked_fill(terminated, 0.0)


def shrunk(value: Tensor, epsilon: float = 0.001) -> Tensor:
    """Return T(x) = sign(x) (√(|x| + 1) - 1) + ε x, entry by entry (Pohlen et al. 2018, arXiv 1805.11593)."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + epsilon * value


def grown(value: Tensor, epsilon: float = 0.001) -> Tensor:
    """Return T⁻¹, the inverse of `shrunk`, entry by entry; ε above 0."""
    size = value.abs() + 1.0 + epsilon
    root = 2.0 * size / ((1.0 + 4.0 * epsilon * size).sqrt() + 1.0)  # avoids the difference of nearly equal numbers
    return value.sign() * (root.square() - 1.0)


def smoothed(c: Tensor, noise: float, limit: float) -> Tensor:
    """Return actions [..., A] in [-1, 1] with normal noise of at most `limit` around them (1802.09477 eq. 14).

    noise: its deviation; 0 = none.
    """
    if not noise:
        return c
    return (c + (noise * torch.randn_like(c)).clamp(-limit, limit)).clamp(-1.0, 1.0)


class TargetEntropy(NamedTuple):
    """Target entropies of a policy's continuous and discrete part."""

    continuous: float
    discrete: float


def target_entropy(space: Space, *, min_prob: float = 0.1, masked: bool = False) -> TargetEntropy:
    """Return the default target entropies of a policy over an action space.

    Continuous: all the density on a share `min_prob` of the range. Discrete: one choice has
    probability 1 - min_prob, the others share the rest. Summed over entries. `min_prob` = 0.184
    gives the -1 per continuous action of the paper (arXiv:1812.05905).

    masked: a mask may forbid most choices, so all decisions together count as one between two choices.
    """
    continuous = discrete = 0.0
    for _, leaf in leaves(space):
        if isinstance(leaf, Box):
            continuous += leaf.size * range_entropy(2.0, min_prob=min_prob)  # policy actions lie in [-1, 1]
        else:
            discrete += choice_entropy(leaf.choices, min_prob=min_prob)
    return TargetEntropy(continuous, choice_entropy((2,), min_prob=min_prob) if masked and discrete else discrete)


def range_entropy(width: float, *, min_prob: float = 0.1) -> float:
    """Return the entropy of a uniform density over a share `min_prob` of a range."""
    return math.log(width) + math.log(min_prob)


def choice_entropy(choices: Sequence[int], *, min_prob: float = 0.1) -> float:
    """Return the entropy of decisions whose favorite has probability 1 - min_prob, summed."""
    rest = (1.0 - min_prob) * math.log1p(-min_prob)
    return sum(min_prob * (math.log(n - 1) - math.log(min_prob)) - rest for n in choices if n > 1)


def lerp_(slow: Sequence[Tensor], fast: Sequence[Tensor], *, rate: float) -> None:
    """Move each slow tensor by the share `rate` of its distance to the fast one; slow tensors need no gradient."""
    if not slow:
        return
    if rate == 1.0:
        torch._foreach_copy_(list(slow), list(fast))
    else:
        torch._foreach_lerp_(list(slow), list(fast), rate)
