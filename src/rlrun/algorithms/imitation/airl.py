"""Adversarial inverse reinforcement learning (Fu et al. 2018, arXiv 1710.11248).

The discriminator consists of a reward g and a shaping potential h, so that g does not depend on the policy:

    f(s, a, s') = g(s, a) + γ h(s') - h(s)            eq. 4; with `state_only` g is of s alone; h(s') = 0 if terminated
    μ(a | s) = (1 - u) π(a | s) + u / |A|             π and uniform actions; u = 0 in the paper
    D = exp f / (exp f + μ) = sigmoid(f - log μ)      its logit is f - log μ
    L = -M log D(+) - M log (1 - D(-))                algorithm 1
    r = log D - log (1 - D) = f - log μ               section 4

π is the current policy. If it makes an expert's action almost impossible, -log π alone would separate the two, and f
would learn nothing there. Uniform actions in μ prevent this. h(s') is kept at a truncation.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlrun.algorithms.imitation.discriminator import AdversarialReward, DiscriminatorLoss, Inputs, cross_entropy
from rlrun.collect.agents import PolicyAgent, prepared
from rlrun.core.errors import ConfigError, require_number
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Batch
from rlrun.nn import MLP
from rlrun.nn.mlp import Activation, Initializer


class RewardFunction(Inputs):
    """f of transitions [..., F] -> [...] (eq. 4).

    Args:
        spaces: of the environment.
        discount: γ.
        state_only: the reward g does not see actions, so it transfers to an environment of other dynamics.
        hidden: widths of the layers of g and of h.
        activation, init: of these layers, as `MLP` takes them.
        options: of `Inputs`.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        discount: float,
        state_only: bool = False,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        init: str | Initializer = "orthogonal",
        **options: Any,
    ) -> None:
        super().__init__(spaces, columns=("observation", "action", "next_observation", "terminated"), **options)
        self.discount, self.state_only = discount, state_only
        state, action = self.sizes[:2]
        layers: dict[str, Any] = {"hidden": hidden, "activation": activation, "init": init}
        self.reward = MLP(state if state_only else state + action, 1, **layers)
        self.shaping = MLP(state, 1, **layers)

    def forward(self, seen: Tensor) -> Tensor:
        """Return f [...] of inputs [..., F] that `seen` has normalized."""
        state, action, after, terminated = torch.split(seen, self.sizes, -1)
        reward = self.reward(state if self.state_only else torch.cat((state, action), -1))
        f: Tensor = reward + self.discount * (1.0 - terminated) * self.shaping(after) - self.shaping(state)
        return f.squeeze(-1)


class LogProb:
    """The log-probability of actions under μ, a mixture of the current policy and uniform actions.

    Densities of continuous actions are in units of half their range.

    Args:
        agent: acts by the policy.
        edge: continuous actions nearer to a bound than this are moved to this distance from it.
        uniform: u, the share of uniform actions.

    Raises:
        ConfigError: the policy is recurrent, or does not evaluate actions; u is not within [0, 1].
    """

    def __init__(self, agent: PolicyAgent, edge: float, uniform: float) -> None:
        require_number("edge", edge, 0.0, 0.5)
        require_number("uniform", uniform, 0.0, 1.0)
        self.policy: Any = agent.policy
        if agent.recurrent or not hasattr(self.policy, "evaluate_actions"):
            raise ConfigError(
                "algorithm.recurrent: AIRL evaluates the policy at single steps of the expert, so wanted null; "
                "algorithm=gail takes recurrent policies"
            )
        self.preprocess, self.edge, self.uniform = agent.preprocess, edge, uniform

    @torch.no_grad()
    def __call__(self, rows: Batch) -> Tensor:
        """Return log μ [...] of the rows' actions at their observations, as the environment gave them."""
        evaluated = self.policy.evaluate_actions(prepared(rows["observation"], self.preprocess), rows["action"])
        log_prob: Tensor = evaluated.head.log_prob(evaluated.heads, rows["action"], edge=self.edge)
        codec = self.policy.codec
        even = -codec.continuous * math.log(2.0) - sum(map(math.log, codec.branches))  # of uniform actions
        shares = log_prob.new_tensor([1.0 - self.uniform, self.uniform]).log()
        return torch.logaddexp(log_prob + shares[0], even + shares[1])


class AIRLReward(AdversarialReward):
    """The reward f - log μ of transitions.

    Args:
        network: f.
        agent: acts by the policy.
        edge, uniform: of `LogProb`.
        weight: of the reward.
    """

    def __init__(
        self,
        network: RewardFunction,
        agent: PolicyAgent,
        *,
        edge: float = 0.01,
        uniform: float = 0.5,
        weight: float = 1.0,
    ) -> None:
        super().__init__(network, weight=weight)
        self.log_prob = LogProb(agent, edge, uniform)

    def view(self, step: Batch) -> Batch:
        return super().view(step) | {"observation": step["observation"], "action": step["action"]}

    def measure(self, view: Batch) -> Tensor:
        return self.score(view) - self.log_prob(view)


class AIRLLoss(DiscriminatorLoss):
    """Train f by the cross-entropy of expert and policy (algorithm 1).

    Args:
        network: f.
        optimizer: of its parameters.
        agent: acts by the policy.
        edge, uniform: of `LogProb`.
        options: of `DiscriminatorLoss`.
    """

    def __init__(
        self,
        network: RewardFunction,
        optimizer: Any,
        *,
        agent: PolicyAgent,
        edge: float = 0.01,
        uniform: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.log_prob = LogProb(agent, edge, uniform)

    divergence = staticmethod(cross_entropy)

    def offset(self, rows: Batch) -> Tensor:
        return self.log_prob(rows)
