"""What the machinery may cost; the least of several, since other load can only add."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest
import torch
from tests.pace import PATIENCE, within

from rlrun.nn import products

pytestmark = pytest.mark.speed


@pytest.fixture
def side(monkeypatch):
    """Both sides of `python -m benchmarks speed`, in this process, which is left as it was."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    before = torch.get_num_threads(), products.in_use()
    yield importlib.import_module("benchmarks.side")
    torch.set_num_threads(before[0])
    products.use(before[1])


@pytest.mark.parametrize("name", ["dqn-cartpole", "ppo-cartpole"])
def test_a_run_keeps_up_with_a_bare_loop_of_its_networks(name, side):
    """A guard against what slows everything down; the bars themselves are for longer windows on a quiet machine."""
    case, until, ratio = side.CASES[name], time.monotonic() + PATIENCE, 0.0
    window = {"first": 1_050, "last": 1_450} if name.startswith("dqn") else {"first": 2_560, "last": 7_680}
    while ratio < case.bar - 0.1 and time.monotonic() < until:
        run, bare = side.measure_rlrun(case, **window), side.measure_bare(case, **window)
        assert (run["parameters"], run["steps_of_optimisers"]) == (bare["parameters"], bare["steps_of_optimisers"])
        ratio = max(ratio, bare["processor_seconds"] / run["processor_seconds"])
    assert ratio >= case.bar - 0.1


def test_dispatch_of_nine_empty_callbacks_takes_ten_microseconds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    dispatch = importlib.import_module("benchmarks.dispatch")
    assert (dispatch.CALLBACKS, dispatch.BAR) == (9, 10.0)
    assert within(dispatch.microseconds, dispatch.BAR)
