"""Every file of conf/ runs, and nothing that training changes is forgotten: resumed or not, a trainer is the same."""

import json
import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from handbook.metrics import meaning
from tests.conf.test_every_config import DENSITIES, RUN, missing_extra, overrides_of, provide
from tests.short import AT, RESUMED, SMALL, shrink

from rlrun import train
from rlrun.callbacks.losses.target import TargetCallback
from rlrun.config import compose
from rlrun.core.errors import MissingExtra

from .every import FILES, FULL, ONE_ENV, small
from .reach import differences
from .twins import assert_exact, records, twins, walk

SINGLE = (*(f"memory/{name}" for name in ("replay", "episodes", "prioritized", "rollout")), *ONE_ENV)  # also, or only


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("file", "envs"), [*((file, 3) for file in FILES), *((file, 1) for file in SINGLE)])
def test_a_resumed_run_is_the_one_that_never_stopped(file, envs, tmp_path):
    assert_exact(small(file, envs=envs), tmp_path, at=AT)
    assert_judged(file, tmp_path / "whole", updates=FULL["stop.updates"] if file.startswith("memory/") else 24)


@pytest.mark.parametrize("file", [file for file in RUN if file not in FILES])
def test_what_is_resumed_in_another_run_runs(file, tmp_path):
    overrides = overrides_of(file)
    provide(overrides)
    composed = shrink(compose(overrides), SMALL)
    if (extra := missing_extra(file)) is None:
        train(composed, run_dir=tmp_path / "run")
        assert_judged(file, tmp_path / "run", updates=3)
        return
    with pytest.raises(MissingExtra, match=rf"\[{extra}\]'"):
        train(composed, run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def assert_judged(file, run, *, updates):
    """Require that a run was completed and evaluated, and that docs/metrics.md says what each of its metrics is."""
    summary = json.loads((run / "summary.json").read_text())
    judged = summary["evaluation"]["episodes"] if summary["evaluation"] else bool(summary.get("validation"))
    assert (summary["status"], bool(judged)) == ("completed", file not in DENSITIES)
    others = max(sum(value for name, value in record.items() if name[:8] == "updates/") for record in records(run))
    assert updates <= summary["updates"] <= updates + others  # of further data groups, partly in the same updates
    assert [name for record in records(run) for name in record if "/" in name and not meaning(name)] == []


@pytest.mark.parametrize("seeded", [False, True])
def test_games_are_resumed_exactly_if_every_episode_has_a_seed(seeded, tmp_path):
    pytest.importorskip("ale_py")
    composed = small("env/atari", envs=3)
    assert not composed.config.env.seed_episodes  # by default
    if seeded:
        composed.config.env.seed_episodes = True
        assert_exact(composed, tmp_path, at=AT)
    else:
        twins(composed, tmp_path, at=AT)
    manifest = json.loads((tmp_path / "resumed" / "manifest.json").read_text())
    reasons = [reason for resumed in manifest["resumed"] for reason in resumed["approximate"]]
    assert manifest["resume"] == ("exact" if seeded else "approximate")
    assert len(reasons) == (0 if seeded else 1)
    assert all(reason.endswith("its episode has no seed (env.seed_episodes)") for reason in reasons)


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
