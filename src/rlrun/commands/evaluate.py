"""Evaluate a run's policy or an exported one by episodes; the Python equivalent of `rlrun eval`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.collect.evaluate import Evaluation, Score
from rlrun.collect.video import Film, Stage, require_encoder
from rlrun.commands.opponents import opponents_of
from rlrun.config.overrides import listed
from rlrun.core.errors import RequestError, RunDirError
from rlrun.core.files import counted, finite, place_of
from rlrun.export.opening import Exported, exported, frozen_in, is_export, refuse_overrides
from rlrun.loading.policy import Frozen, has_agent, judged
from rlrun.runs.directory import RunDir, checkpoint_key
from rlrun.runs.trust import require_trusted

ALL = "all"  # stands for all checkpoints
Run = os.PathLike[str] | str


@dataclass
class EvaluationReport(Evaluation):
    """Episodes of a run's frozen policy, and its checkpoint.

    Attributes:
        run, checkpoint: the run's folder, and the name of the checkpoint's folder. For an exported policy, its file and
            the checkpoint that it was exported from (if unknown, the file's name).
        env_steps: at the checkpoint; 0 if an exported policy lacks them.
        latest, best: whether the pointer of this name points to the checkpoint.
        seed: of the first episode.
        videos: files that were written.
        damage: why no episode was played, or None.
    """

    run: Path = Path()
    checkpoint: str = ""
    env_steps: int = 0
    latest: bool = False
    best: bool = False
    seed: int = 0
    videos: list[Path] = field(default_factory=list)
    damage: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun eval --json` prints."""
        about = {name: getattr(self, name) for name in ("checkpoint", "env_steps", "latest", "best")}
        about["run"] = str(self.run)
        if self.damage is not None:
            return about | {"damage": self.damage}
        several = {"totals": self.totals} if self.totals else {}
        outcomes = self.outcomes
        success = {"successes": self.successes, "success_rate": sum(outcomes) / len(outcomes)} if outcomes else {}
        numbers = {
            "seed": self.seed,
            "seeds": self.seeds,
            "episodes": len(self.returns),
            "returns": self.returns,
            **several,
            "lengths": self.lengths,
            "endings": self.endings,
            **success,
            **self._games(),
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_interval": self.interval,
            **({"raw_returns": self.raw_returns, "mean_raw_return": self.mean_raw_return} if self.raw_returns else {}),
            "videos": [str(path) for path in self.videos],
        }
        return about | {name: finite(value) for name, value in numbers.items()}

    def _games(self) -> dict[str, Any]:
        """Return the opponent and side of each episode with the results against each; empty if it is not a game."""
        scores = [
            {"opponent": score.opponent or None, "side": score.side or None, "episodes": len(score.returns)}
            | score.shares
            for score in self.scores()
        ]
        parts = {"opponents": self.opponents, "sides": self.sides, "scores": scores}
        return {name: part for name, part in parts.items() if part}

    @property
    def outcomes(self) -> list[bool]:
        """Whether each episode succeeded, if the environment reports it."""
        return [success for success in self.successes if success is not None]

    def describe(self) -> str:
        lowest, highest = min(self.returns), max(self.returns)
        means = np.mean(self.totals, 0).tolist() if self.totals else []
        rewards = f"; means of each reward {', '.join(f'{mean:.2f}' for mean in means)}" if means else ""
        within = self.interval
        confidence = "" if within is None else f"the mean {within[0]:.2f} to {within[1]:.2f} at 95 % by Student's t; "
        success = f"; {sum(self.outcomes)} of {len(self.outcomes)} succeeded" if self.outcomes else ""
        games = "; ".join(_score(score) for score in self.scores() if score.side or not self.sides)
        games = games and f"; won, drawn, lost: {games}"
        return (
            f"mean return {self.mean_return:.2f} ± {self.std_return:.2f} over {counted(len(self.returns), 'episode')} "
            f"({confidence}lowest {lowest:.2f}, highest {highest:.2f}{rewards}{success}{games}; "
            f"checkpoint {self.checkpoint})"
        )


def _score(score: Score) -> str:
    """Return results of games as text: `first against random 5, 1, 0`."""
    against = f"against {score.opponent}" if score.opponent else ""
    return " ".join(filter(None, (score.side, against, ", ".join(map(str, score.counts)))))


@dataclass
class ValidationReport:
    """Metrics of a network on held-out data, the objective first; other attributes as of `EvaluationReport`."""

    metrics: dict[str, float]
    rows: int
    run: Path
    checkpoint: str
    env_steps: int
    latest: bool
    best: bool

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun eval --json` prints."""
        return {name: finite(value) for name, value in vars(self).items()} | {"run": str(self.run)}

    def describe(self) -> str:
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in self.metrics.items())
        return f"{numbers} on {counted(self.rows, 'held-out row')} (checkpoint {self.checkpoint})"


def evaluate(
    run: Run,
    *,
    checkpoint: str | list[str] = "latest",
    episodes: int = 20,
    seed: int = 0,
    stochastic: bool = False,
    epsilon: float | None = None,
    video: Path | None = None,
    videos: int | None = None,
    form: str | None = None,
    network: str | None = None,
    opponents: Mapping[str, Any] | Iterable[str] | None = None,
    trust: bool = False,
    overrides: Iterable[str] = (),
) -> Any:
    """Play episodes with the frozen policy of a run; the Python equivalent of `rlrun eval`.

    A run without an agent is judged by its held-out data instead.

    Args:
        run: a run directory, the result of `train`, or an exported policy, FILE.onnx.
        checkpoint: `latest`, `best`, or a number of environment steps; a list of these, or `["all"]`.
        episodes: how many; episode i starts with `reset(seed=seed + i)`.
        seed: of the first episode.
        stochastic: sample actions as in training, instead of the best ones.
        epsilon: probability of a sampled action instead of the best one; None = the run's evaluation.epsilon, or 0 if
            stochastic.
        video: folder for one video per episode; with several checkpoints, each gets a subfolder.
        videos: number of first episodes to film; None = all.
        form: of videos: mp4 (default) or gif.
        network: config path of a network to judge by held-out data; None = the only one, if there is no agent.
        opponents: in a game, `random`, `perfect`, a number of moves to look ahead, or a run; or a mapping from names
            to these. `episodes` are played against each. None = those of the run's evaluation.opponents.
        trust: build runs even if they were made elsewhere, and remember that they are trusted.
        overrides: for a run, `env.kwargs.KEY=VALUE` and `env.reset_options.KEY=VALUE`, which vary its environment. For
            an exported policy, they may also choose another environment; for a run from data, they choose one.

    Returns:
        An `EvaluationReport`, or a `ValidationReport` for a network; for a list of checkpoints, a list of these. If one
        of several checkpoints is damaged, the others are still evaluated.

    Raises:
        RequestError: no such run or checkpoint, it is not trusted, videos cannot be made, or the only checkpoint is
            damaged.
    """
    run = place_of(run)
    if is_export(run):
        with exported(run, overrides, trust=trust) as file:
            file.require(checkpoint=checkpoint, stochastic=stochastic, epsilon=epsilon)
            options: dict[str, Any] = {"episodes": episodes, "seed": seed, "film": _film(video, videos, form)}
            faced = opponents_of(opponents, trust=trust)
            with Stage(file.env, max_steps=file.max_steps, opponents=faced, **options) as stage:
                return _file_report(file, stage)
    overrides = listed(overrides)
    refuse_overrides(run, overrides)
    single, wanted = isinstance(checkpoint, str), _chosen(RunDir.open(run), checkpoint)
    require_trusted(run, trust)
    if network is not None or not has_agent(run):
        if overrides:
            raise RequestError(f"{overrides[0]}: this run has no agent that plays, so it takes no environment")
        if stochastic or any(option is not None for option in (epsilon, video, videos, form, opponents)):
            raise RequestError("--stochastic, --epsilon, --video and --opponent go with episodes; a network has none")
        results: list[Any] = _validated(run, network, wanted)
    else:
        film = _film(video, videos, form)
        options = {"episodes": episodes, "seed": seed, "film": film, "epsilon": epsilon, "opponents": opponents}
        results = _played(run, overrides, wanted, single=single, explore=stochastic, trust=trust, **options)
    return results[0] if single else results


def _played(
    run: Path,
    overrides: Iterable[str],
    wanted: list[Path],
    *,
    single: bool,
    explore: bool,
    epsilon: float | None,
    opponents: Any,
    trust: bool,
    **options: Any,
) -> list[EvaluationReport]:
    """Play the episodes of each checkpoint; options: of `Stage`."""
    with frozen_in(run, overrides, act="eval") as policy:
        if single:
            policy.take_only(wanted[0])
        epsilon = (0.0 if explore else policy.epsilon) if epsilon is None else epsilon
        faced = opponents_of(policy.opponents if opponents is None else opponents, trust=trust)
        options |= {"max_steps": policy.max_steps, "num_envs": policy.eval_envs, "opponents": faced}
        with Stage(policy.env, explore=explore, epsilon=epsilon, **options) as stage:
            reports = {where: _report(policy, where, stage, single=single) for where in dict.fromkeys(wanted)}
    return [reports[where] for where in wanted]


def _file_report(file: Exported, stage: Stage) -> EvaluationReport:
    """Play the episodes of an exported policy."""
    evaluation, videos = stage.play(file.agent)
    report = EvaluationReport(**vars(evaluation), run=file.path, checkpoint=file.checkpoint, seed=stage.seed)
    return replace(report, env_steps=file.env_steps, videos=videos)


def _validated(run: Path, network: str | None, wanted: list[Path]) -> list[ValidationReport]:
    """Judge checkpoints of a network by held-out data."""
    with judged(run, network) as parts:
        if (validation := parts.judge()).network not in (None, parts.network):
            raise RequestError(f"--network {parts.path}: callbacks.validation judges another network")
        directory, reports = parts.directory, []
        for where in wanted:
            parts.take_only(where)
            latest, best = (directory.pointed(name) == where.name for name in ("latest", "best"))
            about = (directory.path, where.name, checkpoint_key(where)[0], latest, best)
            reports.append(ValidationReport(validation.measure(), len(validation.loader), *about))
    return reports


def _film(folder: Path | None, videos: int | None, form: str | None) -> Film | None:
    if folder is not None:
        require_encoder("--video", form or "mp4")
        return Film(Path(folder), form or "mp4", videos)
    for option, value in (("--videos", videos), ("--format", form)):
        if value is not None:
            raise RequestError(f"{option} goes with --video FOLDER")
    return None


def _chosen(run: RunDir, overrides: str | list[str]) -> list[Path]:
    """Return the folders of checkpoints, in the requested order."""
    if isinstance(overrides, str):
        return [run.checkpoint(overrides)]
    folders = run.checkpoint_dirs()
    if ALL in overrides and not folders:
        raise RunDirError(f"{run.path} has no checkpoints")
    return [where for override in overrides for where in (folders if override == ALL else [run.checkpoint(override)])]


def _report(policy: Frozen, where: Path, stage: Stage, *, single: bool) -> EvaluationReport:
    """Play the episodes of a checkpoint; if there are several, load it first and report its damage."""
    run, evaluation, videos, damage = policy.directory, Evaluation([], [], []), list[Path](), None
    try:
        if not single:
            policy.take(where)
    except RunDirError as error:
        damage = str(error)
    else:
        evaluation, videos = stage.play(policy.agent, "" if single else where.name, policy.wrappers)
    latest, best = (run.pointed(name) == where.name for name in ("latest", "best"))
    report = EvaluationReport(**vars(evaluation), run=run.path, checkpoint=where.name, latest=latest, best=best)
    return replace(report, env_steps=checkpoint_key(where)[0], seed=stage.seed, videos=videos, damage=damage)
