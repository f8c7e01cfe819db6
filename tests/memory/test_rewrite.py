"""Rewriting values of rows that were sampled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.core.errors import RlrunError
from rlrun.memory import Fifo, Mix, Prioritized, Table, UniformEjector
from rlrun.memory.table.samplers import Uniform

from .tables import COLUMNS

OWN = {**COLUMNS, "search": {"shape": [2]}}


def table(lengths: list[int], **settings: Any) -> Table:
    """Return a table whose rows have a column `search` [2] of zeros, but for the last row of each episode."""
    result = Table(**{"columns": OWN, "length": 60, **settings})
    for number, rows in enumerate(lengths):
        env_index = number % result.index.num_envs
        for step in range(rows):
            value = 100 * number + step
            result.add(env_index, {"observation": [value], "reward": [value], "search": np.zeros((1, 2))})
        result.close(env_index, [100 * number + rows])
    return result


def searches(memory: Table) -> dict[int, float]:
    """Return the first number of `search` by the reward of its row, of all rows that can be sampled."""
    batch = memory.sample(600)
    return dict(zip(batch["reward"].tolist(), batch["search"][:, 0].tolist(), strict=True))


def rewrite(memory: Table | Mix, count: int = 8, length: int = 1) -> set[int]:
    """Sample, store 1 + reward for each row, and return the rewards of these rows."""
    batch = memory.sample(count, length)
    reward = batch["reward"]
    valid = batch["valid"] if "valid" in batch else torch.ones_like(reward, dtype=torch.bool)
    batch.rewrite({"search": torch.where(valid, 1.0 + reward, -5.0).unsqueeze(-1).expand(*reward.shape, 2)})
    return set(reward[valid].tolist())


@pytest.mark.parametrize("ejector", [Fifo, UniformEjector])
@pytest.mark.parametrize(("length", "short"), [(1, "skip"), (3, "skip"), (4, "pad")])
def test_sampled_rows_have_new_values(ejector, length, short):
    memory = table([5, 3, 7, 6], num_envs=2, ejector=ejector(), short=short, sampler=Uniform(seed=3))
    rewritten = rewrite(memory, 3, length)
    assert searches(memory) == {
        reward: 1.0 + reward if reward in rewritten else 0.0
        for number, rows in enumerate([5, 3, 7, 6])
        for reward in range(100 * number, 100 * number + rows)
    }


@pytest.mark.parametrize("ejector", [Fifo, UniformEjector])
def test_replaced_rows_keep_their_values(ejector):
    memory = table([9], length=12, ejector=ejector())
    batch = memory.sample(64)
    assert set(batch["reward"].tolist()) == set(range(9))
    for step in range(8):  # as an agent that acts meanwhile
        memory.add(0, {"observation": [500 + step], "reward": [500 + step], "search": np.full((1, 2), -1.0)})
    batch.rewrite({"search": torch.ones(64, 2)})
    after = searches(memory)
    assert {after[reward] for reward in after if reward >= 500} == {-1.0}
    assert {after[reward] for reward in after if reward < 500} <= {1.0}


def test_batches_drawn_ahead_have_new_values():
    memory = table([30])
    memory.draw_ahead(6, 40)
    rewritten = rewrite(memory, 40)
    following = memory.sample(40)
    expected = [1.0 + reward if reward in rewritten else 0.0 for reward in following["reward"].tolist()]
    assert following["search"][:, 0].tolist() == expected


def test_tables_of_a_mix_have_their_values():
    first, second = table([9]), table([0, 9])
    mix = Mix([{"table": part, "share": 1.0} for part in (first, second)])
    rewritten = rewrite(mix, 10)
    assert {reward for reward, value in (searches(first) | searches(second)).items() if value} == rewritten
    assert min(rewritten) < 100 <= max(rewritten)


@pytest.mark.parametrize("on_disk", ["ram", "disk"])
def test_resume_has_new_values_and_priorities(tmp_path: Path, on_disk):
    def make() -> Table:
        return table([30], sampler=Prioritized(seed=5), storage=on_disk, directory=str(tmp_path))

    def step(memory: Table) -> torch.Tensor:
        batch = memory.sample(8)
        batch.feedback(batch["reward"].float() + 1.0)
        batch.rewrite({"search": batch["search"] + batch["reward"].float().unsqueeze(-1)})
        return torch.stack((batch["reward"].float(), batch["search"][:, 0], batch["weight"]))

    memory = make()
    for number in range(3):  # the later checkpoints hold the rows that changed since the one before
        step(memory)
        folder = tmp_path / f"{number}"
        state = {"memory": memory.checkpoint(storage.home_of(folder.parent))}
        storage.write(folder, storage.snapshot(state, apart=["memory"]))
    expected = [step(memory) for _ in range(5)]
    resumed = make()
    resumed.load_state_dict(storage.load(folder)["memory"])
    assert all(torch.equal(batch, step(resumed)) for batch in expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "observation": ({"observation": torch.zeros(8)}, "'observation' cannot be rewritten; there are reward, search"),
    "unknown column": ({"serch": torch.zeros(8, 2)}, "did you mean 'search'"),
    "shape": ({"search": torch.zeros(8)}, r"has shape \[8\], wanted \[8, 2\]"),
    "number of rows": ({"search": torch.zeros(7, 2)}, r"wanted \[8, 2\]"),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses_other_values(values, message):
    batch = table([9]).sample(8)
    with pytest.raises(RlrunError, match=message):
        batch.rewrite(values)
