"""Samplers that choose an episode first, and then a window of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlrun.core.errors import require_at_least
from rlrun.core.generators import Seeded
from rlrun.core.typing import Array
from rlrun.memory.table.index import EpisodeIndex, grown
from rlrun.memory.table.samplers import Rows, Sampler

ABSENT = -1


class CountedSampling(Seeded):
    """The base of strategies that count how many windows of each episode were sampled.

    The surplus of an episode is how many more of its windows were sampled than of the least sampled episode.
    Absolute counts would matter less and less during training.

    Args:
        alpha: power of 1 + surplus; 0 = all surpluses count the same.
        seed: of the draws.
    """

    index: EpisodeIndex

    def __init__(self, *, alpha: float = 0.5, seed: int = 0) -> None:
        require_at_least("alpha", alpha, 0)
        super().__init__(seed=seed)
        self.alpha = alpha
        self.visits = np.zeros(0, np.int64)  # sampled windows, by number of the episode

    def count(self, episodes: Array) -> None:
        """Count one window for each entry of `episodes` [n]."""
        self._grow()
        np.add.at(self.visits, episodes, 1)

    def forget(self, episodes: Array) -> None:
        self._grow()
        self.visits[episodes] = 0

    def surplus(self, episodes: Array) -> Array:
        """Return the surplus of each of these episodes [n]."""
        self._grow()
        visits: Array = self.visits[episodes]
        visits -= visits.min(initial=np.iinfo(np.int64).max)
        return visits

    def _grow(self) -> None:
        self.visits = grown(self.visits, len(self.index.lane))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"visits": {"times": torch.from_numpy(self.visits.copy())}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.visits = state["visits"]["times"].numpy().copy()


class Coverage(CountedSampling, Sampler):
    """Windows of rarely sampled episodes are more likely: they have the weight 1 / (1 + surplus) ** alpha."""

    def pick(self, count: int, length: int) -> Rows:
        index, windows = self.index, self.index.windows(length)
        present = np.flatnonzero(windows)
        if not len(present):
            raise self.none(count, length)
        weight = windows[present] * (1.0 + self.surplus(present)) ** -self.alpha
        passed = weight.cumsum()
        episode = present[np.searchsorted(passed, self.generator.random(count) * passed[-1], side="right")]
        self.count(episode)
        number = (self.generator.random(count) * windows[episode]).astype(np.int64)
        return self.rows(index.window(episode, number), length)


class Sequential(Seeded, Sampler):
    """Serves the episodes in order, the oldest first, then again from the beginning.

    A new episode becomes the last one when it ends, or when it first has a window.

    Args:
        per_episode: a pass serves one window of each episode. False: it serves all windows of an episode, without
            overlap, before those of the next episode.
        random_offset: windows begin at a random step of the episode. With `per_episode` False, a random number of
            steps shifts the whole pass. False: the first pass begins with the oldest rows. With `per_episode`, the
            next pass continues after them.
        seed: of the offsets.
    """

    renewed = ("generator", "cursor")

    def __init__(self, *, per_episode: bool = True, random_offset: bool = True, seed: int = 0) -> None:
        super().__init__(seed)
        self.per_episode = per_episode
        self.random_offset = random_offset
        self.place = np.empty(0, np.int64)  # in the queue, by episode number
        self.arrived = 0
        self.served = ABSENT  # place of the episode served last
        self.step = 0  # its first step after the window served last
        self.passes = 0
        self.shift = self._shift()

    def track(self, episodes: Array) -> None:
        self.place = grown(self.place, len(self.index.lane), ABSENT)
        fresh = episodes[self.place[episodes] == ABSENT]
        self.place[fresh] = self.arrived + np.arange(len(fresh))
        self.arrived += len(fresh)

    def forget(self, episodes: Array) -> None:
        self.place = grown(self.place, len(self.index.lane), ABSENT)
        self.place[episodes] = ABSENT

    def pick(self, count: int, length: int) -> Rows:
        present = np.flatnonzero(self.index.windows(length))
        if not len(present):
            raise self.none(count, length)
        self.track(present)
        queue = present[np.argsort(self.place[present], kind="stable")]  # in the order of their arrival
        serve = self._one_each if self.per_episode else self._walk
        starts = [serve(queue, count, length)]
        while missing := count - sum(map(len, starts)):
            starts.append(serve(queue, missing, length))
        return self.rows(np.concatenate(starts), length)

    def _one_each(self, queue: Array, count: int, length: int) -> Array:
        """Return the starts of the next `count` windows, each of the next episode."""
        windows = self.index.windows(length)[queue]
        turn = np.searchsorted(self.place[queue], self.served, side="right") + np.arange(count)
        chosen = turn % len(queue)
        if self.random_offset:
            number = (self.generator.random(count) * windows[chosen]).astype(np.int64)
        else:
            parts = (windows - 1) // length + 1
            number = (self.passes + turn // len(queue)) % parts[chosen] * length
        if count:
            self.passes += int(turn[-1]) // len(queue)
            self.served = int(self.place[queue[chosen[-1]]])
        return self.index.window(queue[chosen], number)

    def _walk(self, queue: Array, count: int, length: int) -> Array:
        """Return the starts of the next windows of this pass, at most `count`."""
        oldest = self.index.oldest()[queue]
        last = oldest + self.index.windows(length)[queue] - 1
        first = np.minimum(oldest + (self.shift - oldest) % length, last)  # windows begin at shift, shift + length, …
        parts = (last - first) // length + 1
        passed = parts.cumsum()
        at = int(np.searchsorted(self.place[queue], self.served))
        position = int(passed[at] - parts[at]) if at < len(queue) else int(passed[-1])
        if at < len(queue) and self.place[queue[at]] == self.served:  # it is still there
            position += min(max(-((int(first[at]) - self.step) // length), 0), int(parts[at]))
        if position == passed[-1]:
            self.served, self.shift = ABSENT, self._shift()
            return self._walk(queue, count, length)
        number = position + np.arange(min(count, int(passed[-1]) - position))
        chosen = np.searchsorted(passed, number, side="right")
        step = first[chosen] + (number - passed[chosen] + parts[chosen]) * length
        if count:
            self.served, self.step = int(self.place[queue[chosen[-1]]]), int(step[-1]) + length
        return self.index.at(queue[chosen], step)

    def _shift(self) -> int:
        # a new one for each pass, so that no row is always cut off at an episode's end
        return int(self.generator.integers(1 << 31)) if self.random_offset and not self.per_episode else 0

    _cursor = ("arrived", "served", "step", "passes", "shift")

    def state_dict(self) -> dict[str, Any]:
        cursor = {name: getattr(self, name) for name in self._cursor}
        return super().state_dict() | {"place": torch.from_numpy(self.place.copy()), "cursor": cursor}

    def forked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        forked = super().forked(state)
        return forked | {"cursor": {**forked["cursor"], "arrived": state["cursor"]["arrived"]}}  # places are below it

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.place = state["place"].numpy().copy()
        for name in self._cursor:
            setattr(self, name, state["cursor"][name])


class Stratified(Seeded, Sampler):
    """Draws equally many windows of each env, spread evenly over its windows.

    If the count is not a multiple of the envs, random envs give one window more. An env that gives n windows gives one
    from each n-th of its windows, so all of them are equally likely. Envs without a window are left out.
    """

    def pick(self, count: int, length: int) -> Rows:
        index, windows = self.index, self.index.windows(length)
        present = np.flatnonzero(windows)
        if not len(present):
            raise self.none(count, length)
        # episodes env by env; the windows of an env are numbers that follow one another
        envs = index.lane[present]
        order = present[np.argsort(envs, kind="stable")]
        behind = windows[order].cumsum()
        total = np.bincount(envs, windows[present], index.num_envs).astype(np.int64)
        giving = np.flatnonzero(total)
        shares = np.full(len(giving), count // len(giving))
        shares[self.generator.permutation(len(giving))[: count % len(giving)]] += 1
        env_index = np.repeat(giving, shares)
        within = np.arange(count) - np.repeat(shares.cumsum() - shares, shares)
        part = (within + self.generator.random(count)) / np.repeat(shares, shares)  # how far through the env's windows
        part = np.minimum(part, np.nextafter(1.0, 0.0))
        number = (total.cumsum() - total)[env_index] + (part * total[env_index]).astype(np.int64)
        chosen = np.searchsorted(behind, number, side="right")
        episode = order[chosen]
        return self.rows(index.window(episode, number - behind[chosen] + windows[episode]), length)
