"""Random scripts played to a table and to plain lists: both hold, and serve, the same."""

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import RlrunError
from rlrun.memory import Fifo, Sample, Table
from rlrun.memory.table.index import EMPTY
from rlrun.memory.table.pool import PoolIndex

from .tables import EJECTORS, SAMPLERS

COLUMNS = {"observation": "int64", "reward": "int64", "terminated": "bool", "truncated": "bool"}
LENGTHS = (1, 2, 3, 5)
SCRIPTS = 9  # for each pair
ACTS = {"add": 24, "add_episode": 2, "sample": 8, "feedback": 3, "resize": 1, "store": 0.5, "reload": 1, "clear": 0.3}
SOME_WINDOWS_ONLY = ("sequential in order", "sequential windows", "sequential windows in order")


class Episode:
    """Everything that ever happened in one episode, and how much of it is lost."""

    def __init__(self, env_index: int) -> None:
        self.env_index = env_index
        self.observations: list[int] = []  # one more than there are rows once it is over
        self.flags: list[tuple[bool, bool]] = []  # terminated, truncated
        self.lost = 0
        self.over = False
        self.kind = 0

    @property
    def held(self) -> int:
        return len(self.observations) - self.lost


class Model:
    """The table in plain lists. Whole episodes leave when the ejector says so, rows when their env's ring is full."""

    def __init__(self, num_envs: int, length: int, *, whole: bool, min_length: int, frames: int) -> None:
        self.num_envs, self.whole, self.min_length, self.frames = num_envs, whole, min_length, frames
        self.resize(length)
        self.episodes: list[Episode] = []  # those that can still be seen, and open ones
        self.envs: list[list[Episode]] = [[] for _ in range(num_envs)]  # the episode of each slot of a ring, in turn
        self.open = [self._begin(env_index) for env_index in range(num_envs)]
        self.where: dict[int, tuple[Episode, int]] = {}  # observation -> its episode and step
        self.too_short = 0

    def resize(self, length: int) -> None:
        self.size = length + self.num_envs if self.whole else length // self.num_envs + 1

    def _begin(self, env_index: int) -> Episode:
        self.episodes.append(Episode(env_index))
        return self.episodes[-1]

    def free(self) -> int:
        return self.size - sum(episode.held for episode in self.episodes)

    def write(self, env_index: int, observation: int, flags: tuple[bool, bool] | None) -> None:
        """Store a row, or (without flags) a last observation."""
        episode = self.open[env_index]
        self.where[observation] = episode, len(episode.observations)
        episode.observations.append(observation)
        if flags is not None:
            episode.flags.append(flags)
        if self.whole:
            assert self.free() >= 0
            return
        self.envs[env_index].append(episode)
        if len(self.envs[env_index]) > self.size:
            self.envs[env_index].pop(0).lost += 1

    def end(self, env_index: int, observation: int, kind: int) -> None:
        self.write(env_index, observation, None)
        episode = self.open[env_index]
        episode.over, episode.kind = True, kind
        if len(episode.flags) < self.min_length:
            self.too_short += 1
            self.episodes.remove(episode)
        self.open[env_index] = self._begin(env_index)

    def clear(self) -> None:
        self.episodes = []
        self.envs = [[] for _ in range(self.num_envs)]
        self.open = [self._begin(env_index) for env_index in range(self.num_envs)]

    def visible(self) -> list[tuple[Episode, int, int]]:
        """Return the episodes that can be sampled, with the first step that may be served and the newest one."""
        spans = []
        for episode in self.episodes:
            first = episode.lost + (self.frames - 1 if episode.lost else 0)
            newest = len(episode.observations) - 1
            if len(episode.flags) >= self.min_length and newest > first:
                spans.append((episode, first, newest))
        return spans

    def windows(self, length: int) -> list[tuple[int, ...]]:
        """Return every window by its observations, the one after it included."""
        return [
            tuple(episode.observations[step : step + length + 1])
            for episode, first, newest in self.visible()
            for step in range(first, newest - length + 1)
        ]

    def stack(self, episode: Episode, step: int) -> list[int]:
        """Return the frames of an observation as the environment gave it."""
        return [episode.observations[max(0, at)] for at in range(step - self.frames + 1, step + 1)]

    def lose_front(self, count: int, numbers: list[int]) -> None:
        """Lose the oldest rows of the longest open episodes; numbers: of each env, to decide between equals."""
        while count > 0:
            longest = max(self.open, key=lambda episode: (episode.held, -numbers[episode.env_index]))
            lost = min(count, longest.held - 1)
            longest.lost += lost
            count -= lost


