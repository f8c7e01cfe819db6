"""What follows each row up to the end of its episode: what networks that plan learn from."""

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
    """Adds `trajectory` and `later`: what a search found and the environment gave, at each row and the steps after it.

    Position k is that of the observation k steps after a row's. `end` [B] is the last one that is known: where the
    episode ends, the newest row of an open episode, or the last one that is looked at. Behind it the numbers of `end`
    are repeated. `trajectory` has, of windows with T as a second dimension:

        action      [B, R, …]  that were taken
        reward      [B, L]     of the step that led to each position; 0 where an episode begins, or the step is gone
        terminated  [B, L]     whether that step ended the episode
        value       [B, L]     of the search there
        policy      [B, R + 1, A]
        candidates  [B, R + 1, A, W]   whose probabilities these are, if searches had any
        end         [B]
        closed      [B]        whether the episode is over at `end`, so that nothing was searched there
        age         [B]        of the row, from 0 to 1: the share of all steps so far that came after it

    L is R + 1 and the steps of the return; with those of whole episodes it is that of the longest one.

    `later` [B, …] has observations that are asked for, one behind the other: those of positions 1 to R (`compared`);
    those behind the returns of positions 0 to R (`fresh`); those of all L positions (`searched`); that of `end`. What
    changes observations changes them, too.

    Args:
        steps: R.
        td_steps: rewards of a return, and of others that are taken of some rows; -1 = all of an episode.
        random_beyond: actions behind `end` are those of other rows of the batch; otherwise the last one is repeated.
        seed: of these.
        compared, fresh, searched: whether these observations are asked for; weights and shares above 0 count as yes.
        candidates: whether searches had candidates.
        value, policy: columns of what the search found; None = nothing was searched, and zeros stand there.
        actions: A, where there is no such column.

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
            raise RlrunError("memory.adaptors: Trajectory looks ahead in a table, and this batch comes from none")
        index, here = rows.where, rows.index
        episode, step = index.episode(here), index.step(here)
        known = index.newest(episode) - step  # positions behind the row
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
        """Return the slots that are looked at for observations, of slots [..., L] and their last position [..., 1]."""
        places = [*range(1, self.steps + 1)] if self.compared else []
        if self.fresh and self.first > 0:
            places += range(self.first, self.first + self.steps + 1)
        places += range(at.shape[-1]) if self.searched else ()
        return np.concatenate([at[..., places], np.take_along_axis(at, end, -1)], -1)


def require_return(name: str, steps: Any) -> None:
    """Refuse a length of returns that is no whole number from 1, nor -1 for a whole episode, with a ConfigError."""
    if steps != -1 and not (isinstance(steps, int) and steps >= 1):
        raise ConfigError(f"{name}: wanted a whole number from 1, or -1, got {shown(steps)}")
