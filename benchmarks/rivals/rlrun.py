"""Table with its defaults; a row of all envs goes in at once, tensors come out."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch

from benchmarks.rivals.case import ACTION, COUNT, FIELDS, STACK, Call, Case, Episode, fill, priorities
from rlrun.memory import Table
from rlrun.memory.table.prioritized import Prioritized

PACKAGE = "rlrun"
LACKS: dict[str, str] = {}


def make(case: Case, **options: Any) -> Table:
    """Return an empty table."""
    columns: dict[str, dict[str, Any]] = {"observation": {"shape": case.shape}, "action": {"shape": (ACTION,)}}
    columns |= {"reward": {}, "terminated": {"dtype": "bool"}, "truncated": {"dtype": "bool"}}
    if case.images:
        columns["observation"]["dtype"] = "uint8"
        options["frame_stack"] = STACK
    return Table(length=case.capacity, num_envs=case.envs, columns=columns, **options)


def writer(table: Table, episode: Episode) -> Call:
    """Return what adds a whole episode, step by step."""
    rows = [dict(zip(FIELDS, row, strict=True)) for row in zip(episode.observation[:-1], *episode[1:], strict=True)]
    last = episode.observation[-1]

    def write() -> None:
        for row in rows:
            table.add(None, row)
        table.close(None, last)

    return write


def _full(case: Case, episode: Episode, **options: Any) -> tuple[Table, Call]:
    table = make(case, **options)
    write = writer(table, episode)
    fill(write, case)
    return table, write


def insert(case: Case, episode: Episode) -> Call:
    """Add an episode."""
    return _full(case, episode)[1]


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions or sequences."""
    table, _ = _full(case, episode)
    return lambda: table.sample(COUNT, case.length)


def prioritized(case: Case, episode: Episode) -> Call:
    """Sample by priority, and feed new priorities back."""
    table, _ = _full(case, episode, sampler=Prioritized())
    lots = cycle([torch.from_numpy(lot) for lot in priorities()])

    def call() -> Any:
        batch = table.sample(COUNT)
        batch.feedback(next(lots))
        return batch

    return call


CALLS = {"insert": insert, "sample": sample, "sequence": sample, "prioritized": prioritized}
