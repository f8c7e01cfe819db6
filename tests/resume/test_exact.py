"""A run that was killed, left by a signal or extended ends as the run that never stopped."""

import json
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
from tests.command import code_of
from tests.identical import compare, differing

import rlrun
from rlrun import checkpointing
from rlrun.callbacks import Checkpointer, Evaluator, Logger
from rlrun.callbacks.losses.loss import LossCallback
from rlrun.collect import Collector
from rlrun.memory import Table
from rlrun.runs.directory import RunDir, checkpoint_key

from . import kills
from .twins import copy_as_killed, signal_at

SHORT = (
    *("stop.env_steps=200", "algorithm.hidden=[8,8]"),
    *("checkpoint.every=32", "checkpoint.keep_last=null", "log.every=10"),
    *("evaluation.every=70", "evaluation.episodes=2", "evaluation.max_steps=20"),
)
REPLAY = ("memory.length=120", "algorithm.warmup_steps=40", "algorithm.batch_size=8")
# tests/conf has the others, of envs in this process; the kills at random moments and signals below have more
CELLS = ["dqn-images-4-async", "ppo-pendulum-4-async"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])


@pytest.fixture
def overrides():
    """Return the overrides of a short run of a cell."""
    replay = {cell: REPLAY if cell.startswith(kills.REPLAYING) else () for cell in kills.CELLS}
    return lambda cell: [*kills.CELLS[cell], *SHORT, *replay[cell]]


