"""Samples of a burst of updates that are made at once are those that are made one by one."""

from collections.abc import Callable
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from rlrun.core.spaces import map_tree
from rlrun.memory import JointLoader, NStep, ReplayLoader, RewardClip, RewardNormalize, Table, Uniform
from rlrun.memory.table.prioritized import Prioritized
from rlrun.nn import Normalizer

FLAGS = {"terminated": {"dtype": "bool"}, "truncated": {"dtype": "bool"}}
VECTOR = {"observation": {"shape": [3]}, "reward": {}, **FLAGS}
PARTS = {"observation.camera": {"shape": [2, 2], "dtype": "uint8"}, "observation.place": {}, "reward": {}, **FLAGS}
PIXELS = {"observation": {"shape": [2, 3, 3], "dtype": "uint8"}, "reward": {}, **FLAGS}
CASES: dict[str, tuple[Callable[[], Table], bool]] = {  # whether samples are made at once
    "vector": (lambda: Table(length=60, columns=VECTOR, seed=3), True),
    "several envs": (lambda: Table(length=60, num_envs=3, columns=VECTOR, seed=3), True),
    "n-step": (lambda: Table(length=60, columns=VECTOR, seed=3, adaptors=[NStep(steps=3, discount=0.9)]), True),
    "n-step of clipped rewards": (
        lambda: Table(length=60, columns=VECTOR, adaptors=[NStep(steps=5, discount=0.99), RewardClip(-1.0, 2.0)]),
        True,
    ),
    "parts": (lambda: Table(length=60, columns=PARTS, adaptors=[NStep(steps=2, discount=0.9)]), True),
    "by episodes": (lambda: Table(length=60, columns=VECTOR, sampler=Uniform(weighting="episodes")), True),
    "frames": (lambda: Table(length=60, columns=PIXELS, frame_stack=2), False),
    "prioritized": (lambda: Table(length=60, columns=VECTOR, sampler=Prioritized(seed=1)), False),
    "statistics of samples": (
        lambda: Table(length=60, columns=VECTOR, adaptors=[RewardNormalize(Normalizer(()))]),
        False,
    ),
}


def leaf(settings: dict[str, Any], envs: int, step: int) -> np.ndarray:
    shape, kind = (envs, *settings.get("shape", ())), settings.get("dtype", "float32")
    return (np.arange(np.prod(shape)).reshape(shape) + 7.25 * step).astype(kind)


def write(table: Table, first: int, steps: int) -> None:
    """Add steps, of which every seventh ends an episode."""
    columns = PIXELS if table.frames else PARTS if "observation.place" in table.storage.columns else VECTOR
    envs = table.index.num_envs
    for step in range(first, first + steps):
        row: dict[str, Any] = {}
        for name, settings in columns.items():
            top, _, part = name.partition(".")
            value = leaf(settings, envs, step)
            if top in FLAGS:
                value = np.full(envs, step % 7 == 6 and (step % 2 == 0) == (top == "terminated"))
            row[top] = {**row.get(top, {}), part: value} if part else value
        table.add(None, row)
        if step % 7 == 6:
            table.close(None, row["observation"])


