"""Learning from stored data before the first environment step, left at any point, goes on as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlrun
from rlrun.callbacks import CriticLoss
from rlrun.devtools.conformance.reach import differences

from .every import small
from .twins import records, signal_at, walk

OFFLINE, UPDATES, STORED = 7, 13, 49  # what was done last has no outcome


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory) -> Iterator[Path]:
    """Stand where the demonstrations lie."""
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


def overrides():
    composed = small("with/offline_then_online", envs=1)
    composed.config.offline.updates, composed.config.stop.updates = OFFLINE, UPDATES
    composed.config.evaluation.every = 3
    return composed


@pytest.fixture(scope="module")
def whole(folder):
    """Train without a stop, once for all tests; return the folder, all that the trainer reaches, and the result."""
    result = rlrun.train(overrides(), run_dir=folder / "run")
    return result.run_dir, walk(result.trainer), result


def test_no_step_is_made_before_its_time_and_the_memory_goes_on(whole):
    run, _, result = whole
    assert result.summary["env_steps"] == UPDATES - OFFLINE  # no warm-up comes between
    assert len(result.trainer.loader.table) == STORED + UPDATES - OFFLINE - 1  # the newest has no successor yet
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [(row["updates"], row["env_steps"]) for row in rows if "evaluation/mean_return" in row]
    assert evaluated == [(3, 0), (6, 0), (7, 0), (10, 3), (13, 6)]
    assert [(row["updates"], row["env_steps"]) for row in rows if "loss/q_loss" in row][:2] == [(5, 0), (7, 0)]


@pytest.mark.parametrize("update", [2, OFFLINE, OFFLINE + 1])
def test_a_signal_at_any_point_changes_nothing(update, whole, tmp_path, monkeypatch):
    run, expected, _ = whole
    signal_at(monkeypatch, CriticLoss, "step", update)
    assert rlrun.train(overrides(), run_dir=tmp_path / "run").summary["status"] == "stopped"
    lines = differences(expected, walk(rlrun.resume(tmp_path / "run").trainer))
    lines = [line for line in lines if "._chain." not in line]  # which checkpoint wrote which rows
    assert not lines, "\n".join(lines)
    assert records(tmp_path / "run") == records(run)
