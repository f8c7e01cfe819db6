"""The steps after each row and the results of their searches, from which planning networks learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlrun.core.errors import ConfigError, RlrunError, require_whole, shown
from rlrun.core.generators import Seeded
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors.adaptor import AHEAD
from rlrun.memory.table.index import CLOSED
from rlrun.memory.table.samplers import Rows


class Trajectory(Seeded):
    """Adds `trajectory` and `later`: results of searches, and actions and rewards, of each row and the steps after it.

    Position k is that of the observation k steps after a row's. `end` [B] is the last known position: where the episode
    ends, the newest row of an open episode, or the last position that is used. Entries after it repeat those of `end`.
    `trajectory` has these entries; for windows T is a second dimension:

        action      [B, R, …]  that were taken
        reward      [B, L]     of the step that led to each position; 0 at the start of an episode, or if it is gone
        terminated  [B, L]     whether that step ended the episode
        value       [B, L]     of the search there
        policy      [B, R + 1, A]
        candidates  [B, R + 1, A, W]   actions of these probabilities, if searches had candidates
        end         [B]
        closed      [B]        whether the episode is over at `end`, so that there was no search
        age         [B]        of the row, from 0 to 1: the share of all steps so far that came after it

    L is R + 1 plus the steps of the return; for whole episodes the longest one's.

    `later` [B, …] has requested observations one after another: those of positions 1 to R (`compared`); those behind
    the returns of positions 0 to R (`fresh`); those of all L positions (`searched`); that of `end`. Adaptors of
    observations change them, too.

    Args:
        steps: R.
        td_steps: rewards of a return; several numbers: of the first ones, and of others for some rows; -1 = all of an
            episode.
        random_beyond: actions after `end` are those of other rows of the batch; otherwise the last one is repeated.
        seed: of these actions.
        compared, fresh, searched: whether these observations are requested; weights and shares above 0 count as yes.
        candidates: whether searches had candidates.
        value, policy: columns of the search's results; None = there was no search, and entries are 0.
        actions: A, if there is no such column.

    Raises:
        ConfigError: a number is out of range.
    """

    tier = AHEAD
    provides = ("trajectory", "later")
    removes = replaces = ()

    def __init__(
        self,
        *,
        steps: int,
        td_steps: int | Sequence[int],
        compared: float = 0.0,
        fresh: bool = False,
        searched: float = 0.0,
        random_beyond: bool = False,
        seed: int = 0,
        candidates: bool = False,
        value: str | None = "search_value",
        policy: str | None = "search_policy",
        actions: int = 1,
    ) -> None:
        require_whole("steps", steps, 1)
        super().__init__(np.random.SeedSequence(seed, spawn_key=tuple(b"Trajectory")))
        self.random_beyond = random_beyond
        lengths = [*td_steps] if isinstance(td_steps, Sequence) else [td_steps]
        require_return("td_steps.0" if isinstance(td_steps, Sequence) else "td_steps", lengths[0])
        for place, length in enumerate(lengths[1:], 1):
            require_whole(f"td_steps.{place}", length, 1)
        self.steps, self.value, self.policy = steps, value, policy
        self.of_searches = policy is not None
        self.compared, self.fresh, self.searched = map(bool, (compared, fresh, searched))
        self.first, self.td_steps = lengths[0], -1 if -1 in lengths else max(lengths)
        self.candidates, self.actions = ("search_candidates",) if candidates else (), actions
        stored = filter(None, (value, policy))
        self.requires = ("observation", "action", "reward", "terminated", *stored, *self.candidates)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Trajectory looks ahead in a table, and this batch is not of one")
        index, here = rows.where, rows.index
        episode, step = index.episode(here), index.step(here)
        known = index.newest(episode) - step  # positions after the row
        further = self.steps + self.td_steps if self.td_steps > 0 else max(int(known.max(initial=0)), self.steps)
        slots, stored = rows.onward(further)
        end = np.minimum(stored, further)[..., None]
        position = np.arange(further + 1)
        at = np.take_along_axis(slots, np.minimum(position, end), -1)
        led = at.copy()  # the rows of the steps that led to each position
        led[..., 1:] = np.take_along_axis(slots, np.minimum(position[:-1], np.maximum(end - 1, 0)), -1)
        led[..., 0] = index.before(here, 1)
        unknown = (step == 0) | ~index.within(np.stack([led[..., 0], here], -1), np.arange(2))[..., 0]
        led[..., 0][unknown] = here[unknown]
        acted = led[..., 1 : self.steps + 1]
        if self.random_beyond:
            beyond = position[1 : self.steps + 1] > end
            others = self.generator.integers(here.size, size=acted.shape)
            acted = np.where(beyond, here.reshape(-1)[others], acted)
        reward, terminated = rows.gather("reward", led), rows.gather("terminated", led)
        reward[..., 0][torch.from_numpy(unknown)] = 0.0
        terminated[..., 0] = False
        closed = (index.status[episode] == CLOSED) & (known <= further)
        written = index.written[index.env_of(here)]
        trajectory = {
            "action": rows.gather("action", acted),
            "reward": reward,
            "terminated": terminated,
            "value": torch.zeros(at.shape) if self.value is None else rows.gather(self.value, at),
            "policy": self._policies(rows, at[..., : self.steps + 1]),
            "end": torch.from_numpy(end[..., 0]),
            "closed": torch.from_numpy(closed),
            "age": torch.from_numpy((index.age(here) / np.maximum(written, 1)).astype(np.float32)),
        }
        if self.candidates:
            trajectory["candidates"] = rows.gather(self.candidates[0], at[..., : self.steps + 1])
        return batch | {"trajectory": trajectory, "later": rows.gather("observation", self._seen(at, end))}

    def _policies(self, rows: Rows, at: Array) -> Tree:
        """Return the policies [..., A] at slots [...]."""
        return torch.zeros((*at.shape, self.actions)) if self.policy is None else rows.gather(self.policy, at)

    def _seen(self, at: Array, end: Array) -> Array:
        """Return the slots of the requested observations, from slots [..., L] and their last position [..., 1]."""
        positions = [*range(1, self.steps + 1)] if self.compared else []
        if self.fresh and self.first > 0:
            positions += range(self.first, self.first + self.steps + 1)
        positions += range(at.shape[-1]) if self.searched else ()
        return np.concatenate([at[..., positions], np.take_along_axis(at, end, -1)], -1)


def require_return(name: str, steps: Any) -> None:
    """Raise a ConfigError unless a length of returns is a whole number from 1, or -1 for a whole episode."""
    if steps != -1 and not (isinstance(steps, int) and steps >= 1):
        raise ConfigError(f"{name}: wanted a whole number from 1, or -1, got {shown(steps)}")
