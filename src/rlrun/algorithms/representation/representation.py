"""A learned representation: an algorithm reads features in place of observations.

Features are trained to predict the action between two observations (Pathak et al. 2017, arXiv 1705.05363, section 2.2).
They may omit what the agent cannot affect and is not affected by. The learner sees stored observations. The acting
policy, critics, bonuses and their target networks see features, through which no gradient flows. Memory stores
observations as the environment gave them, so a sample's features always come from the current network.

    L = -log p(a | φ(s), φ(s'))

Shared features are those of the critics' own encoder. They get the gradients of both losses, and may have a state.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.callbacks.losses.loss import LossCallback, LossResult
from rlrun.core.spaces import ACTION_MASK, Box, Composite, Spaces, map_tree
from rlrun.core.typing import Array, Batch, Tree
from rlrun.env import Env, spaces_of
from rlrun.memory.adaptors.adaptor import REPRESENTATIONS, PerStep
from rlrun.nn import InverseModel, SharedFeatures


def represented(env: Env | None, network: InverseModel) -> Spaces:
    """Return the spaces of an environment with features [F] in place of observations; an action mask stays."""
    size = network.size
    seen = spaces_of(env)
    bound = np.full(size, np.inf, np.float32)
    features = Box((size,), -bound, bound)
    action_mask = seen.observation.parts.get(ACTION_MASK) if isinstance(seen.observation, Composite) else None
    observation = features if action_mask is None else Composite({"observation": features, ACTION_MASK: action_mask})
    return Spaces(observation, seen.action, seen.rewards)


class Represent(PerStep):
    """Replace observations and next observations by features; also as the `preprocess` of an agent."""

    learns = True  # features change in each update, so samples cannot be drawn ahead

    def __init__(self, network: InverseModel) -> None:
        super().__init__("observation")
        self.tier = REPRESENTATIONS
        self.network = network

    @torch.no_grad()
    def apply(self, tree: Tree, path: str = "") -> Tree:
        """Return the features [..., F] of observations [...], on their device."""
        device, home = _device(tree), next(self.network.parameters()).device
        features: Tensor = self.network.features(map_tree(lambda value: value.to(home), tree))
        if isinstance(tree, dict) and ACTION_MASK in tree:
            return {"observation": features.to(device), ACTION_MASK: tree[ACTION_MASK]}
        return features.to(device)

    def change(self, value: Tensor) -> Tensor:
        return self.apply(value)  # type: ignore[no-any-return]

    def _read(self, name: str, tree: Tree, slots: Array) -> Tree:
        return self.apply(tree)


class RepresentationLoss(LossCallback):
    """Error of the actions predicted from features of stored transitions."""

    network: InverseModel

    def loss(self, untransformed: Batch, valid: Tensor | None = None) -> LossResult:
        before, after = (self.network.features(untransformed[name]) for name in ("observation", "next_observation"))
        inverse: Tensor = self.network.inverse_error(before, untransformed["action"], after)
        return inverse if valid is None else inverse * valid, {}, {"representation/inverse": inverse}


class SharedRepresentation(InverseModel):
    """An inverse model on the encoder of critics, which both train; the encoder may have a state.

    Args:
        network: critics, or the network of DQN.
        options: of `InverseModel`.
    """

    def __init__(self, network: Any, **options: Any) -> None:
        seen = Spaces(network.observed, network.codec.space)
        super().__init__(seen, features=SharedFeatures(network), **options)


class SharedRepresentationLoss(LossCallback):
    """Error of the action predicted from the features of two successive observations, a term of a joint loss.

    With n-step returns the next observation is the one after n steps.
    """

    network: SharedRepresentation

    def loss(self, observation: Tree, action: Tree, next_observation: Tree) -> LossResult:
        before, after = self.network.features(observation), self.network.features(next_observation)
        inverse: Tensor = self.network.inverse_error(before, action, after)
        return inverse, {}, {"representation/inverse": inverse}


def _device(tree: Tree) -> torch.device:
    while isinstance(tree, dict):
        tree = next(iter(tree.values()))
    device: torch.device = tree.device
    return device
