"""Compose, build, train and evaluate a run. Commands and Python calls share this code."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlrun import config as configuration
from rlrun.callbacks import Checkpointer, Evaluator, Interrupted, Logger, LossCallback, MemoryImport, Validation
from rlrun.collect import ByIdCollector, Collector
from rlrun.collect.agents import require_actions
from rlrun.collect.evaluate import restored_generators
from rlrun.commands.fork.parents import started
from rlrun.commands.fork.transfer import Fork, transfer
from rlrun.config import Composed
from rlrun.config.build import register_resolvers
from rlrun.config.composition import describe_presets, folder_of
from rlrun.config.interpolation import fix_time, plain
from rlrun.config.layers import naming_file
from rlrun.config.overrides import listed
from rlrun.core import distributed
from rlrun.core.errors import Left, RequestError, RlrunError, RunDirError, describe_error, did_you_mean
from rlrun.core.files import write_json
from rlrun.core.generators import Generators
from rlrun.core.spaces import Spaces, describe_layouts
from rlrun.core.typing import Stateful
from rlrun.env import Env
from rlrun.env.descriptions import describe_env, describe_spaces
from rlrun.env.wrapper_state import are_learning
from rlrun.loading.assembly import (
    builder_of,
    prepare_process,
    process_as_set_up,
    process_restored,
    require_paid,
    require_rows,
    require_shareable,
    restore_part,
    shares,
    spaces_path,
    stateful,
)
from rlrun.memory import Table
from rlrun.nn import MixedPrecision, Policy
from rlrun.runs.code import Code
from rlrun.runs.directory import RunDir, Status
from rlrun.runs.heartbeat import keep_fresh, lock_run, require_own, tokens
from rlrun.runs.manifest import manifest
from rlrun.runs.progress import outcome
from rlrun.training.callback import Stop, trained_by
from rlrun.training.plan import State, data_flow
from rlrun.training.plan import explain as explain_plan
from rlrun.training.trainer import Trainer

OF_RECURRENT = ("algorithm.unroll", "algorithm.burn_in", "algorithm.core_size")  # only recurrent networks read them
GENERATORS = "generators"  # name of the part for the process's random generators, which no config has


@dataclass
class Result:
    """A run that ended: its directory, its summary, and the live objects.

    There is no trainer if the run was already finished.
    """

    run_dir: Path
    summary: dict[str, Any]
    config: DictConfig
    trainer: Trainer | None

    def __fspath__(self) -> str:
        """Return the run directory, so that `evaluate` and other functions accept the result of `train`."""
        return str(self.run_dir)

    def describe(self) -> str:
        """Return two lines: the outcome, and the run directory."""
        return f"{outcome(self.summary, self.run_dir / 'metrics.jsonl', self.config)}\n{self.run_dir}"


class Experiment:
    """A composed config with its parts built, ready to run.

    Raises:
        RequestError: a key, a target, a space or the wiring is wrong; nothing was written.
    """

    def __init__(self, composed: Composed) -> None:
        self.composed = composed
        self.config = composed.config
        register_resolvers(plain(self.config))
        self.device = prepare_process(self.config)
        self.builder = builder_of(self.config, device=self.device, **shares(self.config))
        self.builder.get("seeds").apply()
        with torch.device(self.device), naming_file(composed):
            self.trainer: Trainer = self.builder.get("trainer")
        steps = self.config.stop.env_steps
        if steps is not None and not any("step" in part.provides for part in self.trainer.callbacks.values()):
            raise RequestError(
                f"stop.env_steps={steps}: nothing is collected, so environment steps stay 0; use stop.updates=…"
            )
        if (collector := self.part((Collector, ByIdCollector))) is not None:
            policy = getattr(agent := self.builder.get("agent"), "policy", agent)
            place = f"{path_of(self.builder.built, policy)} ({type(policy).__name__})"
            require_actions(agent, collector.env.spaces, place)  # the error names the network
        require_shareable(self.trainer, self.builder.built)
        require_paid(self.trainer, self.builder.built)
        self.builder.get("seeds").apply_own()
        if isinstance(self.trainer.around, MixedPrecision):
            self.trainer.around.look_at(self.builder.built.values())
        self.parts: dict[str, Stateful] = {**stateful(self.builder.built), GENERATORS: Generators()}
        if (saver := self.part(Checkpointer)) is not None:
            saver.require_parts(self.parts)
        self.code = Code(self.config.log.get("code"), composed.project)
        self.fork: Fork | None = None
        self._drawn: Any = None  # states of the process-wide generators in the restored checkpoint
        self._lost: list[str] = []  # states that the checkpoint lacked

    @property
    def env_name(self) -> str:
        """Name of the environment; `none` without one."""
        return str(getattr(self.builder.get("env"), "name", "none"))

    def budget_notes(self) -> list[str]:
        """Return warnings about a budget of too few environment steps, or a run without any limit."""
        stop, loader = self.config.stop, getattr(self.trainer.loader, "loader", self.trainer.loader)  # of a prefetch
        steps, table = stop.env_steps, getattr(loader, "table", ())
        warm_up, batch, length, horizon = (getattr(loader, key, 0) for key in ("warm_up", "batch", "length", "horizon"))
        endless = self.part((Collector, ByIdCollector)) is not None or getattr(loader, "epochs", 0) is None
        if endless and all(limit is None for limit in stop.values()):
            return ["no limit is set in stop: the run continues until a signal ends it"]
        if not steps:
            return []
        uses_up = f"takes all of stop.env_steps={steps:,}: there will be"
        if getattr(loader, "start", 0) is None and (first := warm_up - len(table)) >= steps:
            return [f"a warm-up of {first:,} steps (algorithm.warmup_steps) {uses_up} one update at most"]
        if (rollout := horizon * self.config.num_envs) >= steps:
            return [f"a rollout of {rollout:,} steps (algorithm.horizon × num_envs) {uses_up} one update"]
        if (rows := batch * length) > steps:
            return [f"a batch of {rows:,} rows is more than stop.env_steps={steps:,}: rows will repeat in it"]
        return []

    def unused_notes(self) -> list[str]:
        """Return warnings about overrides that only recurrent networks read, in a run without them."""
        if OmegaConf.select(self.config, "algorithm.recurrent", default=...) is ...:
            return []  # these keys mean something else
        kinds = {OmegaConf.select(self.config, key) for key in ("algorithm.recurrent", "encoder._target_")}
        texts = self.composed.overrides if kinds <= {None, "rlrun.nn.Encoder"} else ()  # others may have a state
        return [f"{text} is idle: algorithm.recurrent is null" for text in texts if text.split("=")[0] in OF_RECURRENT]

    def untrained_notes(self) -> list[str]:
        """Return warnings about untrained networks that do not come from other runs, and losses without parameters."""
        taken = self.config.get("init") or {}
        idle = [path for path in self.untrained() if not any(f"{path}.".startswith(f"{part}.") for part in taken)]
        losses = [callback for callback in self.trainer.callbacks.values() if isinstance(callback, LossCallback)]
        if losses and not any(callback.parameters for callback in losses):
            return [f"callbacks.{losses[0].name}: no network of a loss has a parameter that can be trained"]
        return [f"{path}: no loss steps its parameters" for path in idle]

    def own_notes(self) -> list[str]:
        """Return, for the user's classes in place of packaged ones, the unused keys and how outputs are read."""
        policies = {path: part for path, part in self.builder.built.items() if isinstance(part, Policy)}
        read = {path: policy.outputs for path, policy in policies.items() if policy.outputs}
        return [f"{path}: {text}" for path, text in (*self.builder.left_out.items(), *read.items())]

    def wrapper_notes(self) -> list[str]:
        """Return warnings about wrappers that learn but have no state to save, so evaluations start without it."""
        env = self.builder.built.get("env")
        if not isinstance(env, Env):
            return []
        unseen = env.learns_unseen()
        if unseen and env.vectorization in ("sync", "async"):
            with restored_generators(), closing(env.copy()) as trial:  # statistics from before are no reason to warn
                learning = are_learning(trial, unseen)
            unseen = {name: unseen[name] for name in learning}
        return [
            f"{name} learns while it wraps the environment, and offers no state_dict: evaluations and loaded policies "
            f"start without what it learned; +with={way_out} does it in the run (docs/environments.md)"
            for name, way_out in unseen.items()
        ]

    def load_sources(self) -> None:
        """Load parts of other runs, and memories from files, as the config requests.

        Raises:
            RequestError: one of them does not fit.
        """
        self.load_parents()
        importers = {name: part for name, part in self.trainer.callbacks.items() if isinstance(part, MemoryImport)}
        for importer in importers.values():
            importer.restore_state()
        for name in importers:
            require_rows(self.builder, self.trainer, name)

    def load_parents(self) -> None:
        """Load the parts of other runs that the config names."""
        self.fork = transfer(self.composed, self.parts)

    def part(self, kind: type[Any] | tuple[type[Any], ...]) -> Any:
        """Return the first callback of a class, or of one of several; None without one."""
        return next((part for part in self.trainer.callbacks.values() if isinstance(part, kind)), None)

    def explain(self) -> str:
        """Return the data flow of one update."""
        untrained = [f"untrained  {path}: no loss steps its parameters" for path in self.untrained()]
        layouts = [f"layout     {line}" for line in self.layouts()]
        return "\n".join([explain_plan(self.trainer.plan, partial(path_of, self.builder.built)), *layouts, *untrained])

    def layouts(self) -> list[str]:
        """Return a line for each part of the observation that may be an image."""
        built = self.builder.built
        spaces = getattr(built.get("env"), "spaces", None) or built.get("stored_spaces")
        data: Any = getattr(built.get("data"), "spaces", {})
        observation = spaces.observation if spaces is not None else data.get("observation")
        return [] if observation is None else describe_layouts(observation)

    def data_flow(self) -> dict[str, Any]:
        """Return the content of `explain` as data."""
        plan = self.trainer.plan
        hooks = data_flow(plan, partial(path_of, self.builder.built))
        return {"loader": dict(plan.names), "hooks": hooks, "layouts": self.layouts(), "untrained": self.untrained()}

    def networks(self) -> dict[str, str]:
        """Return the layers of each network by its config path, as torch prints them."""
        modules = {path: part for path, part in sorted(self.parts.items()) if isinstance(part, torch.nn.Module)}
        inner = {id(module) for part in modules.values() for module in [*part.modules()][1:]}
        return {path: repr(part) for path, part in modules.items() if id(part) not in inner and [*part.parameters()]}

    def untrained(self) -> list[str]:
        """Return the config paths of networks with parameters that no callback trains."""
        trained = {id(param) for callback in self.trainer.callbacks.values() for param in trained_by(callback)}
        paths: list[str] = []
        for path, part in sorted(self.parts.items()):
            if not isinstance(part, torch.nn.Module) or any(path.startswith(f"{above}.") for above in paths):
                continue
            free = {id(param) for param in part.parameters() if param.requires_grad}
            if free and not free & trained:
                paths.append(path)
        return paths

    def restore(self, states: Mapping[str, Any], where: Path) -> None:
        """Restore the states of a checkpoint; a table whose rows were not saved stays empty.

        Raises:
            RunDirError: the checkpoint lacks a part, or a state does not fit.
        """
        for path, part in self.parts.items():
            if path not in states:
                if not isinstance(part, Table):
                    hint = did_you_mean(path, states)
                    if OmegaConf.select(self.config, "checkpoint.parts") is not None:
                        hint = f"; checkpoint.parts left it out; {resuming(where.parents[1], self.config)}"
                    raise RunDirError(f"{where} holds no part '{path}'{hint}")
                self._lost.append(f"the rows of {path} were not saved")
            else:
                restore_part(part, states[path], f"{where}: part '{path}'")
        # These are set again after all callbacks have begun, as resets of environments may draw random numbers.
        self._drawn = states[GENERATORS]

    def describe(self) -> dict[str, Any]:
        """Return the circumstances of this process for the run's manifest: command, machine, packages, code."""
        about = manifest(sys.argv, seed=int(self.config.seed), project=self.composed.project)
        about["parent"] = None if self.fork is None else self.fork.lineage
        if digests := self.code.digests():
            about["code"] = digests
        about["set_by"] = configuration.provenance(self.composed)
        return {**about, **process_as_set_up(self.device), "precision": str(self.config.precision)}

    def described_spaces(self) -> dict[str, Any] | None:
        """Return the spaces of the environment, or of the data if there is none; None if a run has neither."""
        if (env := self.builder.get("env")) is not None:
            return describe_env(env)
        spaces = self.builder.built.get(spaces_path(self.config))
        return describe_spaces(spaces) if isinstance(spaces, Spaces) else None

    @contextmanager
    def begin(self, run_dir: RunDir) -> Iterator[None]:
        """Write config, overrides and manifest into the run directory, and lock it until the context ends.

        Raises:
            RlrunError: the directory cannot be written; all its files are deleted.
        """
        with lock_run(run_dir):
            try:
                if self.fork is not None:
                    self._drawn = self.fork.begin(run_dir, self.parts)[GENERATORS]
                for path, part in self.builder.built.items():  # a resume on any machine uses these lengths
                    if isinstance(part, Table) and OmegaConf.select(self.config, f"{path}.length", default=0) is None:
                        OmegaConf.update(self.config, f"{path}.length", part.length * distributed.world_size())
                text = configuration.kept(self.config)
                about = {**self.describe(), "spaces": self.described_spaces(), "ranks": distributed.world_size()}
                run_dir.start(config=text, overrides=self.composed.overrides, manifest=about)
                self.code.save(run_dir.path)
                if preset := describe_presets([self.composed.preset]):
                    run_dir.echo(preset, logging.WARNING)
            except BaseException:
                run_dir.discard()
                raise
            yield

    def train(self, run_dir: RunDir, resumed: Callable[[list[str]], None] | None = None) -> dict[str, Any]:
        """Train in a run directory, as the first rank; the status and the summary are always written.

        Args:
            run_dir: of the run.
            resumed: called when a resume is complete, with the reasons why it is approximate.

        Raises:
            RlrunError: the run failed.
        """
        state = self._prepared(run_dir)
        distributed.broadcast((run_dir.path, tokens.get(run_dir.path)))
        status: Status = "failed"
        failure: str | None = None
        try:
            for line in self.own_notes():
                run_dir.echo(line)
            notes = self.budget_notes, self.unused_notes, self.untrained_notes, self.wrapper_notes, self.code.notes
            for line in (line for found in notes for line in found()):
                run_dir.echo(line, logging.WARNING)
            for path, layers in self.networks().items() if self.config.log.get("networks") else ():
                run_dir.echo(f"{path}: {layers}")
            with keep_fresh(run_dir), run_dir.noting_warnings():
                self.trainer.train(partial(self._complete_resume, resumed) if self._drawn is not None else None)
            status = "stopped" if isinstance(state["stopped_by"], Interrupted) else "completed"
        except KeyboardInterrupt as error:
            status = "stopped"
            raise Left(*error.args) from error
        except (Exception, SystemExit) as error:
            failure = describe_error(error)
            with suppress(RlrunError):  # a second error, such as a full disk, must not hide the first
                require_own(run_dir)
                run_dir.note(f"failed\n{traceback.format_exc()}")
            if isinstance(error, SystemExit):
                raise RlrunError(failure) from error
            raise
        finally:
            summary = self.summary(status)
            with suppress(*() if status == "completed" else (RlrunError,)):  # the first error is reported
                require_own(run_dir)
                write_json(run_dir.summary, summary)
                run_dir.write_status(status, error=failure)
                if status == "stopped":
                    why = summary["stopped_by"] or "a signal"
                    run_dir.echo(f"stopped by {why}; {resuming(run_dir.path, self.config)}")
        return distributed.broadcast(summary)

    def _prepared(self, run_dir: RunDir) -> State:
        state = self.trainer.state
        state["run_dir"] = run_dir.path
        state["config"] = plain(self.config)
        state["parts"] = self.parts
        return state

    def follow(self) -> Result:
        """Train as a rank other than the first, which alone writes the run's files; all ranks end together."""
        path, token = distributed.broadcast((Path(), ""))
        tokens[path] = token
        self._prepared(RunDir(path))
        self.trainer.train(partial(self._complete_resume, None) if self._drawn is not None else None)
        return Result(path, distributed.broadcast({}), self.config, self.trainer)

    def _complete_resume(self, resumed: Callable[[list[str]], None] | None) -> None:
        """Complete a resume after all callbacks have begun."""
        self.parts[GENERATORS].load_state_dict(self._drawn)
        causes = (getattr(callback, "approximate", None) for callback in self.trainer.callbacks.values())
        reasons = distributed.all_gather([*self._lost, *(reason for reason in causes if reason)])
        if resumed is not None:
            resumed(list(dict.fromkeys(reason for group in reasons for reason in group)))

    def summary(self, status: str) -> dict[str, Any]:
        """Return the content of `summary.json`."""
        collector, evaluator, state = self.part((Collector, ByIdCollector)), self.part(Evaluator), self.trainer.state
        logger = self.part(Logger)
        seconds = logger.seconds if logger is not None else 0.0
        steps = collector.steps if collector is not None else 0
        last = evaluator.last if evaluator is not None else None
        validation = self.part(Validation)
        validated = validation.last if validation is not None else None
        judging = evaluator if last is not None or validated is None else validation
        return {
            "status": status,
            "env_steps": steps,
            "updates": state["update"],
            **({"group_updates": dict(state["group_updates"])} if state["group_updates"] else {}),
            "episodes": collector.episodes if collector is not None else 0,
            "seconds": seconds,
            "env_steps_per_second": steps / seconds if seconds > 0 else None,
            "evaluation": last,
            **({} if validation is None else {"validation": validated}),
            "best": judging.best if judging is not None else None,
            "objective": judging.value if judging is not None and judging.last is not None else None,
            "stopped_by": str(state["stopped_by"]) if isinstance(state.get("stopped_by"), Stop) else None,
        }


