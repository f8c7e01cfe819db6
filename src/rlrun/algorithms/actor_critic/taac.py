"""Temporally abstract actor-critic (Yu et al. 2021, arXiv 2104.06521), for continuous actions.

At each step a policy proposes an action, as in soft actor-critic. A second stage decides between switching to it
(b = 1) and continuing the current trajectory (b = 0). A trajectory is the previous step's action (`zero`), an
action that changes by a constant (`linear`), or one whose change changes by a constant (`quadratic`). The second stage
is the exact Boltzmann distribution of both values.

    τ0   = τ⁻ one step further: a' = a; linear: a' = clip(a + 2 v); quadratic: v' = clip(v + 2 u), a' = clip(a + 2 v')
    τ1   = the trajectory from τ⁻ that reaches x: v = (x - a) / 2, u = v / 2,  x ~ π(· | s, τ⁻)
    β    = softmax(min_i Q_i(s, τ0) / α_b, min_i Q_i(s, τ1) / α_b)
    V(s) = Σ_b β_b min_i Q̄_i(s, τ_b)
    y_t  = r_t + γ y_{t+1} where neither the stored nor a fresh b is 1 at t+1
           r_t + γ (1 - terminated) V(s_{t+1}) elsewhere
    L_Q  = Σ_i (Q_i(s, τ) - y)²
    L_π  = α_a log π(x | s, τ⁻) - β_1 min_i Q_i(s, τ1)
    L_α  = log α_a (H(π) - H̄_a) + log α_b (H(β) - H̄_b)

With `inverse` false x is not the action that τ1 reaches but its constant:

    τ1   = linear: (a, x) one step further; quadratic: (a, 0, x) one step further

The target sums rewards over steps on which stored and current policy both continue ("compare-through"), so values
travel over whole repeats in one update. The trajectory before each step is stored with it.

Recurrent layers read observations only; τ is an input behind them, as an action is for critics.

Differences from the paper: an episode begins with a trajectory of zeros, or, while exploring, with a random one that is
drawn again for each update (`random_start`); critics of longer trajectories see all of them; the two critics share one
stacked ensemble, and their losses are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.critic import CriticLoss
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import ConfigError, SpaceError, require_one_of
from rlrun.core.spaces import Box, Composite, Discrete, Spaces, describe
from rlrun.core.typing import Tree
from rlrun.nn import Critics, SquashedGaussian, Temperature
from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Encoded, Recipe
from rlrun.nn.mlp import Activation, Initializer
from rlrun.nn.policy import require_bounded
from rlrun.nn.recurrent import Kind
from rlrun.nn.remembering import Remembering

Form = Literal["zero", "linear", "quadratic"]
FORMS = ("zero", "linear", "quadratic")


class Trajectories:
    """Trajectories of actions: rows of an action's numbers, their change, and the change of that.

    The `trajectory` of an environment is such a row and its number of repeats, 0 at its first step.

    Args:
        spaces: of the environment.
        form: the constant: zero = the action, linear = its change, quadratic = the change of that.
        inverse: the policy chooses the action that a trajectory reaches; otherwise it chooses the constant.
        random_start: an exploring episode begins with a uniformly random trajectory, not one of zeros.

    Raises:
        SpaceError: part of the action is a choice, or has no bounds.
        ConfigError: there is no such form.
    """

    def __init__(self, spaces: Spaces, form: Form, *, inverse: bool = True, random_start: bool = False) -> None:
        require_one_of("algorithm.trajectory", form, FORMS)
        self.codec = ActionCodec(spaces)
        if self.codec.discrete:
            raise SpaceError(f"trajectories are for continuous actions; here they are {describe(spaces.action)}")
        require_bounded(spaces.action, "a trajectory")
        self.order = FORMS.index(form)
        self.inverse = inverse
        self.random_start = random_start
        self.size = (self.order + 1) * self.codec.continuous
        self.state_size = self.size + 1

    def before(self, state: Tensor) -> Tensor:
        """Return the current trajectories [..., size] of exploring steps, random where -1 repeats mark a start."""
        trajectory = state[..., :-1]
        if not self.random_start:
            return trajectory
        return torch.where(state[..., -1:] < 0.0, torch.erf(ops.normal_like(trajectory) * 0.5**0.5), trajectory)

    def advance(self, trajectory: Tensor) -> Tensor:
        """Return trajectories [..., size] one step further."""
        *rest, last = trajectory.chunk(self.order + 1, -1)
        parts = [last]
        for part in reversed(rest):
            parts.append((part + 2.0 * parts[-1]).clamp(-1.0, 1.0))
        return torch.cat(parts[::-1], -1)

    def towards(self, trajectory: Tensor, c: Tensor) -> Tensor:
        """Return the trajectories [..., size] that start from others by a choice c [..., A].

        With `inverse` they reach the actions c. Otherwise c is their constant, changes of lower order begin at 0, and
        they are one step further.
        """
        if not self.inverse and self.order:
            still = [torch.zeros_like(c)] * (self.order - 1)
            return self.advance(torch.cat((self.numbers(trajectory), *still, c), -1))
        parts = [c]
        if self.order:
            parts.append(0.5 * (c - self.numbers(trajectory)))
        if self.order > 1:
            parts.append(0.5 * parts[-1])
        return torch.cat(parts, -1)

    def numbers(self, trajectory: Tensor) -> Tensor:
        """Return the current actions c [..., A] of trajectories."""
        return trajectory[..., : self.codec.continuous]

    def choose(self, state: Tensor, current: Tensor, new: Tensor, switch: Tensor) -> tuple[Tree, Tensor]:
        """Return the actions and the next state [N, S], of new trajectories where envs switch [N]."""
        repeats = torch.where(switch, 0.0, state[..., -1] + 1.0)
        trajectory = torch.where(switch.unsqueeze(-1), new, current)
        action = self.codec.join(self.numbers(trajectory), None)
        return action, torch.cat((trajectory, repeats.unsqueeze(-1)), -1)

    def follow(self, state: Tensor, action: Tree, switch: Tensor) -> tuple[Tree, Tensor]:
        """Return the actions and the next state of envs that switch [N] to an action, or continue."""
        c, _ = self.codec.split(action)
        assert c is not None
        before = self.before(state)
        return self.choose(state, self.advance(before), self.towards(before, c), switch)


class TrajectoryCritics(Critics):
    """M values of a trajectory: [M, B] from an observation and a row [B, size].

    Args:
        spaces: of the environment.
        trajectory: `form` of `Trajectories`.
        inverse: the policy chooses an action, otherwise the constant of its trajectory.
        random_start: exploring episodes begin with a random trajectory.
        options: of `rlrun.nn.Critics`.

    Attributes:
        decisions: spaces with the policy's choice `action` and its decision to `switch`.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        trajectory: Form = "zero",
        inverse: bool = True,
        random_start: bool = False,
        **options: Any,
    ) -> None:
        trajectories = Trajectories(spaces, trajectory, inverse=inverse, random_start=random_start)
        rows = Spaces(spaces.observation, _numbers(trajectories.size))
        super().__init__(rows, **options)
        self.trajectories = trajectories
        parts = {"action": _numbers(trajectories.codec.continuous), "switch": Discrete(2)}
        self.decisions = Spaces(spaces.observation, Composite(parts))  # type: ignore[arg-type]


