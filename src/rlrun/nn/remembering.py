"""The base of policies that may be recurrent."""

from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.typing import Tree
from rlrun.nn.encoders import Trunk
from rlrun.nn.recurrent import FEATURES, StatefulEncoder, with_state


class Remembering(nn.Module):
    """The base of networks that act by `act`, and may be recurrent: then they also `advance` a state.

    The state [B, state_size] is that of its recurrent encoders side by side: its own, then that of its critics.
    """

    _borrowed: tuple[Any, ...] = ()  # networks in a tuple, as their parameters are not this network's

    def keep_state_of(self, critics: nn.Module) -> None:
        """Keep the state of critics that learn with this network, if they have one; a second call does nothing."""
        stateful = getattr(getattr(critics, "encoder", None), "state_size", 0)
        if stateful and not any(critics is lent for lent in self._borrowed):
            self._borrowed = (*self._borrowed, critics)

    def parts(self) -> tuple[Any, ...]:
        """Return the networks that may have an `encoder`: this one, then its critics."""
        return (self, *self._borrowed)

    def encoders(self) -> list[Any]:
        """Return the encoders with a state; one that is shared counts once, with the network that trains it."""
        encoders = [getattr(part, "encoder", None) for part in self.parts()]
        return [part for part in encoders if isinstance(part, Trunk | StatefulEncoder) and part.state_size]

    @property
    def state_size(self) -> int:
        """Size of the recurrent state of an environment; 0 where there is none."""
        return sum(part.state_size for part in self.encoders())

    def initial_state(self, count: int) -> Tensor:
        """Return the state [count, state_size] of episodes that begin."""
        parameter = next(parameter for part in self.parts() if part is not None for parameter in part.parameters())
        return parameter.new_zeros(count, self.state_size)  # type: ignore[no-any-return]

    def stepped(self, observation: Tree, state: Tensor) -> tuple[Tree, Tensor]:
        """Return observations [B, …] with the features of their encoders, and the state [B, S] after them."""
        encoders = self.encoders()
        whole: Any = state
        parts = whole.split([part.state_size for part in encoders], -1)
        steps = [encoder.step(observation, part) for encoder, part in zip(encoders, parts, strict=True)]
        after = torch.cat([own for _, own in steps], -1)
        return with_state(observation, after) | {FEATURES: tuple(features for features, _ in steps)}, after

    def after(self, observation: Tree, state: Tensor) -> Tensor:
        """Return the state [B, S] after observations, from the one before; unchanged for a network without a state."""
        return self.stepped(observation, state)[1] if self.state_size else state

    def advance(self, observation: Tree, state: Tensor, explore: bool = True) -> tuple[Tree, Tensor]:
        """Return an action and the state [B, S] after the observations, from the one before them."""
        act: Any = self.act
        seen, after = self.stepped(observation, state)
        return act(seen, explore), after
