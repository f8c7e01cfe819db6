"""Nothing that training changes is forgotten, also where no file of conf/ says it: tests/conf resumes those."""

import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conf.files import small
from tests.short import AT, RESUMED, shrink

from rlrun.callbacks.losses.target import TargetCallback
from rlrun.config import compose

from .reach import differences
from .twins import assert_exact, records, twins, walk


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("added", ["icm", "diayn"])
def test_intrinsic_rewards_on_rollouts(added, tmp_path):
    composed = compose(["algorithm=ppo", "env=cartpole", "preset=null", f"+with={added}"])
    numbers = {**RESUMED, "num_envs": 3, "algorithm.horizon": 10, "algorithm.batch_size": 8, "algorithm.epochs": 2}
    assert_exact(shrink(composed, numbers), tmp_path, at=AT)


def test_a_temperature_of_each_action_is_resumed(tmp_path):
    composed = small("algorithm/doac", envs=3)
    composed.config.algorithm.temperature.epistemic = 0.04
    assert_exact(composed, tmp_path, at=AT)
    assert any("temperature/continuous" in record for record in records(tmp_path / "whole"))


def test_a_model_that_remembers_is_resumed(tmp_path):
    recurrent = ["algorithm.recurrent=gru", "algorithm.core_size=5", "algorithm.elites=2"]
    composed = compose(["algorithm=pets", "env=pendulum_novelocity", *recurrent])
    assert_exact(shrink(composed, {**RESUMED, "num_envs": 3}), tmp_path, at=AT)


@pytest.mark.parametrize("method", ["minmax", "gpvi", "svgd"])
def test_generators_with_all_their_states(method, tmp_path):
    states = ["algorithm.average_rate=0.9", "algorithm.width_rate=0.1", "algorithm.information_weight=0.1"]
    states += ["algorithm.scale=1.0", "algorithm.learn_scale=true", "algorithm.critic.batch_norm=true"]
    states += ["algorithm.inverse.steps=2", "algorithm.noise=1"]
    states += [f"algorithm.batch_norm={method != 'gpvi'}"]  # GPVI refuses it
    composed = compose(["algorithm=generator", f"algorithm.method={method}", *states])
    assert_exact(shrink(composed, {**RESUMED, "algorithm.particles": 6}), tmp_path, at=AT)


# --- that the walk finds what a part forgets


class Slotted:
    """Has no dict of attributes."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def counter():
    count = 0

    def add():
        nonlocal count
        count += 1

    return add


def stepping():
    at = 0
    while True:
        at += 1
        yield


def rated():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.Adam([weight])


FORGOTTEN = {  # how it begins, and what every update does with it
    "number": (lambda: [0], lambda numbers: numbers.append(numbers.pop() + 1)),
    "tensor": (lambda: torch.zeros(3), lambda tensor: tensor.add_(1)),
    "array": (lambda: {"of": (np.zeros(3),)}, lambda arrays: arrays["of"][0].__iadd__(1)),
    "deque": (lambda: deque(maxlen=9), lambda queue: queue.append(queue[-1] + 1 if queue else 0)),
    "numpy_generator": (lambda: np.random.default_rng(0), lambda generator: generator.random()),
    "torch_generator": (lambda: torch.Generator(), lambda generator: torch.rand(1, generator=generator)),
    "python_generator": (lambda: random.Random(0), lambda generator: generator.random()),
    "optimizer": (rated, lambda optimizer: optimizer.step()),
    "slots": (Slotted, lambda slots: setattr(slots, "count", slots.count + 1)),
    "closure": (counter, lambda closure: closure()),
    "locals": (stepping, next),
}


def test_whatever_a_part_forgets_is_found(tmp_path, monkeypatch):
    begin, move = TargetCallback.__init__, TargetCallback.move

    def init(self, *args, **named):
        begin(self, *args, **named)
        self.forgotten = {name: make() for name, (make, _) in FORGOTTEN.items()}

    def moved(self):
        move(self)
        for name, (_, change) in FORGOTTEN.items():
            change(self.forgotten[name])

    monkeypatch.setattr(TargetCallback, "__init__", init)
    monkeypatch.setattr(TargetCallback, "move", moved)
    lines = differences(*twins(small("memory/replay", envs=3), tmp_path, at=AT))
    assert {line.partition(".forgotten['")[2].partition("']")[0] for line in lines} == set(FORGOTTEN)


def test_what_nobody_can_look_into_is_refused():
    with pytest.raises(TypeError, match=r"^\['trainer'\]: nothing is known of what a <class '_random.Random'> holds"):
        walk(random._random.Random())
