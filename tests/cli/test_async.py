"""Runs whose environment is stepped beside learning: how they end, and how they go on."""

import json
import os
import signal
import time

import pytest
from tests.processes import below

from rlrun import checkpointing as storage
from rlrun import resume
from rlrun.core import worker
from rlrun.runs.directory import RunDir

from .test_leaving import MODULE, status

SMALL = (
    *("algorithm.hidden=[8,8]", "algorithm.batch_size=4", "algorithm.warmup_steps=20", "evaluation.every=0"),
    *("logger=[]", "+with=async"),
)


def test_a_run_whose_worker_fails_says_so_and_can_go_on(rlrun, write, project):
    write("mine.py", MODULE)
    overrides = ("algorithm=dqn", "env.target=mine.Leaving", "env.kwargs.way=raise", "env.kwargs.at=30")
    outcome = rlrun("train", *overrides, *SMALL, "async.kind=thread", "stop.env_steps=100", "--run-dir", "run")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
    assert outcome.err.startswith("rlrun: collector: its thread failed: env.target 'mine.Leaving': step failed in")
    assert "Odd: the fox met the hen" in outcome.err
    assert status(project) == "failed"
    assert "the hen" in (project / "run" / "log.txt").read_text()
    where = RunDir(project / "run").checkpoint("latest")
    assert where.name == "0000000029-0000000009"
    states = storage.load(where)
    assert (states["collector"]["steps"], states["trainer"]["update"], states["loader"]["updates"]) == (29, 9, 9)
    again = rlrun("resume", "run")
    assert again.code == 1
    notice, failure = again.err.splitlines()  # the same failure, 29 steps later
    assert notice.startswith("resume: approximate")
    assert failure.startswith("rlrun: collector: its thread failed")
    assert RunDir(project / "run").checkpoint("latest").name.startswith("0000000058-")


def test_a_run_whose_process_is_killed_says_so_and_goes_on(forked, children, project, monkeypatch):
    overrides = ["algorithm=dqn", "env=cartpole", "preset=null", *SMALL, "stop.env_steps=1_000_000", "log.every=10"]
    process = forked(["train", *overrides, "--run-dir", "run"])
    metrics = project / "run" / "metrics.jsonl"
    process.until(lambda: metrics.is_file() and metrics.stat().st_size)
    (beside,) = below(process.pid)[1:]
    os.kill(beside, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "rlrun: collector: its process is gone: it was killed by SIGKILL\n")
    assert status(project) == "failed"
    states = storage.load(RunDir(project / "run").checkpoint("latest"))
    steps, updates = states["collector"]["steps"], states["trainer"]["update"]
    assert steps > 20
    monkeypatch.setattr(worker, "start", children.worker)  # a process that has imported everything
    result = resume(project / "run", [f"stop.env_steps={steps + 30}"])
    assert (result.summary["env_steps"], result.summary["updates"]) == (steps + 30, updates + 30)
    assert len(result.trainer.callbacks["collector"].table) >= steps  # no row was lost
    manifest = json.loads((project / "run" / "manifest.json").read_text())
    assert manifest["resume"] == "approximate"
    assert manifest["resumed"][0]["approximate"] == [
        "every env: its environment ran ahead of learning (process); new episodes begin"
    ]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_signal_stops_a_run_that_waits_for_steps(kind, forked, write, project):
    write("slow.py", "import time\nfrom rlrun.env.toys import HitTheMiddle\nclass Slow(HitTheMiddle):\n"
          "    def step(self, action):\n        time.sleep(0.5)\n        return super().step(action)\n")  # fmt: skip
    overrides = ["algorithm=sac", "env.target=slow.Slow", *SMALL, f"async.kind={kind}", "algorithm.warmup_steps=2"]
    overrides += ["log.every=1", "--run-dir", "run"]
    process = forked(["train", *overrides])
    metrics = project / "run" / "metrics.jsonl"
    process.until(lambda: metrics.is_file() and metrics.stat().st_size)
    workers = below(process.pid)[1:]
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.until(lambda: status(project) == "stopped" or time.monotonic() - begin > 60.0)
    assert time.monotonic() - begin < 10.0  # what the interpreter takes to end is beside the point
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (75, f"stopped by SIGTERM; continue with: rlrun resume {project / 'run'}\n")
    assert (project / "run" / "log.txt").read_text().endswith(err)
    assert out.startswith("stopped: ")
    assert len(workers) == (kind == "process")
    assert [worker for worker in workers if os.path.exists(f"/proc/{worker}")] == []
    assert status(project) == "stopped"
    assert (project / "run" / "checkpoints" / "latest").is_file()


def test_ppo_learns_from_steps_of_older_policies(rlrun, project):
    overrides = ("algorithm=ppo", "env=cartpole", "num_envs=4", "algorithm.horizon=16", "async.kind=thread")
    overrides += ("algorithm.hidden=[8]", "evaluation.every=0", "logger=[]", "+with=async", "stop.updates=40")
    assert rlrun("train", *overrides, "--run-dir", "run").code == 0
    record = json.loads((project / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["async/age"] > 0
    assert record["policy/approx_kl"] != 0.0
