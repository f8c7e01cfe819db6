"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for continuous, discrete and mixed actions.

An action has a continuous part c (all Box leaves) and discrete choices k. The policy is
π(c, k | s) = π(c | s) · softmax_k(min_i Q_i(s, c, k) / α_k): a squashed Gaussian for c, and
for k the exact optimum under the critics, so only c needs a network. If an action has one
part only, the other factor is absent.

    V̄(s) = E_k[min_i Q̄_i(s, c, k) - α_k log π(k | s, c)] - α_c log π(c | s),  c ~ π(· | s)
    y    = r + γ (1 - terminated) V̄(s')
    L_Q  = Σ_i (Q_i(s, c, k) - y)²                                      (eq. 5)
    L_π  = α_c log π(c | s) - E_k[min_i Q_i(s, c, k)],  c ~ π(· | s)    (eq. 7)
    L_α  = Σ_part log α_part (H_part - H̄_part)

V̄ and L_α are below. L_Q is `rlrun.callbacks.CriticLoss` and L_π `rlrun.callbacks.SoftPolicyLoss`,
shared with other algorithms; `conf/algorithm/sac.yaml` joins them.

Differences from the paper: two critics share one stacked ensemble; their losses are summed;
expectations over k are exact, not sampled; each part has its own temperature and its own
entropy target.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import (
    EntropyReward,
    TargetCallback,
    TargetResult,
    less_cost,
    mean_cost,
    require_entropy_reward,
)
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec, Critics, Ensemble, SoftPolicy, Temperature


class SoftQTarget(TargetCallback):
    """Soft Bellman target from target critics (eqs. 2 and 3).

    Args:
        critics: have a target network.
        policy: chooses the next action.
        temperature: α, the weight of the entropy.
        target_subset: number of critics drawn at random for each target, which uses their smallest; None = all.
        entropy_reward: values include the entropy at the next state; `centered`: minus its mean over the batch.
        dropout: the target critics use dropout, too (Hiraoka et al. 2021, arXiv 2110.02034).
        options: of `TargetCallback`.

    Raises:
        ConfigError: there are fewer members than `target_subset`, or the entropy reward is unknown.
    """

    def __init__(
        self,
        critics: Critics,
        policy: SoftPolicy,
        temperature: Temperature,
        *,
        target_subset: int | None = None,
        entropy_reward: EntropyReward = True,
        dropout: bool = False,
        **options: Any,
    ) -> None:
        require_entropy_reward(entropy_reward)
        super().__init__(critics, **options)
        self.draw_from(critics, target_subset)
        self.entropy_reward = entropy_reward
        for part in self.target_network.modules():
            if isinstance(part, Ensemble):
                part.drops_always = dropout
        self.policy = policy
        self.temperature = temperature

    def target(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
        valid: Tensor | None = None,
    ) -> TargetResult:
        c, log_prob = self.policy.continuous(next_observation, next_previous)  # [B, A], [B]
        value = self.smallest(self.target_network(next_observation, c))  # [M, B] -> [B], or [M, B, K] -> [B, K]
        if self.policy.codec.discrete:
            choices, less_prior = self.policy.choices(self.network(next_observation, c), next_observation)  # [B, K]
            cost = self.temperature.of("discrete") * less_prior
            value = self.policy.codec.expect(choices.exp(), value - cost if self.entropy_reward else value)  # [B]
            if self.entropy_reward == "centered":
                value = value + mean_cost(self.policy.codec.expect(choices.exp(), cost), valid)
        if log_prob is not None and self.entropy_reward:
            cost = self.temperature.of("continuous") * log_prob
            value = less_cost(value, cost, self.entropy_reward, valid)  # eq. 3
        return self.bootstrap(reward, terminated, value, discount)


class TemperatureLoss(LossCallback):
    """Hold the entropy of each part at its target (eq. 17).

    The gradient is that of log α, not of α, as is common. A callback that provides `target_entropy`, a number or one
    for each part, such as a schedule, replaces the targets.

    Args:
        spaces: of the environment.
        target: entropy of each part in nats; None = the entropy of a policy that spreads a share of its
            probability over the other choices, or over a band of the continuous range.
        share: of each part, for the default target; 0.184 gives -1 nat for each continuous dimension.
        divergence: from the policy's prior, in nats for each continuous dimension; it replaces the continuous target.
        choice_prior: choices have a prior, too; the entropy of uniform choices is then subtracted from their target.
    """

    def __init__(
        self,
        network: Temperature,
        optimizer: Optimizer | None,
        *,
        spaces: Spaces,
        target: Mapping[str, float | None] | None = None,
        share: Mapping[str, float] | None = None,
        divergence: float | None = None,
        choice_prior: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.temperature = network
        targets, codec = dict(target or {}), ActionCodec(spaces)
        if divergence is not None:
            targets["continuous"] = -divergence * codec.continuous
        shares = {"continuous": 0.184, "discrete": 0.1, **(share or {})}
        wanted = []
        for part in network.parts:
            default = getattr(ops.target_entropy(spaces.action, min_prob=shares[part], masked=codec.masked), part)
            if choice_prior and part == "discrete":
                default -= sum(map(math.log, (2,) if codec.masked else codec.decisions))
            wanted.append(default if targets.get(part) is None else targets[part])
        self.target = torch.tensor(wanted, dtype=torch.float32)  # [parts]

    def loss(self, policy_entropy: Tensor, target_entropy: float | Tensor | None = None) -> LossResult:
        target = self.target if target_entropy is None else torch.zeros_like(self.target) + target_entropy
        loss = (self.temperature.log * (policy_entropy - target)).sum(-1)  # [B, parts] -> [B]
        metrics: dict[str, Any] = {}
        for index, part in enumerate(self.temperature.parts):
            metrics[f"entropy/{part}"] = policy_entropy[..., index]
            if self.temperature.epistemic is None:  # otherwise no entropy is held at a target
                metrics |= {
                    f"temperature/{part}": self.temperature.of(part),
                    f"entropy_target/{part}": target[index],
                }
        return loss, {}, metrics

    @torch.no_grad()
    def end_batch(self) -> None:
        if self.temperature.largest is not None:
            self.temperature.log.clamp_(max=self.temperature.largest)
