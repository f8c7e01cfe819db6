"""Distributions of actions: two Gaussians over [-1, 1], categorical choices, and their random numbers.

A squashed Gaussian is tanh of a diagonal normal (arXiv 1801.01290, appendix C). A truncated one is a diagonal normal
around tanh(mean), cut to [-1, 1] and scaled to 1.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

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
    """Draw standard Gumbel numbers in the shape of a tensor: the argmax of logits plus these is a categorical draw."""
    return torch.empty_like(value).exponential_().log_().neg_() if _source is None else _source("gumbel", value)


def drawn(kind: Kind, value: Tensor) -> Tensor:
    """Draw by the generator of this process, in the shape of a tensor, also inside `given`."""
    return torch.randn_like(value) if kind == "normal" else torch.empty_like(value).exponential_().log_().neg_()


def is_given() -> bool:
    """Return True inside `given`."""
    return _source is not None


@contextmanager
def given(source: Source) -> Iterator[None]:
    """Draw by `source` in place of the generator of this process, as long as the block lasts."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)
ROOT_HALF = math.sqrt(0.5)
# float32 cannot hold 1 - 1e-8; a stored action at the bound counts as this far inside it
EDGE = 1e-6


def tanh_log_slope(value: Tensor) -> Tensor:
    """Return log(1 - tanh(value)^2) of each entry, finite however large the value is."""
    return 2.0 * (LOG_TWO - value - F.softplus(-2.0 * value))


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a reparameterized action [..., A] in [-1, 1] and its log-density [...].

    mean, log_std, noise: [..., A], noise standard normal.
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
    """Return an estimate of the entropy [...]: exact for the normal, sampled for the squashing."""
    value = torch.addcmul(mean, log_std.exp(), noise)
    return (log_std + (0.5 + HALF_LOG_TWO_PI) + tanh_log_slope(value)).sum(-1)


