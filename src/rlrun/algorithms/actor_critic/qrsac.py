"""Soft actor-critic whose critics learn quantiles (QR-SAC; Wurman et al. 2022, doi 10.1038/s41586-021-04357-7).

The critics learn as in quantile regression DQN (Dabney et al. 2018, arXiv 1710.10044), policy and temperature as in
soft actor-critic (arXiv 1812.05905). Actions are continuous.

    τ̂_j  = (j + 1/2) / N,  j = 0 … N-1
    Z̄(s) = least_i Q̄_i(s, c),  c ~ π(· | s),  N quantiles
    y_k  = r + γ (1 - terminated) Z̄_k(s')
    L_Q  = Σ_i mean_jk |τ̂_j - 1[u < 0]| h(u),  u = y_k - Q_ij(s, c),  h the Huber loss
    L_π  = α log π(c | s) - mean_j least_i Q_ij(s, c),  c ~ π(· | s)

`least` is one of three: the smallest of each quantile; all quantiles of the critic with the smallest mean; of each
quantile the mean minus the deviation. With an entropy reward y is lowered by γ α log π(c | s'), as in soft
actor-critic; the paper has none.
"""

from typing import Any

from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.loss import Optimizer
from rlrun.callbacks.losses.policy import SoftPolicyLoss
from rlrun.callbacks.losses.target import QuantileTarget
from rlrun.core.errors import ConfigError, require_one_of
from rlrun.core.spaces import require_continuous
from rlrun.core.typing import Tree
from rlrun.nn import Critics, Quantiles, SoftPolicy, Temperature, value_head_of
from rlrun.nn.value_heads import RewardQuantiles


class FixedQuantileTarget(QuantileTarget):
    """Quantiles of the return from target critics.

    Raises:
        SpaceError: some part of the action is a choice.
        ConfigError: critics do not learn quantiles.
    """

    def __init__(self, critics: Critics, policy: SoftPolicy, temperature: Temperature, **options: Any) -> None:
        require_continuous(critics.codec.space, "QRSAC")
        _require_quantiles(critics)
        super().__init__(critics, policy, temperature, **options)

    def outcomes(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        quantiles = self.counting(self.raw_output(observation, c))
        return self.value_head.cautious(quantiles, self.least), {}  # [M, B, N] -> [B, N], or [M, R, B, N] -> [R, B, N]


class QuantilePolicyLoss(SoftPolicyLoss):
    """Minus the mean of the quantiles at the policy's own action, by `actor_q`, and minus its entropy.

    Args:
        least: as in the target.
    """

    def __init__(
        self,
        network: SoftPolicy,
        optimizer: Optimizer | None,
        *,
        critics: Critics,
        temperature: Temperature,
        least: ops.Least = "quantile",
        **options: Any,
    ) -> None:
        _require_quantiles(critics)
        require_one_of("least", least, ops.LEAST)
        super().__init__(network, optimizer, critics=critics, temperature=temperature, **options)
        self.raw_output, _ = value_head_of(critics)
        self.least = least

    def values(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        quantiles = self.raw_output(observation, c)  # [M, B, N]
        if self.actor_q == "min":
            quantiles = self.value_head.cautious(quantiles, self.least).unsqueeze(0)
        return quantiles.mean(-1), self.temperature.of("continuous")


def _require_quantiles(critics: Critics) -> None:
    if not isinstance(critics.value_head, Quantiles | RewardQuantiles):
        raise ConfigError("QRSAC needs critics that learn quantiles: give algorithm.quantiles a number")
