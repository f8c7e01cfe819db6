"""A schedule provides a number by name."""

from __future__ import annotations

import pytest

from rlrun.callbacks import Schedule
from rlrun.core.schedules import Linear
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer


class Batches:
    def names(self):
        return {"default": ("x",)}

    def __iter__(self):
        return iter([{"default": {"x": 0}} for _ in range(4)])


class Clock(Callback):
    """Ten environment steps an update."""

    provides = ("step",)

    def begin_training(self):
        self.now = 0
        return {"step": 0}

    def begin_batch(self):
        self.now += 10
        return {"step": self.now}


class Reader(Callback):
    data_group = "default"

    def __init__(self):
        self.seen = []

    def begin_batch(self, beta):
        self.seen.append(beta)


@pytest.mark.parametrize(
    ("value", "callbacks", "expected"),
    [
        (Linear(0.0, 1.0, steps=20), {"clock": Clock()}, [0.5, 1.0, 1.0, 1.0]),  # environment steps
        (Linear(0.0, 1.0, steps=4), {}, [0.25, 0.5, 0.75, 1.0]),  # updates
        (0.4, {}, [0.4] * 4),
    ],
)
def test_number_follows_steps_or_updates(value, callbacks, expected):
    reader, schedule = Reader(), Schedule("beta", value)
    Trainer({"reader": reader, "beta": schedule, **callbacks}, Batches()).train()
    assert reader.seen == expected
    assert schedule.metrics == {"schedule/beta": reader.seen[-1]}


def test_number_is_known_before_updates():
    class Early(Callback):
        def begin_training(self, beta):
            self.found = beta

    early = Early()
    Trainer({"beta": Schedule("beta", Linear(0.5, 1.0, steps=4)), "early": early}, Batches()).train()
    assert early.found == pytest.approx(0.5)
