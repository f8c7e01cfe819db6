"""What runs cost, before they are begun."""

from __future__ import annotations

import json
import math
import re
import time
from types import SimpleNamespace

import pytest
from tests.command import code_of

import rlrun
from rlrun.analysis.estimate import estimate, probe
from rlrun.analysis.estimate.cost import Cost, CostEstimate, shapes
from rlrun.checkpointing import home_of, load
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.config.expansion import Job, expand
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Stop

TINY = (
    *("algorithm=dqn", "env=cartpole", "algorithm.hidden=[8]", "algorithm.warmup_steps=50", "memory.length=500"),
    *("algorithm.batch_size=8", "evaluation.every=200", "evaluation.episodes=2", "stop.env_steps=100_000"),
)


def beginning(*, skipped=0, every=400):
    """Return a probe of 1,000 steps, 10 ms each, with two evaluations of 1 s in it."""
    evaluator = SimpleNamespace(every=every) if every else None
    started = probe.Probe(8.0, evaluator, time.perf_counter)
    started.axis, started.loop, started.last, started.skipped = 1_000, 12.0, 1.0, skipped
    started.evaluations = [1.0, 1.0] if every else []
    started.points = [(1.0, 100), (5.5, 550), (10.0, 1_000)]
    return started


def jobs(*overrides):
    return [Job(str(number), tuple(line), " ".join(line)) for number, line in enumerate(overrides)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_jobs_of_one_shape_differ_in_what_costs_nothing():
    overrides = [("a=1", f"seed={seed}", f"algorithm.lr={lr}") for seed in (0, 1) for lr in (0.1, 0.2)]
    groups = shapes(jobs(*overrides, ("a=2", "seed=0"), ("seed=0", "a=1", "algorithm.updates_per_step=0.5")))
    assert [len(shape.jobs) for shape in groups] == [4, 1, 1]
    assert [shape.label for shape in groups] == ["a=1", "a=2", "a=1 algorithm.updates_per_step=0.5"]


@pytest.mark.parametrize(("workers", "seconds"), [(1, 9), (2, 6), (8, 4)])  # of 3 | 1 1 4
def test_each_job_begins_when_a_worker_is_free(workers, seconds):
    job_list = jobs(*((f"a={number}",) for number in range(4)))
    costs = zip(shapes(job_list), [Cost(float(took), 0) for took in (3, 1, 1, 4)], strict=True)
    assert CostEstimate(tuple(job_list), tuple(costs), workers, 0.0, 0).seconds == seconds


@pytest.mark.parametrize(
    ("about", "limit", "most", "expected"),
    [
        # 12 s so far; 9,000 steps; 23 evaluations, of which the last falls together with the end
        ({}, 10_000, math.inf, 12 + 90 + 23),
        ({}, 10_100, math.inf, 12 + 91 + 23 + 1),
        ({"every": 0}, 10_000, math.inf, 12 + 90),
        ({"skipped": 4_000}, 10_000, math.inf, 12 + 40 + 50 + 13),  # of the warm-up
        ({}, math.inf, 60.0, 60),  # to an evaluation, and with the last one
    ],
)
def test_rest_of_a_run_has_the_pace_of_its_beginning(about, limit, most, expected):
    end, took = probe.rest(beginning(**about), limit, most)
    assert took == pytest.approx(expected, abs=2 if math.isinf(limit) else None)
    assert end == limit or math.isinf(limit)


def test_a_bill_adds_up():
    job_list = jobs(("a=1", "seed=0"), ("a=2", "seed=0"), ("a=1", "seed=1"))
    costs = zip(shapes(job_list), [Cost(100.0, 10_000, 0.1), Cost(7_200.0, 500, 0.01, at_most=True)], strict=True)
    cost_estimate = CostEstimate(tuple(job_list), tuple(costs), workers=2, launch=5.0, free=2_000, hourly_price=3.0)
    assert (cost_estimate.seconds, cost_estimate.bytes) == (7_205.0, 20_500)
    text = cost_estimate.describe()
    assert re.search(r"^1 +100 +2:00:00 +500 B +a=2$", text, re.MULTILINE)
    assert re.search(r"^time   2:00:05, until .*; 3 jobs, 2 at a time, together 2:03:20$", text, re.MULTILINE)
    assert "at most: a mean return may end runs before" in text
    assert "disk   up to 20.5 kB of 2.0 kB that are free: NOT ENOUGH" in text
    assert "price  6.00, at 3 an hour of this machine" in text


def test_the_pace_is_that_of_the_newest_half_without_evaluations():
    now = [100.0]
    callback = probe.Probe(8.0, None, lambda: now[0])
    loader = SimpleNamespace(warm_up=5_000)
    callback.begin_training(loader)
    assert (loader.warm_up, callback.skipped) == (2_000, 3_000)
    for seconds, axis in [(5, 100), (4, 200), (0, 200), (1, 300), (1, 400), (1, 500)]:
        now[0] += seconds
        callback.end_cycle(axis, axis)
    now[0] += 7
    callback.evaluations.append(7)
    now[0] += 1
    with pytest.raises(Stop):
        callback.end_cycle(600, 600)
    callback.end_training(None)
    assert callback.first == (5.0, 100)
    assert callback.pace == pytest.approx(0.01)
    assert callback.loop == 5 + 4 + 3 + 7 + 1


def test_a_probe_is_the_beginning_of_its_run(project):
    overrides = [*TINY, "evaluation.max_steps=100", "algorithm.epsilon.steps=10", "memory.export.path=elsewhere.zip"]
    cost = probe.measure([*overrides, "logger=[terminal]"], None, 0.2, project / "run")
    steps = json.loads((project / "run" / "summary.json").read_text())["env_steps"]
    assert 50 < steps < 100_000
    assert cost.probed * 2 < cost.seconds < cost.probed * 200_000 / steps
    assert cost.pace * 100_000 < cost.seconds
    files = [path for path in (project / "run").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < cost.bytes
    assert [path.name for path in project.iterdir()] == ["run"]


def test_disk_holds_the_checkpoints_that_stay(project):
    run = RunDir.open(rlrun.train([*TINY, "logger=[]", "stop.env_steps=60"], run_dir="run").run_dir)
    state = max(probe.size_of(path) for path in run.checkpoint_dirs())

    def size(*overrides, growth=1.0, grows=False):
        experiment = Experiment(compose([*TINY, "checkpoint.keep_best=false", "checkpoint.keep_last=1", *overrides]))
        experiment.restore(load(run.checkpoint()), run.checkpoint())
        return probe._disk(experiment, run, growth, grows=grows)

    assert size("checkpoint.keep_last=5") - size() == 4 * state
    assert size("checkpoint.keep_best=true") - size() == state
    rows = probe.size_of(home_of(run.checkpoints))
    assert size(growth=3.0, grows=True) - size(growth=3.0) == 2 * rows


def test_estimates_leave_nothing_behind(project, capfd):
    code = code_of("train", "-m", *TINY, "algorithm.double=true,false", "--estimate", "--probe", "0.3")
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "probing 2 shapes of run for 0.3 s each" in err
    assert len(re.findall(r"^1 .*algorithm.double=(?:True|False)$", out, re.MULTILINE)) == 2
    assert re.search(r"^time   .*; 2 jobs, \d at a time, together", out, re.MULTILINE)
    assert "disk   up to" in out
    assert list(project.iterdir()) == []


def test_a_run_that_a_probe_finishes_is_not_extrapolated(project):
    cost = probe.measure([*TINY, "stop.env_steps=110", "logger=[]"], None, 60.0, project / "run")
    assert cost.seconds == cost.probed


def test_a_probe_tells_nobody_of_itself():
    sinks = "[terminal,{wandb: {mode: online}},wandb,{tensorboard: {}},{_target_: some.where.Sink}]"
    config = compose([*TINY, f"logger={sinks}"]).config
    probe._keep_within(config)
    assert config.logger == ["terminal", {"tensorboard": {}}]


def test_a_run_without_a_limit_is_refused():
    with pytest.raises(ConfigError, match=r"ends this run: stop\.env_steps"):
        probe.rest(beginning(), math.inf, math.inf)


def test_a_probe_that_fails_says_why(project):
    (project / "broken.py").write_text(
        "from rlrun.env.toys import Bandit\n\n\nclass Broken(Bandit):\n    def step(self, action):\n"
        "        raise ValueError('the arm broke')\n"
    )
    with pytest.raises(RlrunError, match="the arm broke"):
        estimate(expand([*TINY[:1], "env.target=broken.Broken"]), workers=1, seconds=1.0)
    assert [path.name for path in project.iterdir() if path.name not in ("broken.py", "__pycache__")] == []


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("--probe", "5"), "--probe goes with --estimate"),
        (("--price", "5"), "--price goes with --estimate"),
        (("--estimate", "--from", "somewhere"), "--estimate is for runs that begin from scratch"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, told, project, capfd):
    assert code_of("train", *TINY[:-1], *overrides) == 2
    assert told in capfd.readouterr().err
    assert list(project.iterdir()) == []
