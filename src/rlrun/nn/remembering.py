"""What networks that act have in common where they are recurrent."""

from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.typing import Tree
from rlrun.nn.encoders import Trunk
from rlrun.nn.recurrent import with_state_after


class Remembering(nn.Module):
    """The base of networks that act by `act`, and may be recurrent: then they also `advance` a state.

    The state [B, state_size] is that of its recurrent encoders side by side: its own, then that of its critics.
    """

    _borrowed: tuple[Any, ...] = ()  # networks in a tuple, as their parameters are not this network's

    def keep_state_of(self, critics: nn.Module) -> None:
        """Keep the state of critics that learn with this network, too; a second call for the same does nothing."""
        if not any(critics is lent for lent in self._borrowed):
            self._borrowed = (*self._borrowed, critics)

    def parts(self) -> tuple[Any, ...]:
        """Return the networks that may have an `encoder`: this one, then its critics."""
        return (self, *self._borrowed)

    def encoders(self) -> list[Trunk]:
        """Return the recurrent encoders."""
        encoders = [getattr(part, "encoder", None) for part in self.parts()]
        return [encoder for encoder in encoders if isinstance(encoder, Trunk) and encoder.state_size]

    @property
    def state_size(self) -> int:
        """Size of the recurrent state of an environment; 0 where there is none."""
        return sum(part.state_size for part in self.encoders())

    def initial_state(self, count: int) -> Tensor:
        """Return the state [count, state_size] of episodes that begin."""
        parameter = next(self.encoders()[0].parameters())
        return parameter.new_zeros(count, self.state_size)

    def after(self, observation: Tree, state: Tensor) -> Tensor:
        """Return the state [B, S] after observations from that before them."""
        encoders = self.encoders()
        whole: Any = state
        parts = whole.split([part.state_size for part in encoders], -1)
        return torch.cat(
            [encoder.step(observation, part)[1] for encoder, part in zip(encoders, parts, strict=True)], -1
        )

    def advance(self, observation: Tree, state: Tensor, explore: bool = True) -> tuple[Tree, Tensor]:
        """Return an action, and the state [B, S] after the observations from that before them."""
        act: Any = self.act
        after = self.after(observation, state)
        return act(with_state_after(observation, after), explore), after
