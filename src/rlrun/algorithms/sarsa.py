"""Sarsa from replayed steps (van Seijen et al. 2009, doi 10.1109/ADPRL.2009.4927542), for continuous actions.

What is learned is the value of the policy as it acts now, without a bonus for entropy in it:

    a'  ~ π(· | s')                                   the policy itself, not a target network
    y   = r + γ (1 - terminated) min_i Q̄_i(s', a')
    L_Q = Σ_i (Q_i(s, a) - y)²

The policy is that of soft actor-critic, whose loss and temperature stay what they are (`conf/algorithm/sarsa.yaml`),
or that of DDPG, whose action may have noise around it (`conf/algorithm/sarsa_ddpg.yaml`).

Networks that remember their episode (`conf/algorithm/sarsa_recurrent.yaml`, `sarsa_ddpg_recurrent.yaml`) learn from
windows of T steps, which they go through from nothing remembered. The first steps of a window only bring the memory up
to date, unless the episode begins there.

Differences from the paper: actions are numbers and values are networks, several critics of which the smallest counts;
the expectation over a' is a sample, drawn by the current policy rather than taken from memory, so that old steps
serve, too. With `entropy_reward` each a' is paid for its entropy, and the target is that of soft actor-critic.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.target import EntropyReward, TargetCallback, TargetResult, less_cost, require_entropy_reward
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Spaces, require_continuous
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Rows
from rlrun.nn import ActionCodec, Critics, DeterministicPolicy, Ensemble, Numbers, Policy, Trunk, ValueHead
from rlrun.nn.encoders import Recipe
from rlrun.nn.mlp import Activation
from rlrun.nn.recurrent import Kind
from rlrun.ops.distributions import normal_like


class RecurrentGaussian(Policy):
    """A policy that remembers its episode; calling it on windows draws c [B, T, A] with its log-probability [B, T]."""

    def forward(self, observation: Tree, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, log_std, _ = self.heads(observation)
        assert mean is not None
        assert log_std is not None
        return self.head.distribution.sample(mean, log_std, normal_like(mean) if noise is None else noise)


class RecurrentDeterministic(DeterministicPolicy):
    """A policy that remembers its episode and is sure of its action; calling it on windows gives c [B, T, A].

    Args:
        spaces: of the environment.
        hidden: widths of the layers before the memory, on which the action is one more.
        core: what remembers: gru or lstm.
        core_size: its width.
        encoder: of observations, as `rlrun.nn.Encoded` takes it.

    Raises:
        SpaceError: part of the action is a choice, or has no bounds.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (64, 64),
        core: Kind = "lstm",
        core_size: int = 64,
        encoder: nn.Module | Recipe | None = None,
    ) -> None:
        trunk = Trunk(spaces, hidden=hidden, core=core, core_size=core_size, encoder=encoder)
        ones = np.ones(trunk.size, np.float32)
        super().__init__(Spaces(Box((trunk.size,), -ones, ones), spaces.action), hidden=())  # of what is remembered
        self.trunk = trunk
        self.state_size = trunk.state_size

    def forward(self, observation: Tree) -> Tensor:
        return super().forward(self.trunk(observation))

    def initial_state(self, count: int) -> Tensor:
        """Return the state [count, state_size] of episodes that begin."""
        return torch.zeros(count, self.state_size, device=next(self.parameters()).device)

    def advance(self, observation: Tree, state: Tensor, explore: bool = False) -> tuple[Tree, Tensor]:
        """Return an action, the same whether one explores or not, and the state [B, S] after it."""
        features, state = self.trunk.step(observation, state)
        return self.codec.join(super().forward(features), None), state


