"""What runs cost, before they are begun."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.command import code_of

from rlrun.analysis.estimate import estimate, probe
from rlrun.analysis.estimate.cost import (
    Cost,
    CostEstimate,
    Measured,
    cost_of,
    differing,
    due,
    duration,
    known_costs,
    makespan,
    shapes,
)
from rlrun.config import compose
from rlrun.config.expansion import Job, expand
from rlrun.core.errors import RequestError, RlrunError
from rlrun.training.callback import Stop

TINY = (
    *("algorithm=dqn", "env=cartpole", "algorithm.hidden=[8]", "algorithm.warmup_steps=50", "memory.length=500"),
    *("algorithm.batch_size=8", "evaluation.every=200", "evaluation.episodes=2", "stop.env_steps=100_000"),
)
# A probe of 1,000 of 10,000 steps, 10 ms each, with two evaluations of 1 s in it.
PROBED = Measured(
    axis=1_000,
    complete=False,
    loop=12.0,
    last=1.0,
    around=3.0,
    pace=0.01,
    end=10_000,
    seconds=None,
    may_end=False,
    skipped=0,
    skipped_pace=0.0,
    evaluate_every=400,
    newest=1.0,
    longest=None,
    save_every=0,
    save_seconds=None,
    keep=3,
    keep_best=0,
    state=1_000,
    rows=0,
    stored=0,
    capacity=0,
    grows=True,
    records=50,
    fixed=7,
)


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


def test_columns_are_the_keys_that_differ():
    columns = differing(jobs(("a=1", "b=[1,2]"), ("a=1", "b=[1,2]", "c.d=x")))
    assert columns == (["c.d"], [[""], ["x"]])


def test_each_job_begins_when_a_worker_is_free():
    assert [makespan([3, 1, 1, 4], workers) for workers in (1, 2, 8)] == [9, 6, 4]  # 3 | 1 1 4


def test_what_is_due_is_counted_up_to_the_end():
    assert [due(*span) for span in ((0, 1_000, 400), (400, 800, 400), (399, 400, 400), (0, 1_000, 0))] == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # 3 s around and 12 s so far; 9,000 steps; 23 evaluations, of which the last falls together with the end
        ({}, 3 + 12 + 90 + 23),
        ({"end": 10_100}, 3 + 12 + 91 + 23 + 1),
        ({"evaluate_every": 0}, 3 + 12 + 90),
        ({"complete": True, "end": 1_000}, 3 + 12 + 1),
        ({"longest": 3.0}, 3 + 12 + 90 + 23 * 2),  # halfway to the time limit
        ({"skipped": 4_000, "skipped_pace": 0.001}, 3 + 12 + 4 + 50 + 13),  # of the warm-up
    ],
)
def test_the_rest_of_a_run_goes_at_the_pace_of_its_beginning(changes, seconds):
    assert cost_of(replace(PROBED, **changes)).seconds == pytest.approx(seconds)


def test_a_limit_of_seconds_is_kept():
    cost = cost_of(replace(PROBED, seconds=60.0))
    assert 3 + 60 - 2 <= cost.seconds <= 3 + 60 + 2  # to an evaluation, and with the last one
    assert math.isinf(cost_of(replace(PROBED, end=None)).seconds)
    assert math.isfinite(cost_of(replace(PROBED, end=None, seconds=60.0)).seconds)


ROWS = {"keep": 1, "rows": 2_000, "stored": 1_000, "capacity": 100_000}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"save_every": 5_000}, 3 * 1_000),  # two, and one at the end
        ({"save_every": 1_000}, 3 * 1_000),
        ({"save_every": 1_000, "keep": None}, 11 * 1_000),
        ({"save_every": 1_000, "keep_best": 1}, 4 * 1_000),
        (ROWS, 1_000 + 20_000),
        (ROWS | {"capacity": 4_000}, 1_000 + 2 * 8_000),  # some of them overwritten
        (ROWS | {"grows": False}, 1_000 + 2_000),
    ],
)
def test_disk_holds_the_checkpoints_that_stay_and_the_rows_that_fit(changes, size):
    assert cost_of(replace(PROBED, **changes)).bytes == 7 + 500 + size


def test_a_bill_adds_up():
    job_list = jobs(("a=1", "seed=0"), ("a=2", "seed=0"), ("a=1", "seed=1"))
    costs = zip(shapes(job_list), [Cost(100.0, 10_000), Cost(7_200.0, 500, 0.01, at_most=True)], strict=True)
    cost_estimate = CostEstimate(tuple(job_list), tuple(costs), workers=2, launch=5.0, free=2_000, hourly_price=3.0)
    assert (cost_estimate.seconds, cost_estimate.work, cost_estimate.bytes) == (7_205.0, 7_400.0, 20_500)
    text = cost_estimate.describe()
    assert re.search(r"^1 +100 +2 h +500 B +a=2$", text, re.MULTILINE)
    assert re.search(r"^time   2 h, until .*; 3 jobs, 2 at a time, together 2 h 3 min$", text, re.MULTILINE)
    assert "at most: a mean return may end runs before" in text
    assert "disk   up to 20.5 kB of 2.0 kB that are free: NOT ENOUGH" in text
    assert "price  6.00, at 3 an hour of this machine" in text


@pytest.mark.parametrize(
    ("seconds", "overrides"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (95, "1 min 35 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")],
)
def test_durations_are_said_in_two_units(seconds, overrides):
    assert duration(seconds) == overrides


def test_runs_of_before_with_the_same_words_are_known(project):
    for number, (overrides, status, seconds) in enumerate(
        [("a=1 seed=7", "completed", 10.0), ("seed=3 a=1", "completed", 20.0), ("a=1", "failed", 99.0)]
    ):
        run = project / "runs" / "x" / str(number)
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("")
        (run / "manifest.json").write_text(json.dumps({"created": f"2026-01-0{number + 1}"}))
        (run / "status.json").write_text(json.dumps({"status": status, "host": "x", "pid": 1, "heartbeat": ""}))
        (run / "summary.json").write_text(json.dumps({"seconds": seconds}))
        (run / "overrides.txt").write_text("\n".join(overrides.split()) + "\n")
    first, second = known_costs(shapes(jobs(("a=1", "seed=0"), ("a=2", "seed=0"))))
    assert first.seconds == 15.0
    assert second is None


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
    callback.evaluating += 7
    now[0] += 1
    with pytest.raises(Stop):
        callback.end_cycle(600, 600)
    callback.end_training(None)
    assert callback.first == (5.0, 100)
    assert callback.pace == pytest.approx(0.01)
    assert callback.loop == 5 + 4 + 3 + 7 + 1


def test_a_probe_is_the_beginning_of_its_run(project):
    overrides = [*TINY, "evaluation.max_steps=100", "algorithm.epsilon.steps=10", "memory.export.path=elsewhere.zip"]
    measured = probe.measure([*overrides, "logger=[terminal]"], None, 0.2, project / "run")
    assert not measured.complete
    assert (measured.end, measured.evaluate_every, measured.grows) == (100_000, 200, True)
    assert measured.stored <= measured.axis
    assert 500 <= measured.capacity <= 510
    assert 0 < measured.newest <= measured.longest * 1.001  # both episodes side by side, at most 100 rounds
    assert measured.longest < measured.newest * 100 / 8  # no episode falls within 8 steps
    assert 0 < measured.loop < 60
    assert measured.pace * measured.axis > 0
    assert min(measured.state, measured.rows, measured.records, measured.fixed) > 0
    assert [path.name for path in project.iterdir()] == ["run"]


def test_estimates_leave_nothing_behind(project, capfd):
    code = code_of("train", "-m", *TINY, "algorithm.double=true,false", "--estimate", "--probe", "0.3")
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "probing 2 shapes of run for 0.3 s each" in err
    assert len(re.findall(r"^1 .*algorithm.double=(?:True|False)$", out, re.MULTILINE)) == 2
    assert re.search(r"^time   .*; 2 jobs, \d at a time, together", out, re.MULTILINE)
    assert "disk   up to" in out
    assert list(project.iterdir()) == []


def test_a_run_that_a_probe_finishes_is_complete(project):
    measured = probe.measure([*TINY, "stop.env_steps=110", "logger=[]"], None, 60.0, project / "run")
    assert measured.complete
    assert measured.axis == 110
    assert cost_of(measured).seconds == pytest.approx(measured.loop + measured.last)


def test_a_probe_tells_nobody_of_itself():
    sinks = "[terminal,{wandb: {mode: online}},wandb,{tensorboard: {}},{_target_: some.where.Sink}]"
    config = compose([*TINY, f"logger={sinks}"]).config
    probe._keep_within(config)
    assert config.logger == ["terminal", {"tensorboard": {}}]


def test_a_run_without_a_limit_is_refused(project, monkeypatch):
    monkeypatch.setattr("rlrun.analysis.estimate._probe", lambda *about: [replace(PROBED, end=None)])
    with pytest.raises(RequestError, match=r"ends this run: stop\.env_steps"):
        estimate(jobs(("a=1",)), workers=1)
    assert list(project.iterdir()) == []


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
        (("--estimate", "--from", "somewhere"), "--estimate is of runs that begin anew"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, told, project, capfd):
    assert code_of("train", *TINY[:-1], *overrides) == 2
    assert told in capfd.readouterr().err
    assert list(project.iterdir()) == []
