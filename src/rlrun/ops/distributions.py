"""Distributions of actions: the squashed Gaussian, choices, and the random numbers of both.

A squashed Gaussian is tanh of a diagonal normal, with densities over [-1, 1] (arXiv 1801.01290, appendix C).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["normal", "gumbel"]
Source = Callable[[Kind, Tensor], Tensor]

_source: Source | None = None


def normal_like(value: Tensor) -> Tensor:
    """Draw standard normal numbers in the shape of a tensor."""
    return torch.randn_like(value) if _source is None else _source("normal", value)


def gumbel_like(value: Tensor) -> Tensor:
    """Draw standard Gumbel numbers in the shape of a tensor: added to logits, the largest is a draw from these."""
    return torch.empty_like(value).exponential_().log_().neg_() if _source is None else _source("gumbel", value)


def drawn(kind: Kind, value: Tensor) -> Tensor:
    """Draw by the generator of this process, in the shape of a tensor, also inside `given`."""
    return torch.randn_like(value) if kind == "normal" else torch.empty_like(value).exponential_().log_().neg_()


def is_given() -> bool:
    """Return True inside `given`."""
    return _source is not None


@contextmanager
def given(source: Source) -> Iterator[None]:
    """Use a function of kind and shape in place of the generator of this process, as long as the block lasts."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


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
