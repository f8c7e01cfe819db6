"""What happens in the process of a probe: the beginning of a run, with a clock beside it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun import config as configuration
from rlrun.analysis.estimate.cost import Measured, size_of
from rlrun.callbacks import Checkpointer, Evaluator
from rlrun.callbacks.stop import Budget
from rlrun.checkpointing import home_of
from rlrun.collect.evaluate import Evaluation, stage
from rlrun.commands.train import Experiment
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.loading.assembly import keep_freed_memory
from rlrun.loading.shares import count_of
from rlrun.memory import Table
from rlrun.runs import signals
from rlrun.runs.directory import RunDir
from rlrun.runs.files import write_json
from rlrun.sweep.children import STOPPED
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer

WARM_UP = 2_000  # environment steps at random; more of a warm-up than this is reckoned up, not made
LEAST = 3  # cycles of collecting and learning, however long they take
WITHIN = ("terminal", "tensorboard")  # sinks that tell nobody of a run beyond its folder


class Probe(Callback):
    """End a run some seconds after its first update, and note how fast it went.

    Args:
        seconds: from the first update on.
        evaluator: whose evaluations are timed apart, or None.
        clock: returns seconds.
    """

    cycle = 1
    ends = True

    def __init__(self, seconds: float, evaluator: Evaluator | None, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.clock = clock
        self.evaluator = evaluator
        self.stopped = False  # by this probe, before the run was over
        self.begun = self.loop = 0.0  # when training began; its seconds, without what was done at its end
        self.evaluating = 0.0  # seconds of training so far
        self.last = 0.0  # … and of the evaluation at the end
        self.evaluations: list[tuple[float, int]] = []  # seconds, and rounds of their envs
        self.points: list[tuple[float, int]] = []  # at the end of each cycle: seconds without evaluations, and axis
        self.axis = 0
        self.skipped = 0

    def begin_training(self, loader: Any) -> None:
        inner = getattr(loader, "loader", loader)  # of a prefetch
        wanted = getattr(inner, "warm_up", 0)
        if wanted > WARM_UP:
            inner.warm_up, self.skipped = WARM_UP, wanted - WARM_UP
        if self.evaluator is not None:
            self.time(self.evaluator)
        self.begun = self.clock()

    def time(self, evaluator: Evaluator) -> None:
        """Take the time of each evaluation, and count the rounds of its envs: after each it asks whether to abandon."""
        evaluate = evaluator._evaluate

        def timed(step: int | None, update: int, *, final: bool = False) -> Evaluation:
            begun, abandon, rounds = self.clock(), evaluator.abandon, 0

            def count() -> None:
                nonlocal rounds
                rounds += 1
                if abandon is not None:
                    abandon()

            evaluator.abandon = count
            result = evaluate(step, update, final=final)
            evaluator.abandon = abandon
            seconds = self.clock() - begun
            self.evaluations.append((seconds, rounds))
            if final:
                self.last = seconds
            else:
                self.evaluating += seconds
            return result

        evaluator._evaluate = timed  # type: ignore[method-assign]

    def end_cycle(self, update: int, step: int | None = None) -> None:
        axis, now = update if step is None else step, self.clock()
        if axis > self.axis:
            self.points.append((now - self.begun - self.evaluating, axis))
        self.axis = axis
        if len(self.points) >= LEAST and now - self.begun - self.first[0] >= self.seconds:
            self.stopped = True
            raise Stop("probed")

    def end_training(self, error: BaseException | None) -> None:
        self.loop = self.clock() - self.begun

    @property
    def first(self) -> tuple[float, int]:
        """Where the first cycle ended, warm-up included: seconds without evaluations, and axis."""
        return self.points[0] if self.points else (0.0, 0)

    @property
    def pace(self) -> float:
        """Seconds a unit of the axis, in the newest half of what came after the first cycle."""
        if len(self.points) < 2:
            return self.first[0] / max(self.first[1], 1)
        last = self.points[-1]
        middle = (self.first[0] + last[0]) / 2
        begin = next(point for point in reversed(self.points) if point[0] <= middle)
        return (last[0] - begin[0]) / max(last[1] - begin[1], 1)


def carry_out(overrides: tuple[str, ...], config_dir: Path | None, seconds: float, folder: Path) -> int:
    """Probe a run in a folder and write `probe.json` beside it; return the exit code of the process."""
    signals.listen()
    keep_freed_memory()
    try:
        write_json(folder / "probe.json", asdict(measure(overrides, config_dir, seconds, folder / "run")))
    except KeyboardInterrupt:
        return STOPPED
    except RlrunError as error:
        print("rlrun:", " ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    except Exception as error:
        print(f"rlrun: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def measure(
    overrides: Sequence[str],
    config_dir: Path | None,
    seconds: float,
    path: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Begin a run in a folder of its own, and return what it takes.

    What its process takes around training (`around`) is left to who sees that from outside.
    """
    composed = configuration.compose(overrides, config_dir=config_dir)
    if (learners := count_of(composed.config)) > 1:
        raise ConfigError(f"learners={learners}: a probe measures one learner; learners=1")
    _keep_within(composed.config)
    experiment = Experiment(composed)
    experiment.take_in()
    evaluator = experiment.part(Evaluator)
    probe = Probe(seconds, evaluator, clock)
    callbacks = {"probe": probe, **experiment.trainer.callbacks}  # the first one, so that it sees each last update
    trainer = Trainer(callbacks, experiment.trainer.loader)
    experiment.trainer, experiment.parts["trainer"] = trainer, trainer
    run = RunDir.claim(path)
    with experiment.begin(run):
        experiment.train(run)
    return _measured(probe, experiment, run)