@pytest.fixture
def assert_same():
    def check(first: Path, second: Path, **options):
        same = compare(first, second, **options)
        assert all(same.values()), (same, differing(first, second))

    return check


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train a cell without a stop, once for all tests."""
    runs: dict[str, Path] = {}

    def run(cell: str, request: list[str]) -> Path:
        if cell not in runs:
            runs[cell] = rlrun.train(request, run_dir=tmp_path_factory.mktemp("whole") / "run").run_dir
        return runs[cell]

    return run


# --- kills


@pytest.mark.parametrize("cell", CELLS)
def test_a_run_killed_between_two_checkpoints_ends_as_the_other(cell, whole, overrides, assert_same, tmp_path):
    run = whole(cell, overrides(cell))
    steps = [checkpoint_key(path)[0] for path in RunDir(run).checkpoint_dirs()]
    copy_as_killed(run, tmp_path / "run", at=random.Random(cell).choice(steps[:-1]))
    rlrun.resume(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["resume"] == "exact"
    assert_same(run, tmp_path / "run")


@pytest.mark.parametrize("cell", ["dqn-cartpole-1-sync", "sac-pendulum-4-async"])
def test_a_run_killed_at_random_moments_ends_as_the_other(cell, forked, whole, overrides, assert_same, tmp_path):
    """One kill of two comes during a write; `python -m benchmarks resilience` kills each cell 20 times."""
    request, dice = [*overrides(cell), "stop.env_steps=400"], random.Random(1)
    story = kills.torment(request, tmp_path / "run", forked, kills=2, delay=0.05, dice=dice)
    assert (story.kills, story.resumes, story.damaged) == (2, 2, [])
    assert_same(whole(f"{cell} longer", request), tmp_path / "run")


# --- signals


MOMENTS = {  # what is called for the n-th time when the signal comes
    "warm-up": (Collector, "_step", 7),
    "collection": (Collector, "_step", 30),
    "update": (LossCallback, "step", 50),
    "evaluation": (Evaluator, "_evaluate", 2),
    "last evaluation": (Evaluator, "_evaluate", 3),
    "record": (Logger, "_collect", 9),
    "checkpoint": (Checkpointer, "_save", 3),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_at_any_moment_leaves_in_order(moment, whole, overrides, assert_same, tmp_path, monkeypatch):
    cell = "sac-pendulum-4-sync"
    remaining = signal_at(monkeypatch, *MOMENTS[moment])
    begun = time.process_time()
    code = code_of("train", *overrides(cell), "--run-dir", str(tmp_path / "run"))
    assert remaining[0] <= 0
    assert time.process_time() - begun < 10
    assert code == 75
    assert code_of("resume", str(tmp_path / "run")) == 0
    assert_same(whole(cell, overrides(cell)), tmp_path / "run")


# --- what changes nothing


@pytest.mark.parametrize(
    ("cell", "length", "stop"),
    [("dqn-cartpole-4-sync", "null", 132), ("sac-pendulum-1-sync", "120", 153), ("sac-pendulum-4-sync", "120", 30)],
)
def test_a_run_that_is_extended_is_the_longer_run(cell, length, stop, overrides, assert_same, tmp_path):
    """It forgets its evaluation at the earlier end; the last one ended in its warm-up."""
    request = [*overrides(cell), f"memory.length={length}"]
    longer = rlrun.train(request, run_dir=tmp_path / "longer").run_dir
    rlrun.train([*request, f"stop.env_steps={stop}"], run_dir=tmp_path / "run")
    rlrun.resume(tmp_path / "run", ["stop.env_steps=200"])
    assert_same(longer, tmp_path / "run")
    best = [RunDir(run).checkpoint("best").name for run in (longer, tmp_path / "run")]
    assert best[0] == best[1]


BURSTS = (
    *("algorithm.collect_steps=24", "algorithm.updates_per_step=0.5", "algorithm.n_step=3", "preset=null"),
    *("stop.env_steps=null", "stop.updates=67"),  # amid a burst, as each checkpoint is
)


@pytest.mark.parametrize(
    "task",
    [
        ("algorithm=sac", "env=pendulum"),
        ("algorithm=dqn", "env=cartpole"),
        ("algorithm=dqn", "env=cartpole", "+with=prefetch"),
        ("algorithm=sac", "env=pendulum", "num_envs=3", "+with=prioritized"),
    ],
)
def test_a_burst_whose_samples_are_made_at_once_changes_nothing(task, assert_same, tmp_path, monkeypatch):
    request = [*task, *SHORT, *REPLAY, *BURSTS, "logger=[]"]
    run = rlrun.train(request, run_dir=tmp_path / "run").run_dir
    steps = [checkpoint_key(path)[0] for path in RunDir(run).checkpoint_dirs()]
    copy_as_killed(run, tmp_path / "killed", at=steps[len(steps) // 2])
    rlrun.resume(tmp_path / "killed")
    assert_same(run, tmp_path / "killed")
    monkeypatch.setattr(Table, "draw_ahead", lambda *_: None)
    assert_same(run, rlrun.train(request, run_dir=tmp_path / "one by one").run_dir)


@pytest.mark.parametrize(
    "task",
    [
        ("env=cartpole", "memory=prioritized"),
        ("env=cartpole", "+with=[prioritized,reward_norm,observation_norm]", "num_envs=3"),
        ("env=cartpole", "memory=prioritized", "algorithm.recurrent=gru", "algorithm.unroll=6", "algorithm.burn_in=2"),
    ],
)
def test_priorities_of_a_burst_outlive_a_kill(task, assert_same, tmp_path):
    request = ["algorithm=dqn", *task, *SHORT, *REPLAY, *BURSTS, "logger=[]", "memory.sampler.feedback=burst"]
    run = rlrun.train(request, run_dir=tmp_path / "run").run_dir
    checkpoints = RunDir(run).checkpoint_dirs()
    checkpoint = checkpoints[len(checkpoints) // 2]
    burst = checkpointing.load(checkpoint)["memory"]["sampler"]["burst"]
    assert burst["start"].size > 0
    assert burst["pending"][0].size > 0
    copy_as_killed(run, tmp_path / "killed", at=checkpoint_key(checkpoint)[0])
    rlrun.resume(tmp_path / "killed")
    assert_same(run, tmp_path / "killed")


def test_a_run_killed_behind_its_last_update_has_all_metrics(tmp_path):
    """The last record is written after the last checkpoint, by which nothing is sampled any more."""
    overrides = ["algorithm=dqn", "env=cartpole", "stop.env_steps=80", "algorithm.hidden=[8]", "logger=[]"]
    overrides += [*REPLAY, "checkpoint.every=20", "log.every=1_000", "evaluation.every=0"]
    rlrun.train(overrides, run_dir=tmp_path / "whole")
    killed = RunDir(shutil.copytree(tmp_path / "whole", tmp_path / "killed"))
    for path in (killed.summary, killed.status):
        path.unlink()
    rlrun.resume(killed.path)
    assert compare(tmp_path / "whole", killed.path)["metrics"]
