"""Safety editor (Yu et al. 2022, arXiv 2201.12427): one policy maximizes utility, another one edits its actions.

The reward of a step is [utility, -cost]. The utility policy proposes an action a, and the editor changes it to avoid
cost; w are the weights of both rewards, which `+with=lagrangian` learns from the constraint.

    â     = clip(a + 2 Δ, -1, 1),  a ~ π(· | s),  Δ ~ ψ(· | s, a)
    y_k   = r_k + γ (1 - terminated) min_i Q̄_k,i(s', â')            k = utility, cost
    L_Q_k = Σ_i (Q_k,i(s, â) - y_k)²
    L_π   = α_π log π(a | s) - min_i Q_utility,i(s, â)               towards π only
    L_ψ   = α_ψ log ψ(Δ | s, a) + w_0 change - w_1 min_i Q_cost,i(s, â)   towards ψ only
    L_α   = Σ_j log α_j (H_j - H̄_j),  j = π, ψ

change is the loss of utility by editing, max(0, min_i Q_utility,i(s, a) - min_i Q_utility,i(s, â)), or the mean of
(a - â)² over the numbers of an action.

Differences from the paper: both values are pessimistic, the smaller of two critics; weights sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.critic import CriticLoss
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import ConfigError, SpaceError, require_one_of
from rlrun.core.spaces import Box, Composite, Spaces, require_continuous
from rlrun.core.typing import Tree
from rlrun.nn import Critics, Rewards, SquashedGaussian
from rlrun.nn.actions import ActionCodec
from rlrun.training.metrics import Metric

Change = Literal["utility", "distance"]
CHANGES = ("utility", "distance")


class Apart(Rewards):
    """Utility and cost, whose values are learned by separate critics.

    Args:
        spaces: of the environment.
        weights: returns the weights of both rewards [2].

    Raises:
        SpaceError: the environment does not have two rewards.
    """

    def __init__(self, spaces: Spaces, weights: Callable[[], Tensor]) -> None:
        if spaces.rewards != 2:
            there = f"has {spaces.rewards} numbers" if spaces.rewards else "is one plain number"
            raise SpaceError(
                f"the safety editor wants the reward of a step to be [utility, -cost], and it {there} "
                "(+with=costs adds the costs that an environment reports)"
            )
        super().__init__(weights)


class Editor(nn.Module):
    """A policy of edits; calling it returns Δ [B, A] for proposed actions, and its log_prob [B].

    Args:
        spaces: of the environment.
        options: of `SquashedGaussian`, such as `hidden`.

    Raises:
        SpaceError: part of the action is a choice.
    """

    def __init__(self, spaces: Spaces, **options: Any) -> None:
        super().__init__()
        require_continuous(spaces.action, "the safety editor")
        self.codec = ActionCodec(spaces)
        ones = np.ones(self.codec.continuous, np.float32)
        action = Box((self.codec.continuous,), -ones, ones)
        seen = Composite({"observation": spaces.observation, "action": action})
        self.gaussian = SquashedGaussian(Spaces(seen, action), **options)

    def forward(self, observation: Tree, c: Tensor) -> tuple[Tensor, Tensor]:
        delta: tuple[Tensor, Tensor] = self.gaussian({"observation": observation, "action": c})
        return delta

    def mode(self, observation: Tree, c: Tensor) -> Tensor:
        """Return Δ [B, A] without noise."""
        return self.gaussian.mode({"observation": observation, "action": c})


def edited(c: Tensor, edit: Tensor) -> Tensor:
    """Return edited actions [..., A]; an edit can reach every action from every proposal."""
    return (c + 2.0 * edit).clamp(-1.0, 1.0)


class EditedPolicy(nn.Module):
    """A policy whose proposals another policy edits; both are networks of their own.

    Args:
        utility: proposes c [B, A].
        editor: edits it.
    """

    def __init__(self, utility: SquashedGaussian, editor: Editor) -> None:
        super().__init__()
        self._borrowed = (utility, editor)  # in a tuple: their parameters are not this network's

    @property
    def utility(self) -> SquashedGaussian:
        """The policy that proposes."""
        return self._borrowed[0]

    @property
    def editor(self) -> Editor:
        """The policy that edits."""
        return self._borrowed[1]

    def train(self, mode: bool = True) -> EditedPolicy:
        """Set the mode of both."""
        for network in self._borrowed:
            network.train(mode)
        return super().train(mode)

    def forward(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Draw a proposal and its edited action, both [B, A]."""
        c, _ = self.utility(observation)
        return c, edited(c, self.editor(observation, c)[0])

    def act(self, observation: Tree, explore: bool = True) -> Tree:
        """Return an action: drawn, or the most likely edit of the most likely proposal."""
        if explore:
            c = self(observation)[1]
        else:
            proposal = self.utility.mode(observation)
            c = edited(proposal, self.editor.mode(observation, proposal))
        return self.editor.codec.join(c, None)


