"""Random network distillation (Burda et al. 2018, arXiv 1810.12894): a bonus for rarely seen observations.

A network learns to predict the features of another, random and fixed one; its error is large for observations unlike
those that it learned from. The bonus of a transition is the error at its next observation, also the last of an episode;
the first observation of an episode has none.

    L = bonus = |p(s') - f(s')|²,  f random and fixed

Differences from the paper: bonuses are added to rewards, so one value sums both and ends with the episode.
They are divided by the root mean square of all bonuses so far, not by the deviation of their returns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import BonusLoss, LossResult
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Composite, Space, Spaces, describe, leaves
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Bonus
from rlrun.nn import MLP, Encoder
from rlrun.nn.mlp import Activation, Initializer, outputs_of, zeros


class Distillation(nn.Module):
    """A fixed random network, and one that learns to predict it.

    Args:
        spaces: of the environment.
        hidden: widths of the random network's layers.
        further: widths of further layers of the predictor.
        features: number of outputs.
        frames: newest frames of a stacked image [frames, H, W] that are used; None = the whole stack.
        activation, init: of the layers, as `MLP` takes them.
        encoder: any frozen module from observations to features [..., F], the input of both networks.
        random, predictor: any modules in place of the two networks.

    Raises:
        SpaceError: no part of the observation is such a stack.
        ConfigError: the two networks have different numbers of outputs.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (128,),
        further: Sequence[int] = (128,),
        features: int = 64,
        frames: int | None = None,
        activation: Activation = "relu",
        init: str | Initializer = "orthogonal",
        encoder: nn.Module | None = None,
        random: nn.Module | None = None,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.space, self.frames = spaces.observation, frames
        space = self.space if frames is None else _newest_of_space(self.space, frames)
        if frames is not None and not any(_is_stack(leaf, frames) for _, leaf in leaves(self.space)):
            raise SpaceError(
                f"intrinsic.rnd.frames: no part of the observation is a stack of more than {frames} frames [T, H, W]: "
                f"{describe(self.space)}"
            )

        inputs: Any = zeros(space) if encoder is None else torch.zeros(2, outputs_of(encoder, zeros(space)))
        self.encoder = None if encoder is None else encoder.requires_grad_(False)

        def build(widths: Sequence[int]) -> nn.Sequential:
            if encoder is not None:
                return nn.Sequential(MLP(inputs.shape[-1], features, hidden=widths, activation=activation, init=init))
            own = Encoder(space, activation=activation, init=init)
            return nn.Sequential(own, MLP(own.size, features, hidden=widths, activation=activation, init=init))

        self.random = random or build(hidden)
        self.predictor = predictor or build((*hidden, *further))
        sizes = [outputs_of(network, inputs) for network in (self.random, self.predictor)]
        if sizes[0] != sizes[1]:
            raise ConfigError(f"networks.rnd: random makes {sizes[0]} numbers and predictor {sizes[1]}")
        self.random.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> "Distillation":
        """Set the mode of the predictor; frozen networks stay in evaluation mode."""
        super().train(mode)
        for part in (self.encoder, self.random):
            if part is not None:
                part.eval()
        return self

    def error(self, observation: Tree) -> Tensor:
        """Return the squared distance of prediction and random features [...] (section 2.2)."""
        if self.frames is not None:
            observation = _newest(self.space, observation, self.frames)
        with torch.no_grad():
            observation = observation if self.encoder is None else self.encoder(observation)
            features = self.random(observation)  # [..., K]
        error: Tensor = (self.predictor(observation) - features).square().sum(-1)
        return error


def _is_stack(space: Space, frames: int) -> bool:
    return isinstance(space, Box) and space.picture is not None and frames < space.picture.frames


def _newest_of_space(space: Space, frames: int) -> Space:
    """Return the space of observations with only the newest frames of each stack."""
    if isinstance(space, Composite):
        return Composite({name: _newest_of_space(part, frames) for name, part in space.parts.items()})
    if isinstance(space, Box) and _is_stack(space, frames):
        shape = (frames, *space.shape[1:])
        return Box(shape, space.low[-frames:], space.high[-frames:], space.dtype, space.settled_layout)
    return space


def _newest(space: Space, observation: Tree, frames: int) -> Tree:
    """Return observations [...] with only the newest frames of each stack."""
    if isinstance(space, Composite):
        return {name: _newest(part, observation[name], frames) for name, part in space.parts.items()}
    if not isinstance(space, Box) or not _is_stack(space, frames):
        return observation
    return observation.narrow(-len(space.shape), space.shape[0] - frames, frames)


class Novelty(Bonus):
    """A bonus: the prediction error at the next observation."""

    network: Distillation

    def view(self, step: Batch) -> Batch:
        return {"observation": self.seen(step["next_observation"])}

    def measure(self, view: Batch) -> Tensor:
        return self.network.error(view["observation"])


class NoveltyLoss(BonusLoss):
    """The prediction error, minimized at visited observations."""

    network: Distillation

    def loss(self, rnd: Batch, valid: Tensor | None = None) -> LossResult:
        return self.counted(self.network.error(rnd["observation"]), valid, bonus=rnd["bonus"])
