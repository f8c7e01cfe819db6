"""A phase over several rollouts that was left half served goes on where it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.identical import compare, differing

import rlrun
from rlrun.algorithms.ppg import AuxiliaryLoss
from rlrun.devtools.conformance.reach import differences

from .every import small
from .twins import leave, records, signal_at, walk

UPDATES = 3 * (2 * 2 * 4 + 2 * 9)  # two rollouts of 18 rows twice in fours, a phase over them twice; all of it thrice


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])


def phasic():
    """Return a run with a phase after every other rollout of 6 steps of 3 lanes."""
    composed = small("algorithm/ppg", envs=3)
    composed.config.algorithm.auxiliary.interval = 2
    composed.config.algorithm.auxiliary.epochs = 2
    composed.config.stop.updates = UPDATES
    return composed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train without a stop, once for all tests; return the folder, and all that the trainer reaches."""
    result = rlrun.train(phasic(), run_dir=tmp_path_factory.mktemp("whole") / "run")
    assert result.trainer.callbacks["auxiliary"].updates == 54
    return result.run_dir, walk(result.trainer)


@pytest.mark.parametrize("at", [18, 36, 54])
def test_a_run_left_between_phases_ends_as_the_other(at, whole, tmp_path):
    run, expected = whole
    leave(run, tmp_path / "resumed", at=at)
    lines = differences(expected, walk(rlrun.resume(tmp_path / "resumed").trainer))
    assert not lines, "\n".join(lines)
    assert records(tmp_path / "resumed") == records(run)


@pytest.mark.parametrize("update", [1, 7, 18, 20])
def test_a_signal_amidst_a_phase_loses_none_of_it(update, whole, tmp_path, monkeypatch):
    run, expected = whole
    signal_at(monkeypatch, AuxiliaryLoss, "_step", update)
    assert rlrun.train(phasic(), run_dir=tmp_path / "run").summary["status"] == "stopped"
    resumed = rlrun.resume(tmp_path / "run")
    lines = differences(expected, walk(resumed.trainer))
    assert not lines, "\n".join(lines)
    same = compare(run, tmp_path / "run")
    assert all(same.values()), differing(run, tmp_path / "run")
