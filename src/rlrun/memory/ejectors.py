"""Which episodes leave a table."""

from __future__ import annotations

from typing import Protocol

from rlrun.memory.index import EpisodeIndex
from rlrun.typing import Array


class Ejector(Protocol):
    """Decides which closed episodes are dropped.

    The rings overwrite the oldest rows of a lane in any case. Whenever the table runs out of
    episode numbers it asks `pick` (once for many episodes, never once a step), drops what is
    picked and has the sampler forget it. An ejector may pick episodes that are not overwritten
    yet: they are no longer sampled, and the ring passes over their slots later. It must pick all
    that are.
    """

    def bind(self, index: EpisodeIndex) -> None:
        """Meet the index; called once, by the table."""

    def pick(self, count: int) -> Array:
        """Return closed episodes to drop; `count` are about to be opened."""


class Fifo:
    """First in, first out: an episode goes once the ring has overwritten all of it."""

    def bind(self, index: EpisodeIndex) -> None:
        self.index = index

    def pick(self, count: int) -> Array:
        return self.index.overwritten()
