"""Columns that are computed, against episodes that can be read off."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError
from rlrun.core.typing import Batch
from rlrun.memory import NStep, Table
from rlrun.memory.table.virtual import Continues, EpisodeEnd, LastOfWindow, Next, NextN, Previous

from .tables import STEP, add_steps

STORED: dict[str, Any] = {"observation": {}, "action": {"dtype": "int64"}, **STEP}


def table_of(columns: dict[str, Any], *ends: str | None, length: int = 60, steps: int = 4, **settings: Any) -> Table:
    """Return a table with an episode an end: observations 100 i + (0 … 4), actions 50 more, rewards 2 ** step.

    ends: terminated, truncated, or None for an episode that goes on.
    """
    table = Table(length=length, columns=STORED | columns, **settings)
    for episode, end in enumerate(ends):
        count = 100 * episode + np.arange(steps + 1)
        add_steps(
            table,
            steps,
            lambda i, count=count: {"observation": count[[i]], "action": count[[i]] + 50, "reward": [2.0**i]},
            end=end,
            last=None if end is None else count[-1:],
            tags={"interrupted": [float(end == "truncated")]},
        )
    return table


def by_start(batch: Batch, name: str, first: int = 0, count: int = 4) -> list[Any]:
    """Return a column for windows that begin with observation first, first + 1, …"""
    begin = batch["observation"].reshape(len(batch["observation"]), -1)[:, 0]
    return [batch[name][begin == first + i][0].tolist() for i in range(count)]


def test_next_is_clamped_at_the_end() -> None:
    columns: dict[str, Any] = {"seen": Next("observation"), "seen later": Next("observation", steps=3)}
    columns |= {name: Next("action", steps=steps) for name, steps in (("near", 1), ("far", 2), ("farthest", 9))}
    table = table_of(columns, "terminated", "truncated", None)
    assert set(table.names()) >= set(columns)
    batch = table.sample(400)
    assert set(batch) == set(table.names())
    assert by_start(batch, "seen") == [1, 2, 3, 4]
    assert by_start(batch, "seen later") == [3, 4, 4, 4]
    assert by_start(batch, "near") == [51, 52, 53, 53]
    assert by_start(batch, "far", first=100) == [152, 153, 153, 153]
    assert by_start(batch, "near", first=200, count=3) == [251, 252, 253]  # the fourth row is not complete
    assert by_start(batch, "farthest", first=200, count=3) == [253, 253, 253]
    assert by_start(table.sample(400, 3), "near", count=2) == [[51, 52, 53], [52, 53, 53]]


def test_next_stays_within_overwritten_episodes() -> None:
    table = table_of({"later": Next("action", steps=3)}, *["terminated"] * 30, length=17)
    batch = table.sample(300)
    here, later = batch["action"], batch["later"]
    assert torch.equal(later, torch.minimum(here + 3, here // 100 * 100 + 53))


def test_previous_stays_within_the_episode() -> None:
    batch = table_of({"before": Previous("action")}, "terminated", "truncated").sample(300)
    column = {"value": batch["before"]["value"], "known": batch["before"]["known"], "observation": batch["observation"]}
    for first in (0, 100):
        assert by_start(column, "known", first=first) == [False, True, True, True]
        assert by_start(column, "value", first=first) == [first + step for step in (50, 50, 51, 52)]


def test_overwritten_previous_is_not_known() -> None:
    table = table_of({"before": Previous("action")}, *["terminated"] * 7, None, length=17)
    batch = table.sample(300)
    known, begins = batch["before"]["known"], batch["action"] % 100 == 50
    oldest = batch["action"] == batch["action"].min()
    assert int(batch["action"].min()) % 100 > 50  # the oldest episode has lost its beginning
    assert torch.equal(known, ~begins & ~oldest)
    assert torch.equal(batch["before"]["value"], batch["action"] - known.long())
    windows = table.sample(50, 3)["before"]
    assert windows["known"].shape == windows["value"].shape == (50, 3)
    assert bool(windows["known"][:, 1:].all())


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_previous_belongs_to_the_next_observation(steps: int) -> None:
    adaptors = [NStep(steps=steps, discount=0.9)]
    columns = {"before": Previous("action", steps=steps)}
    batch = table_of(columns, "terminated", "truncated", None, adaptors=adaptors).sample(300)
    assert torch.equal(batch["before"]["value"], batch["next_observation"] + 49)
    assert bool(batch["before"]["known"].all())


def test_several_next_elements() -> None:
    table = table_of({"ahead": NextN("observation", n=3), "actions": NextN("action", n=2)}, "truncated")
    batch = table.sample(200)
    assert by_start(batch, "ahead") == [[1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert by_start(batch, "actions") == [[51, 52], [52, 53], [53, 53], [53, 53]]
    assert table.sample(5, 2)["ahead"].shape == (5, 2, 3)


def test_last_of_a_window() -> None:
    columns = {
        "after": LastOfWindow("observation"),
        "action_after": LastOfWindow("action"),
        "own": LastOfWindow("action", after=False),
    }
    table = table_of(columns, "terminated")
    batch = table.sample(100, 3)
    assert by_start(batch, "after", count=2) == [3, 4]
    assert by_start(batch, "action_after", count=2) == [53, 53]
    assert by_start(batch, "own", count=2) == [52, 53]
    single = table.sample(100)
    assert torch.equal(single["after"], single["observation"] + 1)
    padded = table_of(columns, "terminated", short="pad").sample(200, 3)
    assert by_start(padded, "own") == [52, 53, 53, 53]
    assert by_start(padded, "after") == [3, 4, 4, 4]


@pytest.mark.parametrize(("end", "continues"), [("terminated", [1, 1, 1, 0]), ("truncated", [1, 1, 1, 1])])
def test_only_termination_stops_values(end: str, continues: Sequence[int]) -> None:
    columns = {"ended": EpisodeEnd(), "continues": Continues(), "number": EpisodeEnd(dtype="float32")}
    table = table_of(columns, end)
    batch = table.sample(200)
    assert by_start(batch, "ended") == [False, False, False, True]
    assert by_start(batch, "continues") == list(continues)
    windows = table.sample(100, 2)
    assert windows["number"].dtype == torch.float32
    assert by_start(windows, "number", count=3) == [[0, 0], [0, 0], [0, 1]]


def test_leaves_of_a_tree_can_be_read() -> None:
    columns = {**STEP, "observation.a": {}, "observation.b": {"shape": [2]}}
    later = {"later": Next("observation.b"), "whole": Next("observation", steps=2)}
    rows = [{"observation": {"a": [i], "b": [[i, -i]]}, "reward": [0]} for i in range(4)]
    table = add_steps(Table(length=20, columns=columns | later), 3, rows.__getitem__, last=rows[3]["observation"])
    batch = table.sample(50)
    assert torch.equal(batch["later"][:, 0], batch["observation"]["a"] + 1)
    assert torch.equal(batch["whole"]["a"], (batch["observation"]["a"] + 2).clamp(max=3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: table_of({"near": Next("acton")}), r"columns.near reads 'acton'; .*did you mean 'action'"),
        (lambda: Next("a", steps=0), "^steps must be at least 1, not 0"),
        (lambda: NextN("a", n=0), "^n must be at least 1, not 0"),
        (lambda: Previous("a", steps=-1), "^steps must be at least 0, not -1"),
    ],
)
def test_wrong_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