def resuming(run: Path, config: DictConfig) -> str:
    """Return the command that resumes a run with as many ranks, or forks it if only chosen parts were saved."""
    if OmegaConf.select(config, "checkpoint.parts") is not None:
        return f"begin another run from its parts with: rlrun train --from {run}"
    count = distributed.world_size()
    return f"continue with: {'rlrun' if count == 1 else f'torchrun --nproc-per-node {count} -m rlrun'} resume {run}"


@distributed.joined()
@process_restored()
def train(
    overrides: Iterable[str] | Composed = (),
    *,
    start: os.PathLike[str] | str | None = None,
    run_dir: Path | str | None = None,
    config_dir: Path | None = None,
    trust: bool = False,
) -> Result:
    """Train an agent; the Python equivalent of `rlrun train`.

    Args:
        overrides: of the command line: `["algorithm=sac", "env=cartpole", "seed=3"]`; or a composed config.
        start: the value of `--from`: RUN, RUN@STEP or RUN@best.
        run_dir: of the run; None = `runs/<algorithm>-<env>/…`.
        config_dir: the user's own conf folder, in place of `./conf`.
        trust: repeat the parent's overrides even if it was made elsewhere, and remember that it is trusted.

    Raises:
        RequestError: the request is wrong; nothing was written.
        RlrunError: the run failed; `status.json` says so.
    """
    if start is None:
        return begin(composed_of(overrides, config_dir), run_dir)
    return begin(started(overrides, os.fspath(start), config_dir, trust=trust), run_dir)


