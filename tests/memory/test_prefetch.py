"""Batches drawn ahead are the batches that would have been drawn."""

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError, RequestError, RlrunError
from rlrun.memory import Mix, ReplayLoader, Table, Uniform
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.memory.loaders.joint import JointLoader
from rlrun.memory.loaders.prefetch import Prefetch
from rlrun.memory.loaders.rollout import RolloutLoader
from rlrun.memory.table.rollout_table import Rollout
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer

COLUMNS = {"observation": {}, "reward": {}}


class Walker:
    """Observes its step and the newest update, as a policy that learns would; two envs, episodes of seven."""

    def __init__(self, table: Table) -> None:
        self.table, self.steps, self.update = table, 0, 0

    def collect(self, steps: int, random: bool = False) -> int:
        before = self.steps
        while self.steps - before < steps:
            self.steps += 2
            numbers = np.array([self.steps, -self.steps], np.float32)
            self.table.add(None, {"observation": numbers, "reward": np.full(2, self.update)})
            if self.steps % 14 == 0:
                self.table.close(None, numbers)
        return self.steps - before


class Learner(Callback):
    """Writes down every batch, lets the walker know of it, and stops after some."""

    data_group = "default"

    def __init__(self, walker: Walker | None, last: int, name: str = "observation") -> None:
        self.walker, self.last, self.column, self.seen = walker, last, name, []

    def begin_batch(self, update: int) -> None:
        self.update = update

    def backward(self, observation: Any) -> None:
        self.seen.append(observation.tolist())
        if self.walker is not None:
            self.walker.update = self.update

    def end_batch(self, update: int) -> None:
        if update == self.last:
            raise Stop


def replay(seed: int = 0, **settings: Any) -> ReplayLoader:
    table = Table(length=60, num_envs=2, columns=COLUMNS, seed=seed)
    walker = Walker(table)
    return ReplayLoader(table=table, collector=walker, batch=5, **{"warm_up": 20, "updates_per_step": 4, **settings})


def dataset(**settings: Any) -> DatasetLoader:
    return DatasetLoader({"observation": np.arange(11.0)}, batch=3, **settings)


def learn(loader: Any, updates: int, depth: int = 0) -> tuple[list[Any], Prefetch | None]:
    """Train with or without prefetch; return the batches that were seen."""
    prefetch = Prefetch(loader, depth=depth) if depth else None
    learner = Learner(getattr(loader, "collector", None), updates)
    callbacks = {"learner": learner, **({"prefetch": prefetch} if prefetch else {})}
    Trainer(callbacks, prefetch or loader).train()
    return learner.seen, prefetch


def joint() -> JointLoader:
    live, two = replay(1), replay(2)
    two.collector = None
    Walker(two.table).collect(60)
    mix = Mix([{"table": live.table, "share": 0.5}, {"table": two.table, "share": 0.5}])
    mixed = ReplayLoader(table=mix, collector=None, batch=6)
    loader = JointLoader(default=live, mixed=mixed, data=dataset())
    loader.collector = live.collector
    return loader


LOADERS: dict[str, Any] = {
    "replay": replay,
    "half": lambda: replay(updates_per_step=0.5),
    "fraction": lambda: replay(updates_per_step=1.5),
    "windows": lambda: replay(length=3),
    "data": dataset,
    "epochs": lambda: dataset(epochs=2),
    "order": lambda: dataset(shuffle=False, epochs=3),
    "joint": joint,
}


@pytest.mark.parametrize("depth", [1, 3, 20])
@pytest.mark.parametrize("name", LOADERS)
def test_prefetch_gives_the_same_batches(name, depth):
    seen, _ = learn(LOADERS[name](), 40, depth)
    assert seen == learn(LOADERS[name](), 40)[0]
    assert len(seen) == {"epochs": 8, "order": 12}.get(name, 40)


