"""Symmetry by an adversary (as Emote's `action_symmetry`): right and left should act alike.

A discriminator D learns to separate right halves of actions, a_r, from left ones, a_l; the policy is rewarded for
confusing it:

    L = (D(a_r) - 1)² + (D(a_l) + 1)² + w |∂D(a_r)/∂a_r|²
    r = [1 - ¼ (D(a_l) - 1)²] + [1 - ¼ (D(a_r) + 1)²],  D between -1 and 1

It equates the distributions of both halves over all actions of a batch, independent of observations. So it needs no
mirror image of observations, and a policy that uses both halves equally often in different states gains nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.algorithms.imitation.discriminator import gradient_penalty, least_squares, style_reward
from rlrun.callbacks.losses.loss import BonusLoss, LossResult, Optimizer
from rlrun.core.errors import ConfigError, require_number
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Bonus
from rlrun.nn import MLP, ActionCodec, Mirror
from rlrun.nn.mlp import outputs_of

Half = Callable[[Tree], Tensor]  # of actions: [..., F]


class Sides(nn.Module):
    """A score of halves of actions: [..., F] -> [...], high for right ones.

    By default the right half has one number of each pair that the mirror exchanges, and the numbers that it negates;
    the left half has the same numbers of the mirrored action.

    Args:
        spaces: of the environment.
        mirror: of its actions.
        right, left: functions from actions to halves; None = the default halves.
        hidden: widths of the layers.
        layers: any module from halves to scores [..., 1], in place of the layers.

    Raises:
        ConfigError: only one half has a function, the two have different sizes, or the layers return several scores.
    """

    def __init__(
        self,
        spaces: Spaces,
        mirror: Mirror,
        *,
        right: Half | None = None,
        left: Half | None = None,
        hidden: Sequence[int] = (64, 64),
        layers: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.codec, self.mirror = ActionCodec(spaces), mirror
        if (right is None) != (left is None):
            raise ConfigError("intrinsic.sides: give functions of both halves, right and left, or neither")
        self.places = self._half() if right is None else []
        self.right, self.left = right or self._numbers, left or self._mirrored
        with torch.no_grad():
            action = self.codec.from_rows(torch.zeros(2, self.codec.continuous + len(self.codec.branches)))
            shapes = [[*part(action).shape] for part in (self.right, self.left)]
        if shapes[0] != shapes[1] or len(shapes[0]) != 2:
            raise ConfigError(f"intrinsic.sides: wanted halves [2, F] of two actions, got {shapes[0]} and {shapes[1]}")
        self.layers = layers or MLP(shapes[0][1], 1, hidden=hidden)
        if (scores := outputs_of(self.layers, torch.zeros(2, shapes[0][1]), place="layers")) != 1:
            raise ConfigError(f"layers: wanted one score of a half, got {scores} numbers")

    def forward(self, half: Tensor) -> Tensor:
        score: Tensor = self.layers(half)
        return score.squeeze(-1)

    def _numbers(self, action: Tree) -> Tensor:
        c = self.codec.split(action)[0]
        assert c is not None
        return c[..., self.places]

    def _mirrored(self, action: Tree) -> Tensor:
        return self._numbers(self.mirror.action(action))

    @torch.no_grad()
    def _half(self) -> list[int]:
        """Return one number of each pair, and the numbers that are negated."""
        size = self.codec.continuous
        image = self.mirror.numbers(self.codec, torch.eye(size)) if size else torch.empty(0, 0)
        partners = image.abs().argmax(-1).tolist() if size else []
        half = [i for i, partner in enumerate(partners) if i < partner or (i == partner and image[i, i] < 0)]
        if not half or not image.abs().sum(-1).eq(1.0).all():
            raise ConfigError(
                "intrinsic.sides: symmetry.action exchanges no numbers of the action; intrinsic.sides.right and .left "
                "may name functions from actions to halves [..., F]"
            )
        return half


class Confusion(Bonus):
    """A reward for actions whose halves look like each other's."""

    network: Sides
    requires = ("action",)

    def view(self, step: Batch) -> Batch:
        return {"right": self.network.right(step["action"]), "left": self.network.left(step["action"])}

    def measure(self, view: Batch) -> Tensor:
        right, left = (self.network(view[side]).clamp(-1.0, 1.0) for side in ("right", "left"))
        return style_reward(left, floor=False) + style_reward(-right, floor=False)


class SidesLoss(BonusLoss):
    """Train the discriminator of halves by least squares, with a gradient penalty on right ones.

    Args:
        network: the discriminator.
        optimizer: of its parameters.
        grad_loss_weight: w.
        options: of `LossCallback`.
    """

    network: Sides

    def __init__(
        self, network: Sides, optimizer: Optimizer | None, *, grad_loss_weight: float = 0.0, **options: Any
    ) -> None:
        require_number("grad_loss_weight", grad_loss_weight, 0.0)
        super().__init__(network, optimizer, **options)
        self.grad_loss_weight = grad_loss_weight

    def loss(self, sides: Batch, valid: Tensor | None = None) -> LossResult:
        with torch.enable_grad():  # also where the loss is only evaluated
            half = sides["right"].detach().requires_grad_()
            right = self.network(half)
            penalty = gradient_penalty(right, half) if self.grad_loss_weight else torch.zeros_like(right)
        left = self.network(sides["left"])
        losses = least_squares(right, left)
        accuracy = ((right.detach() > 0.0).float() + (left.detach() < 0.0).float()) / 2.0
        loss = losses[0] + losses[1] + self.grad_loss_weight * penalty
        return self.counted(loss, valid, bonus=sides["bonus"], accuracy=accuracy)
