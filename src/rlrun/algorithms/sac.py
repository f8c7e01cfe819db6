"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for continuous, discrete and mixed actions.

An action has a continuous part c (all Box leaves) and discrete choices k. The policy is
π(c, k | s) = π(c | s) · softmax_k(min_i Q_i(s, c, k) / α_k): a squashed Gaussian for c, and
for k the exact optimum under the critics, so only c needs a network of its own. Where an
action has one part only, the other factor is absent.

    V̄(s) = E_k[min_i Q̄_i(s, c, k) - α_k log π(k | s, c)] - α_c log π(c | s),  c ~ π(· | s)
    y    = r + γ (1 - terminated) V̄(s')
    L_Q  = Σ_i (Q_i(s, c, k) - y)²
    L_π  = α_c log π(c | s) - E_k[min_i Q_i(s, c, k)],  c ~ π(· | s)
    L_α  = Σ_part log α_part (H_part - H̄_part)

Differences from the paper: two critics share one stacked ensemble; their losses are summed;
expectations over k are exact, not sampled; each part has a temperature of its own, held at
an entropy target of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.critic import CriticLoss
from rlrun.callbacks.loss import LossCallback, Optimiser
from rlrun.callbacks.target import TargetCallback
from rlrun.nn import ActionCodec, Critics, Heads, SquashedGaussian
from rlrun.spaces import Spaces
from rlrun.typing import Tree


class Temperature(nn.Module):
    """α of the continuous part and of the discrete choices, learned on a log scale.

    Args:
        spaces: of the environment.
        initial: α to start from.
        largest: upper bound on α; None = free.
    """

    def __init__(self, spaces: Spaces, *, initial: float = 1.0, largest: float | None = None) -> None:
        super().__init__()
        self.parts = ActionCodec(spaces).kinds
        self.largest = None if largest is None else math.log(largest)
        first = math.log(initial if largest is None else min(initial, largest))
        self.log = nn.Parameter(torch.full((len(self.parts),), first))  # [parts]

    def of(self, part: str) -> Tensor:
        """Return α of a part ("continuous" or "discrete"), without gradient."""
        return self.log.detach()[self.parts.index(part)].exp()


class SoftPolicy(nn.Module):
    """π(c, k | s), and what acts by it.

    Args:
        spaces: of the environment.
        critics: whose minimum defines the discrete choices.
        temperature: α.
        hidden: widths of the Gaussian's layers.
        gaussian: a network of your own in its place; called, it gives c [B, A] and log_prob [B].
        prior: a density that is taken off the policy's wherever that counts (`rlrun.algorithms.prior`).
        options: of `SquashedGaussian`, such as `init` or `layer_norm`.
    """

    def __init__(
        self,
        spaces: Spaces,
        critics: Critics,
        temperature: Temperature,
        *,
        hidden: Sequence[int] = (256, 256),
        gaussian: SquashedGaussian | None = None,
        prior: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.codec = critics.codec
        self.prior = prior
        if gaussian is None and self.codec.continuous:
            gaussian = SquashedGaussian(spaces, hidden=hidden, **options)
        self.gaussian = gaussian if self.codec.continuous else None
        self._borrowed = (critics, temperature)  # in a tuple: their parameters are not this network's

    def train(self, mode: bool = True) -> SoftPolicy:
        """Set the mode of the critics, too: they are a part of what acts."""
        self._borrowed[0].train(mode)
        return super().train(mode)

    def continuous(self, observation: Tree, previous: Tree | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Sample c [B, A] with its log-probability [B], less the prior's; None where there is no continuous part.

        previous: the action before, where a prior looks at it.
        """
        if self.gaussian is None:
            return None, None
        c, log_prob = self.gaussian(observation)
        return c, log_prob if self.prior is None else log_prob - self.prior(c, previous)

    def heads(self, observation: Tree) -> Heads:
        """Return the distribution of c; that of k belongs to the critics, and a space without c has nothing here."""
        return Heads(None, None, None) if self.gaussian is None else self.gaussian.heads(observation)

    def choices(self, values: Tensor) -> Tensor:
        """Log-probabilities of the discrete choices [B, K] from critics' values [M, B, K]."""
        return self.codec.log_softmax(values.amin(0), self._borrowed[1].of("discrete"))

    def act(self, observation: Tree, explore: bool = True) -> Tree:
        """Return an action: sampled, or the most likely one."""
        if self.gaussian is None:
            c = None
        else:
            c = self.gaussian(observation)[0] if explore else self.gaussian.mode(observation)
        if not self.codec.discrete:
            return self.codec.join(c, None)
        values = self._borrowed[0](observation, c)
        k = self.codec.sample(self.choices(values)) if explore else self.codec.best(values.amin(0))
        return self.codec.join(c, k)


class QTarget(TargetCallback):
    """Soft Bellman target from slowly moving critics (eqs. 2 and 3)."""

    def __init__(
        self,
        critics: Critics,
        policy: SoftPolicy,
        temperature: Temperature,
        *,
        discount: float = 0.99,
        rate: float = 0.005,
        every: int = 1,
        data_group: str = "default",
    ) -> None:
        super().__init__(critics, discount=discount, rate=rate, every=every, data_group=data_group)
        self.policy = policy
        self.temperature = temperature

    @torch.no_grad()
    def begin_batch(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
    ) -> dict[str, Tensor]:
        c, log_prob = self.policy.continuous(next_observation, next_previous)  # [B, A], [B]
        value = self.target(next_observation, c).amin(0)  # [M, B] -> [B], or [M, B, K] -> [B, K]
        if self.policy.codec.discrete:
            choices = self.policy.choices(self.network(next_observation, c))  # [B, K]
            soft = value - self.temperature.of("discrete") * choices
            value = self.policy.codec.expect(choices.exp(), soft)  # [B, K] -> [B]
        if log_prob is not None:
            value = value - self.temperature.of("continuous") * log_prob  # eq. 3
        return self.bootstrap(reward, terminated, value, discount)


class QLoss(CriticLoss):
    """Distance of each critic to the common target, summed over critics (eq. 5)."""


class PolicyLoss(LossCallback):
    """KL divergence of π(c | s) from the critics' Boltzmann distribution (eq. 7)."""

    provides = ("policy_entropy",)

    def __init__(
        self, network: SoftPolicy, optimiser: Optimiser, *, critics: Critics, temperature: Temperature, **options: Any
    ) -> None:
        super().__init__(network, optimiser, **options)
        self.policy = network
        self.critics = critics
        self.temperature = temperature
        self._observation: Tree = None  # of the newest update

    def loss(self, observation: Tree, previous: Tree | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        self._observation = observation
        c, log_prob = self.policy.continuous(observation, previous)  # [B, A], [B]
        value = self.critics(observation, c)  # [M, B] or [M, B, K]
        entropies = [] if log_prob is None else [-log_prob.detach()]
        minimum = value.amin(0)
        if self.policy.codec.discrete:
            choices = self.policy.choices(value.detach())
            entropies.append(-self.policy.codec.expect(choices.exp(), choices))
            minimum = self.policy.codec.expect(choices.exp(), minimum)  # [B, K] -> [B]
        loss = -minimum if log_prob is None else self.temperature.of("continuous") * log_prob - minimum
        return loss, {"policy_entropy": torch.stack(entropies, -1)}  # [B, parts]

    @property
    @torch.no_grad()
    def metrics(self) -> Mapping[str, Any]:
        gaussian = self.policy.gaussian
        if self._observation is None or type(gaussian) is not SquashedGaussian:  # another's might draw numbers
            return super().metrics
        return {**super().metrics, "action/saturated": ops.saturated(gaussian.mode(self._observation))}


class TemperatureLoss(LossCallback):
    """Hold the entropy of each part at its target (eq. 17).

    As in widespread practice, the gradient is taken for log α in place of α.

    Args:
        target: entropy of each part in nats; None: that of a policy which spreads a share of its
            probability over the other choices, or over a band of the continuous range.
        share: of each part, for the default target; 0.184 makes minus one nat a continuous dimension.
        divergence: from the policy's prior, in nats for each continuous dimension; given, it is the continuous target.
    """

    def __init__(
        self,
        network: Temperature,
        optimiser: Optimiser,
        *,
        spaces: Spaces,
        target: Mapping[str, float | None] | None = None,
        share: Mapping[str, float] | None = None,
        divergence: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimiser, **options)
        self.temperature = network
        given = dict(target or {})
        if divergence is not None:
            given["continuous"] = -divergence * ActionCodec(spaces).continuous
        shares = {"continuous": 0.184, "discrete": 0.1, **(share or {})}
        wanted = []
        for part in network.parts:
            default = getattr(ops.target_entropy(spaces.action, min_prob=shares[part]), part)
            wanted.append(default if given.get(part) is None else given[part])
        self.target = torch.tensor(wanted, dtype=torch.float32)  # [parts]
        self._entropy: Tensor | None = None

    def loss(self, policy_entropy: Tensor) -> Tensor:
        self._entropy = policy_entropy.detach()
        return (self.temperature.log * (policy_entropy - self.target)).sum(-1)  # [B, parts] -> [B]

    @torch.no_grad()
    def end_batch(self) -> None:
        if self.temperature.largest is not None:
            self.temperature.log.clamp_(max=self.temperature.largest)

    @property
    def metrics(self) -> Mapping[str, Any]:
        found = dict(super().metrics)
        for index, part in enumerate(self.temperature.parts):
            found[f"temperature/{part}"] = self.temperature.of(part)
            if self._entropy is not None:
                found[f"entropy/{part}"] = self._entropy[..., index].mean()
                found[f"entropy_target/{part}"] = self.target[index]
        return found
