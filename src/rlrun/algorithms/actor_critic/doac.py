"""Optimistic exploration with quantile critics: that of OAC (Ciosek et al. 2019, arXiv 1910.12807) on top of DSAC.

Networks, targets and losses are those of distributional soft actor-critic (Ma et al. 2020, arXiv 2004.14547; `dsac`
beside this file). Exploration moves its normal distribution N(μ, Σ) before the tanh along the gradient of an upper
bound of the value. A critic's value is the mean of its quantiles at fixed fractions:

    Q_i(s, a)  = mean_j Z_i(s, a; τ̂_j),  τ̂_j = (j + 1/2) / N,  j = 0 … N-1
    Q_UB(s, a) = mean_i Q_i(s, a) + β √(Σ_i (Q_i(s, a) - mean_k Q_k(s, a))² / (M - 1))
    g          = ∇_u Q_UB(s, tanh u)  at u = μ
    μ_E        = μ + δ Σ g / √(gᵀ Σ g)
    a          = tanh(u),  u ~ N(μ_E, Σ)

Differences from the first paper: critics learn quantiles; the deviation over M critics divides by M - 1, so for two it
is their distance over √2, not over 2; δ stands for its √(2δ); each observation of a batch has a shift of its own.
"""

from typing import Any

from torch import Tensor

from rlrun.collect import Optimistic
from rlrun.core.errors import ConfigError
from rlrun.nn import ImplicitCritics


class DOACAgent(Optimistic):
    """Explore by a bound with the unbiased deviation; arguments are those of `rlrun.collect.Optimistic`.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: there is only one critic.
    """

    def __init__(self, *args: Any, critics: ImplicitCritics, **options: Any) -> None:
        super().__init__(*args, critics=critics, **options)
        if critics.members < 2:
            raise ConfigError("algorithm.ensemble: DOAC uses the deviation of critics, so give it at least 2")

    def upper(self, values: Tensor) -> Tensor:
        return values.mean(0) + self.optimism * values.std(0)  # [M, B] -> [B]