def test_batches_are_drawn_during_updates():
    prefetch = Prefetch(dataset(), depth=2)
    prefetch.begin_training()
    batches = iter(prefetch)
    next(batches)
    prefetch.end_batch()
    assert prefetch.loader.served == 9  # one handed out, two ahead
    prefetch.end_training(None)


def test_batches_wait_for_new_steps():
    prefetch = Prefetch(replay(), depth=50)
    prefetch.begin_training()
    batches = iter(prefetch)
    walker, ahead = prefetch.loader.collector, []
    for _ in range(9):
        next(batches)
        prefetch.end_batch()
        ahead.append((walker.steps, prefetch.loader.updates))
    assert ahead == [(22, 8)] * 8 + [(24, 16)]
    prefetch.end_training(None)


def test_errors_appear_with_their_batch():
    loader, fetch = dataset(shuffle=False), DatasetLoader._fetch

    def breaks(rows: Any) -> Any:
        if rows[0] == 9:
            raise RlrunError("the fourth batch is broken")
        return fetch(loader, rows)

    loader._fetch, learner = breaks, Learner(None, 100)
    prefetch = Prefetch(loader, depth=2)
    with pytest.raises(RlrunError, match="the fourth batch is broken"):
        Trainer({"learner": learner, "prefetch": prefetch}, prefetch).train()
    assert learner.seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("error", [Stop, ValueError])
def test_thread_ends_with_training(error):
    class Ends(Callback):
        def end_batch(self, update: int) -> None:
            if update == 3:
                raise error

    before = {*threading.enumerate()}  # those of earlier tests may end meanwhile
    prefetch = Prefetch(dataset(), depth=2)
    with contextlib.suppress(ValueError):
        Trainer({"ends": Ends(), "prefetch": prefetch}, prefetch).train()
    assert {*threading.enumerate()} <= before


def test_thread_uses_the_same_cores():
    threads, loader = [], dataset()

    def look(rows: Any) -> Any:
        threads.append((torch.get_num_threads(), threading.current_thread().name))
        return {"observation": torch.zeros(1)}

    loader._fetch = look
    learn(loader, 3, depth=1)
    assert {count for count, _ in threads} == {torch.get_num_threads()}
    assert any(name.startswith("prefetch") for _, name in threads)


def test_other_writers_are_refused():
    class Dreams(Callback):
        def begin_batch(self) -> None:
            loader.table.add(None, {"observation": [0, 0], "reward": [0, 0]})

    loader = replay()
    prefetch = Prefetch(loader)
    trainer = Trainer({"dreams": Dreams(), "prefetch": prefetch}, prefetch)
    with pytest.raises(RlrunError, match="the memory changed, without the loader"):
        trainer.train()


class Priorities(Uniform):
    def feedback(self, rows: Any, priority: Any) -> None: ...


def prioritized() -> JointLoader:
    table = Table(length=9, columns=COLUMNS, sampler=Priorities())
    return JointLoader(a=dataset(), b=ReplayLoader(table=table, collector=None, batch=2))


def imagined() -> JointLoader:
    table = Table(length=9, columns=COLUMNS, grows=True)
    return JointLoader(a=dataset(), b=ReplayLoader(table=table, collector=None, batch=2))


def rollouts() -> JointLoader:
    table = Rollout(columns=COLUMNS)
    return JointLoader(a=dataset(), b=RolloutLoader(table=table, collector=Walker(table), horizon=4, minibatch=2))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: next(iter(Prefetch(dataset()))), RequestError, r"callbacks\.prefetch is missing"),
        (lambda: Prefetch(prioritized()), ConfigError, "what Priorities draws depends on the priorities of the batch"),
        (lambda: Prefetch(imagined()), ConfigError, "a callback writes to a table between two batches, such as imag"),
        (lambda: Prefetch(rollouts()), ConfigError, r"loader\.b: a RolloutLoader cannot tell"),
        (lambda: Prefetch(dataset(), depth=0), ConfigError, "depth must be at least 1, not 0"),
    ],
)
def test_wrong_uses_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
