"""Actions that one policy proposes and another one edits."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from rlrun.core.spaces import Box, Composite, Spaces, require_continuous
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.policy import SquashedGaussian


class Editor(nn.Module):
    """What is added to a proposed action; called, it gives Δ [B, A] and its log_prob [B].

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
    """Return actions [..., A] with what the editor adds; whatever was proposed, every action can be come to."""
    return (c + 2.0 * edit).clamp(-1.0, 1.0)


class EditedPolicy(nn.Module):
    """Acts by what one policy proposes and another one edits; both are networks of their own.

    Args:
        utility: who proposes c [B, A].
        editor: who edits it.
    """

    def __init__(self, utility: SquashedGaussian, editor: Editor) -> None:
        super().__init__()
        self._borrowed = (utility, editor)  # in a tuple: their parameters are not this network's

    @property
    def utility(self) -> SquashedGaussian:
        """Who proposes."""
        return self._borrowed[0]

    @property
    def editor(self) -> Editor:
        """Who edits."""
        return self._borrowed[1]

    def train(self, mode: bool = True) -> EditedPolicy:
        """Set the mode of both."""
        for network in self._borrowed:
            network.train(mode)
        return super().train(mode)

    def forward(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Draw a proposal and what becomes of it, both [B, A]."""
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