def starts(table: Table, length: int) -> Any:
    """Return the first slot of every window."""
    windows = table.index.windows(length)
    number = np.repeat(np.arange(len(windows)), windows)
    return table.index.window(number, np.arange(len(number)) - (windows.cumsum() - windows)[number])


class Player:
    """Plays one random script to a table and a model, and compares them."""

    def __init__(self, sampler: str, ejector: str, seed: int, folder: Path) -> None:
        self.rng = np.random.default_rng(seed)
        self.folder, self.sampler, self.ejector = folder, sampler, ejector
        pick = self.rng.choice
        num_envs, self.frames, min_length = (int(pick(values)) for values in ([1, 2, 3], [1, 1, 3], [1, 1, 3]))
        self.short = str(pick(["skip", "skip", "pad"]))
        self.length = num_envs * int(self.rng.integers(6, 20))
        end = float(pick([0.02, 0.1, 0.25, 0.6]))
        self.ends = [0.4 * end, 0.4 * end, 0.2 * end, 1 - end]
        self.options = {"num_envs": num_envs, "min_length": min_length, "frame_stack": self.frames, "short": self.short}
        self.options |= {"storage": str(pick(["ram", "ram", "disk"])), "directory": str(folder)}
        self.model = Model(
            num_envs, self.length, whole=ejector != "fifo by rows", min_length=min_length, frames=self.frames
        )
        self.count = itertools.count(1)
        self.wanted: int | None = 0  # slots of the call that is being made
        self.ahead: list[tuple[int, tuple[bool, bool]]] = []  # rows of a whole episode on their way
        self.env_index = 0  # where they go
        self.samples: list[tuple[Sample, object, Any]] = []  # with the era of the table and the rows' observations
        self.table = self.make(seed)
        self.listen(self.table)

    def make(self, seed: int) -> Table:
        sampler, ejector = SAMPLERS[self.sampler](seed), EJECTORS[self.ejector](seed)
        return Table(length=self.length, columns=self.columns(), sampler=sampler, ejector=ejector, **self.options)

    def columns(self) -> dict[str, Any]:
        columns: dict[str, Any] = {name: {"dtype": dtype} for name, dtype in COLUMNS.items()}
        columns["observation"]["shape"] = [self.frames] if self.frames > 1 else []
        return columns | {"kind": {"dtype": "int64", "tag": True}}

    def listen(self, table: Table) -> None:
        """Let the model follow what the ejector picks, and check that it is asked for no more than is needed."""
        ejector, index = table.ejector, table.index
        pick, extend = ejector.pick, index.extend

        def picked(count: int) -> Any:
            numbers = pick(count)
            newest = index.at(numbers, index.newest()[numbers])
            gone = [self.model.where[seen][0] for seen in table.storage.arrays["observation"][newest].tolist()]
            remaining = [episode for episode in self.model.episodes if episode not in gone]
            assert len(remaining) + len(set(gone)) == len(self.model.episodes)
            assert self.wanted is None or count == self.wanted - self.model.free()
            sizes = [episode.held for episode in gone]
            assert sum(sizes) >= count or not any(episode.over for episode in remaining)
            assert sum(sizes[:-1]) < count
            self.model.episodes = remaining
            assert all(episode in remaining for episode in self.model.open)
            return numbers

        def extended(env_index: int, count: int) -> Any:
            self.env_index = env_index
            for _ in range(count):
                self.model.write(env_index, *self.ahead.pop(0))
            return extend(env_index, count)

        def shortened(count: int) -> None:
            self.model.lose_front(count, index.open.tolist())
            shorten(count)

        ejector.pick, index.extend = picked, extended
        if isinstance(index, PoolIndex):
            shorten, index.shorten = index.shorten, shortened

    # -- what a script does ---------------------------------------------------------------------

    def act(self) -> None:
        """Do something at random."""
        chosen = str(self.rng.choice(list(ACTS), p=np.array([*ACTS.values()]) / sum(ACTS.values())))
        getattr(self, chosen)()
        if chosen not in ("add", "feedback"):
            self.check()

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 12))):
            self.add_once()

    def add_once(self) -> None:
        """One step of some envs or of all; some of their episodes end by it."""
        envs = np.arange(self.model.num_envs)
        if self.rng.random() < 0.3:
            envs = self.rng.permutation(envs)[: int(self.rng.integers(1, len(envs) + 1))]
        ends = self.rng.choice(["terminated", "truncated", "cut", ""], len(envs), p=self.ends)
        seen = [next(self.count) for _ in envs]
        flags = [(end == "terminated", end == "truncated") for end in ends]
        before = [self.model.open[env_index].observations for env_index in envs]
        self.wanted = len(envs)
        self.table.add(self.form(envs), self.row([[*had, obs] for had, obs in zip(before, seen, strict=True)], flags))
        for env_index, obs, flag in zip(envs, seen, flags, strict=True):
            self.model.write(env_index, obs, flag)
        if (ends != "").any():
            self.close(envs[ends != ""])

    def close(self, envs: Any) -> None:
        last, kinds = [next(self.count) for _ in envs], self.rng.integers(1, 100, len(envs))
        order = np.argsort(envs) if self.rng.random() < 0.5 else None
        chosen: Any = self.form(envs)
        if order is not None:  # a choice of bools gives the envs in their order
            envs = envs[order]
            chosen = np.isin(np.arange(self.model.num_envs), envs)
        histories = [[*self.model.open[env_index].observations, obs] for env_index, obs in zip(envs, last, strict=True)]
        self.wanted = len(envs)
        self.table.close(chosen, self.row(histories, [(False, False)] * len(last))["observation"], {"kind": kinds})
        for env_index, obs, kind in zip(envs, last, kinds.tolist(), strict=True):
            self.model.end(env_index, obs, kind)

    def form(self, envs: Any) -> Any:
        """Return envs as a number, as None for all of them, or as they are."""
        if len(envs) == 1 and self.rng.random() < 0.7:
            return int(envs[0])
        return None if np.array_equal(envs, np.arange(self.model.num_envs)) else envs

    def row(self, histories: list[list[int]], flags: list[tuple[bool, bool]]) -> dict[str, Any]:
        """Return rows whose observations are the newest of each episode so far."""
        newest = np.array([history[-1] for history in histories])
        stacks = [[history[max(0, len(history) - back)] for back in range(self.frames, 0, -1)] for history in histories]
        terminated, truncated = np.array(flags).T
        observation = np.array(stacks) if self.frames > 1 else newest
        return {"observation": observation, "reward": 3 * newest + 1, "terminated": terminated, "truncated": truncated}

    def add_episode(self) -> None:
        """A whole episode at once, perhaps a longer one than the table holds."""
        rows = int(self.rng.integers(1, self.length * 3 // 2))
        seen = [next(self.count) for _ in range(rows + 1)]
        flags = [(False, False)] * (rows - 1) + [(bool(self.rng.integers(2)), bool(self.rng.integers(2)))]
        row = self.row([seen[: step + 1] for step in range(rows)], flags)
        last = self.row([seen], [(False, False)])["observation"][0]
        begun = [bool(episode.observations) for episode in self.model.open]
        self.wanted, self.ahead = None, list(zip(seen, flags, strict=False))
        if all(begun):
            with pytest.raises(RlrunError, match="while every env has an open one"):
                self.table.add_episode(row, last, {"kind": 7})
            return
        self.table.add_episode(row, last, {"kind": 7})
        assert not self.ahead
        assert not begun[self.env_index]
        self.model.end(self.env_index, seen[-1], 7)

    def resize(self) -> None:
        self.length += int(self.rng.integers(0, 10))
        self.table.resize(self.length)
        self.model.resize(self.length)

    def make_used(self) -> Table:
        """Return another table of the same kind, with rows in it that no longer count once it takes back a state."""
        table = self.make(int(self.rng.integers(1 << 30)))
        envs = self.model.num_envs
        for _ in range(int(self.rng.integers(0, 15))):
            row = self.row([[-1]] * envs, [(False, False)] * envs)
            table.add(None, row)
            if self.rng.random() < 0.3:
                table.close(None, row["observation"], {"kind": [5] * envs})
        return table

    def store(self) -> None:
        restored = self.make_used()
        self.table.store(self.folder / "memory.zip")
        restored.restore(self.folder / "memory.zip")
        self.continue_with(restored)

    def reload(self) -> None:
        restored = self.make_used()
        restored.load_state_dict(copy.deepcopy(self.table.state_dict()))
        self.continue_with(restored)

    def continue_with(self, other: Table) -> None:
        """Take another table, which has to give the same samples."""
        for length in LENGTHS:
            if self.model.windows(1 if self.short == "pad" else length):
                batch, same = self.table.sample(7, length), other.sample(7, length)
                assert all(torch.equal(batch[name], same[name]) for name in other.names())
        self.table, self.samples = other, []
        self.listen(other)

    def clear(self) -> None:
        self.table.clear()
        self.model.clear()

    def feedback(self) -> None:
        """Give a priority for each window of a sample, or for each of its rows; some have left by now."""
        if not self.samples:
            return
        batch, era, before = self.samples[int(self.rng.integers(len(self.samples)))]
        ((table, rows),) = batch.parts
        same = self.table.storage.arrays["observation"][rows.index] == before
        same &= table.index.stamp[rows.index] != EMPTY
        assert np.array_equal(rows.remain(rows.index), same if era is table.index.era else np.zeros_like(same))
        batch.feedback(torch.from_numpy(self.rng.random(rows.index.shape[: int(self.rng.integers(1, 3))]) + 0.2))

    # -- what has to hold -----------------------------------------------------------------------

    def sample(self) -> None:
        """Sample and compare every value with the model's."""
        length, count = int(self.rng.choice(LENGTHS)), int(self.rng.integers(1, 40))
        padded = self.short == "pad"
        if not self.model.windows(1 if padded else length):
            with pytest.raises(RlrunError, match=f"a sample of {count} windows needs one of"):
                self.table.sample(count, length)
            return
        batch = self.table.sample(count, length)
        ((_, picked),) = batch.parts
        before = self.table.storage.arrays["observation"][picked.index]
        self.samples = [*self.samples[-4:], (batch, self.table.index.era, before)]
        assert set(batch) == set(self.table.names(length))
        rows = {
            name: value.reshape(count, length, -1) for name, value in batch.items() if name not in ("kind", "weight")
        }
        for name, wanted in self.expected(rows["observation"][:, 0, -1].tolist(), length).items():
            if name == "kind":
                assert batch["kind"].tolist() == wanted
            elif name in rows:
                assert rows[name].tolist() == wanted, name
        assert ("valid" in batch) == (padded and length > 1)
        if "valid" in batch:
            real = rows["valid"].reshape(batch["weight"].shape)
            assert torch.equal(batch["weight"] != 0, real)

    def expected(self, first: list[int], length: int) -> dict[str, list[Any]]:
        """Return the windows that begin with these observations."""
        wanted: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "next_observation", "kind", "valid")}
        visible = {id(episode): (oldest, newest) for episode, oldest, newest in self.model.visible()}
        for observation in first:
            episode, start = self.model.where[observation]
            oldest, newest = visible[id(episode)]
            steps = range(start, start + length)
            assert oldest <= start < newest
            assert self.short == "pad" or start + length <= newest
            wanted["valid"].append([[step < newest] for step in steps])
            steps = [min(step, newest - 1) for step in steps]
            wanted["observation"].append([self.model.stack(episode, step) for step in steps])
            wanted["next_observation"].append([self.model.stack(episode, step + 1) for step in steps])
            wanted["reward"].append([[3 * episode.observations[step] + 1] for step in steps])
            wanted["terminated"].append([[episode.flags[step][0]] for step in steps])
            wanted["truncated"].append([[episode.flags[step][1]] for step in steps])
            wanted["kind"].append(episode.kind)
        return wanted

    def check(self) -> None:
        """Compare all windows, counts and bounds."""
        table, index, model = self.table, self.table.index, self.model
        observations, slots = table.storage.arrays["observation"], np.arange(index.size)
        for length in LENGTHS:
            wanted = sorted(model.windows(length))
            start = starts(table, length)
            assert sorted(map(tuple, observations[index.run(start, length + 1)].tolist())) == wanted
            begins = index.complete[slots] & index.unbroken(slots, index.after(slots, length), length)
            assert sorted(start.tolist()) == slots[begins].tolist()
            assert self.short == "pad" or table.windows(length) == len(wanted)
        if self.frames == 1:  # otherwise some complete rows lack the frames before them
            assert np.flatnonzero(index.complete[slots]).tolist() == sorted(starts(table, 1).tolist())
        assert len(table) == len(model.windows(1))
        numbers = np.flatnonzero(index.windows(1))
        oldest, newest = index.oldest()[numbers], index.newest()[numbers]
        bounds = zip(observations[index.at(numbers, oldest)].tolist(), oldest.tolist(), newest.tolist(), strict=True)
        assert sorted(bounds) == sorted(
            (episode.observations[first], first, last) for episode, first, last in model.visible()
        )
        assert table.metrics.get("memory/too_short", 0) == model.too_short
        free = model.free() if model.whole else model.size - min(map(len, model.envs))
        assert table.full() == (free == 0)
        assert isinstance(table.storage.arrays["reward"].base, np.memmap) == (self.options["storage"] == "disk")

    def check_reach(self) -> None:
        """Sample until the least likely window would be missed once in 10^13 times; all must come."""
        length = int(self.rng.choice(LENGTHS))
        wanted = {window[0] for window in self.model.windows(1 if self.short == "pad" else length)}
        if wanted:
            most = max(newest - first for _, first, newest in self.model.visible())
            draws = 30 * most * len(self.model.visible()) * self.model.num_envs
            draws = min(draws, 300) if self.sampler in SOME_WINDOWS_ONLY else draws
            seen = self.table.sample(draws, length)["observation"].reshape(draws, length, -1)[:, 0, -1]
            assert set(seen.tolist()) <= wanted
            assert self.sampler in SOME_WINDOWS_ONLY or set(seen.tolist()) == wanted


