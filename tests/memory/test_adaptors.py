"""Adaptors against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.errors import ConfigError
from rlrun.memory import Cast, NStep, Rename, Scale, Table
from rlrun.memory.adaptors import Adaptor
from rlrun.spaces import Box, Discrete, Spaces

SPACES = Spaces(Box((1,), np.zeros(1), np.ones(1)), Discrete(2))


def table_of(*rewards: float, adaptors: list[Adaptor], end: str | None) -> Table:
    """Return a table with one episode; observation i is [i]. `end`: terminated, truncated, or None for an open one."""
    table = Table(length=20, spaces=SPACES, adaptors=adaptors)
    for i, reward in enumerate(rewards):
        last = i == len(rewards) - 1
        ended = {"terminated": [last and end == "terminated"], "truncated": [last and end == "truncated"]}
        table.add(None, {"observation": [[i]], "action": [0], "reward": [reward]} | ended)
    if end:
        table.close(None, [[len(rewards)]])
    return table


def by_start(table: Table, name: str) -> list[float]:
    """Return a column of the transitions in the order of their observations."""
    batch = table.sample(300)
    value = batch[name].flatten()
    return [value[batch["observation"].flatten() == i][0].tolist() for i in range(len(table))]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_horizon_shortens_before_the_end(end: str) -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=3, discount=0.5)], end=end)
    assert by_start(table, "reward") == [3.0, 6.0, 8.0, 8.0]  # 1+2/2+4/4, 2+4/2+8/4, 4+8/2, 8
    assert by_start(table, "next_observation") == [3, 4, 4, 4]
    assert by_start(table, "discount") == [0.125, 0.125, 0.25, 0.5]
    assert by_start(table, end) == [False, True, True, True]
    other = "truncated" if end == "terminated" else "terminated"
    assert by_start(table, other) == [False] * 4


def test_open_episode_is_used_as_far_as_stored() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=2, discount=0.5)], end=None)
    assert by_start(table, "reward") == [2.0, 4.0, 4.0]  # the last reward waits for its next observation
    assert by_start(table, "next_observation") == [2, 3, 3]
    assert by_start(table, "discount") == [0.25, 0.25, 0.5]


def test_steps_never_reach_another_episode_or_the_cursor() -> None:
    table = Table(length=12, num_envs=2, spaces=SPACES, adaptors=[NStep(steps=5, discount=1.0)])
    for i in range(100):
        ended = np.array([i % 4 == 3] * 2)
        table.add(
            None,
            {
                "observation": [[i], [i + 1000]],
                "action": [0, 0],
                "reward": [1.0, 1000.0],
                "terminated": ended,
                "truncated": ~ended,
            },
        )
        if ended[0]:
            table.close(None, [[i + 1], [i + 1001]])
        if i > 1:
            batch = table.sample(50)
            made = (batch["next_observation"] - batch["observation"]).flatten()
            assert torch.equal(batch["reward"] / torch.where(batch["observation"].flatten() >= 1000, 1000, 1), made)
            assert torch.equal(batch["observation"].flatten() // 4, (batch["next_observation"].flatten() - 1) // 4)


def test_steps_work_on_windows_too() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=2, discount=0.5)], end="terminated")
    batch = table.sample(40, 3)
    first = batch["reward"][batch["observation"][:, 0, 0] == 1][0]
    assert first.tolist() == [4.0, 8.0, 8.0]
    assert batch["next_observation"].shape == (40, 3, 1)


def test_one_step_changes_nothing_but_adds_discount() -> None:
    table = table_of(1.0, 2.0, adaptors=[NStep(steps=1, discount=0.9)], end="terminated")
    assert by_start(table, "reward") == [1.0, 2.0]
    assert by_start(table, "discount") == pytest.approx([0.9, 0.9])


def test_no_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        NStep(steps=0, discount=0.9)


def test_adaptors_follow_one_another() -> None:
    adaptors = [
        NStep(steps=2, discount=0.5),
        Scale("reward", factor=10.0),
        Cast("terminated"),
        Rename({"reward": "gain"}),
    ]
    table = table_of(1.0, 2.0, adaptors=adaptors, end="terminated")
    assert by_start(table, "gain") == [20.0, 20.0]
    assert by_start(table, "terminated") == [1.0, 1.0]
    assert set(table.sample(2)) == set(table.names())
    assert "reward" not in table.names()


def test_scaled_image_becomes_floats() -> None:
    batch = {"observation": {"image": torch.full((2, 3), 255, dtype=torch.uint8)}}
    scaled = Scale("observation", factor=1 / 255)(batch, None)
    assert scaled["observation"]["image"].tolist() == [[1.0] * 3] * 2
    assert batch["observation"]["image"].dtype == torch.uint8


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="'flaot32' is not a torch dtype"):
        Cast("reward", dtype="flaot32")
