"""Actions that go on by themselves."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlrun.core.errors import SpaceError, require_one_of
from rlrun.core.spaces import Spaces, describe
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.policy import require_bounded

Form = Literal["zero", "linear", "quadratic"]
FORMS = ("zero", "linear", "quadratic")


class Trajectories:
    """How an action goes on by itself: rows of its numbers, their change, and the change of that.

    The state of an environment is such a row. Its last number is how often the trajectory was repeated, 0 at its
    first step.

    Args:
        spaces: of the environment.
        form: what is constant: zero = the action, linear = its change, quadratic = the change of that.
        inverse: whether what is chosen is the action that a trajectory comes to; otherwise it is what is constant.

    Raises:
        SpaceError: part of the action is a choice, or has no bounds.
        ConfigError: there is no such form.
    """

    def __init__(self, spaces: Spaces, form: Form, *, inverse: bool = True) -> None:
        require_one_of("algorithm.trajectory", form, FORMS)
        self.codec = ActionCodec(spaces)
        if self.codec.discrete:
            raise SpaceError(f"trajectories are of actions that are numbers; here {describe(spaces.action)}")
        require_bounded(spaces.action, "a trajectory")
        self.order = FORMS.index(form)
        self.inverse = inverse
        self.size = (self.order + 1) * self.codec.continuous
        self.state_size = self.size + 1

    def advance(self, trajectory: Tensor) -> Tensor:
        """Return trajectories [..., size] one step further."""
        *rest, last = trajectory.chunk(self.order + 1, -1)
        parts = [last]
        for part in reversed(rest):
            parts.append((part + 2.0 * parts[-1]).clamp(-1.0, 1.0))
        return torch.cat(parts[::-1], -1)

    def towards(self, trajectory: Tensor, c: Tensor) -> Tensor:
        """Return the trajectories [..., size] that begin where others are, by what was chosen, c [..., A].

        They come to the actions c; or, where that is not asked back from actions, c is what is constant from now on,
        changes of lower order begin at 0, and the first step is made.
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
        """Return the actions c [..., A] that trajectories are at."""
        return trajectory[..., : self.codec.continuous]

    def choose(self, state: Tensor, current: Tensor, new: Tensor, switch: Tensor) -> tuple[Tree, Tensor]:
        """Return the actions and the state [N, S] after them: of new trajectories where envs switch [N]."""
        repeats = torch.where(switch, 0.0, state[..., -1] + 1.0)
        trajectory = torch.where(switch.unsqueeze(-1), new, current)
        action = self.codec.join(self.numbers(trajectory), None)
        return action, torch.cat((trajectory, repeats.unsqueeze(-1)), -1)

    def follow(self, state: Tensor, action: Tree, switch: Tensor) -> tuple[Tree, Tensor]:
        """Return what is done, and the state after it, where envs switch [N] to an action or go on as before."""
        c, _ = self.codec.split(action)
        assert c is not None
        before = state[..., :-1]
        return self.choose(state, self.advance(before), self.towards(before, c), switch)
