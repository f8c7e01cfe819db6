"""Value heads: how outputs of a critic encode the return: its mean, a mean for each reward, quantiles or bins."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun import ops
from rlrun.core.errors import ConfigError, SpaceError, require_number, require_whole
from rlrun.core.spaces import describe
from rlrun.nn.actions import ActionCodec


class ValueHead(ABC):
    """How the N outputs of a critic for each value encode the return.

    Outputs are [M, B, N], and [M, B, width, N] where actions have choices.

    size: N.
    """

    size: int

    def fit(self, codec: ActionCodec) -> None:
        """Refuse actions whose values this head cannot encode.

        Raises:
            SpaceError: it cannot.
        """

    def first_outputs(self) -> Tensor:
        """Return initial outputs [N] of a network, of a value around 0."""
        return torch.zeros(self.size)

    def laid_out(self, output: Tensor, codec: ActionCodec) -> Tensor:
        """Reshape the outputs of a network, [M, B, width · N], of width 1 without choices."""
        values = output.reshape(*output.shape[:-1], -1, self.size)
        return values if codec.discrete else values.squeeze(-2)

    def select(self, estimate: Tensor, k: Tensor, codec: ActionCodec) -> Tensor:
        """Return the outputs for the choices k [B, D]: [M, B, N]."""
        return codec.select(estimate.transpose(-1, -2), k.unsqueeze(-2))

    @abstractmethod
    def mean(self, estimate: Tensor) -> Tensor:
        """Return the mean of the return, [M, B] or [M, B, width]."""

    def outcomes(self, estimate: Tensor) -> Tensor:
        """Return the values from which targets are made: equally weighted returns [..., N], or their mean [...]."""
        return self.mean(estimate)

    @abstractmethod
    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        """Return the distance of outputs to outcomes [B] or [B, N']: [M, B]; `by` replaces the Huber loss."""

    def smallest(self, value: Tensor) -> Tensor:
        """Return the smallest of M values, [M, …] -> […]."""
        return ops.guiding(value, "min")

    def cautious(self, quantiles: Tensor, by: ops.Least, widths: Tensor | None = None) -> Tensor:
        """Return the cautious quantiles of M members, [M, …, N] -> […, N]; see `rlrun.ops.least_of`."""
        return ops.least_of(quantiles, by=by, widths=widths)

    def weighed(self, value: Tensor, axis: int = 1) -> Tensor:
        """Return the weighted sum over the axis of several rewards; values and rewards without it stay unchanged."""
        return value

    def guiding(self, value: Tensor, actor_q: ops.ActorQ = "min") -> Tensor:
        """Return the value that a policy maximizes, [M, …] -> […]; the weighted sum of several rewards."""
        return ops.guiding(value, actor_q)

    def means(self, value: Tensor) -> Mapping[str, Tensor]:
        """Return metrics of the values [M, …] of a batch's actions; a tensor stands for its mean."""
        return {"value/mean": value}

    def metrics(self, target: Tensor) -> Mapping[str, Any]:
        """Return metrics of the outcomes of a batch; a tensor stands for its mean."""
        return {}


class Numbers(ValueHead):
    """The mean of the return as one number: outputs are [M, B], or [M, B, width] where actions have choices."""

    size = 1

    def laid_out(self, output: Tensor, codec: ActionCodec) -> Tensor:
        return output if codec.discrete else output.squeeze(-1)

    def select(self, estimate: Tensor, k: Tensor, codec: ActionCodec) -> Tensor:
        return codec.select(estimate, k)

    def mean(self, estimate: Tensor) -> Tensor:
        return estimate

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        return ops.distance(estimate, target, huber=huber, by=by)


class Rewards(Numbers):
    """The mean of the return of each of R rewards: [M, R, B], or [M, R, B, width] where actions have choices.

    Agents and policies maximize their sum by the current weights, so critics need not learn again when
    weights change. Targets are [B, R], as rewards are.

    Args:
        weights: a number for each reward, or a function that returns them as a tensor [R].
    """

    def __init__(self, weights: Sequence[float] | Callable[[], Tensor]) -> None:
        self._weights = weights if callable(weights) else torch.tensor(list(weights), dtype=torch.float32, device="cpu")
        self.size = self.count = self.weights().numel()  # R

    def __deepcopy__(self, memo: dict[int, Any]) -> Rewards:
        return self  # target critics use the current weights, too

    @torch.no_grad()
    def weights(self) -> Tensor:
        """Return the current weights [R]."""
        return self._weights() if callable(self._weights) else self._weights

    def laid_out(self, output: Tensor, codec: ActionCodec) -> Tensor:
        values = output.reshape(*output.shape[:-1], -1, self.size).movedim(-1, 1)
        return values if codec.discrete else values.squeeze(-1)

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        """Return the distance of outputs to targets [B, R]: [M, B], the mean over rewards."""
        return ops.distance(estimate, target.movedim(-1, 0), huber=huber, by=by).mean(1)

    def smallest(self, value: Tensor) -> Tensor:
        """Return the most cautious value for each weighted reward, [M, R, …] -> [R, …]."""
        return ops.least_weighed(value, self.weights().to(value.device))

    def cautious(self, quantiles: Tensor, by: ops.Least, widths: Tensor | None = None) -> Tensor:
        """Return the cautious quantiles, which are large ones for a reward with a negative weight."""
        signs = torch.where(self.weights() < 0.0, -1.0, 1.0).to(quantiles)
        signs = signs.reshape(-1, *(1,) * (quantiles.dim() - 2))  # of quantiles [M, R, B, N]
        return ops.least_of(quantiles * signs, by=by, widths=widths) * signs

    def weighed(self, value: Tensor, axis: int = 1) -> Tensor:
        total: Tensor = torch.tensordot(value, self.weights().to(value), dims=([axis], [0]))
        return total

    def guiding(self, value: Tensor, actor_q: ops.ActorQ = "min") -> Tensor:
        return self.weighed(self.smallest(value) if actor_q == "min" else ops.guiding(value, actor_q), axis=0)

    def means(self, value: Tensor) -> Mapping[str, Tensor]:
        means = {f"value/mean_{index}": part for index, part in enumerate(value.unbind(1))}
        return {**super().means(self.weighed(value)), **means}


class Quantiles(ValueHead):
    """N quantiles of the return, at fractions (j + 1/2) / N (Dabney et al. 2018, arXiv 1710.10044).

    Quantiles are summed over action branches, as if the returns of branches were perfectly correlated.

    Args:
        count: N.
        summed: the loss is a sum over quantiles, as in the paper, in place of a mean.

    Raises:
        ConfigError: `count` is below 1.
    """

    def __init__(self, count: int = 50, *, summed: bool = False) -> None:
        if count < 1:
            raise ConfigError(f"quantiles: wanted at least 1, got {count}")
        self.size = count
        self.summed = summed

    def mean(self, estimate: Tensor) -> Tensor:
        return estimate.mean(-1)

    def outcomes(self, estimate: Tensor) -> Tensor:
        return estimate

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        if target.dim() < estimate.dim() - 1:  # a mean alone
            target = target.unsqueeze(-1)
        points = ops.fixed_fractions(self.size, like=estimate).points
        return ops.quantile_distance(estimate, target, points=points, huber=huber, summed=self.summed, by=by)


class RewardQuantiles(Rewards):
    """Quantiles of the return of each reward: [M, R, B, N], or [M, R, B, width, N]; targets are [B, R, N],
    or means [B, R].

    Args:
        weights: as of `Rewards`.
        quantiles: of each.
    """

    def __init__(self, weights: Sequence[float] | Callable[[], Tensor], quantiles: Quantiles) -> None:
        super().__init__(weights)
        self.quantiles = quantiles
        self.size = self.count * quantiles.size

    def laid_out(self, output: Tensor, codec: ActionCodec) -> Tensor:
        values = output.reshape(*output.shape[:-1], -1, self.count, self.quantiles.size).movedim(-2, 1)
        return values if codec.discrete else values.squeeze(-2)

    def select(self, estimate: Tensor, k: Tensor, codec: ActionCodec) -> Tensor:
        return self.quantiles.select(estimate, k, codec)

    def mean(self, estimate: Tensor) -> Tensor:
        return self.quantiles.mean(estimate)

    def outcomes(self, estimate: Tensor) -> Tensor:
        return estimate

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        if target.dim() < estimate.dim() - 1:  # means alone, [B, R]
            target = target.unsqueeze(-1)
        return self.quantiles.distance(estimate, target.movedim(-2, 0), huber=huber, by=by).mean(1)


class Bins(ValueHead):
    """Logits of equal bins, trained by cross-entropy (HL-Gauss; Farebrother et al. 2024, arXiv 2403.03950).

    A Gaussian spreads a target over the bins. The value is the expected middle of a bin.

    Args:
        count: of bins.
        least, largest: start of the first bin and end of the last; targets beyond are clamped.
        smoothing: deviation of the Gaussian, in widths of a bin.

    Raises:
        ConfigError: there are fewer than two bins, or the range or `smoothing` is not positive.
    """

    def __init__(self, count: int = 101, *, least: float, largest: float, smoothing: float = 0.75) -> None:
        if count < 2 or not least < largest or smoothing <= 0.0:
            raise ConfigError(
                "bins: wanted at least 2, least < largest and smoothing > 0, "
                f"got {count} from {least} to {largest} with smoothing {smoothing}"
            )
        self.size = count
        self.least, self.largest = float(least), float(largest)
        self.deviation = smoothing * (self.largest - self.least) / count

    def fit(self, codec: ActionCodec) -> None:
        _require_one_branch(codec)

    def mean(self, estimate: Tensor) -> Tensor:
        return estimate.softmax(-1) @ ops.bin_centres(self.size, least=self.least, largest=self.largest, like=estimate)

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        wanted = ops.smoothed_bins(target, self.size, least=self.least, largest=self.largest, deviation=self.deviation)
        return -(wanted * estimate.log_softmax(-1)).sum(-1)

    def metrics(self, target: Tensor) -> Mapping[str, Any]:
        return {"target/clamped": (target < self.least) | (target > self.largest)}


class TwoHot(ValueHead):
    """Logits of whole numbers; a target is a mixture of its two neighbors (Schrittwieser et al. 2020, arXiv
    1911.08265).

    The value is T⁻¹(Σ p(i) i), where T shrinks large returns (`rlrun.ops.shrunk`). Returns beyond the first and the
    last number are clamped. The loss is the KL divergence from the target's mixture.

    Args:
        count: of the numbers, from -(count - 1) // 2 to count // 2; 101 of them encode returns up to ±2,500.
        shrink: ε of T; None = T is left out.
        exact: the value is the mean of T⁻¹(i), and a target's mixture has exactly this mean.

    Raises:
        ConfigError: there are fewer than two numbers, or ε is not above 0.
    """

    def __init__(self, count: int = 101, *, shrink: float | None = 0.001, exact: bool = False) -> None:
        _require_numbers(count, shrink)
        self.size, self.shrink, self.exact = count, shrink, exact
        self.least = -((count - 1) // 2)

    def fit(self, codec: ActionCodec) -> None:
        _require_one_branch(codec)

    def first_outputs(self) -> Tensor:
        """Return the logits of a Cauchy distribution around 0."""
        return -self._numbers(torch.zeros(())).square().log1p()

    def mean(self, estimate: Tensor) -> Tensor:
        numbers = self._numbers(estimate)
        if self.exact:
            return estimate.softmax(-1) @ _grown(numbers, self.shrink)
        return _grown(estimate.softmax(-1) @ numbers, self.shrink)

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        wanted = self.shares(target)
        return (torch.xlogy(wanted, wanted) - wanted * estimate.log_softmax(-1)).sum(-1)

    def shares(self, target: Tensor) -> Tensor:
        """Return the share of each number in targets [...]: [..., N]."""
        position = (_shrunk(target, self.shrink) - self.least).clamp(0.0, self.size - 1.0)
        below = position.floor().clamp(max=self.size - 2.0)
        upper = position - below
        if self.exact:
            low, high = (_grown(below + self.least + more, self.shrink) for more in (0.0, 1.0))
            upper = ((target - low) / (high - low)).clamp(0.0, 1.0)
        index = below.long().unsqueeze(-1)
        shares = target.new_zeros((*target.shape, self.size))
        shares = shares.scatter(-1, index, (1.0 - upper).unsqueeze(-1))
        return shares.scatter(-1, index + 1, upper.unsqueeze(-1))

    def _numbers(self, like: Tensor) -> Tensor:
        return torch.arange(self.least, self.least + self.size, device=like.device, dtype=like.dtype)

    def metrics(self, target: Tensor) -> Mapping[str, Any]:
        position = _shrunk(target, self.shrink) - self.least
        return {"target/clamped": (position < 0.0) | (position > self.size - 1.0)}


class Ordered(ValueHead):
    """Logits of "the return is above i" for whole numbers i, each trained as a classifier of its own.

    The value is T⁻¹(least + Σ P(above i)), with T as of `TwoHot`.

    Args:
        count: of the numbers, from -count / 2 on; 100 of them encode returns up to ±2,500.
        shrink: ε of T; None = T is left out.

    Raises:
        ConfigError: there are fewer than two numbers, or ε is not above 0.
    """

    def __init__(self, count: int = 100, *, shrink: float | None = 0.001) -> None:
        _require_numbers(count, shrink)
        self.size, self.shrink, self.least = count, shrink, -(count / 2)

    def fit(self, codec: ActionCodec) -> None:
        _require_one_branch(codec)

    def first_outputs(self) -> Tensor:
        """Return the logits of a Cauchy distribution around 0."""
        above = 0.5 - (torch.arange(self.size) + self.least + 0.5).atan() / math.pi
        return above.logit()

    def mean(self, estimate: Tensor) -> Tensor:
        return _grown(self.least + estimate.sigmoid().sum(-1), self.shrink)

    def distance(
        self, estimate: Tensor, target: Tensor, *, huber: float | None, by: ops.Distance | None = None
    ) -> Tensor:
        from_first = (_shrunk(target, self.shrink) - self.least).unsqueeze(-1)
        above = (from_first - torch.arange(self.size, device=target.device)).clamp(0.0, 1.0)
        spread = torch.xlogy(above, above) + torch.xlogy(1.0 - above, 1.0 - above)
        loss = F.binary_cross_entropy_with_logits(estimate, above.expand_as(estimate), reduction="none")
        return (loss + spread).sum(-1)


def _require_numbers(count: int, shrink: float | None) -> None:
    require_whole("count", count, 2)
    require_number("shrink", 1 if shrink is None else shrink, above=0)


def _shrunk(value: Tensor, shrink: float | None) -> Tensor:
    return value if shrink is None else ops.shrunk(value, shrink)


def _grown(value: Tensor, shrink: float | None) -> Tensor:
    return value if shrink is None else ops.grown(value, shrink)


def _require_one_branch(codec: ActionCodec) -> None:
    if len(codec.branches) > 1:
        raise SpaceError(
            f"bins encode the value of one choice; that of an action in {describe(codec.space)} adds up over "
            f"{len(codec.branches)} (remove +with=hlgauss, or let a larger joint_limit make them one)"
        )


def require_discounts(discount: float | Sequence[float], head: ValueHead | None) -> None:
    """Refuse several discounts unless each of as many rewards has a value of its own.

    Raises:
        ConfigError: naming the override that gives each reward a value.
    """
    count = head.count if isinstance(head, Rewards) else 0
    if not isinstance(discount, float | int) and len(discount) != count:
        several = f"or one for each of {count} rewards" if count else "as one value is learned"
        ways = "+with=reward_critics or, on-policy, reward_values learn one for each reward"
        raise ConfigError(f"algorithm.discount: wanted one number, {several}, got {list(discount)}; {ways}")


def value_head_of(network: Any) -> tuple[Callable[..., Tensor], ValueHead]:
    """Return the function of a network's raw outputs, and its value head; without a head, outputs are means.

    Raises:
        ConfigError: a subclass of `Critics` replaces `forward` alone, and its value head needs more than means.
    """
    head = getattr(network, "value_head", None)
    owners = [cls for cls in type(network).__mro__ if {"forward", "raw_output"} & vars(cls).keys()]
    replaced = any("raw_output" in vars(cls) for cls in owners) and "raw_output" not in vars(owners[0])
    if head is None or not replaced:  # `ImplicitCritics.raw_output` takes fractions, unlike forward
        return getattr(network, "raw_output", network), Numbers() if head is None else head
    if type(head) is not Numbers:
        kind = f"{type(network).__name__} replaces forward, which gives means"
        raise ConfigError(f"{kind}; with value_head={type(head).__name__} it replaces raw_output instead")
    return network, head