def _numbers(count: int) -> Box:
    ones = np.ones(count, np.float32)
    return Box((count,), -ones, ones)


class Proposal(NamedTuple):
    """The current and the new trajectory [..., size], and the log-density of the new one [...]."""

    kept: Tensor
    new: Tensor
    log_prob: Tensor


class SwitchingPolicy(Encoded, Remembering):
    """A policy that proposes π(x | s, τ⁻), and decides whether to switch to x.

    The trajectory is an input behind the encoder of observations and its recurrent layer, as in critics.

    Args:
        spaces: of the environment.
        critics: their minimum decides.
        temperature: α of both stages.
        most_steps: longest trajectory while acting. None = no limit.
        advantage_clip: bounds of the value of switching minus that of continuing, in exploration and in updates.
        hidden, activation, layer_norm, init, encoder, core, core_size: of the layers, as `EncodedMLP` takes them.
        options: of `SquashedGaussian`, such as `log_std`.

    Raises:
        ConfigError: `most_steps` is below 1, or the bounds are not two numbers in order.
    """

    def __init__(
        self,
        spaces: Spaces,
        critics: TrajectoryCritics,
        temperature: Temperature,
        *,
        most_steps: int | None = None,
        advantage_clip: Sequence[float] | None = None,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        init: str | Initializer = "default",
        encoder: nn.Module | Recipe | None = None,
        core: Kind | None = None,
        core_size: int = 64,
        **options: Any,
    ) -> None:
        super().__init__()
        pair = isinstance(advantage_clip, list | tuple) and len(advantage_clip) == 2
        if advantage_clip is not None and not (pair and advantage_clip[0] < advantage_clip[1]):
            raise ConfigError(f"algorithm.advantage_clip: wanted two numbers in order, got {advantage_clip}")
        if most_steps is not None and most_steps < 1:
            raise ConfigError(f"algorithm.most_steps must be at least 1, not {most_steps}")
        self.keeping = critics.trajectories
        layers: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "init": init}
        features, hidden = self.use_layers(encoder, spaces, hidden, core=core, core_size=core_size, **layers)
        seen = Composite({"observation": _numbers(features), "trajectory": _numbers(self.keeping.size)})
        chosen = critics.decisions.action.parts["action"]  # type: ignore[union-attr]
        self.gaussian = SquashedGaussian(Spaces(seen, chosen), hidden=hidden, **layers, **options)
        self.most_steps = most_steps
        self.advantage_clip = advantage_clip
        self._borrowed = (critics, temperature)  # in a tuple: their parameters are not this network's

    def train(self, mode: bool = True) -> SwitchingPolicy:
        """Set the mode of the critics, too, as they choose actions."""
        self._borrowed[0].train(mode)
        return super().train(mode)

    def initial_state(self, count: int) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the state of new episodes: `trajectory` [count, size + 1], `recurrent` [count, S] if S > 0."""
        recurrent = super().initial_state(count)
        trajectory = recurrent.new_zeros(count, self.keeping.state_size)
        trajectory[:, -1] -= float(self.keeping.random_start)
        return {"trajectory": trajectory, **({"recurrent": recurrent} if self.state_size else {})}

    def after(self, observation: Tree, state: Tree) -> Tree:
        """Return the state after observations, with unchanged trajectories."""
        return {**state, "recurrent": self.stepped(observation, state["recurrent"])[1]}

    def propose(self, observation: Tree, before: Tensor, explore: bool = True) -> Proposal:
        """Return the alternatives to choose from, given the current trajectories [..., size]."""
        seen = {"observation": self.encode(observation), "trajectory": before}
        if explore:
            c, log_prob = self.gaussian(seen)
        else:
            c = self.gaussian.mode(seen)
            log_prob = torch.zeros_like(c[..., 0])
        return Proposal(self.keeping.advance(before), self.keeping.towards(before, c), log_prob)

    def choice(self, values: Tensor) -> Tensor:
        """Return log β [..., 2] from the values [..., 2] of continuing and of switching."""
        if self.advantage_clip is not None:
            advantage = (values[..., 1] - values[..., 0]).clamp(*self.advantage_clip)
            values = torch.stack((torch.zeros_like(advantage), advantage), -1)
        alpha: Tensor = self._borrowed[1].of("discrete")
        return (values / alpha).log_softmax(-1)

    def advance(self, observation: Tree, state: Tree, explore: bool = True) -> tuple[Tree, Tree]:
        """Return an action, and the state after it."""
        trajectory, recurrent = state["trajectory"], {}
        if "recurrent" in state:
            observation, recurrent["recurrent"] = self.stepped(observation, state["recurrent"])
        before = self.keeping.before(trajectory) if explore else trajectory[..., :-1]
        proposal = self.propose(observation, before, explore)
        critics = self._borrowed[0]
        least = critics.value_head.guiding
        if explore:
            chosen = ops.gumbel_argmax(self.choice(both(critics, observation, proposal, least)))
        else:  # both are often nearly equal, and an exported policy rounds differently: rounding must not decide
            chosen = both(critics.doubled, observation, proposal, least).argmax(-1)
        switch = chosen == 1
        if self.most_steps is not None:
            switch = switch | (trajectory[..., -1] >= self.most_steps - 1)
        action, trajectory = self.keeping.choose(trajectory, proposal.kept, proposal.new, switch)
        return action, {"trajectory": trajectory, **recurrent}


def both(
    critics: Callable[..., Tensor], observation: Tree, proposal: Proposal, least: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return values [..., 2] of continuing and of switching; `least` combines those of several critics."""
    return torch.stack([least(critics(observation, trajectory)) for trajectory in (proposal.kept, proposal.new)], -1)


