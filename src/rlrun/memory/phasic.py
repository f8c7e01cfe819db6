"""Rollouts, and from time to time a second look at all of the newest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rlrun.memory.episodes import joined, map_tree
from rlrun.memory.loaders import at_least, chosen
from rlrun.memory.normalise import Normalise
from rlrun.memory.rollout import RolloutLoader
from rlrun.typing import Array, Batch, Groups

REWARDS = {"reward", "value", "advantage", "return_"}  # columns in the unit of rewards


class PhasicLoader(RolloutLoader):
    """Serve rollouts; after every `interval` of them further epochs over all their rows, in a data group of its own.

    A batch holds either group, so callbacks of the other one have no turn. Rows come as the rollouts' adaptors left
    them, but those of `REWARDS` are in the unit of the newest rollout where rewards are divided by running statistics.

    Args:
        interval: rollouts between two phases; 0 = there are none.
        phase_epochs: how often a phase serves each row.
        phase_minibatch: rows of one.
        phase_columns: names that it keeps, of those that the rollouts have.
        phase_group: its data group.
        rollouts: as of `RolloutLoader`.
    """

    def __init__(
        self,
        *,
        interval: int,
        phase_epochs: int,
        phase_minibatch: int,
        phase_columns: Sequence[str],
        phase_group: str = "auxiliary",
        **rollouts: Any,
    ) -> None:
        super().__init__(**rollouts)
        at_least("interval", interval, 0)
        at_least("phase_epochs", phase_epochs, 1)
        at_least("phase_minibatch", phase_minibatch, 1)
        self.interval = interval
        self.phase_group = phase_group
        self.phase = self._epochs(phase_minibatch, phase_epochs)
        beside = [name for name in ("state", "ended", "valid") if self.stateful and name in self._columns]
        self._phase_columns = tuple(dict.fromkeys((*chosen(phase_columns, self._columns), *beside)))
        self._rollouts: list[tuple[Batch, Array]] = []  # rows and windows of each rollout since the last phase

    def names(self) -> dict[str, tuple[str, ...]]:
        return {**super().names(), self.phase_group: self._phase_columns}

    def __iter__(self) -> Iterator[Groups]:
        rollouts = super().__iter__()
        while True:
            if self._rollout.over and 0 < self.interval <= len(self._rollouts):
                self._begin()
            while not self.phase.over:
                yield {self.phase_group: self.phase.next()}
            yield next(rollouts)

    def _scale(self) -> float:
        """Return what normalisers multiply rewards by."""
        return math.prod(
            float(adaptor.normaliser.scale)
            for adaptor in self.adaptors
            if isinstance(adaptor, Normalise) and adaptor.column == "reward"
        )

    def _collect(self) -> None:
        before = self._scale()
        super()._collect()
        if self.interval:
            changed = self._scale() / before
            for rows, _ in self._rollouts:
                rows |= {name: rows[name] * changed for name in rows.keys() & REWARDS}
            # copies: what no adaptor changed lies in the table, where the next rollout will lie
            rows = {name: map_tree(torch.clone, self._rollout.rows[name]) for name in self._phase_columns}
            self._rollouts.append((rows, self._rollout.starts.copy()))

    def _begin(self) -> None:
        """Begin a phase over all that was kept."""
        rows = {name: joined([batch[name] for batch, _ in self._rollouts]) for name in self._phase_columns}
        rollout = self.horizon * self.table.num_envs  # rows of one
        starts = np.concatenate([starts + number * rollout for number, (_, starts) in enumerate(self._rollouts)])
        self._rollouts = []
        self.phase.begin(rows, starts)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rollout that is served, the rows kept, and the rest of a phase."""
        rollouts = [{"rows": rows, "starts": starts} for rows, starts in self._rollouts]
        return {**super().state_dict(), "phase": self.phase.state_dict(), "kept": rollouts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.phase.load_state_dict(state["phase"], self.device)
        self._rollouts = [
            (map_tree(lambda value: value.to(self.device), rollout["rows"]), np.array(rollout["starts"]))
            for rollout in state["kept"]
        ]
