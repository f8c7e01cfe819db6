"""A phase over several rollouts that was left half served goes on where it was."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

import pytest

import rlrun
from rlrun.algorithms.ppg import AuxiliaryLoss

from .every import small
from .reach import differences
from .twins import records, twins, walk

UPDATES = 3 * (2 * 2 * 4 + 2 * 9)  # two rollouts of 18 rows twice in fours, a phase over them twice; all of it thrice


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])


def phasic():
    """Return a run with a phase after every other rollout of 6 steps of 3 lanes."""
    composed = small("algorithm/ppg", lanes=3)
    composed.config.algorithm.auxiliary.interval = 2
    composed.config.algorithm.auxiliary.epochs = 2
    composed.config.stop.updates = UPDATES
    return composed


@pytest.mark.parametrize("at", [18, 36, 54])
def test_a_run_left_between_phases_ends_as_the_other(at, tmp_path):
    whole, resumed = twins(phasic(), tmp_path, at=at)
    found = differences(whole, resumed)
    assert not found, "\n".join(found)
    assert records(tmp_path / "resumed") == records(tmp_path / "whole")


@pytest.mark.parametrize("update", [1, 7, 18, 20])
def test_a_signal_amidst_a_phase_loses_none_of_it(update, tmp_path, monkeypatch):
    whole = rlrun.train(phasic(), run_dir=tmp_path / "whole")
    assert whole.trainer.callbacks["auxiliary"].updates == 54
    step, left = AuxiliaryLoss._step, [update]

    def called(self, *args):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args)

    monkeypatch.setattr(AuxiliaryLoss, "_step", called)
    assert rlrun.train(phasic(), run_dir=tmp_path / "run").summary["status"] == "stopped"
    resumed = rlrun.resume(tmp_path / "run")
    found = differences(walk(whole.trainer), walk(resumed.trainer))
    assert not found, "\n".join(found)
    identical = importlib.import_module("benchmarks.identical")
    same = identical.compare(tmp_path / "whole", tmp_path / "run")
    assert all(same.values()), identical.differing(tmp_path / "whole", tmp_path / "run")
