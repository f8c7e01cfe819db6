"""Prioritized experience replay (Schaul et al. 2015, arXiv 1511.05952)."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError, require_counts, require_one_of
from rlrun.core.generators import Seeded
from rlrun.core.schedules import Linear, Schedule, as_schedule
from rlrun.core.typing import Array
from rlrun.memory.table.index import CLOSED, EMPTY, EpisodeIndex
from rlrun.memory.table.samplers import Rows, Sampler
from rlrun.memory.table.trees import SumTree

ROUNDS = 3  # of drawing again in place of invalid windows, before all windows are listed
LISTING = 4  # slots that can be listed in the time of drawing one
HORIZON = 1 << 40  # picks after which every schedule is over
HIGHEST = float(np.finfo(np.float32).max)  # largest priority; sums of its powers do not overflow
ANNEALED = Linear(first=0.4, last=1.0, steps=100_000)


class Prioritized(Seeded, Sampler):
    """Draws windows with a chance in proportion to a power of their priority; `weight` corrects the bias.

    The priority of a window is that of its first row. Feedback [B] is for first rows; feedback [B, T] is for every row.
    With `mix` it sets only the first row, to `mix` · the largest + (1 - `mix`) · the mean of its window (R2D2,
    Kapturowski et al. 2019, where `mix` is 0.9). For recurrent networks the feedback of a window sets all rows that it
    learns from, and each of these may draw the window. New rows have the largest priority so far. Feedback for padding
    and for rows overwritten since the sample is ignored.

    Args:
        alpha: power of the priority, as a number or a function of the number of picks; 0 = uniform (eq. 1). A priority
            gets the power of the time at which it is set.
        beta: power of the weights (N · P)^-beta, as a number or a function of the number of picks. 1 corrects all bias.
        normalize_weights: divide the weights of a batch by their largest. Otherwise N and P count all windows of the
            memory: for a million rows each pick takes 1 ms more, and with longer windows or frame stacks 20 ms.
        epsilon: added to every priority, so that every row can be drawn.
        mix: share of the largest priority of a window; None = each row has its own.
        stratified: draw one window from each of B equal parts of the sum.
        feedback: `update` writes priorities at once. `burst` draws all samples of a burst of updates by the priorities
            and beta at its start, and writes the new ones together at its end. The newest counts for each row.
        seed: of the draws.

    Raises:
        ConfigError: a number is out of range, or no such feedback.
    """

    provides = ("weight",)
    renewed = ("generator", "picks", "burst")
    one_rank = "its priorities are compared within one memory"

    def __init__(
        self,
        *,
        alpha: float | Schedule = 0.6,
        beta: float | Schedule = ANNEALED,
        normalize_weights: bool = True,
        epsilon: float = 1e-6,
        mix: float | None = None,
        stratified: bool = True,
        feedback: Literal["update", "burst"] = "update",
        seed: int = 0,
    ) -> None:
        self.alpha, self.beta = as_schedule(alpha), as_schedule(beta)
        for name, power, most in (("alpha", self.alpha, 4), ("beta", self.beta, 1)):
            if wrong := [value for pick in (0, HORIZON) if not 0 <= (value := power(pick)) <= most]:
                raise ConfigError(f"{name} must be between 0 and {most}, not {wrong[0]}")
        if not 0 < epsilon < 1:
            raise ConfigError(f"epsilon must be above 0 and below 1, not {epsilon}")
        if mix is not None and not 0 <= mix <= 1:
            raise ConfigError(f"mix must be between 0 and 1, or null, not {mix}")
        require_one_of("feedback", feedback, ("update", "burst"))
        super().__init__(seed)
        self.by_burst = feedback == "burst"
        self.normalize_weights = normalize_weights
        self.epsilon = epsilon
        self.mix = mix
        self.stratified = stratified
        self.picks = 0
        self.highest = self.largest = 1.0  # the largest priority so far, and its power
        self._parts = np.zeros((0, 0))  # where the parts of a sample begin
        self._drawn: deque[Rows] = deque()  # drawn for the burst and not picked yet; gathered ones are in `ahead`
        self._pending: list[tuple[Array, Array]] = []  # slots and priorities that are not written yet

    def bind(self, index: EpisodeIndex) -> None:
        super().bind(index)
        self.tree = SumTree(index.size)

    def on_add(self, slots: Any) -> None:
        self._write_pending()
        self.tree.set(slots, self.largest)

    def begin_burst(self, times: int, count: int, length: int) -> None:
        self._write_pending()
        self.ahead, self._drawn = (), deque(self._draw(times, count, length))

    def pick(self, count: int, length: int) -> Rows:
        drawn = self._drawn
        if drawn and drawn[0].version == self.index.version and drawn[0].index.shape == (count, length)[:length]:
            return drawn.popleft()
        self._write_pending()
        return self._draw(1, count, length)[0]

    def _draw(self, times: int, count: int, length: int) -> list[Rows]:
        """Draw several samples by the current priorities."""
        if self.tree.total <= 0.0:
            raise self.none(count, length)
        shape = times, count
        parts = self.generator.random(times * count)  # of the total, ascending; windows of a batch are in no order
        if self.stratified:
            if self._parts.shape != shape:
                self._parts = np.tile(np.arange(float(count)), (times, 1))
            parts += self._parts.reshape(-1)
            parts *= self.tree.total / count
        else:
            parts.reshape(shape).sort()
            parts *= self.tree.total
        start = self.tree.find(parts)
        power = self.tree.get(start)
        least = power.min()
        if least == 0.0 or np.count_nonzero(self._fits(start, length)) < len(start):
            start = np.concatenate([self._replace(sample, length) for sample in start.reshape(shape)])
            power = self.tree.get(start)
            least = power.min()
        least = least if times == 1 else power.reshape(shape).min(1).repeat(count)
        # 1 / (N · P) is the mean power of all windows / power; divided by the largest weight the mean cancels
        weight = ((least if self.normalize_weights else self._mean(length)) / power) ** self.beta(self.picks)
        weight = weight.astype(np.float32)
        self.picks += times
        if times == 1:
            return [self.rows(start, length, weight)]
        return self._samples(start.reshape(shape), length, weight.reshape(shape))

    def _samples(self, start: Array, length: int, weight: Array) -> list[Rows]:
        return [self.rows(*sample).mark() for sample in zip(start, [length] * len(start), weight, strict=True)]

    def _fits(self, start: Array, length: int) -> Array:
        """Return flags of the rows that begin a window."""
        index = self.index
        if length == 1 and not index.margin:
            fits: Array = index.complete.take(start, mode="clip")
            return fits
        return index.unbroken(start, index.after(start, length), length)

    def _mean(self, length: int) -> float:
        """Return the mean power of all windows."""
        single = length == 1 and not self.index.margin
        fits = self.index.complete[:-1] if single else self._fits(np.arange(self.index.size), length)
        return float(self.tree.leaves[: self.index.size] @ fits) / np.count_nonzero(fits)

    def _replace(self, start: Array, length: int) -> Array:
        """Replace rows that do not begin a window by draws from all windows, which keeps the chances exact."""
        count, accepted = len(start), self._sift(start, length)
        tries = int(1.25 * (count - len(accepted)) * count / max(len(accepted), 1)) + 8
        for _ in range(ROUNDS):
            if len(accepted) == count or LISTING * tries > self.index.size or self.tree.total <= 0.0:
                break
            drawn = self.tree.find(self.generator.random(tries) * self.tree.total)
            accepted = np.concatenate([accepted, self._sift(drawn, length)])[:count]
        return accepted if len(accepted) == count else self._list(accepted, count, length)

    def _sift(self, start: Array, length: int) -> Array:
        """Return the rows that begin a window; rounding errors may have found others."""
        fits = self._fits(start, length) & (self.tree.get(start) > 0.0)
        self._bury(start[~fits])
        return start[fits]

    def _bury(self, slots: Array) -> None:
        """Set slots of dropped rows and of last observations to zero."""
        index, slots = self.index, slots[slots < self.index.size]  # a rounding error may exceed the last
        stamp = index.stamp[slots]
        over = index.status[np.where(stamp == EMPTY, 0, stamp >> index.bits)] == CLOSED
        dead = slots[(stamp == EMPTY) | (over & ~index.complete[slots])]
        if len(dead):
            self.tree.set(dead, 0.0)

    def _list(self, accepted: Array, count: int, length: int) -> Array:
        """Complete a sample from a list of all windows; used if few slots begin one."""
        windows = self.index.windows(length)
        episode = np.repeat(np.arange(len(windows)), windows)
        if not len(episode):
            raise self.none(count, length)
        start = self.index.window(episode, np.arange(len(episode)) - np.repeat(windows.cumsum() - windows, windows))
        edges = self.tree.get(start).cumsum()
        drawn = edges.searchsorted(self.generator.random(count - len(accepted)) * edges[-1], "right")
        self._bury(np.flatnonzero(self.tree.leaves[: self.index.size]))
        return np.concatenate([accepted, start[np.minimum(drawn, len(start) - 1)]])

    def feedback(self, rows: Rows, priority: Tensor) -> None:
        """Set the priorities of the rows of a pick, such as the size of their TD errors: [B] or [B, T], from zero.

        Raises:
            RlrunError: the shape is another, or a number is negative, infinite or NaN.
        """
        value = priority.numpy(force=True).astype(np.float64)
        if value.shape not in (rows.start.shape, rows.index.shape):
            raise RlrunError(
                f"memory: {list(value.shape)} priorities for a sample of {len(rows.start)} windows; "
                f"wanted one for each, or for each of their rows {list(rows.index.shape)}"
            )
        if not (value.min(initial=0.0) >= 0.0 and value.max(initial=0.0) <= HIGHEST):
            wrong = int(np.count_nonzero(~(value >= 0.0) | (value > HIGHEST)))
            raise RlrunError(f"memory: priorities are finite numbers from 0; {wrong} of {value.size} are not")
        if value.ndim == 2 and self.mix is not None:
            real = np.ones_like(value) if rows.valid is None else rows.valid
            value = value * real
            value = self.mix * value.max(1) + (1.0 - self.mix) * value.sum(1) / real.sum(1)
        if value.ndim == 1 and rows.parted:
            value = np.broadcast_to(value[:, None], rows.index.shape)
        slots = rows.start if value.ndim == 1 else rows.index
        if rows.version != self.index.version or (value.ndim == 2 and rows.valid is not None):
            keep = rows.remain(slots)
            if value.ndim == 2 and rows.valid is not None:
                keep &= rows.valid
            slots, value = slots[keep], value[keep]
        if self.by_burst:
            self._pending.append((slots.reshape(-1), value.reshape(-1)))
        else:
            self._set(slots.reshape(-1), value.reshape(-1))

    def _set(self, slots: Array, value: Array) -> None:
        priorities = np.append(value + self.epsilon, self.highest)
        powers = priorities ** self.alpha(self.picks)
        self.tree.set(slots, powers[:-1])
        largest = priorities.argmax()
        self.highest, self.largest = float(priorities[largest]), float(powers[largest])

    def _write_pending(self) -> None:
        if self._pending:
            pending, self._pending = zip(*self._pending, strict=True), []
            self._set(*map(np.concatenate, pending))

    def moved(self, old: Array, new: Array) -> None:
        self._write_pending()
        tree = SumTree(self.index.size)
        tree.set(new, self.tree.get(old))
        self.tree = tree

    def state_dict(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {"picks": self.picks, "largest": self.largest, "highest": self.highest}
        if self.by_burst or self._pending:  # a fork of a run with bursts may have pending ones
            drawn = [*(rows for _, rows in self.ahead), *self._drawn]
            drawn = drawn if drawn and drawn[0].version == self.index.version else []
            numbers["burst"] = {
                "start": np.array([rows.start for rows in drawn], np.int64, ndmin=2),
                "length": drawn[0].index[0].size if drawn else 1,
                "weight": np.array([rows.weight for rows in drawn], np.float32, ndmin=2),
                "pending": [np.concatenate(part) for part in zip(*self._pending, strict=True)],
            }
        tree = self.tree.state_dict() | {"alpha": self.alpha(self.picks)}
        return super().state_dict() | numbers | {"tree": tree}

    def forked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a fork's state, with the parent's priorities at this run's power; the largest if alpha was 0."""
        leaves, alpha = state["tree"]["leaves"], self.alpha(0)
        before = state["tree"].get("alpha", alpha)  # older versions have none
        largest = state["highest"] ** alpha
        powers = leaves ** (alpha / before) if before else torch.full_like(leaves, largest)
        powers = powers.clamp(max=largest)  # where a schedule of alpha gave earlier rows another power
        forked = super().forked(state) | {"largest": largest, "tree": {"leaves": powers * (leaves > 0.0)}}
        if "burst" in state:  # drop the parent's draws, keep its pending priorities
            forked["burst"] = {**state["burst"], "start": state["burst"]["start"][:, :0]}
        return forked

    def _load_burst(self, start: Array, length: int, weight: Array, pending: list[Array]) -> None:
        self._drawn = deque(self._samples(start, length, weight) if start.size and self.by_burst else ())
        self._pending = [(pending[0], pending[1])] if pending else []

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_counts({"picks": state["picks"]})
        self.tree.load_state_dict(state["tree"])
        super().load_state_dict(state)
        self.picks, self.largest = state["picks"], state["largest"]
        self.highest = state["highest"]
        self.ahead, self._drawn, self._pending = (), deque(), []
        if "burst" in state:
            self._load_burst(**state["burst"])