class RecurrentCritics(nn.Module):
    """M action values that know what came before in a window: [M, B, T] of observations and actions c [B, T, A].

    Args:
        spaces: of the environment.
        hidden: widths of the layers, the last of them behind the memory, where the action comes in.
        members: M.
        core: what remembers: gru or lstm.
        core_size: its width.
        activation, layer_norm, dropout: of the layers, as `MLP` takes them.
        value_head: None, or `Rewards`: the means of several rewards are learned, [M, R, B, T].
        encoder: of observations, as `rlrun.nn.Encoded` takes it.

    Raises:
        ConfigError: `hidden` is empty, or a `value_head` learns more than means.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (64, 64),
        members: int = 2,
        core: Kind = "lstm",
        core_size: int = 64,
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        value_head: ValueHead | None = None,
        encoder: nn.Module | Recipe | None = None,
    ) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces)
        self.members = members
        self.value_head = Numbers() if value_head is None else value_head
        if not isinstance(self.value_head, Numbers):
            raise ConfigError("critics that remember learn the mean of a return; leave algorithm.value_head away")
        if not hidden:
            raise ConfigError("hidden: wanted at least one layer behind the memory")
        *before, last = hidden
        layers: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "encoder": encoder}
        self.trunk = Trunk(spaces, hidden=before, core=core, core_size=core_size, **layers)
        self.layers = Ensemble(
            self.trunk.size + self.codec.continuous,
            self.value_head.size,
            members=members,
            hidden=(last,),
            activation=activation,
            layer_norm=layer_norm,
            dropout=dropout,
        )

    def forward(self, observation: Tree, c: Tensor) -> Tensor:
        return self.value_head.laid_out(self.layers(torch.cat((self.trunk(observation), c), -1)), self.codec)


class SarsaTarget(TargetCallback):
    """Bellman target from the policy's own next action and target critics.

    Args:
        critics: what is followed.
        policy: with a temperature that of soft actor-critic, otherwise one that is sure of its action.
        temperature: α, where the policy draws actions.
        entropy_reward: whether the next action is paid for its entropy; `centered`: less its mean over the batch.
        noise: deviation of the noise around a next action that is sure; 0 = none.
        noise_limit: how large it is at most.
        target_subset: critics drawn at random for each target, of which the smallest value counts; None = all.
        options: of `TargetCallback`.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: there are fewer members than shall be drawn.
    """

    def __init__(
        self,
        critics: Critics | RecurrentCritics,
        policy: nn.Module,
        temperature: nn.Module | None = None,
        *,
        entropy_reward: EntropyReward = False,
        noise: float = 0.0,
        noise_limit: float = 0.5,
        target_subset: int | None = None,
        **options: Any,
    ) -> None:
        require_continuous(critics.codec.space, "Sarsa")
        require_entropy_reward(entropy_reward)
        super().__init__(critics, **options)
        self.draw_from(critics, target_subset)
        self.policy = policy
        self.temperature = temperature
        self.entropy_reward = entropy_reward
        self.noise = noise
        self.noise_limit = noise_limit

    def target(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
        valid: Tensor | None = None,
    ) -> TargetResult:
        c, cost = self._drawn(next_observation, next_previous)  # [B, A], [B]
        value = self.smallest(self.target_network(next_observation, c))  # [M, B] -> [B]
        value = value if cost is None else less_cost(value, cost, self.entropy_reward, valid)
        return self.bootstrap(reward, terminated, value, discount)

    def _drawn(self, observation: Tree, previous: Tree | None) -> tuple[Tensor, Tensor | None]:
        """Return an action of the policy, and what is taken off its value: minus an entropy reward."""
        if self.temperature is None:
            return ops.smoothed(self.policy(observation), self.noise, self.noise_limit), None
        c, log_prob = self.policy.continuous(observation, previous)  # type: ignore[operator]
        if not self.entropy_reward:
            return c, None
        return c, self.temperature.of("continuous") * log_prob  # type: ignore[operator]


class WindowTarget(SarsaTarget):
    """Targets [B, T] of the steps of windows.

    Args:
        n_step: steps of a return, of which there can be one only.

    Raises:
        ConfigError: returns are of several steps.
    """

    def __init__(self, *args: Any, n_step: int = 1, **options: Any) -> None:
        if n_step != 1:
            raise ConfigError(f"algorithm.n_step: windows look one step ahead, not {n_step}")
        super().__init__(*args, **options)

    def target(  # type: ignore[override]  # hooks ask by the names of their arguments
        self,
        observation: Tree,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        previous: Tree | None = None,
        next_previous: Tree | None = None,
        valid: Tensor | None = None,
    ) -> TargetResult:
        if terminated.dim() < 2:
            raise ConfigError("algorithm.unroll: wanted at least 2 steps; of a single one nothing can be remembered")
        seen = _reaching(observation, next_observation)  # [B, T + 1, …]
        before = None if previous is None else _reaching(previous, next_previous)
        c, cost = self._drawn(seen, before)  # [B, T + 1, A], [B, T + 1]
        value = self.smallest(self.target_network(seen, c))[..., 1:]  # [B, T], or [R, B, T] of several rewards
        value = value if cost is None else less_cost(value, cost[:, 1:], self.entropy_reward, valid)
        return self.bootstrap(reward, terminated, value, discount)


def _reaching(observation: Tree, following: Tree) -> Tree:
    """Return what there is at the first step of windows and where their steps lead to, [B, T + 1, …]."""
    if isinstance(observation, dict):
        return {name: _reaching(part, following[name]) for name, part in observation.items()}
    return torch.cat((observation[:, :1], following), 1)


class BurnIn:
    """An adaptor that gives the first steps of windows the weight 0, unless the episode begins with the window.

    Args:
        share: of a window's steps.

    Raises:
        ConfigError: the share is not below 1.
    """

    requires = removes = replaces = ()
    provides = ("weight",)

    def __init__(self, share: float = 0.25) -> None:
        if not 0.0 <= share < 1.0:
            raise ConfigError(f"burn_in: wanted a share from 0 to below 1, got {share}")
        self.share = share

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None or rows.index.ndim < 2:
            raise ConfigError("algorithm.unroll: wanted windows of at least 2 steps, from a table")
        length = rows.index.shape[1]
        burn = int(self.share * length)
        counted = (rows.step[:, :1] == 0) | (np.arange(length) >= burn)  # [B, T]
        if rows.windows is not None:  # fewer of them learn from the row, and all rows count alike
            share = rows.windows / np.maximum(rows.windows - burn, 1)
            counted = counted * share * (1.0 - burn / length)
        weight = torch.from_numpy(counted.astype(np.float32))
        factor = batch.get("weight")  # [B] or [B, T]
        return batch | {"weight": weight if factor is None else weight * factor.reshape(len(factor), -1)}
