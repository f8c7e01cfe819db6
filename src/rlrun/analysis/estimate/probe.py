"""The process of a probe: it times the beginning of a run, and extrapolates the rest.

The clock of a run is its *axis*: environment steps, or updates where nothing is collected. The rest of the run is
assumed to have the pace of the probe's newer half. Each later evaluation is assumed to take as long as the newest one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun import config as configuration
from rlrun.analysis.estimate.cost import Cost
from rlrun.callbacks import Checkpointer, Evaluator
from rlrun.callbacks.stop import Budget
from rlrun.checkpointing import home_of
from rlrun.collect.evaluate import Evaluation
from rlrun.commands.train import Experiment
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.loading.assembly import keep_freed_memory
from rlrun.loading.shares import count_of
from rlrun.memory import Table
from rlrun.runs import signals
from rlrun.runs.directory import RunDir
from rlrun.runs.exits import describe_error
from rlrun.runs.files import write_json
from rlrun.sweep.children import STOPPED
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer

WARM_UP = 2_000  # environment steps at random; the rest of a longer warm-up is extrapolated
LEAST = 3  # cycles of collecting and learning, however long they take
WITHIN = ("terminal", "tensorboard")  # sinks that write to the run's folder alone


class Probe(Callback):
    """End a run some seconds after its first update, and measure its speed.

    Args:
        seconds: from the first update on.
        evaluator: whose evaluations are timed apart, or None.
        clock: returns seconds.

    Attributes:
        stopped: whether this probe ended the run.
        loop: seconds of training with its evaluations, without the last one.
        last: seconds of the evaluation at the end.
        evaluations: seconds of each evaluation in between.
        points: at the end of each cycle: seconds without evaluations, and axis.
        skipped: environment steps of the warm-up that were left out.
    """

    cycle = 1
    ends = True

    def __init__(self, seconds: float, evaluator: Evaluator | None, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.clock = clock
        self.evaluator = evaluator
        self.stopped = False
        self.begun = self.loop = self.last = 0.0
        self.evaluations: list[float] = []
        self.points: list[tuple[float, int]] = []
        self.axis = self.skipped = 0

    def begin_training(self, loader: Any) -> None:
        inner = getattr(loader, "loader", loader)  # of a prefetch
        wanted = getattr(inner, "warm_up", 0)
        if wanted > WARM_UP:
            inner.warm_up, self.skipped = WARM_UP, wanted - WARM_UP
        if self.evaluator is not None:
            self.time(self.evaluator)
        self.begun = self.clock()

    def time(self, evaluator: Evaluator) -> None:
        """Time each evaluation."""
        evaluate = evaluator._evaluate

        def timed(step: int | None, update: int, *, final: bool = False) -> Evaluation:
            begun = self.clock()
            result = evaluate(step, update, final=final)
            if final:
                self.last = self.clock() - begun
            else:
                self.evaluations.append(self.clock() - begun)
            return result

        evaluator._evaluate = timed  # type: ignore[method-assign]

    def end_cycle(self, update: int, step: int | None = None) -> None:
        axis, now = update if step is None else step, self.clock()
        if axis > self.axis:
            self.points.append((now - self.begun - sum(self.evaluations), axis))
        self.axis = axis
        if len(self.points) >= LEAST and now - self.begun - self.first[0] >= self.seconds:
            self.stopped = True
            raise Stop("probed")

    def end_training(self, error: BaseException | None) -> None:
        self.loop = self.clock() - self.begun

    @property
    def first(self) -> tuple[float, int]:
        """The end of the first cycle, warm-up included: seconds without evaluations, and axis."""
        return self.points[0] if self.points else (0.0, 0)

    @property
    def pace(self) -> float:
        """Seconds per unit of the axis, in the newer half of the cycles after the first one."""
        if len(self.points) < 2:
            return self.first[0] / max(self.first[1], 1)
        last = self.points[-1]
        middle = (self.first[0] + last[0]) / 2
        begin = next(point for point in reversed(self.points) if point[0] <= middle)
        return (last[0] - begin[0]) / max(last[1] - begin[1], 1)


def carry_out(overrides: tuple[str, ...], config_dir: Path | None, seconds: float, folder: Path) -> int:
    """Probe a run in a folder and write `probe.json` next to it; return the exit code of the process."""
    signals.listen()
    keep_freed_memory()
    try:
        write_json(folder / "probe.json", asdict(measure(overrides, config_dir, seconds, folder / "run")))
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        print("rlrun:", describe_error(error), file=sys.stderr)
        return error.exit_code if isinstance(error, RlrunError) else 1
    return 0


def measure(
    overrides: Sequence[str],
    config_dir: Path | None,
    seconds: float,
    path: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> Cost:
    """Begin a run in its own folder, and return the cost of the whole run.

    The caller adds the process's time before and after training.

    Raises:
        ConfigError: nothing ends the run, or it has several learners.
    """
    composed = configuration.compose(overrides, config_dir=config_dir)
    if (learners := count_of(composed.config)) > 1:
        raise ConfigError(f"learners={learners}: a probe measures one learner; learners=1")
    _keep_within(composed.config)
    experiment = Experiment(composed)
    experiment.load_sources()
    probe = Probe(seconds, experiment.part(Evaluator), clock)
    callbacks = {"probe": probe, **experiment.trainer.callbacks}  # the first one, so that it sees each last update
    trainer = Trainer(callbacks, experiment.trainer.loader)
    experiment.trainer, experiment.parts["trainer"] = trainer, trainer
    run = RunDir.claim(path)
    with experiment.begin(run):
        experiment.train(run)
    return _extrapolated(probe, experiment, run)


def _extrapolated(probe: Probe, experiment: Experiment, run: RunDir) -> Cost:
    budget, collects = (
        experiment.part(Budget),
        any("step" in part.provides for part in experiment.trainer.callbacks.values()),
    )
    end, seconds = probe.axis, probe.loop + probe.last
    if probe.stopped:
        limit = limit_of(probe, budget, experiment.trainer.state["update"], collects=collects)
        end, seconds = rest(probe, limit, math.inf if budget is None else budget.seconds)
    may_end = budget is not None and math.isfinite(budget.mean_return)
    size = _disk(experiment, run, end / max(probe.axis, 1), grows=collects)
    return Cost(seconds, size, probe.pace, may_end, probe.loop + probe.last)


def limit_of(probe: Probe, budget: Budget | None, updates: int, *, collects: bool) -> float:
    """Return the step or update at which the first limit ends the run; infinity without any."""
    if budget is None:
        return math.inf
    if not collects:
        return budget.updates
    begin = probe.first[1]
    rate = max(updates - 1, 1) / max(probe.axis - begin, 1)  # updates a step, from the first update on
    return min(budget.env_steps, begin + probe.skipped + budget.updates / rate)


def rest(probe: Probe, limit: float, most: float) -> tuple[int, float]:
    """Return the step or update at which a run ends, and the seconds of the whole run.

    Args:
        probe: the beginning of the run.
        limit: of the axis.
        most: limit of seconds.

    Raises:
        ConfigError: there is no limit.
    """
    every = 0 if probe.evaluator is None else probe.evaluator.every
    evaluation = probe.evaluations[-1] if probe.evaluations else probe.last
    begin = probe.axis + probe.skipped
    before = probe.loop + probe.skipped * probe.first[0] / max(probe.first[1], 1)
    share = probe.pace + (evaluation / every if every else 0.0)  # seconds a unit, evaluations spread out
    end = min(max(limit, begin), max(begin, begin + (most - before) / share))
    if math.isinf(end):
        raise ConfigError("no limit of steps, updates or seconds ends this run: stop.env_steps=…")
    count = -(-end // every) - begin // every if every else 0  # those that are due, and one at the end
    return math.ceil(end), before + (end - begin) * probe.pace + count * evaluation


def _disk(experiment: Experiment, run: RunDir, growth: float, *, grows: bool) -> int:
    """Return an upper bound on the bytes of the run's folder at its end.

    Args:
        experiment: the probed run.
        run: its folder.
        growth: length of the run relative to the probe.
        grows: whether memories grow.
    """
    tables = [part for part in experiment.parts.values() if isinstance(part, Table)]
    checkpointer = experiment.part(Checkpointer)
    states = [size_of(path) for path in run.checkpoint_dirs()]
    records = sum(map(size_of, (run.metrics, run.tensorboard, run.videos)))
    fixed = size_of(run.path) - records - size_of(run.checkpoints)
    count = 1 if checkpointer is None else (checkpointer.keep_last or len(states) * growth) + checkpointer.keep_best
    stored, capacity = sum(map(len, tables)), sum(table.index.size for table in tables)
    rows = float(size_of(home_of(run.checkpoints)))
    if grows and stored:  # rows that were overwritten are on disk as well, at most as many
        rows *= min(growth, 2 * capacity / stored)
    return round(fixed + records * growth + count * max(states, default=0) + rows)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_file())


def _keep_within(config: Any) -> None:
    """Make a probe write only to its folder, and report to no service."""
    sinks = OmegaConf.select(config, "logger")
    names = [sinks] if isinstance(sinks, str) else list(sinks or [])
    config.logger = [sink for sink in names if {*([sink] if isinstance(sink, str) else sink)} <= {*WITHIN}]
    if OmegaConf.select(config, "memory.export.path") is not None:
        config.memory.export.path = None