@distributed.joined()
@process_restored()
def begin(composed: Composed, run_dir: os.PathLike[str] | str | None = None, *, restart: bool = False) -> Result:
    """Train an agent from a composed config, in a new run directory.

    restart: `run_dir` may have files of a start that was killed early; they are deleted once all parts are built.
    """
    fix_time(composed.config)
    run_dir = folder_of("hydra.run.dir", composed) if run_dir is None else run_dir
    experiment = Experiment(composed)
    experiment.load_sources()
    if distributed.rank():
        return experiment.follow()
    if run_dir is None:
        name = experiment.env_name
        directory = RunDir.create(algorithm=composed.choices["algorithm"], env=name, seed=composed.config.seed)
    else:
        directory = RunDir.claim(run_dir, restart=restart)
    with experiment.begin(directory):
        summary = experiment.train(directory)
    return Result(directory.path, summary, composed.config, experiment.trainer)


@process_restored()
def explain(overrides: Iterable[str] | Composed = (), *, config_dir: Path | None = None, form: str = "text") -> Any:
    """Return the data flow of one update as text.

    form: `text`; `data` for JSON; `code` for the code of an update in which all callbacks are due; `networks` for the
        layers of each network by its path.
    """
    experiment = Experiment(composed_of(overrides, config_dir))
    experiment.load_parents()
    trainer = experiment.trainer
    if form == "networks":
        return experiment.networks()
    if form == "code":
        source = trainer.update.source([*trainer.plan.names]).rstrip()
        several = "# of all data groups; an update without one of them leaves out the lines of its callbacks\n"
        return several + source if len(trainer.plan.names) > 1 else source
    return experiment.data_flow() if form == "data" else experiment.explain()


def composed_of(overrides: Iterable[str] | Composed, config_dir: Path | None = None) -> Composed:
    """Return the composed config of overrides; a composed config is returned unchanged."""
    if isinstance(overrides, Composed):
        return overrides
    return configuration.compose(listed(overrides), config_dir=config_dir)


def path_of(built: dict[str, Any], part: object) -> str:
    """Return the config path of a built part, or the name of its class."""
    paths = [path for path, candidate in built.items() if candidate is part]
    return min(paths, key=len, default=type(part).__name__)