def _keep_within(config: Any) -> None:
    """Let a probe tell nobody of itself, and write nothing beside its folder."""
    sinks = OmegaConf.select(config, "logger")
    names = [sinks] if isinstance(sinks, str) else list(sinks or [])
    config.logger = [sink for sink in names if {*([sink] if isinstance(sink, str) else sink)} <= {*WITHIN}]
    if OmegaConf.select(config, "memory.export.path") is not None:
        config.memory.export.path = None


def _measured(probe: Probe, experiment: Experiment, run: RunDir) -> Measured:
    budget, checkpointer = experiment.part(Budget), experiment.part(Checkpointer)
    tables = [part for part in experiment.parts.values() if isinstance(part, Table)]
    collects = any("step" in part.provides for part in experiment.trainer.callbacks.values())
    newest, longest = _evaluations(probe)
    seconds = None if budget is None else budget.seconds
    return Measured(
        axis=probe.axis,
        complete=not probe.stopped,
        loop=probe.loop,
        last=probe.last,
        around=0.0,
        pace=probe.pace,
        end=_end(probe, budget, experiment.trainer.state["update"], collects=collects),
        seconds=seconds if seconds is not None and math.isfinite(seconds) else None,
        may_end=budget is not None and math.isfinite(budget.mean_return),
        skipped=probe.skipped,
        skipped_pace=probe.first[0] / max(probe.first[1], 1),
        evaluate_every=0 if probe.evaluator is None else probe.evaluator.every,
        newest=newest,
        longest=longest,
        save_every=(checkpointer.every or 0) if checkpointer is not None else 0,
        save_seconds=checkpointer.seconds if checkpointer is not None else None,
        keep=checkpointer.keep_last if checkpointer is not None else 1,
        keep_best=checkpointer.keep_best if checkpointer is not None else 0,
        stored=sum(map(len, tables)),
        capacity=sum(table.index.size for table in tables),
        grows=collects,
        **_sizes(run),
    )


def _end(probe: Probe, budget: Budget | None, updates: int, *, collects: bool) -> float | None:
    """Return where the run ends on the axis, by whichever limit comes first."""
    if budget is None:
        return None
    limit = budget.updates
    if collects:
        begin = probe.first[1]
        rate = max(updates - 1, 1) / max(probe.axis - begin, 1)  # updates a step, from the first update on
        limit = min(budget.env_steps, begin + probe.skipped + budget.updates / rate)
    return limit if math.isfinite(limit) else None


def _evaluations(probe: Probe) -> tuple[float, float | None]:
    """Return the seconds of an evaluation like the newest one, and of one with episodes up to the time limit."""
    evaluator = probe.evaluator
    if evaluator is None or not probe.evaluations:
        return 0.0, None
    usual = probe.evaluations[1:] or probe.evaluations  # the first one builds environments
    pace = sum(seconds for seconds, _ in usual) / sum(rounds for _, rounds in usual)
    with closing(stage(evaluator.env, evaluator.episodes)) as envs:
        spec = getattr(envs.envs[0], "spec", None) if envs.envs else None
        limit = getattr(spec, "max_episode_steps", None)
        waves = math.ceil(evaluator.episodes / envs.num_envs)
    longest = None if limit is None else pace * waves * min(limit, evaluator.max_steps or limit)
    return pace * probe.evaluations[-1][1], longest


def _sizes(run: RunDir) -> dict[str, int]:
    """Return the bytes of what is in a run's folder, by what it grows with."""
    states = [size_of(path) for path in run.checkpoint_dirs()]
    records = sum(map(size_of, (run.metrics, run.tensorboard, run.videos)))
    return {
        "state": sum(states) // max(len(states), 1),
        "rows": size_of(home_of(run.checkpoints)),
        "records": records,
        "fixed": size_of(run.path) - records - size_of(run.checkpoints),
    }
