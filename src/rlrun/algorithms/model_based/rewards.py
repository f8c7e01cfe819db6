"""A model of rewards, learned from stored steps by a network of its own.

    L = ½ (r - r̂(s, a, s'))²

It reads s, a and s' as one row of numbers. Several rewards of a step are learned as their weighted sum.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult
from rlrun.core.spaces import Spaces, without_mask
from rlrun.core.typing import Batch, Tree
from rlrun.nn import MLP, Coded
from rlrun.nn.mlp import Activation
from rlrun.nn.recurrent import present

STORED = ("observation", "action", "reward", "next_observation")


class RewardModel(nn.Module):
    """The predicted reward r̂(s, a, s') [...], from trees of tensors [..., …].

    Args:
        spaces: of the environment.
        hidden, activation: of the layers, as `MLP` takes them.
    """

    def __init__(self, spaces: Spaces, *, hidden: Sequence[int] = (64, 64), activation: Activation = "silu") -> None:
        super().__init__()
        self.observations, self.actions = Coded(without_mask(spaces.observation)), Coded(spaces.action)
        inputs = 2 * self.observations.size + self.actions.size
        self.layers = MLP(inputs, 1, hidden=hidden, activation=activation)

    def forward(self, observation: Tree, action: Tree, next_observation: Tree) -> Tensor:
        before, after = self.observations.numbers(observation), self.observations.numbers(next_observation)
        reward: Tensor = self.layers(torch.cat((before, self.actions.numbers(action), after), -1))
        return reward.squeeze(-1)


class RewardLoss(LossCallback):
    """Half the squared error of predicted rewards."""

    network: RewardModel

    def loss(
        self,
        observation: Tree,
        action: Tree,
        reward: Tensor,
        next_observation: Tree,
        untransformed: Batch | None = None,
    ) -> LossResult:
        if untransformed and untransformed.keys() >= {*STORED}:  # before adaptors of another algorithm
            observation, action, reward, next_observation = (untransformed[name] for name in STORED)
        seen, after = present(observation), present(next_observation)  # without the states of recurrent dynamics
        error = (reward - self.network(seen, action, after)).square()
        return 0.5 * error, {}, {f"model/error_{self.name}": error.mean().sqrt()}
