"""Runs that are left inside a rollout, an epoch or a phase: they end as the run that never stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.identical import compare, differing

import rlrun
from rlrun.algorithms.ppg import AuxiliaryLoss
from rlrun.callbacks.loss import LossCallback
from rlrun.collect import Collector
from rlrun.devtools.conformance.reach import differences

from .every import small
from .twins import assert_exact, copy_as_killed, records, signal_at, walk

ALGORITHMS = {
    "ppo": ["algorithm=ppo", "algorithm.horizon=16", "algorithm.batch_size=8", "algorithm.epochs=2"],
    "a2c": ["algorithm=a2c", "algorithm.horizon=4"],
}
RECURRENT = (
    *("env=recall", "preset=null", "num_envs=3", "algorithm.hidden=[8,8]", "algorithm.core_size=4"),
    *("algorithm.unroll=4", "stop.env_steps=null", "stop.updates=40", "checkpoint.every=24", "log.every=10"),
    *("checkpoint.keep_last=null", "evaluation.every=60", "evaluation.episodes=2", "logger=[]"),
)
PHASES = 3  # each after two rollouts of 18 rows, learned from twice in fours; a phase goes over them twice
UPDATES = PHASES * (2 * 2 * 4 + 2 * 9)


def recurrent(algorithm="ppo", core="lstm"):
    return [*ALGORITHMS[algorithm], *RECURRENT, f"algorithm.recurrent={core}"]


def phasic():
    composed = small("algorithm/ppg", envs=3)
    composed.config.algorithm.auxiliary.interval = 2
    composed.config.algorithm.auxiliary.epochs = 2
    composed.config.stop.updates = UPDATES
    return composed


REQUESTS = {"recurrent": recurrent, "phasic": phasic}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train without a stop, once for all tests; return the result, and all that its trainer reaches."""
    results = {}

    def train(name):
        if name not in results:
            result = rlrun.train(REQUESTS[name](), run_dir=tmp_path_factory.mktemp("whole") / "run")
            results[name] = result, walk(result.trainer)
        return results[name]

    return train


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_recurrent_run_killed_inside_an_epoch(algorithm, core, tmp_path):
    assert_exact(recurrent(algorithm, core), tmp_path, at=60)


@pytest.mark.parametrize("at", [18, 36, 54])
def test_run_left_between_phases(at, whole, tmp_path):
    result, expected = whole("phasic")
    assert result.trainer.callbacks["auxiliary"].updates == 54
    copy_as_killed(result.run_dir, tmp_path / "resumed", at=at)
    lines = differences(expected, walk(rlrun.resume(tmp_path / "resumed").trainer))
    assert not lines, "\n".join(lines)
    assert records(tmp_path / "resumed") == records(result.run_dir)


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        *(("recurrent", kind, count) for kind, count in ((Collector, 9), (Collector, 20), (LossCallback, 17))),
        *(("phasic", AuxiliaryLoss, count) for count in (1, 7, 18, 20)),
    ],
)
def test_signal_inside_a_rollout_or_phase(name, kind, count, whole, tmp_path, monkeypatch):
    result, expected = whole(name)
    signal_at(monkeypatch, kind, "_step" if kind is Collector else "step", count)
    stopped = rlrun.train(REQUESTS[name](), run_dir=tmp_path / "run")
    assert stopped.summary["status"] == "stopped"
    if name == "recurrent":
        assert np.abs(stopped.trainer.callbacks["collector"].state).max() > 0
    lines = differences(expected, walk(rlrun.resume(tmp_path / "run").trainer))
    assert not lines, "\n".join(lines)
    same = compare(result.run_dir, tmp_path / "run")
    assert all(same.values()), differing(result.run_dir, tmp_path / "run")


def test_lost_recurrent_state_is_detected(whole, tmp_path, monkeypatch):
    result, expected = whole("recurrent")
    copy_as_killed(result.run_dir, tmp_path / "run", at=60)
    load = Collector.load_state_dict
    monkeypatch.setattr(
        Collector,
        "load_state_dict",
        lambda self, state, **named: load(self, state | {"state": np.zeros_like(state["state"])}, **named),
    )
    lines = differences(expected, walk(rlrun.resume(tmp_path / "run").trainer))
    assert any("networks" in line or "parameters" in line or "actor_critic" in line for line in lines)


def test_evaluated_policy_uses_its_state(whole):
    assert rlrun.evaluate(whole("recurrent")[0].run_dir, episodes=3).lengths == [6, 6, 6]