def gaussian_divergence(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return KL(normal ‖ other normal) [...] of diagonal normals [..., A]; squashing both leaves it unchanged."""
    ratio = (2.0 * (log_std - other_log_std)).exp()
    distance = ((mean - other_mean) * (-other_log_std).exp()).square()
    return 0.5 * (ratio + distance - 1.0 - 2.0 * (log_std - other_log_std)).sum(-1)


def gaussian_distance(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return the sum of both KLs between normals, entry by entry [..., A]; accurate also for nearly equal ones."""
    apart = (mean - other_mean).square() * ((-2.0 * log_std).exp() + (-2.0 * other_log_std).exp())
    return 0.5 * apart + 2.0 * (log_std - other_log_std).sinh().square()


def truncated_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a reparameterized action and its log-density, as `squashed_sample` does."""
    cut = _Cut.of(mean, log_std)
    share = torch.addcmul(cut.below, 1.0 + torch.erf(noise * ROOT_HALF), cut.within)  # from -1 to 1
    distance = _erfinv(share.clamp(-1.0 + 6e-8, 1.0 - 6e-8)) / ROOT_HALF
    action = torch.addcmul(cut.location, log_std.exp(), distance).clamp(-1.0, 1.0)
    return action, -(0.5 * distance.square() + HALF_LOG_TWO_PI + log_std + cut.within.log()).sum(-1)


def truncated_action(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Return the action [..., A] that `truncated_sample` draws."""
    return truncated_sample(mean, log_std, noise)[0]


def truncated_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Return the log-density [...] of a given action [..., A] in [-1, 1]."""
    return truncated_density(action, mean.tanh(), log_std.exp(), log_std).sum(-1)


def truncated_density(
    value: Tensor, location: Tensor, deviation: Tensor | float, log_deviation: Tensor | float
) -> Tensor:
    """Return the log-density [..., A] of a normal that is cut to [-1, 1], entry by entry."""
    within = torch.special.ndtr((1.0 - location) / deviation) - torch.special.ndtr((-1.0 - location) / deviation)
    distance = (value - location) / deviation
    density: Tensor = -0.5 * distance.square() - HALF_LOG_TWO_PI - log_deviation - within.log()
    return density


def truncated_entropy(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Return the exact entropy [...]; the noise is unused, and there for the signature of `squashed_entropy`."""
    cut = _Cut.of(mean, log_std)
    return (log_std + HALF_LOG_TWO_PI + cut.within.log() + 0.5 * cut.moments()[1]).sum(-1)


def truncated_divergence(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return KL(truncated normal ‖ other) [...], both cut to [-1, 1]."""
    return _truncated_divergences(mean, log_std, other_mean, other_log_std).sum(-1)


def truncated_distance(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return the sum of both KLs between truncated normals, entry by entry [..., A]."""
    forth = _truncated_divergences(mean, log_std, other_mean, other_log_std)
    return (forth + _truncated_divergences(other_mean, other_log_std, mean, log_std)).clamp(min=0.0)


def _truncated_divergences(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    cut, reference = _Cut.of(mean, log_std), _Cut.of(other_mean, other_log_std)
    ratio, apart = (log_std - other_log_std).exp(), (cut.location - reference.location) * (-other_log_std).exp()
    distance, square = cut.moments()
    other_square = ratio.square() * square + 2.0 * ratio * apart * distance + apart.square()  # from the reference
    return other_log_std + reference.within.log() - log_std - cut.within.log() + 0.5 * (other_square - square)


class _Cut(NamedTuple):
    """A normal cut to [-1, 1]; all [..., A]."""

    location: Tensor
    low: Tensor  # the cut, in standard deviations from the location
    high: Tensor
    below: Tensor  # erf of the low cut: twice the probability below it, less 1
    within: Tensor  # probability between the cuts

    @classmethod
    def of(cls, mean: Tensor, log_std: Tensor) -> "_Cut":
        location, scale = mean.tanh(), (-log_std).exp()
        low, high = (-1.0 - location) * scale, (1.0 - location) * scale
        below = torch.erf(low * ROOT_HALF)
        return cls(location, low, high, below, 0.5 * (torch.erf(high * ROOT_HALF) - below))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means of the distance from the location and of its square, in standard deviations."""
        at_low, at_high = (torch.exp(-0.5 * end.square() - HALF_LOG_TWO_PI) for end in (self.low, self.high))
        return (at_low - at_high) / self.within, 1.0 + (self.low * at_low - self.high * at_high) / self.within


# Coefficients of the powers of w, the highest first: near 0, and in the tail (Giles 2012, Approximating the erfinv
# function).
_ERFINV = (
    (2.81022636e-8, -2.00214257e-4),
    (3.43273939e-7, 1.00950558e-4),
    (-3.5233877e-6, 1.34934322e-3),
    (-4.39150654e-6, -3.67342844e-3),
    (2.1858087e-4, 5.73950773e-3),
    (-1.25372503e-3, -7.6224613e-3),
    (-4.17768164e-3, 9.43887047e-3),
    (0.246640727, 1.00167406),
    (1.50140941, 2.83297682),
)


def _erfinv(x: Tensor) -> Tensor:
    if not torch.compiler.is_exporting():
        return x.erfinv()
    w = -torch.log((1.0 - x) * (1.0 + x))  # written out, since ONNX lacks the function
    near = w < 5.0
    w = torch.where(near, w - 2.5, w.clamp(min=5.0).sqrt() - 3.0)
    value = torch.zeros_like(w)
    for at_center, at_tail in _ERFINV:
        value = value * w + torch.where(near, at_center, at_tail)
    return x * value


class Gaussian(NamedTuple):
    """Functions of a distribution over [-1, 1], made of a diagonal normal with mean and log_std [..., A].

    `divergence` and `distance` take mean and log_std of two; the others take noise or an action. The mode is
    tanh(mean).
    """

    sample: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    action: Callable[[Tensor, Tensor, Tensor], Tensor]
    log_prob: Callable[[Tensor, Tensor, Tensor], Tensor]
    entropy: Callable[[Tensor, Tensor, Tensor], Tensor]
    divergence: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    distance: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


GAUSSIANS = {
    "squashed": Gaussian(
        squashed_sample, squashed_action, squashed_log_prob, squashed_entropy, gaussian_divergence, gaussian_distance
    ),
    "truncated": Gaussian(
        truncated_sample,
        truncated_action,
        truncated_log_prob,
        truncated_entropy,
        truncated_divergence,
        truncated_distance,
    ),
}


def saturated(action: Tensor) -> Tensor:
    """Return the share of entries of actions [..., A] in [-1, 1] that lie within 0.1 of a bound."""
    return (action.abs() > 0.9).float().mean()


def one_hot(index: Tensor, choices: Sequence[int]) -> Tensor:
    """Return the one-hot codes of D decisions, float32 [..., sum of choices].

    index: [..., D] zero-based; choices: number of choices of each decision.
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
    """Return each bin's share of a Gaussian around each target: [...] -> [..., K], which sum to 1.

    Farebrother et al. 2024, arXiv 2403.03950, section 3.1. Targets beyond the bins are clamped to their range.

    deviation: of the Gaussian, in the unit of targets.
    """
    edges = torch.linspace(least, largest, count + 1, device=target.device, dtype=target.dtype)
    below: Tensor = torch.special.ndtr((edges - target.clamp(least, largest).unsqueeze(-1)) / deviation)  # [..., K + 1]
    return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])


def log_gamma_quantile(shape: Tensor, probability: Tensor) -> Tensor:
    """Return the logarithm of quantiles of gamma distributions of scale 1 [...], also for shapes near 0.

    Newton's method solves log P(shape, exp(y)) = log(probability). The left side is concave and increases with y, and
    P(a, x) ≤ x^a / Γ(a + 1) gives a start to the left of the solution.

    shape: [...] above 0; probability: [...] from 0 to 1.
    """
    shape, wanted = shape.double(), probability.double().clamp(1e-300, 1.0 - 2.0**-53).log()
    constant = torch.lgamma(shape + 1.0)
    y = (wanted + constant) / shape
    for _ in range(100):
        x = y.exp()
        first = shape * y - constant  # first term of the series of log P: exact for small x, where P rounds to 0
        reached = torch.where(y < -20.0, first, torch.special.gammainc(shape, x.clamp_min(1e-9)).log())
        gap = wanted - reached
        if (gap <= 1e-9 * wanted.abs() + 1e-15).all():
            break
        y = y + gap * (reached + x - first).exp() / shape
    return y
