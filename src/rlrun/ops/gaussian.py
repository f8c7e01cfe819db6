"""The squashed Gaussian: tanh of a diagonal normal, densities with respect to the action in [-1, 1].

Soft actor-critic, arXiv:1801.01290, appendix C.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)
# float32 cannot hold 1 - 1e-8; a stored action at the bound is read as this far inside it
EDGE = 1e-6


def tanh_log_slope(value: Tensor) -> Tensor:
    """Return log(1 - tanh(value)^2) of each entry, finite however large the value is."""
    return 2.0 * (LOG_TWO - value - F.softplus(-2.0 * value))


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw an action by reparameterisation.

    mean, log_std, noise: [..., A], noise standard normal.
    Returns the action [..., A] in [-1, 1] and its log-density [...].
    """
    value = torch.addcmul(mean, log_std.exp(), noise)
    # log N(value) + HALF_LOG_TWO_PI per entry minus the slope of tanh, with the constants pulled out of the sum
    terms = torch.addcmul(log_std, noise, noise, value=0.5) - 2.0 * (value + F.softplus(-2.0 * value))
    constant = mean.shape[-1] * (HALF_LOG_TWO_PI + 2.0 * LOG_TWO)
    return value.tanh(), -(terms.sum(-1) + constant)  # eq. 21


def squashed_action(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Return the action [..., A] that `squashed_sample` draws, without its density."""
    return torch.addcmul(mean, log_std.exp(), noise).tanh()


def squashed_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Return the log-density [...] of a given action [..., A] in [-1, 1]."""
    value = action.clamp(-1.0 + EDGE, 1.0 - EDGE).atanh()
    distance = (value - mean) * (-log_std).exp()
    return -(0.5 * distance.square() + log_std + HALF_LOG_TWO_PI + tanh_log_slope(value)).sum(-1)


def squashed_entropy(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Estimate the entropy [...]: the normal's own is exact, only the squashing is sampled."""
    value = torch.addcmul(mean, log_std.exp(), noise)
    return (log_std + (0.5 + HALF_LOG_TWO_PI) + tanh_log_slope(value)).sum(-1)


def gaussian_divergence(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return KL(normal ‖ other normal) [...] of diagonal normals [..., A]; that of both squashed is the same."""
    ratio = (2.0 * (log_std - other_log_std)).exp()
    distance = ((mean - other_mean) * (-other_log_std).exp()).square()
    return 0.5 * (ratio + distance - 1.0 - 2.0 * (log_std - other_log_std)).sum(-1)


def gaussian_distance(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return KL both ways between normals, entry by entry [..., A]; exact where they are near each other, too."""
    apart = (mean - other_mean).square() * ((-2.0 * log_std).exp() + (-2.0 * other_log_std).exp())
    return 0.5 * apart + 2.0 * (log_std - other_log_std).sinh().square()


def saturated(action: Tensor) -> Tensor:
    """Return the share of the numbers of actions [..., A] in [-1, 1] that lie within a tenth of an end."""
    return (action.abs() > 0.9).float().mean()
