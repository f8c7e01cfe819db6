"""Runs with intrinsic rewards end as if they had never stopped, on rollouts, too, and amidst one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config import compose
from rlrun.devtools.conformance.checks import AT, RESUMED, shrink
from rlrun.devtools.conformance.reach import differences

from .twins import records, twins


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("added", ["rnd", "icm", "diayn"])
def test_a_resumed_run_on_rollouts_is_the_one_that_never_stopped(added, tmp_path):
    composed = compose(["algorithm=ppo", "env=cartpole", "preset=null", f"+with={added}"])
    small = {**RESUMED, "num_envs": 3, "algorithm.horizon": 10, "algorithm.batch_size": 8, "algorithm.epochs": 2}
    whole, resumed = twins(shrink(composed, small), tmp_path, at=AT)
    lines = differences(whole, resumed)
    assert not lines, "\n".join(lines)
    assert records(tmp_path / "resumed") == records(tmp_path / "whole")
