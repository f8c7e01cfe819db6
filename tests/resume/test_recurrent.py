"""A recurrent run that was left anywhere ends as the run that never stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.identical import compare, differing

import rlrun
from rlrun.callbacks.loss import LossCallback
from rlrun.collect import Collector
from rlrun.devtools.conformance.reach import differences

from .twins import leave, records, signal_at, twins, walk

WORDS = {
    "ppo": ["algorithm=ppo", "algorithm.horizon=16", "algorithm.batch_size=8", "algorithm.epochs=2"],
    "a2c": ["algorithm=a2c", "algorithm.horizon=4"],
}
SMALL = (
    *(
        "env=recall",
        "preset=null",
        "num_envs=3",
        "algorithm.hidden=[8,8]",
        "algorithm.core_size=4",
        "algorithm.unroll=4",
    ),
    *("stop.env_steps=null", "stop.updates=40", "checkpoint.every=24", "checkpoint.keep_last=null", "log.every=10"),
    *("evaluation.every=60", "evaluation.episodes=2", "logger=[]"),
)


def overrides(algorithm="ppo", recurrent="lstm"):
    return [*WORDS[algorithm], *SMALL, f"algorithm.recurrent={recurrent}"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train without a stop, once for all tests."""
    return rlrun.train(overrides(), run_dir=tmp_path_factory.mktemp("whole") / "run")


def assert_same(one: Path, other: Path) -> None:
    same = compare(one, other)
    assert all(same.values()), differing(one, other)


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
@pytest.mark.parametrize("algorithm", WORDS)
def test_a_run_killed_amidst_an_epoch_is_the_one_that_never_stopped(algorithm, recurrent, tmp_path):
    whole, resumed = twins(overrides(algorithm, recurrent), tmp_path, at=60)
    lines = differences(whole, resumed)
    assert not lines, "\n".join(lines)
    assert records(tmp_path / "resumed") == records(tmp_path / "whole")


@pytest.mark.parametrize(
    ("kind", "name", "count"), [(Collector, "_step", 9), (Collector, "_step", 20), (LossCallback, "_step", 17)]
)
def test_a_signal_amidst_a_rollout_or_an_epoch_loses_no_state(kind, name, count, whole, tmp_path, monkeypatch):
    signal_at(monkeypatch, kind, name, count)
    stopped = rlrun.train(overrides(), run_dir=tmp_path / "run")
    assert stopped.summary["status"] == "stopped"
    assert np.abs(stopped.trainer.callbacks["collector"].state).max() > 0
    assert rlrun.resume(tmp_path / "run").summary["status"] == "completed"
    assert_same(whole.run_dir, tmp_path / "run")


def test_a_lost_state_would_be_found(whole, tmp_path, monkeypatch):
    expected = walk(whole.trainer)
    leave(whole.run_dir, tmp_path / "run", at=60)
    load = Collector.load_state_dict
    monkeypatch.setattr(
        Collector,
        "load_state_dict",
        lambda self, state, **named: load(self, state | {"state": np.zeros_like(state["state"])}, **named),
    )
    lines = differences(expected, walk(rlrun.resume(tmp_path / "run").trainer))
    assert any("networks" in line or "parameters" in line or "actor_critic" in line for line in lines)


def test_an_evaluated_run_acts_by_its_memory(whole):
    assert rlrun.evaluate(whole.run_dir, episodes=3).lengths == [6, 6, 6]
