"""Searches whose jobs take no time: what a run came to is a function of its words."""

import hashlib
import json
from pathlib import Path

from rlrun.config.expansion import Job
from rlrun.runs.directory import RunDir
from rlrun.sweep.directory import SweepDir
from rlrun.sweep.launchers import Local
from rlrun.sweep.scheduler import Limits, schedule
from rlrun.sweep.search import Optuna, Search, SearchPlan

from .conftest import command

LOG = "x=tag(log,interval(1e-5,1e-1))"


class Cheap(SearchPlan):
    """A plan whose overrides are those of no config."""

    start = {}
    evaluations = 4

    def jobs(self, values, seeds):
        overrides = [[*self.fixed, *self.overrides_of(values), f"seed={seed}"] for seed in seeds]
        return [
            Job(hashlib.sha256(" ".join(line).encode()).hexdigest()[:12], tuple(line), line[-2]) for line in overrides
        ]


class Run:
    """A process that writes an evaluation each time it is looked at, and leaves when it is asked to."""

    def __init__(self, run, log, evaluations, fails=False, **summary):
        self.run, self.log = run, log
        self.run.path.mkdir(parents=True, exist_ok=True)
        self.left = list(evaluations)
        self.fails, self.summary, self.asked = fails, summary, False

    def poll(self):
        if self.asked:
            return 75
        if self.left:
            with open(self.run.metrics, "a") as file:
                file.write(json.dumps({"env_steps": 1, "evaluation/mean_return": self.left.pop(0)}) + "\n")
            return None
        if self.fails:
            self.log.write_text("rlrun: the arm broke\n")
            return 1
        self.run.summary.write_text(json.dumps({"status": "completed", **self.summary}))
        self.run.write_status("completed")
        return 0

    def terminate(self):
        self.asked = True

    def kill(self):
        self.asked = True


class Launcher(Local):
    """Starts such processes; `come_to` gets a job's values and seed, and returns what `Run` gets."""

    def __init__(self, folder, come_to):
        self.come_to, self.started = come_to, []

    def start(self, command, slot):
        values = dict(override.split("=") for override in command.job.overrides)
        self.started.append(command.job.key)
        args, place = self.come_to({name: _read(value) for name, value in values.items()}), RunDir(command.run)
        run = Run(place, command.log, **args) if isinstance(args, dict) else Run(place, command.log, args)
        if len(run.left) == 1:  # nothing to look at in between
            run.poll()
        return run


def _read(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


class Sought:
    """A search that ran, with all that came of it."""

    def __init__(self, folder, overrides, come_to, *, workers=1, limits=None, **settings):
        self.folder = Path(folder)
        for name in ("jobs", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.plan = Cheap(overrides, Optuna(**settings))
        self.plan.save(self.folder)
        self.limits, self.workers = limits or Limits(), workers
        self.sweep = SweepDir(self.folder, self.limits.retries)
        self.sweep.add([])
        self.describe_error = []
        self.launcher = Launcher(self.folder, come_to)
        self.search = Search(self.plan, self.sweep, self.describe_error.append)

    def run(self):
        options = {"workers": self.workers, "limits": self.limits, "show": lambda statuses: None}
        with self.search:
            self.code = schedule(
                self.sweep, self.launcher, lambda job: command(self.sweep, job), search=self.search, **options
            )
            self.trials = self.search._study.trials if self.search._study else []
        return self

    @property
    def answer(self):
        return json.loads((self.folder / "best.json").read_text())

    @property
    def states(self):
        return [trial.state for trial in self.trials]