def assert_same(first: Any, second: Any) -> None:
    """Compare samples, or states."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert_same(value, second[name])
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    else:
        assert first == second


@pytest.mark.parametrize("name", CASES)
def test_samples_made_at_once_are_those_made_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.memory.table.samplers.STOCK", 64)  # numbers, so that a burst takes several of them
    make, at_once = CASES[name]
    one_by_one, ahead = make(), make()
    for table in (one_by_one, ahead):
        write(table, 0, 45)
    for times, taken, count in ((6, 6, 5), (40, 17, 33), (5, 2, 4), (3, 3, 4)):
        ahead.draw_ahead(times, count)
        with patch.object(ahead, "serve", wraps=ahead.serve) as serve:
            for _ in range(taken):
                single, batch = one_by_one.sample(count), ahead.sample(count)
                assert_same(single, batch)
                assert np.array_equal(single.parts[0][1].start, batch.parts[0][1].start)
        assert serve.call_count == (0 if at_once else taken)
        assert_same(one_by_one.sample(3), ahead.sample(3))  # another count: the others count as not drawn
    ahead.draw_ahead(9, 4)
    for table in (one_by_one, ahead):
        table.sample(4)
    assert_same(one_by_one.state_dict(), ahead.state_dict())  # amid a burst
    assert_same(one_by_one.sample(4), ahead.sample(4))
    ahead.draw_ahead(9, 4)
    for table in (one_by_one, ahead):
        table.sample(4)
        write(table, 45, 30)  # rows overwrite those that were picked
    for _ in range(5):
        assert_same(one_by_one.sample(4), ahead.sample(4))
    assert_same(one_by_one.state_dict(), ahead.state_dict())
    ahead.draw_ahead(9, 4)
    one_by_one.sample(4)
    ahead.load_state_dict(one_by_one.state_dict())
    assert np.array_equal(one_by_one.sampler.pick(4, 1).index, ahead.sampler.pick(4, 1).index)


def test_samples_left_over_count_as_not_drawn() -> None:
    one_by_one, ahead = (Table(length=60, columns=VECTOR, seed=3) for _ in range(2))
    for table in (one_by_one, ahead):
        write(table, 0, 45)
    for times in (5, 6):  # the second burst begins with three samples left of the first
        ahead.draw_ahead(times, 4)
        for _ in range(2) if times == 5 else ():
            assert_same(one_by_one.sample(4), ahead.sample(4))
    assert_same(one_by_one.state_dict(), ahead.state_dict())
    assert_same(one_by_one.sample(4), ahead.sample(4))


class Steps:
    """Makes steps without an agent."""

    def __init__(self, *tables: Table) -> None:
        self.tables, self.steps = tables, 0
        self.observation = None

    def collect(self, steps: int, random: bool = False) -> int:
        table, before = self.tables[0], self.steps
        while self.steps < before + steps:
            write(table, self.steps // table.index.num_envs, 1)
            self.steps += table.index.num_envs
        return self.steps - before


def loader_of(*tables: Table, every: int = 12) -> Any:
    collector = Steps(*tables[:1])
    options: dict[str, Any] = {"collector": collector, "updates_per_step": 0.75, "collect_steps": every, "warm_up": 20}
    first = ReplayLoader(table=tables[0], batch=5, **options)
    return (
        first
        if len(tables) == 1
        else JointLoader(first=first, second=ReplayLoader(table=tables[1], batch=7, **options))
    )


@pytest.mark.parametrize("tables", ["alone", "shared"])
def test_loaders_serve_the_same_with_an_end_amid_a_burst(tables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*parts: int) -> list[Any]:
        served: list[Any] = []
        state: Any = None
        for count in parts:
            table = Table(length=60, columns=VECTOR, seed=5, adaptors=[NStep(steps=3, discount=0.9)])
            loader = loader_of(*[table] * (1 if tables == "alone" else 2))
            parts_of = [loader] if tables == "alone" else [*loader.parts.values()]
            if state is not None:
                table.load_state_dict(state[0])
                parts_of[0].collector.steps = state[2]
                for part in parts_of[1:]:
                    part.collector = parts_of[0].collector
                loader.load_state_dict(state[1])
            for part in parts_of[1:]:
                part.collector = parts_of[0].collector
            served += [map_tree(torch.clone, groups) for groups in islice(loader, count)]
            state = table.state_dict(), loader.state_dict(), parts_of[0].collector.steps
        return [*served, state[0]]

    whole, parted = run(40), run(13, 27)
    monkeypatch.setattr(Table, "draw_ahead", lambda *_: None)
    for first, second, third in zip(whole, parted, run(40), strict=True):
        assert_same(first, second)
        assert_same(first, third)


@pytest.mark.parametrize(
    ("envs", "rate", "every", "due"),
    [
        (1, 0.5, 12, 6),
        (5, 0.5, 12, 6),
        (1, 1.5, 4, 6),
        (1, 0.1, 40, 4),
        (1, 3.0, 1, 3),
        (3, 1.0, 1, 3),
        (1, 0.25, 1, 1),
    ],
)
def test_loader_announces_the_updates_before_the_next_step(envs: int, rate: float, every: int, due: int) -> None:
    table = Table(length=200, num_envs=envs, columns=VECTOR)
    collector = Steps(table)
    loader = ReplayLoader(
        table=table, collector=collector, batch=4, updates_per_step=rate, collect_steps=every, warm_up=20
    )
    with patch.object(table, "draw_ahead", wraps=table.draw_ahead) as draw_ahead:
        steps = [collector.steps for _ in islice(loader, 3 * due)]
    assert [call.args for call in draw_ahead.call_args_list] == [(due, 4, 1)] * 3
    assert steps == [steps[0]] * due + [steps[due]] * due + [steps[-1]] * due


def test_large_bursts_stay_small_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.memory.table.table.AHEAD", 1000)  # bytes
    table = Table(length=60, columns=VECTOR)
    write(table, 0, 30)
    table.draw_ahead(50, 10)
    assert len(table.sampler.ahead) == 1000 // (10 * table.storage.layout.itemsize) < 50