class EditedTarget(TargetCallback):
    """Bellman targets of both rewards, at edited actions, from target networks of both critics."""

    provides = ("q_target", "cost_target")

    def __init__(
        self,
        utility: Critics,
        cost: Critics,
        policy: EditedPolicy,
        *,
        discount: float | Sequence[float] = 0.99,
        **options: Any,
    ) -> None:
        both = nn.ModuleDict({"utility": utility, "cost": cost})
        if np.size(discount) not in (1, 2):
            raise ConfigError(f"algorithm.discount: wanted a number, or one for reward and cost, got {discount}")
        first, self.cost_discount = map(float, np.broadcast_to(discount, 2))
        super().__init__(both, discount=first, **options)
        self.followed = (utility, cost)
        self.policy = policy

    def target(self, next_observation: Tree, reward: Tensor, terminated: Tensor) -> TargetResult:
        _, c = self.policy(next_observation)
        slow = (self.target_network.get_submodule(name) for name in ("utility", "cost"))
        utility, cost = (critics(next_observation, c).amin(0) for critics in slow)  # [B]
        ends = self.masked(terminated)
        cost_target = ops.bootstrap(reward[..., 1], discount=self.cost_discount, terminated=ends, value=cost)
        outputs, metrics = self.bootstrap(reward[..., 0], terminated, utility, None)
        return {**outputs, "cost_target": cost_target}, metrics


class CostLoss(CriticLoss):
    """The critic loss for critics of the cost, with `cost_target`."""

    def loss(self, observation: Tree, action: Tree, cost_target: Tensor) -> LossResult:  # type: ignore[override]
        elements, outputs, metrics = super().loss(observation, action, cost_target)
        return elements, outputs, {"value/cost": metrics.pop("value/mean"), **metrics}


class Temperatures(nn.Module):
    """α of both policies, learned on a log scale.

    Args:
        initial: α to start from.
    """

    parts = ("proposal", "edit")

    def __init__(self, *, initial: float = 1.0) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((2,), math.log(initial)))

    def of(self, part: str) -> Tensor:
        """Return α of "proposal" or "edit", without gradient."""
        return self.log.detach()[self.parts.index(part)].exp()


class UtilityLoss(LossCallback):
    """Minus the utility of an edited proposal, minus the proposal's entropy weighted by α."""

    provides = ("proposal_entropy",)

    def __init__(
        self,
        network: SquashedGaussian,
        optimizer: Optimizer | None,
        *,
        editor: Editor,
        critics: Critics,
        temperature: Temperatures,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.utility = network
        self.editor = editor
        self.critics = critics
        self.temperature = temperature

    def loss(self, observation: Tree) -> LossResult:
        c, log_prob = self.utility(observation)
        value = self.critics(observation, edited(c, self.editor(observation, c)[0])).amin(0)
        return self.temperature.of("proposal") * log_prob - value, {"proposal_entropy": -log_prob.detach()}, {}


class EditorLoss(LossCallback):
    """The edit's change minus the value of the cost reward, by the current weights, minus weighted entropy.

    Args:
        utility: makes the proposals.
        utility_critics: of the first reward.
        cost_critics: of the second.
        weights: returns the weights of both rewards [2].
        temperature: α of both policies.
        change: utility = the loss of utility; distance = the mean square of the edit.

    Raises:
        ConfigError: `change` is unknown.
    """

    provides = ("edit_entropy",)

    def __init__(
        self,
        network: Editor,
        optimizer: Optimizer | None,
        *,
        utility: SquashedGaussian,
        utility_critics: Critics,
        cost_critics: Critics,
        weights: Callable[[], Tensor],
        temperature: Temperatures,
        change: Change = "utility",
        **options: Any,
    ) -> None:
        require_one_of("algorithm.change", change, CHANGES)
        super().__init__(network, optimizer, **options)
        self.editor = network
        self.utility = utility
        self.critics = (utility_critics, cost_critics)
        self.weights = weights
        self.temperature = temperature
        self.change = change

    def loss(self, observation: Tree) -> LossResult:
        with torch.no_grad():
            proposed, _ = self.utility(observation)
            weights = self.weights()
        edit, log_prob = self.editor(observation, proposed)
        c = edited(proposed, edit)
        cost = self.critics[1](observation, c).amin(0)
        loss = weights[0] * self._change(observation, proposed, c) - weights[1] * cost
        outputs, metrics = {"edit_entropy": -log_prob.detach()}, {"edit/size": Metric((c - proposed,), "size")}
        return self.temperature.of("edit") * log_prob + loss, outputs, metrics

    def _change(self, observation: Tree, proposed: Tensor, c: Tensor) -> Tensor:
        if self.change == "distance":
            return (proposed - c).square().mean(-1)
        with torch.no_grad():
            before = self.critics[0](observation, proposed).amin(0)
        lost: Tensor = before - self.critics[0](observation, c).amin(0)
        return lost.relu()


class TemperaturesLoss(LossCallback):
    """Hold the entropy of both policies at a target.

    Args:
        spaces: of the environment.
        share: of each dimension's range that a policy of the target entropy spreads over.
    """

    def __init__(
        self,
        network: Temperatures,
        optimizer: Optimizer | None,
        *,
        spaces: Spaces,
        share: float = 0.184,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.temperatures = network
        self.target = ops.target_entropy(spaces.action, min_prob=share).continuous

    def loss(self, proposal_entropy: Tensor, edit_entropy: Tensor) -> LossResult:
        entropy = torch.stack((proposal_entropy, edit_entropy), -1)
        metrics: dict[str, Any] = {}
        for index, part in enumerate(self.temperatures.parts):
            metrics |= {f"temperature/{part}": self.temperatures.of(part), f"entropy/{part}": entropy[..., index]}
        return (self.temperatures.log * (entropy - self.target)).sum(-1), {}, metrics
