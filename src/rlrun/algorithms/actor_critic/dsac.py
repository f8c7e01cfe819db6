"""Distributional soft actor-critic (Ma et al. 2020, arXiv 2004.14547), with implicit quantiles (arXiv 1806.06923).

The critics return quantiles at fractions that are drawn for each update. Actions are continuous.

    Δ_j  = (u_j + 0.1) / Σ_k (u_k + 0.1),  u uniform;  τ_j = Σ_{k ≤ j} Δ_k;  τ̂_j = τ_j - Δ_j / 2
    Z̄(s) = least_i Z̄_i(s, c; τ̂') - α log π(c | s),  c ~ π(· | s)
    y_k  = r + γ (1 - terminated) Z̄_k(s')
    L_Z  = Σ_i mean_j Σ_k Δ'_k |τ̂_j - 1[u < 0]| h(u),  u = y_k - Z_i(s, c; τ̂_j),  h the Huber loss
    L_π  = α log π(c | s) - Σ_j Δ''_j least_i Z_i(s, c; τ̂''_j),  c ~ π(· | s)

τ̂, τ̂' and τ̂'' are independent draws, or all the middles of equal shares. `least` is one of three: the smallest of
each quantile; all quantiles of the critic with the smallest mean; of each quantile the mean minus the deviation.

With an epistemic temperature ε there is no entropy target. Each action has its own α, which falls as critics agree on
it, and targets have no entropy term:

    α(s, c) = ε √(Σ_i (m_i - mean_k m_k)² / (M - 1)),  m_i = Σ_j Δ''_j Z_i(s, c; τ̂''_j)

With a value of each reward Z has quantiles of each, L_Z is the mean over rewards, and L_π and m_i use sums by the
current weights.

Differences from the paper: fractions are drawn or fixed, not learned; the policy does not avoid risk; an epistemic
temperature is not in it.
"""

from typing import Any

from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.critic import CriticLoss, scaled
from rlrun.callbacks.losses.loss import LossResult, Optimizer
from rlrun.callbacks.losses.policy import SoftPolicyLoss
from rlrun.callbacks.losses.target import QuantileTarget
from rlrun.core.errors import ConfigError, require_at_least, require_one_of
from rlrun.core.typing import Tree
from rlrun.nn import ImplicitCritics, Rewards, SoftPolicy, Temperature, value_head_of


class ImplicitQuantileTarget(QuantileTarget):
    """Quantiles of the return from target critics, and their probability mass.

    Args:
        fractions: number of quantiles, N.
        fixed: of equal mass, in place of drawn fractions.
        options: of `QuantileTarget`.
    """

    provides = ("q_target", "target_widths")

    def __init__(
        self,
        critics: ImplicitCritics,
        policy: SoftPolicy,
        temperature: Temperature,
        *,
        fractions: int = 32,
        fixed: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(critics, policy, temperature, **options)
        if temperature.epistemic is not None:
            self.entropy_reward = False
        require_at_least("fractions", fractions, 1)
        self.fractions = fractions
        self.fixed = fixed

    def outcomes(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        assert c is not None
        points, widths = draw(self.fractions, fixed=self.fixed, like=c)
        value = self.value_head.cautious(self.counting(self.raw_output(observation, c, points)), self.least, widths)
        return value, {"target_widths": widths}


class ImplicitQuantileLoss(CriticLoss):
    """Distance of each critic's quantiles to those of the common target, summed over critics.

    Args:
        fractions: number of quantiles, N.
        fixed: of equal mass, in place of drawn fractions.
        huber: from this distance on the loss grows linearly; None = from 0 on.
    """

    def __init__(
        self,
        network: ImplicitCritics,
        optimizer: Optimizer | None,
        *,
        fractions: int = 32,
        fixed: bool = False,
        huber: float | None = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, huber=huber, **options)
        require_at_least("fractions", fractions, 1)
        self.fractions = fractions
        self.fixed = fixed

    def loss(  # type: ignore[override]
        self,
        observation: Tree,
        action: Tree,
        q_target: Tensor,
        target_widths: Tensor,
        target_scale: Tensor | None = None,
    ) -> LossResult:
        c, _ = self.codec.split(action)
        assert c is not None
        points, widths = draw(self.fractions, fixed=self.fixed, like=c)
        quantiles = self._raw_output(observation, c, points)  # [M, B, N], or [M, R, B, N] of several rewards
        several = isinstance(self.value_head, Rewards)
        q_target = q_target.movedim(-2, 0) if several else q_target
        value, target_value = (quantiles.detach() * widths).sum(-1), (q_target * target_widths).sum(-1)
        quantiles, q_target = scaled(quantiles, q_target, target_scale)
        distance = ops.quantile_distance(quantiles, q_target, points=points, widths=target_widths, **self.measure)
        error = (value - target_value).abs()
        if several:
            distance, error = distance.mean(1), error.mean(1)
        outputs = {"td_error": error.mean(0)} if self.watched else {}
        return distance.sum(0), outputs, {**self.value_head.means(value)}


class ImplicitQuantilePolicyLoss(SoftPolicyLoss):
    """Minus the mean of the quantiles at the policy's own action, by `actor_q`, and minus its entropy.

    Args:
        fractions: number of quantiles, N.
        fixed: of equal mass, in place of drawn fractions.
        least: as in the target.

    Raises:
        ConfigError: an epistemic temperature has one critic only, or `least` or `actor_q` is unknown.
    """

    def __init__(
        self,
        network: SoftPolicy,
        optimizer: Optimizer | None,
        *,
        critics: ImplicitCritics,
        temperature: Temperature,
        fractions: int = 32,
        fixed: bool = False,
        least: ops.Least = "quantile",
        **options: Any,
    ) -> None:
        require_one_of("least", least, ops.LEAST)
        if temperature.epistemic is not None and critics.members < 2:
            raise ConfigError(
                "algorithm.temperature.epistemic: the temperature is the deviation of critics; "
                f"give algorithm.ensemble at least 2, not {critics.members}"
            )
        super().__init__(network, optimizer, critics=critics, temperature=temperature, **options)
        self.raw_output, _ = value_head_of(critics)
        require_at_least("fractions", fractions, 1)
        self.fractions = fractions
        self.fixed = fixed
        self.least = least

    def values(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert c is not None
        points, widths = draw(self.fractions, fixed=self.fixed, like=c)
        quantiles = self.raw_output(observation, c, points)  # [M, B, N], or [M, R, B, N] of several rewards
        if self.temperature.epistemic is None:
            alpha = self.temperature.of("continuous")
        else:
            alpha = self.temperature.of_each(self.value_head.weighed((quantiles * widths).sum(-1)))
        if self.actor_q == "min":
            quantiles = self.value_head.cautious(quantiles, self.least, widths).unsqueeze(0)
        return (quantiles * widths).sum(-1), alpha


def draw(count: int, *, fixed: bool, like: Tensor) -> ops.Fractions:
    """Return N fractions for each row of `like`, [B, N]: drawn, or the middles of equal shares."""
    if not fixed:
        return ops.sampled_fractions(tuple(like.shape[:-1]), count, like=like)
    points, widths = ops.fixed_fractions(count, like=like)
    return ops.Fractions(points.expand(*like.shape[:-1], count), widths)
