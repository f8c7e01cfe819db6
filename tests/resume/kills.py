"""Runs that are killed at random moments and resumed each time, until their end."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun import checkpointing as storage
from rlrun.runs.directory import RunDir, checkpoint_key

STEPS, EVERY = 3_000, 40  # of a cell: its length, steps between checkpoints
DELAY = 0.3  # seconds after a checkpoint in which a kill comes, at most
PAUSE = 0.002  # seconds between two looks at a run's folder
PATIENCE = 300.0  # seconds in which a process must come on
SMALL = (
    *("preset=null", f"stop.env_steps={STEPS}", "logger=[]", "log.every=50"),
    "algorithm.hidden=[16,16]",
    *(f"checkpoint.every={EVERY}", "checkpoint.keep_last=3"),
    *("evaluation.every=700", "evaluation.episodes=2", "evaluation.max_steps=50"),
)
REPLAY = (
    *("memory.length=1_500", "algorithm.warmup_steps=200"),
    *("algorithm.batch_size=16", "algorithm.updates_per_step=0.5"),
)
ALGORITHMS = {
    "sac": ("algorithm=sac", *REPLAY),
    "dqn": ("algorithm=dqn", "+with=prioritized", *REPLAY),
    "ppo": ("algorithm=ppo", "algorithm.horizon=16", "algorithm.batch_size=16", "+with=reward_norm"),
    "a2c": ("algorithm=a2c",),
    "ppg": ("algorithm=ppg", "algorithm.auxiliary.interval=3", "algorithm.horizon=16", "algorithm.batch_size=16"),
    "trac": ("algorithm=trac", "algorithm.horizon=16", "algorithm.batch_size=16"),
}
REPLAYING = ("sac", "dqn")
TASKS = {
    "cartpole": ("env=cartpole",),
    "pendulum": ("env=pendulum",),
    "halfcheetah": ("env=halfcheetah",),
    "images": ("env.target=rlrun.env.toys.ImageObservation",),
}
CONTINUOUS, EXTRAS = ("pendulum", "halfcheetah"), {"halfcheetah": "mujoco"}
ENVS = {
    "1-sync": ("num_envs=1", "env.vectorization=sync"),
    "4-sync": ("num_envs=4", "env.vectorization=sync"),
    "4-async": ("num_envs=4", "env.vectorization=async"),
}

RARER = ("algorithm.updates_per_step=0.25",)  # where convolutions take their time
CELLS = {
    f"{algorithm}-{task}-{envs}": (
        *(*ALGORITHMS[algorithm], *TASKS[task], *ENVS[envs], *SMALL),
        *(RARER if task == "images" and algorithm in REPLAYING else ()),
    )
    for algorithm in ALGORITHMS
    for task in TASKS
    for envs in ENVS
    if not (algorithm == "dqn" and task in CONTINUOUS)
}


class Stuck(Exception):
    """A process failed, or came no further."""


@dataclass
class Story:
    """What happened to a run."""

    kills: int = 0
    inside_a_write: int = 0  # of these, with a checkpoint half written
    resumes: int = 0
    damaged: list[str] = field(default_factory=list)  # messages about checkpoints that show


def torment(
    overrides: list[str],
    run: Path,
    begin: Callable[[list[str]], Any],
    *,
    kills: int,
    dice: random.Random,
    delay: float = DELAY,
) -> Story:
    """Train with kills at random moments, spread over the run, and resume each time, until the end.

    begin: starts a process by its command; delay: seconds after a checkpoint in which a kill comes, at most.
    Raises `Stuck` if a process ended with an error, or came no further.
    """
    *_, budget = (override for override in overrides if override.startswith("stop.env_steps="))  # the last one counts
    story, steps = Story(), int(budget.partition("=")[2])
    # Short of the end, since moments that lie close together are put off: each kill waits for a new checkpoint.
    goals = sorted(dice.uniform(0.0, 0.85 * steps) for _ in range(kills))
    process = begin(["train", *overrides, "--run-dir", str(run)])
    for number, goal in enumerate(goals):
        after = None if number % 2 else dice.uniform(0.0, delay)
        if not _kill(process, run, goal, after):
            break
        story.kills += 1
        story.inside_a_write += _half_written(run)
        story.damaged += [message for path in RunDir(run).checkpoint_dirs() for message in storage.verify(path)]
        process = begin(["resume", str(run)])
        story.resumes += 1
    code = process.wait(PATIENCE)
    if code != 0:
        raise Stuck(f"the last process exited with {code}")
    return story


def _kill(process: Any, run: Path, goal: float, after: float | None) -> bool:
    """Kill a process once it has saved something beyond what it found, at the goal or later; False where it ended.

    after: so many seconds later; None = amidst the next write.
    """
    before = _newest(run)
    if not _wait(process, lambda: before < _newest(run) >= goal - EVERY):
        return False
    if after is not None:
        time.sleep(after)
    elif not _wait(process, lambda: _half_written(run)):
        return False
    process.send_signal(signal.SIGKILL)
    return process.wait(60) == -signal.SIGKILL


def _wait(process: Any, ready: Callable[[], bool]) -> bool:
    """Look until something is so; False where the process ended before."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None:
        if ready():
            return True
        if time.monotonic() > until:
            process.send_signal(signal.SIGKILL)
            raise Stuck(f"a process came no further in {PATIENCE:.0f} s")
        time.sleep(PAUSE)
    return False


def _newest(run: Path) -> int:
    """Return the environment steps of the newest checkpoint that shows; -1 for none."""
    with contextlib.suppress(OSError):
        return max((checkpoint_key(path)[0] for path in RunDir(run).checkpoint_dirs()), default=-1)
    return -1


def _half_written(run: Path) -> bool:
    """Tell whether there is a checkpoint, or a file of one, under a temporary name."""
    folders = [RunDir(run).checkpoints, RunDir(run).checkpoints / "segments"]
    with contextlib.suppress(OSError):
        return any(name.startswith(".") for folder in folders if folder.is_dir() for name in os.listdir(folder))
    return False
