"""From words to a run: compose, build, train, evaluate. The commands and their Python twins meet here."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlrun import config as configuration
from rlrun.assembly import builder_of, prepare_process, stateful
from rlrun.callback import Stop
from rlrun.callbacks import Evaluator, Interrupted, Logger
from rlrun.collect import Collector
from rlrun.config import Composed
from rlrun.errors import RequestError
from rlrun.files import write_json, write_text
from rlrun.manifest import manifest
from rlrun.rundir import Heartbeat, RunDir, Status
from rlrun.trainer import Trainer
from rlrun.wiring import explain as explain_plan


@dataclass
class Result:
    """A run that ended: its directory, its summary, and the live objects."""

    run_dir: Path
    summary: dict[str, Any]
    config: DictConfig
    trainer: Trainer

    def describe(self) -> str:
        """Return two lines: what came out, and where it lies."""
        found, summary = self.summary["evaluation"], self.summary
        steps = f"{summary['env_steps']:,} env steps, {summary['updates']:,} updates, {summary['seconds']:.0f} s"
        if found is None:
            return f"{summary['status']}: {steps}\n{self.run_dir}"
        outcome = (
            f"mean return {found['mean_return']:.2f} ± {found['std_return']:.2f} over {found['episodes']} episodes"
        )
        return f"{summary['status']}: {outcome} ({steps})\n{self.run_dir}"


class Experiment:
    """A composed config with its parts built, ready to run.

    Raises:
        RequestError: a key, a target, a space or the wiring is wrong; nothing was written.
    """

    def __init__(self, composed: Composed) -> None:
        self.composed = composed
        self.config = composed.config
        self.device = prepare_process(self.config)
        self.builder = builder_of(self.config, device=self.device)
        self.builder.get("seeds").apply()
        with torch.device(self.device):
            self.trainer: Trainer = self.builder.get("trainer")

    def part(self, kind: type[Any]) -> Any:
        """Return the callback of a kind, or None."""
        return next((part for part in self.trainer.callbacks.values() if isinstance(part, kind)), None)

    def explain(self) -> str:
        """Return the data flow of one update."""
        return explain_plan(self.trainer.plan, partial(path_of, self.builder.built))

    def run(self, run_dir: RunDir) -> dict[str, Any]:
        """Train in a run directory; its status and summary tell how it ended, whatever happened.

        Raises:
            RlrunError: the run failed.
        """
        try:
            about = manifest(sys.argv, seed=int(self.config.seed), project=self.composed.project)
            used = {"device": self.device, "threads": torch.get_num_threads()}
            text = OmegaConf.to_yaml(self.config)
            run_dir.start(config=text, overrides=self.composed.words, manifest={**about, **used})
        except BaseException:
            run_dir.discard()
            raise
        state = self.trainer.state
        state["run_dir"] = run_dir.path
        state["config"] = OmegaConf.to_container(self.config, resolve=False)
        state["parts"] = stateful(self.builder.built)
        status: Status = "failed"
        try:
            with Heartbeat(run_dir):
                self.trainer.train()
            status = "stopped" if isinstance(state["stopped_by"], Interrupted) else "completed"
        except KeyboardInterrupt:
            status = "stopped"
            raise
        except Exception:
            write_text(run_dir.log, traceback.format_exc())
            raise
        finally:
            summary = self.summary(status)
            write_json(run_dir.summary, summary)
            run_dir.write_status(status)
        return summary

    def summary(self, status: str) -> dict[str, Any]:
        """Return what `summary.json` holds."""
        collector, evaluator, state = self.part(Collector), self.part(Evaluator), self.trainer.state
        logger = self.part(Logger)
        seconds = logger.seconds if logger is not None else 0.0
        steps = collector.steps if collector is not None else 0
        last = evaluator.last if evaluator is not None else None
        return {
            "status": status,
            "env_steps": steps,
            "updates": state["update"],
            "episodes": collector.episodes if collector is not None else 0,
            "seconds": seconds,
            "env_steps_per_second": steps / seconds if seconds > 0 else None,
            "evaluation": last,
            "best": evaluator.best if evaluator is not None else None,
            "objective": last["mean_return"] if last is not None else None,
            "stopped_by": str(state["stopped_by"]) if isinstance(state.get("stopped_by"), Stop) else None,
        }


def train(
    words: Iterable[str] | Composed = (), *, run_dir: Path | str | None = None, config_dir: Path | None = None
) -> Result:
    """Train an agent; the twin of `rlrun train`.

    Args:
        words: what stands on the command line: `["algorithm=sac", "env=cartpole", "seed=3"]`; or what was composed.
        run_dir: where the run goes; None = `runs/<algorithm>-<env>/…`.
        config_dir: the user's own conf folder, in place of `./conf`.

    Raises:
        RequestError: the request is wrong; nothing was written.
        RlrunError: the run failed; `status.json` says so.
    """
    composed = _composed(words, config_dir)
    experiment = Experiment(composed)
    env = experiment.builder.get("env")
    if run_dir is None:
        directory = RunDir.create(algorithm=composed.choices["algorithm"], env=env.name, seed=composed.config.seed)
    else:
        directory = RunDir.claim(run_dir)
    summary = experiment.run(directory)
    return Result(directory.path, summary, composed.config, experiment.trainer)


def explain(words: Iterable[str] | Composed = (), *, config_dir: Path | None = None) -> str:
    """Return the data flow of one update, as `rlrun explain` prints it."""
    return Experiment(_composed(words, config_dir)).explain()


def check(words: Iterable[str] | Composed = (), *, config_dir: Path | None = None) -> list[str]:
    """Build everything and step nothing; return what was found, one line each.

    Raises:
        RequestError: the first thing that would keep the run from starting.
    """
    experiment = Experiment(_composed(words, config_dir))
    env = experiment.builder.get("env")
    parts = stateful(experiment.builder.built)
    parameters = sum(
        p.numel() for part in parts.values() if isinstance(part, torch.nn.Module) for p in part.parameters()
    )
    needed = sum(getattr(part, "nbytes", 0) for part in parts.values())
    free = shutil.disk_usage(Path.cwd()).free
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    if memory is not None and needed > memory:
        raise RequestError(
            f"memory.length: the memory would grow to {needed / 1e9:.1f} GB; this machine has {memory / 1e9:.1f} GB"
        )
    return [
        f"config    ok: algorithm={experiment.composed.choices['algorithm']}, environment {env.name}",
        f"wiring    ok: {len(experiment.trainer.callbacks)} callbacks",
        f"networks  {parameters:,} parameters on {experiment.device}",
        f"memory    up to {needed / 1e9:.2f} GB",
        f"disk      {free / 1e9:.1f} GB free",
    ]


def _composed(words: Iterable[str] | Composed, config_dir: Path | None) -> Composed:
    return words if isinstance(words, Composed) else configuration.compose(list(words), config_dir=config_dir)


def path_of(built: dict[str, Any], part: object) -> str:
    """Return the config path of a built part, or its class where it has none."""
    paths = [path for path, other in built.items() if other is part]
    return min(paths, key=len, default=type(part).__name__)
