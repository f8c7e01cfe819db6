"""Replay memory: stores transitions and serves batches of them."""

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from rlrun.core.errors import ConfigError, require_one_of
from rlrun.core.spaces import Spaces, map_tree
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors.adaptor import RELABEL, Adaptor, adapt, adapted, arrange, check, require_read, spared
from rlrun.memory.adaptors.recurrent_windows import Past
from rlrun.memory.formats import table_file
from rlrun.memory.table.columns import OWN, default_length, make_columns, require_frames
from rlrun.memory.table.ejectors import Ejector, Fifo
from rlrun.memory.table.index import OPEN
from rlrun.memory.table.recorder import Recorder
from rlrun.memory.table.sample import Sample
from rlrun.memory.table.samplers import Rows, Sampler, Uniform

AHEAD = 1 << 20  # most bytes of rows drawn ahead, so that they stay in the processor's caches


class Table(Recorder):
    """Stores `length` transitions of `num_envs` envs and serves windows of them.

    The last observation of an episode takes a slot like a transition, so fewer transitions of short episodes fit. A row
    can be sampled once the observation after it is stored, also in an open episode. A window never crosses the end of
    an episode.

    Args:
        length: transitions, all envs together. Each env overwrites its oldest rows in an equal share of it; with an
            ejector that drops whole episodes all envs share it. None: 1,000,000, or as many as a quarter of main memory
            holds.
        ranks: processes that share the default length.
        num_envs: environments.
        sampler: draws the windows; None = `Uniform`.
        ejector: chooses the rows that leave a full table; None = `Fifo`.
        adaptors: they change samples; by name or in order.
        columns: more columns, by name: settings `shape`, `dtype`, `tag` (one value an episode), or a virtual column,
            which is called with the rows of a sample.
        spaces: of the environment.
        frame_stack: frames in an observation; each frame is stored once.
        min_length: episodes with fewer rows are dropped.
        short: `skip` leaves out windows longer than the rest of their episode. `pad` lets windows begin at any row, and
            repeats the last row. Then `valid` [B, T] marks real rows, and `weight` makes them count equally.
        storage: `ram`, or `disk` for arrays in a file without a name in `directory`.
        directory: of that file.
        device: of the batches.
        seed: of the default sampler.
        grows: a callback writes to the table, and may make it larger; so a saved one may be larger, too.

    Raises:
        ConfigError: sizes, columns, adaptors or the disk do not fit.
    """

    def __init__(
        self,
        *,
        length: int | None,
        ranks: int = 1,
        num_envs: int = 1,
        sampler: Sampler | None = None,
        ejector: Ejector | None = None,
        adaptors: Sequence[Adaptor] | Mapping[str, Adaptor] = (),
        columns: Mapping[str, Any] | None = None,
        spaces: Spaces | None = None,
        frame_stack: int = 1,
        min_length: int = 1,
        short: Literal["skip", "pad"] = "skip",
        storage: Literal["ram", "disk"] = "ram",
        directory: str = ".",
        device: str = "cpu",
        seed: int = 0,
        grows: bool = False,
    ) -> None:
        self.grows = grows
        self.adaptors = arrange(adaptors, rewards=spaces.rewards if spaces is not None else 0)
        self.past = next((adaptor for adaptor in self.adaptors if isinstance(adaptor, Past)), None)
        every, computed = make_columns(spaces, {**(columns or {}), **(self.past.columns if self.past else {})})
        require_frames(spaces, frame_stack)
        if length is None:
            length = default_length(every, frame_stack) // ranks
        if num_envs < 1 or length < num_envs:
            raise ConfigError(f"length must be at least 1 for each of {num_envs} envs, not {length}")
        if not 1 <= min_length <= length // num_envs:
            share = f"the {length // num_envs} transitions that `length` leaves an environment"
            raise ConfigError(f"min_length must be from 1 to {share}, not {min_length}")
        for name, part, kind in (("sampler", sampler, Sampler), ("ejector", ejector, Ejector)):
            if part is not None and not isinstance(part, kind):
                wanted = f"rlrun.memory.{kind.__name__}"
                raise ConfigError(f"{name}: wanted a {wanted} (inherit from it), not a {type(part).__name__}")
        require_one_of("short", short, ("skip", "pad"))
        require_one_of("storage", storage, ("ram", "disk"))
        self.length = length
        super().__init__(
            every,
            length=length,
            num_envs=num_envs,
            sampler=sampler if sampler is not None else Uniform(seed=seed),
            ejector=ejector if ejector is not None else Fifo(),
            frame_stack=frame_stack,
            min_length=min_length,
            directory=Path(directory) if storage == "disk" else None,
        )
        self.short = short
        self.virtual = computed
        self.device = torch.device(device)
        self._at_home = self.device.type == "cpu"
        self._times: dict[str, float] = {}  # seconds that the parts of the newest sample took
        self._read = partial(self.frames.read, self.index, self.storage.gather) if self.frames else self.storage.gather
        self._served: deque[Sample] = deque()  # of the picks that the sampler has ahead
        self._ahead_for: tuple[int, ...] = ()  # count, length and version of the index
        self._meet()

    def _meet(self) -> None:
        """Check the names that adaptors read, and prepare the hot paths."""
        stored = [*self.storage.columns, *(name for name in self.storage if name not in self.storage.columns)]
        twice = [name for name, count in Counter(self._names(2)).items() if count > 1]
        if twice:
            raise ConfigError(f"memory.columns.{twice[0]}: a batch has another value of this name already")
        for name, column in self.virtual.items():
            require_read(f"memory.columns.{name}", column, stored)
        check(self.adaptors, [*stored, *self._names(2)])
        relabelling = [adaptor for adaptor in self.adaptors if getattr(adaptor, "tier", None) == RELABEL]
        for name, column in self.virtual.items():  # virtual columns read the values before relabelling
            for adaptor, read in product(relabelling, getattr(column, "requires", ())):
                if read.partition(".")[0] in adaptor.provides:
                    raise ConfigError(
                        f"memory.columns.{name} reads '{read}' as stored; {type(adaptor).__name__} changes that"
                    )
        without = spared(self.adaptors)
        stacked = ("observation",) if self.frames else ()
        self._fetched = tuple(name for name in self.storage if name not in without and name not in stacked)
        self._follows = "observation" in self.storage and "next_observation" not in without
        self._beside = bool(len(self.tags) or self.virtual or self.sampler.provides)
        self._on_sample = self.ejector.on_sample if type(self.ejector).on_sample is not Ejector.on_sample else None
        hooks = (getattr(adaptor, "observe", None) for adaptor in self.adaptors)
        self._observers = tuple(observe for observe in hooks if observe is not None)
        rowwise = all(getattr(adaptor, "rowwise", False) for adaptor in self.adaptors)
        small = not self.frames and len(self.storage.blocks) == 1  # large columns gain nothing, and take memory
        plain = not (len(self.tags) or self.virtual) and self._on_sample is None
        self._draws_ahead = rowwise and small and plain and (type(self.sampler) is Uniform or self.sampler.by_burst)

    def _names(self, length: int = 1) -> list[str]:
        """Return the names of a batch of windows of this length before adaptors."""
        names = [*self.storage, *self.tags, *self.virtual, *self.sampler.provides]
        names += ["next_observation"] if "observation" in self.storage else []
        padded = ("valid", "weight") if self.pads(length) else ()
        return [*names, *(name for name in padded if name not in names)]

    def pads(self, length: int) -> bool:
        return self.past is not None or (length > 1 and self.short == "pad")

    def sample(self, count: int, length: int = 1) -> Sample:
        """Return windows of one episode each, as tensors that own their memory.

        They have every column, the columns of adaptors, and `next_observation`: [B, …] for length 1, [B, T, …]
        otherwise; `weight` [B] where the sampler provides it. Tensors of a batch may be views of one block;
        observation and next_observation of a window overlap.

        Raises:
            RlrunError: no window is that long.
        """
        if self.sampler.ahead and self._ahead_for == (count, length, self.index.version):
            self.sampler.ahead.popleft()
            return self._served.popleft()
        begin = time.perf_counter()
        if self.past is not None:
            rows = self.parted(self.sampler.pick(count, 1))
        else:
            rows = self._padded(count, length) if self.pads(length) else self.sampler.pick(count, length)
        self._times["pick"] = time.perf_counter() - begin
        return self.serve(rows)

    def draw_ahead(self, times: int, count: int, length: int = 1) -> None:
        """Draw the next samples at once; `sample` returns them, unless rows are written or other samples requested.

        They equal those that `sample` draws one by one, and the state is as if they were not drawn. Nothing happens if
        a sample depends on the one before, or if it would not be faster. A sampler `by_burst` always picks at once.
        """
        begin = time.perf_counter()
        if self.sampler.by_burst:
            self.sampler.begin_burst(times, count, 1 if self.pads(length) else length)
        times = min(times, AHEAD // (count * max(self.storage.layout.itemsize, 1)))
        if times < 2 or length > 1 or not self._draws_ahead:
            return
        ahead = self.sampler.draw_ahead(times, count, length)
        picks = [rows for _, rows in ahead]
        picked = time.perf_counter() - begin
        for rows in picks:
            rows.fetch = self._read
            rows.mark()
        weight = np.concatenate([rows.weight for rows in picks]) if self.sampler.provides else None
        batch = self.serve(Rows(np.concatenate([rows.index for rows in picks]), None, self.index, weight))
        self._ahead_for = count, length, self.index.version
        parts = zip(_split(batch, count), picks, strict=True)
        self._served = deque(Sample(part, [(self, rows)]) for part, rows in parts)
        self.sampler.ahead = deque(ahead)
        self._times = {part: seconds / times for part, seconds in {**self._times, "pick": picked}.items()}

    def serve(self, rows: Rows) -> Sample:
        """Return the batch of rows that were picked."""
        sample = Sample(self.look_up(rows.mark()), [(self, rows)])
        if self._on_sample is not None:
            self._on_sample(rows)
        return sample

    def look_up(self, rows: Rows, *, evaluation: bool = False) -> Batch:
        """Return the batch of any rows, without counting them as a sample; see `adapt`."""
        rows.fetch = self._read
        begin = time.perf_counter()
        batch = self._collect(rows)
        gathered = time.perf_counter()
        batch = adapt(self.adaptors, batch, rows, evaluation=evaluation)
        self._times["gather"], self._times["adapt"] = gathered - begin, time.perf_counter() - gathered
        return batch if self._at_home else map_tree(lambda tensor: tensor.to(self.device), batch)

    def _collect(self, rows: Rows) -> Batch:
        """Return the batch before adaptors."""
        storage = self.storage
        if self._follows and not self.frames and rows.run is not None:
            batch = storage.fetch_run(self._fetched, rows.run)
        else:
            batch = storage.fetch(self._fetched, rows.index)
            if self.frames:
                batch["observation"] = self._read("observation", rows.index)
            if self._follows:
                batch["next_observation"] = self._read("observation", rows.successor)
        return self._add_others(batch, rows) if self._beside or rows.valid is not None else batch

    def _add_others(self, batch: Batch, rows: Rows) -> Batch:
        """Return the batch with tags, virtual columns and weights."""
        if len(self.tags):
            batch |= self.tags.read(rows)
        for name, compute in self.virtual.items():
            batch[name] = compute(rows)
        if rows.weight is not None:
            batch["weight"] = torch.from_numpy(rows.weight)
        if rows.valid is not None and rows.windows is not None:
            batch["valid"] = torch.from_numpy(rows.valid)
            share = torch.from_numpy((rows.valid * (rows.windows.shape[1] / rows.windows)).astype(np.float32))
            batch["weight"] = share if rows.weight is None else share * batch["weight"].unsqueeze(1)
        return batch

    def _padded(self, count: int, length: int) -> Rows:
        """Return windows that begin at any row and repeat the last row of their episode."""
        rows, index = self.sampler.pick(count, 1), self.index
        episode, steps = index.episode(rows.index)[:, None], index.step(rows.index)[:, None] + np.arange(length)
        last = index.newest(episode) - 1
        rows.valid = steps <= last
        rows.windows = np.minimum(steps - index.oldest(episode) + 1, length)  # windows that begin at or before the row
        steps = np.minimum(steps, last)
        rows.index, rows.following = index.at(episode, steps), index.at(episode, steps + 1)
        return rows

    def window_of(self, slots: Array) -> Array:
        """Return the first step of the window in which each row is learned from."""
        assert self.past is not None
        stride = self.past.length - self.past.burn_in
        first: Array = np.maximum(self.index.step(slots) - self.past.burn_in, 0) // stride * stride
        return first

    def parted(self, rows: Rows) -> Rows:
        """Return the windows in which picked rows [B] are learned from; each row has one such window.

        Windows begin every `length - burn_in` steps of an episode. The first of an episode learns from all its rows,
        any other from those after its burn-in. Where the first rows were overwritten, it begins with the oldest.
        """
        index, past = self.index, self.past
        assert past is not None
        episode, first = index.episode(rows.index)[:, None], self.window_of(rows.index)[:, None]
        oldest, last = index.oldest(episode), index.newest(episode) - 1
        learned = np.maximum(np.where(first > 0, first + past.burn_in, 0), oldest)
        final = np.minimum(first + past.length - 1, last)
        steps = np.maximum(first, oldest) + np.arange(past.length)
        rows.valid = (learned <= steps) & (steps <= final)
        rows.windows = np.broadcast_to(final - learned + 1, steps.shape)
        rows.parted = True
        steps = np.minimum(steps, last)
        rows.index, rows.following = index.at(episode, steps), index.at(episode, steps + 1)
        return rows

    @property
    def wanted(self) -> tuple[str, ...]:
        """Stored columns beyond those of the spaces; each row must have them."""
        return tuple(name for name in self.storage if name not in OWN)

    def names(self, length: int = 1) -> tuple[str, ...]:
        """Return the names that a batch of windows of this length will have."""
        return adapted(self._names(length), self.adaptors)

    def windows(self, length: int) -> int:
        """Return the number of windows of `length` transitions."""
        return int(self.index.windows(1 if self.short == "pad" or self.past is not None else length).sum())

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return int(self.index.windows(1).sum())

    @property
    def metrics(self) -> dict[str, Any]:
        """Contents of the table, and the seconds of the parts of its newest sample."""
        index, windows = self.index, self.index.windows(1)
        filled = windows > 0
        over = filled & (index.status != OPEN)
        rows = int(windows.sum())
        metrics: dict[str, Any] = {
            "memory/rows": rows,
            "memory/fill": rows / (index.size - index.num_envs),
            "memory/episodes": int(np.count_nonzero(filled)),
        }
        if index.min_length > 1:
            metrics["memory/too_short"] = index.too_short
        if over.any():
            metrics["memory/episode_length"] = float(windows[over].mean())
        for adaptor in self.adaptors:
            metrics |= getattr(adaptor, "metrics", {})
        return metrics | {f"time/memory_{part}_seconds": value for part, value in self._times.items()}

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take once all rows are written."""
        return self.storage.nbytes

    def store(self, path: Path | str, *, public: bool = False) -> None:
        """Write everything to one file without pickle: `rlrun.memory.formats.table_file.store`."""
        table_file.store(self, path, public=public)

    def restore(self, path: Path | str, *, append: bool = False) -> bool:
        """Read a file by `rlrun.memory.formats.table_file`. Return True if the state is exactly the stored one."""
        return table_file.restore(self, path, append=append)


def _split(tree: Tree, count: int) -> list[Tree]:
    """Return the parts of a tree of tensors, each of `count` rows."""
    if not isinstance(tree, dict):
        return [*tree.split(count)]
    parts = {name: _split(part, count) for name, part in tree.items()}
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
