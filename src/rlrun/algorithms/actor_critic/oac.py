"""Optimistic actor-critic (Ciosek et al. 2019, arXiv 1910.12807), for continuous actions.

Networks, targets and losses are those of soft actor-critic (`sac` beside this file). Exploration moves its normal
distribution N(μ, Σ) before the tanh along the gradient of an upper bound of the value:

    Q_UB(s, a) = mean_i Q_i(s, a) + β deviation_i Q_i(s, a)
    g          = ∇_u Q_UB(s, tanh u)  at u = μ
    μ_E        = μ + δ Σ g / √(gᵀ Σ g)
    a          = tanh(u),  u ~ N(μ_E, Σ)

The deviation over the M critics divides by M; for two it is half of their distance, as in the paper (eq. 5).

Differences from the paper: δ stands for its √(2δ), as in its table of numbers; there may be more than two critics; each
observation of a batch has a shift of its own.
"""

from torch import Tensor

from rlrun.collect import Optimistic


class OACAgent(Optimistic):
    """Explore by the bound of the paper; the rest, and the arguments, are those of `rlrun.collect.Optimistic`."""

    def upper(self, values: Tensor) -> Tensor:
        return values.mean(0) + self.optimism * values.std(0, correction=0)  # [M, B] -> [B], eq. 5
