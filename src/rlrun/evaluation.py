"""Episodes of a finished run's policy; the twin of `rlrun eval`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from rlrun.arrival import Arrival, arrived
from rlrun.assembly import builder_of, prepare_process, stateful, take_back
from rlrun.collect import video as videos
from rlrun.collect.evaluate import Evaluation, stage, undisturbed
from rlrun.collect.evaluate import evaluate as play
from rlrun.env import Env
from rlrun.errors import ConfigError, RequestError, RunDirError
from rlrun.files import counted
from rlrun.rundir import RunDir, checkpoint_key
from rlrun.storage import load


@dataclass
class EvaluationReport(Evaluation):
    """Episodes of a run's frozen policy, and where it came from."""

    run: Path = Path()
    checkpoint: str = ""
    env_steps: int = 0
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun eval --json` prints."""
        several = {"totals": self.totals} if self.totals else {}
        return {
            "run": str(self.run),
            "checkpoint": self.checkpoint,
            "env_steps": self.env_steps,
            "seed": self.seed,
            "seeds": self.seeds,
            "episodes": len(self.returns),
            "returns": self.returns,
            **several,
            "lengths": self.lengths,
            "mean_return": self.mean_return,
            "std_return": self.std_return,
        }

    def describe(self) -> str:
        lowest, highest = min(self.returns), max(self.returns)
        means = np.mean(self.totals, 0).tolist() if self.totals else []
        each = f"; means of each reward {', '.join(f'{mean:.2f}' for mean in means)}" if means else ""
        return (
            f"mean return {self.mean_return:.2f} ± {self.std_return:.2f} over {counted(len(self.returns), 'episode')} "
            f"(lowest {lowest:.2f}, highest {highest:.2f}{each}; checkpoint {self.checkpoint})"
        )


def evaluate(
    run: Path | str,
    *,
    episodes: int = 20,
    seed: int = 0,
    checkpoint: str = "latest",
    stochastic: bool = False,
    video: Path | None = None,
    trust: Iterable[str] = (),
) -> EvaluationReport:
    """Play episodes with the frozen policy of a run; the twin of `rlrun eval`.

    Args:
        run: a run directory.
        episodes: how many; episode i starts with `reset(seed=seed + i)`.
        seed: of the first episode.
        checkpoint: `latest`, `best`, or a number of environment steps.
        stochastic: sample actions as in training, in place of the best ones.
        video: a folder for one mp4 an episode.
        trust: packages that the run's config may import, beyond those of any run and of the user's project.

    Raises:
        RequestError: no such run or checkpoint, it is damaged or names code that is not trusted, or videos
            cannot be written.
    """
    if video is not None:
        videos.require("--video")
    where = RunDir.open(run).checkpoint(checkpoint)
    with arrived(run, trust) as arrival:
        found = _play(arrival, where, episodes=episodes, seed=seed, explore=stochastic, video=video)
    return EvaluationReport(
        found.returns,
        found.lengths,
        found.seeds,
        found.totals,
        run=arrival.directory.path,
        checkpoint=where.name,
        env_steps=int(where.name.split("-")[0]),
        seed=seed,
    )


def _play(arrival: Arrival, where: Path, *, episodes: int, seed: int, explore: bool, video: Path | None) -> Evaluation:
    device = prepare_process(arrival.config)
    builder = builder_of(arrival.config, device=device, num_envs=1)
    with torch.device(device):
        agent, env = builder.get("agent"), builder.get("env")
    _require(callable(agent), "agent", "something to call", agent)
    _require(isinstance(env, Env), "env", "an environment", env)
    parts = {path: part for path, part in stateful(builder.built).items() if not isinstance(part, Env)}  # begins anew
    states = _load(arrival.directory, where, parts)
    for path, part in parts.items():
        take_back(part, states[path], f"{where}: part '{path}'")
    lanes = env.copy(num_envs=1, render_mode="rgb_array") if video else stage(env, episodes)
    limit = OmegaConf.select(arrival.config, "evaluation.max_steps")
    with ExitStack() as stack:
        stack.enter_context(undisturbed())
        torch.manual_seed(seed)
        stack.callback(env.close)
        stack.callback(lanes.close)
        watch = None
        if video is not None:
            name = Path(video)
            watch = stack.enter_context(videos.Recorder(lanes, lambda i: name / f"episode_{i:03d}_seed_{seed + i}.mp4"))
        return play(lanes, agent, episodes=episodes, seed=seed, max_steps=limit, explore=explore, watch=watch)


def _load(run: RunDir, where: Path, parts: Iterable[str]) -> dict[str, Any]:
    """Return the states of a checkpoint's parts.

    Raises:
        RunDirError: it is damaged; the message names the newest of the others that is not.
    """
    try:
        return load(where, parts)
    except RunDirError as error:
        for other in run.newest_first():
            with suppress(RunDirError):
                if other != where and load(other, parts):
                    shared = [
                        path for path in run.checkpoint_dirs() if checkpoint_key(path)[0] == checkpoint_key(other)[0]
                    ]
                    word = other.name if len(shared) > 1 else checkpoint_key(other)[0]
                    raise RequestError(f"{error}; --checkpoint {word} is the newest good one") from error
        raise


def _require(fits: bool, path: str, wanted: str, part: Any) -> None:
    if not fits:
        raise ConfigError(f"{path}: wanted {wanted}, got a {type(part).__name__}")