@pytest.mark.parametrize("ejector", EJECTORS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_table_agrees_with_the_model(sampler: str, ejector: str, tmp_path: Path) -> None:
    for script in range(SCRIPTS):
        seed = 1000 * script + 10 * list(SAMPLERS).index(sampler) + list(EJECTORS).index(ejector)
        player = Player(sampler, ejector, seed, tmp_path)
        try:
            for _ in range(int(player.rng.integers(5, 30))):
                player.act()
            player.check()
            player.check_reach()
        except Exception as error:
            error.add_note(f"script {seed} of {sampler} and {ejector}: {player.options}, length {player.length}")
            raise


@pytest.mark.parametrize("ejector", EJECTORS)
def test_other_tables_restore_the_same_windows(ejector: str, tmp_path: Path) -> None:
    for script in range(20):
        player = Player("uniform", ejector, 500 + script, tmp_path)
        for _ in range(int(player.rng.integers(5, 30))):
            player.act()
        # a stack that lost its oldest frames cannot come back, and what is left of an episode may be too short
        if player.frames == 1 and player.options["min_length"] == 1:
            player.table.store(tmp_path / "memory.zip")
            target = Table(length=20 * player.length, columns=player.columns(), ejector=Fifo(whole=bool(script % 2)))
            target.restore(tmp_path / "memory.zip")
            for length in LENGTHS:
                windows = target.storage.arrays["observation"][target.index.run(starts(target, length), length + 1)]
                assert sorted(map(tuple, windows.tolist())) == sorted(player.model.windows(length)), script
