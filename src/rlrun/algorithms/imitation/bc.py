"""Behavior cloning (Pomerleau 1991, doi 10.1162/neco.1991.3.1.88): supervised learning of stored actions.

Works on every action space. Continuous actions may lie on their bounds, which a squashed normal does not reach: for the
likelihood they are moved a little inside.

    L = -log π(a | s)                            objective: likelihood
    L = |tanh μ(s) - c|² - log π(k | s)          objective: mode

With an entropy target the policy's weighted entropy is subtracted from the first (`rlrun.callbacks.losses.entropy`).
"""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.policy import with_entropy
from rlrun.core.errors import ConfigError, WiringError, require_number, require_one_of
from rlrun.core.typing import Tree
from rlrun.nn import Policy
from rlrun.training.callback import Callback

Objective = Literal["likelihood", "mode"]
OBJECTIVES = ("likelihood", "mode")


class BCLoss(LossCallback):
    """-log π(a | s), or the squared distance to the policy's action without noise.

    Args:
        network: the policy.
        objective: likelihood; or mode: for the continuous part the squared distance to the action without noise,
            summed over entries. The policy's deviation then learns nothing; choices learn by likelihood.
        edge: distance that continuous actions are kept from their bounds, for the likelihood; nearer to a bound, the
            normal before the tanh would reach far out for actions that differ little.

    Raises:
        ConfigError: the objective is unknown, or the network has no head for a likelihood.
        WiringError: there is an entropy target, and the objective is the mode.
    """

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: Policy,
        optimizer: Optimizer | None,
        *,
        objective: Objective = "likelihood",
        edge: float = 0.01,
        **options: Any,
    ) -> None:
        require_one_of("objective", objective, OBJECTIVES)
        require_number("edge", edge, 0, 0.5)
        if objective == "likelihood" and not hasattr(network, "head"):
            raise ConfigError(f"network: a {type(network).__name__} has no `head`, as rlrun.nn.Policy has")
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.objective = objective
        self.edge = edge

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        for source in callbacks.values() if self.objective == "mode" else ():
            if "entropy_weight" in source.provides:
                raise WiringError(f"callbacks.{source.name} is an entropy target; set algorithm.objective=likelihood")

    def loss(
        self, observation: Tree, action: Tree, entropy_weight: float | Tensor | None = None
    ) -> Tensor | LossResult:
        codec = self.policy.codec
        heads = self.policy.heads(observation)
        c, k = codec.split(action)
        if c is None or heads.mean is None or self.objective == "likelihood":
            log_prob = self.policy.head.log_prob(heads, action, edge=self.edge)
            loss = -codec.without_forbidden(log_prob, heads.choices, action)
            return loss if entropy_weight is None else with_entropy(loss, self.policy, heads, entropy_weight)
        distance = (heads.mean.tanh() - c).square().sum(-1)
        if k is None or heads.choices is None:
            return distance
        return distance - codec.without_forbidden(codec.select(heads.choices, k), heads.choices, action)
