"""Loaders that are left at any step of the collector, and what no file in conf/ has."""

import itertools
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.callbacks import Schedule
from rlrun.core.errors import RlrunError
from rlrun.core.schedules import Linear
from rlrun.memory import DatasetLoader, Fifo, JointLoader, Mix, Prefetch, ReplayLoader, RolloutLoader, Table
from rlrun.memory.loaders.replay import placed
from rlrun.memory.table.rollout_table import Rollout
from rlrun.training.callback import Stop

COLUMNS = {"observation": {}, "reward": {}, "terminated": {"dtype": "bool"}, "truncated": {"dtype": "bool"}}
ENVS = 3


class Counting:
    """Lane n observes 100 n + its number of steps; episodes last `length` steps; a signal comes before step `until`."""

    def __init__(self, table: Any, *, length: int = 5, until: int | None = None) -> None:
        self.table, self.length, self.until = table, length, until
        self.steps, self.random_steps = 0, 0

    @property
    def observation(self) -> Any:
        return 100.0 * np.arange(ENVS) + self.steps // ENVS

    def collect(self, steps: int, random: bool = False) -> int:
        before = self.steps
        while self.steps - before < steps:
            if self.until is not None and self.steps >= self.until:
                raise Stop("a signal")
            seen = self.observation
            self.steps += ENVS
            self.random_steps += ENVS * random
            over = np.full(ENVS, self.steps // ENVS % self.length == 0)
            self.table.add(
                None, {"observation": seen, "reward": seen % 7, "terminated": over, "truncated": ~over & over}
            )
            if over[0]:
                self.table.close(None, self.observation + 0.5)
        return self.steps - before

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "random_steps": self.random_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def replay(until: int | None = None, held: int = 0, **settings: Any) -> dict[str, Any]:
    """Return the parts of a run; `held`: transitions that the memory holds before it."""
    table = Table(length=300, num_envs=ENVS, columns=COLUMNS, ejector=Fifo())
    if held:
        row = {name: np.arange(held) for name in COLUMNS}
        table.add_episode(row, np.float32(0.0))
    collector = Counting(table, until=until)
    loader = ReplayLoader(table=table, collector=collector, batch=4, **settings)
    return {"table": table, "collector": collector, "loader": loader}


def rollout(until: int | None = None) -> dict[str, Any]:
    table = Rollout(columns=COLUMNS, num_envs=ENVS)
    collector = Counting(table, until=until)
    loader = RolloutLoader(table=table, collector=collector, horizon=4, minibatch=4, epochs=2)
    return {"table": table, "collector": collector, "loader": loader}


def joint(until: int | None = None) -> dict[str, Any]:
    """Return a loader of data, which draws before another one collects."""
    parts = replay(until, warm_up=9)
    data = DatasetLoader({"x": np.arange(7.0)}, batch=2, epochs=None)
    return parts | {"loader": JointLoader(data=data, replay=parts["loader"])}


def rated(until: int | None = None) -> dict[str, Any]:
    """Return a loader that serves epochs of the table that it fills, each few steps."""
    parts = replay(until, warm_up=9)
    model = {"loader": DatasetLoader(parts["table"], batch=11, seed=1), "every_steps": 9, "epochs": 2}
    return parts | {"loader": JointLoader(replay={"loader": parts["loader"], "times": 2}, model=model)}


def batches(parts: dict[str, Any], count: int) -> list[str]:
    """Return what identifies each of the next batches; fewer where a signal comes."""
    digests = []
    with suppress(Stop):
        for groups in itertools.islice(parts["loader"], count):
            digests.append(storage.digest(groups))
    return digests


MAKERS = {
    "warm-up": partial(replay, warm_up=20),
    "warm-up with an import": partial(replay, warm_up=40, held=10),
    "rollout": rollout,
    "joint": joint,
    "rates": rated,
}


@pytest.mark.parametrize("until", [0, 3, 9, 12, 15, 27, 39])
@pytest.mark.parametrize("name", MAKERS)
def test_a_loader_left_amidst_collection_serves_what_it_would_have_served(name, until):
    make = MAKERS[name]
    whole, stopped, resumed = make(), make(until), make()
    wanted = batches(whole, 40)
    seen = batches(stopped, 40)
    assert stopped["collector"].steps == until
    for part in whole:
        resumed[part].load_state_dict(stopped[part].state_dict())
    assert seen + batches(resumed, 40 - len(seen)) == wanted
    assert resumed["collector"].state_dict() == whole["collector"].state_dict()


@pytest.mark.parametrize("updates", range(12))
def test_rates_left_between_updates_go_on(updates):
    whole, stopped, resumed = rated(), rated(), rated()
    wanted = batches(whole, 40)
    seen = batches(stopped, updates)
    for part in ("loader", "collector", "table"):  # in a checkpoint the loader may come before its table
        resumed[part].load_state_dict(stopped[part].state_dict())
    assert seen + batches(resumed, 40 - len(seen)) == wanted


def test_filling_an_empty_memory_again_is_left_and_gone_on_with():
    make = partial(replay, warm_up=21, updates_per_step=1.0)
    before, between, after = make(), make(until=90), make()
    batches(before, 30)
    steps = before["collector"].steps
    for first, then in ((before, between), (between, after)):
        for part in ("collector", "loader"):  # the rows are lost each time
            then[part].load_state_dict(first[part].state_dict())
        if then is between:
            then["collector"].until = steps + 12
            assert batches(then, 30) == []
    batches(after, 6)
    assert len(after["table"]) >= 21 - ENVS
    assert after["collector"].steps == steps + 12 + 21 + 6  # the pace goes on where it was


def test_a_rollout_of_other_columns_is_refused():
    parts = rollout(until=6)
    batches(parts, 1)
    table = Rollout(columns={**COLUMNS, "value": {}}, num_envs=ENVS)
    table.reserve(4)
    with pytest.raises(RlrunError, match=r"the saved rollout has 2 steps of observation \[3\]"):
        table.load_state_dict(parts["table"].state_dict())


def test_a_lane_that_begins_an_episode_has_nothing_to_cut_off():
    table = Rollout(columns=COLUMNS, num_envs=ENVS)
    collector = Counting(table, length=2)
    RolloutLoader(table=table, collector=collector, horizon=4, minibatch=4)
    table.cut_off(np.arange(ENVS), np.zeros(ENVS))
    collector.collect(2 * ENVS)
    table.cut_off(np.arange(ENVS), np.zeros(ENVS))
    steps, _ = table.steps(collector.observation)
    assert not steps["truncated"].any()
    assert steps["next_observation"][1].tolist() == [2.5, 102.5, 202.5]


def test_a_mix_remembers_what_its_tables_were_seen_to_hold():
    def fresh() -> Mix:
        parts = replay()
        parts["collector"].collect(30)
        return Mix([{"table": parts["table"], "share": 1}, {"table": parts["table"], "share": 2}])

    mix, restored = fresh(), fresh()
    mix.sample(4, 3)
    restored.load_state_dict(mix.state_dict())
    assert [part.longest for part in restored.parts] == [3, 3]


def test_batches_of_a_checkpoint_go_to_where_a_loader_has_its_own():
    table = Table(length=30, columns=COLUMNS)
    table.device = torch.device("meta")
    loader = Prefetch(ReplayLoader(table=table, collector=None, batch=2))
    batch = placed({"default": {"x": {"y": torch.zeros(2)}}}, loader)
    assert batch["default"]["x"]["y"].device.type == "meta"


def test_a_schedule_begins_with_its_newest_value():
    schedule, restored = (Schedule("clip", Linear(first=1.0, last=0.0, steps=10)) for _ in range(2))
    schedule.begin_batch(5, step=4)
    restored.load_state_dict(schedule.state_dict())
    assert restored.begin_training() == {"clip": 0.6}