class TrajectoryTarget(TargetCallback):
    """Target that sums rewards over steps on which stored and current policy both continue (section 4.2).

    A batch of single steps has one-step targets.
    """

    def __init__(self, critics: TrajectoryCritics, policy: SwitchingPolicy, **options: Any) -> None:
        super().__init__(critics, **options)
        self.draw_from(critics, None)
        self.policy = policy

    def target(
        self,
        next_observation: Tree,
        next_trajectory: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        valid: Tensor | None = None,
    ) -> TargetResult:
        proposal = self.policy.propose(next_observation, next_trajectory[..., :-1])
        head = self.value_head
        choice = self.policy.choice(both(self.network, next_observation, proposal, head.guiding))  # [B, T, 2]
        value = both(self.target_network, next_observation, proposal, head.smallest)  # … or of each reward [R, B, T, 2]
        value = (choice.exp() * value).sum(-1)
        if terminated.dim() == 1:
            return self.bootstrap(reward, terminated, value, None)
        switched = ops.gumbel_argmax(choice) == 1
        switched[:, :-1] |= next_trajectory[:, 1:, -1] == 0.0  # what the stored policy did at the next row
        episode_end = terminated | truncated
        if valid is not None:
            episode_end[:, :-1] |= ~valid[:, 1:]
        value = value if value.dim() == terminated.dim() else value.movedim(0, -1)  # [B, T, R]
        options = {"switched": switched, "terminated": self.masked(terminated), "episode_end": episode_end}
        target = ops.compare_through(reward, value, discount=ops.discounts(self.discount, like=reward), **options)
        return {"q_target": target}, {"batch/reward": head.weighed(reward, axis=-1)}


