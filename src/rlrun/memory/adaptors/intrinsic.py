"""Intrinsic rewards: bonuses of networks, added to the environment's rewards."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors.adaptor import REWARDS
from rlrun.memory.table.samplers import Rows
from rlrun.nn.normalizer import Normalizer


class Bonus(ABC):
    """The base of bonuses for transitions, from a network that another callback trains.

    The network sees observations normalized by the statistics of all next observations so far. The bonus is normalized
    by the statistics of earlier bonuses. Only `learn` changes both, with each batch.

    Args:
        network: computes the bonus.
        weight: of this bonus in the reward.
        observation: normalizes observations for the network; None = no normalization.
        reward: normalizes the bonus, one number a step; None = no normalization.
    """

    chunk = 4096  # rows in one pass through the network, approximately
    requires: tuple[str, ...] = ("next_observation",)  # names that it reads

    def __init__(
        self,
        network: nn.Module,
        *,
        weight: float = 1.0,
        observation: Normalizer | None = None,
        reward: Normalizer | None = None,
    ) -> None:
        self.network = network
        self.weight = weight
        self.observation = observation
        self.reward = None if reward is None else reward.to("cpu")  # where rewards are summed

    @abstractmethod
    def view(self, step: Batch) -> Batch:
        """Return the network's input for transitions [...]; observations go through `seen`."""

    @abstractmethod
    def measure(self, view: Batch) -> Tensor:
        """Return the raw bonus [...] of a view on the network's device."""

    def seen(self, observation: Tree) -> Tree:
        """Return normalized observations for the network."""
        return observation if self.observation is None else self.observation(observation)

    def learn(self, step: Batch, valid: Tensor | None, *, update: bool = True) -> tuple[Tensor, Batch]:
        """Return the bonus of a batch [...], and its view with the entry `bonus`; update the statistics.

        valid [...]: rows that count. update: False leaves the statistics as they are.
        """
        if update and self.observation is not None:
            self.observation.update(step["next_observation"], valid)
        view = self.view(step)
        raw = self._measured(view, step["reward"])
        if update and self.reward is not None:
            self.reward.update(raw, valid)
        bonus = self._scaled(raw)
        return bonus, view | {"bonus": bonus}

    def read(self, step: Batch) -> Tensor:
        """Return the bonus of transitions [...] without changing the statistics."""
        return self._scaled(self._measured(self.view(step), step["reward"]))

    def _scaled(self, raw: Tensor) -> Tensor:
        return raw if self.reward is None else self.reward(raw)

    def _measured(self, view: Batch, like: Tensor) -> Tensor:
        """Return the raw bonus of a view on the device of `like`, computed in chunks of rows."""
        device = next((parameter.device for parameter in self.network.parameters()), like.device)
        count = len(like)
        rows = max(self.chunk * count // max(like.numel(), 1), 1)
        pieces = [slice(first, first + rows) for first in range(0, count, rows)]
        parts = [
            self.measure(map_tree(lambda value, piece=piece: value[piece].to(device), view)).to(like.device)
            for piece in pieces
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class StepReward(Bonus):
    """A bonus by a function of each transition: function(observation, action, next_observation).

    Args:
        function: of stored observations and policy actions, trees of tensors [..., size]; returns rewards [...]. A
            module is called on its own device.
        weight: of these rewards in the sum.

    Raises:
        ConfigError: the function returns another number of rewards.
    """

    requires = ("observation", "action", "next_observation")

    def __init__(self, function: Callable[[Tree, Tree, Tree], Tensor], *, weight: float = 1.0) -> None:
        super().__init__(function if isinstance(function, nn.Module) else nn.Identity(), weight=weight)
        self.function = function

    def view(self, step: Batch) -> Batch:
        return {name: step[name] for name in self.requires}

    def measure(self, view: Batch) -> Tensor:
        return self.function(view["observation"], view["action"], view["next_observation"])

    def _measured(self, view: Batch, like: Tensor) -> Tensor:
        reward = super()._measured(view, like)
        if reward.shape != like.shape:
            raise ConfigError(f"step_reward: wanted rewards {list(like.shape)}, one a step, got {list(reward.shape)}")
        return reward


def effort(observation: Tree, action: Tree, next_observation: Tree) -> Tensor:
    """Return minus the mean square of continuous actions [..., A]: [...].

    Raises: ConfigError for other actions.
    """
    if not isinstance(action, Tensor) or not action.is_floating_point():
        raise ConfigError(
            "rlrun.memory.effort measures continuous actions alone; step_reward._target_=my_module.reward names another"
        )
    return -action.square().mean(-1)


class Intrinsic:
    """Adds bonuses: reward = extrinsic_weight · the environment's + Σ weight · bonus, in samples and rollouts.

    Stored rewards do not change. Each reward of an n-step return has the bonus of its own transition. The batch has,
    under the name of each bonus, the input that its network learns from: single transitions, before later adaptors.

    Args:
        bonuses: by name.
        extrinsic_weight: of the environment's reward, 0 to learn without.

    Raises:
        ConfigError: there is no bonus.
    """

    tier = REWARDS
    sums = True  # it needs a single reward: with several ones it would be open to which a bonus is added
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    learns = True  # its result depends on the last update

    def __init__(self, bonuses: Mapping[str, Bonus | None], *, extrinsic_weight: float = 1.0) -> None:
        self.bonuses = {name: bonus for name, bonus in bonuses.items() if bonus is not None}
        if not self.bonuses:
            raise ConfigError("memory.adaptors: Intrinsic.bonuses: there is none; +with=rnd and others add theirs")
        self.extrinsic_weight = extrinsic_weight
        read = [name for bonus in self.bonuses.values() for name in bonus.requires]
        self.requires = tuple(dict.fromkeys(("reward", *read)))
        self.provides = ("reward", *self.bonuses)
        self.keeps = tuple(self.bonuses)

    @torch.no_grad()
    def __call__(self, batch: Batch, rows: Rows | None, *, update: bool = True) -> Batch:
        if rows is not None:  # a copy, so that later adaptors do not change the columns that it looks up
            rows.through("reward", partial(self._read, copy.copy(rows)))
        reward: Tensor = batch["reward"]
        total, views = self.extrinsic_weight * reward, {}
        for name, bonus in self.bonuses.items():
            value, views[name] = bonus.learn(batch, batch.get("valid"), update=update)
            total = total + bonus.weight * value
        return batch | {"reward": total} | views

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Add the bonuses without learning from the batch."""
        return self(batch, rows, update=False)

    @torch.no_grad()
    def _read(self, rows: Rows, name: str, reward: Tensor, slots: Array) -> Tensor:
        """Return the rewards at slots [B, …] with their bonuses."""
        step: Batch = {"reward": reward}
        for column in self.requires[1:]:
            ahead = column == "next_observation"
            step[column] = (
                rows.gather("observation", rows.where.after(slots, 1)) if ahead else rows.gather(column, slots)
            )
        total = self.extrinsic_weight * reward
        for bonus in self.bonuses.values():
            total = total + bonus.weight * bonus.read(step)
        return total