class TrajectoryLoss(CriticLoss):
    """Distance of each critic to the common target at the stored trajectories, summed over critics."""

    def loss(  # type: ignore[override]
        self, observation: Tree, next_trajectory: Tensor, q_target: Tensor, target_scale: Tensor | None = None
    ) -> LossResult:
        return super().loss(observation, next_trajectory[..., :-1], q_target, target_scale)


class SwitchingPolicyLoss(LossCallback):
    """Minus the value of the proposal times its probability, minus the proposal's entropy weighted by α."""

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: SwitchingPolicy,
        optimizer: Optimizer | None,
        *,
        critics: TrajectoryCritics,
        temperature: Temperature,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.critics = critics
        self.temperature = temperature

    def loss(self, observation: Tree, trajectory: Tensor) -> LossResult:
        proposal = self.policy.propose(observation, self.policy.keeping.before(trajectory))
        values = both(self.critics, observation, proposal, self.critics.value_head.guiding)
        choice = self.policy.choice(values.detach())
        entropy = -(choice.exp() * choice).sum(-1)
        switched = choice[..., 1].exp() * values[..., 1]
        loss = self.temperature.of("continuous") * proposal.log_prob - switched
        return loss, {"policy_entropy": torch.stack((-proposal.log_prob.detach(), entropy), -1)}, {}
