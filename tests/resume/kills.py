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

import gymnasium

from rlrun import checkpointing as storage
from rlrun.core.seeds import Seeds
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
MARK = "evaluating"  # a file beside a run: the newest episode that began belongs to an evaluation


class Announces(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps a file in the current folder while the episodes of evaluations are played."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None and 0 <= seed - Seeds(0).evaluation < 1_000:
            Path(MARK).touch()
        else:
            Path(MARK).unlink(missing_ok=True)
        return self.env.reset(seed=seed, options=options)


ANNOUNCES = "{_target_: tests.resume.kills.Announces}"
OWN = "env.target=tests.resume.environments"
FEW = ("algorithm.warmup_steps=100", "algorithm.updates_per_step=0.2")
LONG = (  # evaluations that take more time than training
    *SMALL,
    *("stop.env_steps=900", "evaluation.every=150", "evaluation.episodes=48", "evaluation.max_steps=100"),
)


def wrapped(*wrappers: str) -> str:
    """Return the override for some wrappers by path, inside of the one that announces evaluations."""
    return f"env.wrappers=[{', '.join([*(f'{{_target_: {path}}}' for path in wrappers), ANNOUNCES])}]"


DQN, SAC = (("algorithm=dqn", *REPLAY, *FEW), ("algorithm=sac", *REPLAY, *FEW))
CRITICS = "{_target_: rlrun.nn.Critics, spaces: '${spaces}', hidden: [8]}"
SECOND = "{_target_: rlrun.memory.ReplayLoader, table: '${memory}', collector: null, batch: 12}"
TARGET = "rlrun.algorithms.actor_critic.sac.SoftQTarget, policy: '${networks.policy}', "
TARGET += "temperature: '${networks.temperature}'"
EXPERT = Path(__file__).parents[2] / "benchmarks" / "results" / "experts" / "pendulum.zip"
KINDS = {  # one of each kind of collection, memory and wrapper; killed amid evaluations, too
    "shared objects": (*DQN, f"{OWN}.Grid", "num_envs=3", "algorithm.n_step=3", wrapped()),
    "workers": (*ALGORITHMS["ppo"], f"{OWN}.Draws", "num_envs=3", "env.vectorization=async", wrapped()),
    "thread": (*SAC, "env=pendulum", "+with=async", "async.kind=thread", wrapped()),
    "process": (*DQN, "env=cartpole", "+with=async", wrapped(), "stop.env_steps=4_000"),
    "native": (*DQN, "env.id=CartPole-v1", "env.vectorization=native", "num_envs=3"),
    "state_dict": (
        *(*ALGORITHMS["ppo"], f"{OWN}.Curriculum", "num_envs=3", "env.vectorization=async"),
        wrapped("tests.resume.environments.Bounded", "gymnasium.wrappers.NormalizeReward"),
    ),
    "no state_dict": (*DQN, f"{OWN}.Grid", "num_envs=2", wrapped("tests.resume.environments.Forgetful")),
    "recurrent": (
        *(*DQN, "env=cartpole_novelocity", "+with=prioritized", "algorithm.recurrent=gru", "algorithm.unroll=6"),
        *("algorithm.burn_in=2", "algorithm.core_size=8", "num_envs=2", wrapped()),
    ),
    "two loaders": (
        *(*SAC, "env=pendulum", "+with=prioritized", "num_envs=2", wrapped(), f"+networks.second={CRITICS}"),
        f"+joint={{_target_: rlrun.memory.JointLoader, default: '${{loader}}', second: {{loader: {SECOND}, "
        "every: 3}}",
        f"+callbacks.second_target={{_target_: {TARGET}, critics: '${{networks.second}}', data_group: second}}",
        "+callbacks.second={_target_: rlrun.callbacks.CriticLoss, network: '${networks.second}', data_group: second, "
        "optimizer: '${optimizer}'}",
        "trainer.loader=${joint}",
    ),
    "hindsight": (*SAC, "env=pointreach", "+with=hindsight", "num_envs=2", wrapped()),
    "frames": (
        *(*DQN, "env.target=rlrun.env.toys.ImageObservation", "+with=prioritized", "num_envs=2"),
        wrapped().replace("[", "[{_target_: gymnasium.wrappers.FrameStackObservation, stack_size: 3}, "),
    ),
    "a2c": ("algorithm=a2c", "env=cartpole", "+with=[observation_norm,return_norm]", "num_envs=3", wrapped()),
    "planning": (
        *("algorithm=pets", "env=pendulum", "num_envs=2", "algorithm.warmup_steps=100", "algorithm.model_every=20"),
        *("algorithm.members=2", "algorithm.batch_size=16", "algorithm.plan.horizon=4", "algorithm.plan.particles=2"),
        *("algorithm.plan.population=20", "algorithm.plan.elite=5", "algorithm.plan.iterations=2", wrapped()),
        "stop.env_steps=1_500",
    ),
    "self-play": (
        *("algorithm=alphazero", "env=tictactoe", "env.vectorization=sync", "num_envs=3", wrapped()),
        *("algorithm.search.simulations=8", "algorithm.batch_size=16", "algorithm.updates_per_step=0.5"),
        "algorithm.temperature={_target_: rlrun.core.schedules.Step, values: [1.0, 0.5], at: [3]}",
        *("algorithm.collect_steps=3", "memory.length=500", "stop.env_steps=1_500"),
    ),
    "imagination": (
        *("algorithm=mbpo", *REPLAY, *FEW, "env=pendulum", "imagination.episodes=8", "imagination.keep=20"),
        "imagination.length={_target_: rlrun.core.schedules.Linear, first: 1, last: 3, steps: 600}",
        *("imagination.model.hidden=[16]", "imagination.model.members=3", "imagination.model.elites=2"),
        *("imagination.model.every=20", "imagination.model.min_updates=8", wrapped(), "stop.env_steps=1_500"),
    ),
    "external memory": (
        *("algorithm=merlin", "env=cartpole_novelocity", "num_envs=3", "algorithm.horizon=16", "algorithm.hidden=[8]"),
        *("algorithm.latent=4", "algorithm.slots=6", "algorithm.predictor.lstm_size=[8]", "algorithm.retroactive=0.9"),
        *("algorithm.actor.lstm_size=[8]", "algorithm.drawn=true", wrapped(), "stop.env_steps=3_000"),
    ),
    "adversary": (
        *("algorithm=gail", "env=pendulum", "num_envs=3", f"dataset={EXPERT}", "algorithm.horizon=16"),
        *("algorithm.batch_size=16", wrapped(), "stop.env_steps=3_000"),
    ),
    "style": (*SAC, "env=pendulum", "+with=amp", f"dataset={EXPERT}", "num_envs=2", wrapped()),
    "symmetry": (
        *(*SAC, "env=pendulum", "+with=[symmetry_adversarial,symmetry_data]", "num_envs=2", wrapped()),
        *("symmetry.observation={sign: [1,-1,-1]}", "symmetry.action={sign: [-1]}"),
    ),
}
APPROXIMATE = ("thread", "process", "native", "no state_dict")
CELLS |= {name: (*LONG, *words) for name, words in KINDS.items()}


class Stuck(Exception):
    """A process failed, or came no further."""


@dataclass
class Story:
    """What happened to a run."""

    kills: int = 0
    inside_a_write: int = 0  # of these, with a checkpoint half written
    inside_an_evaluation: int = 0  # of these, while `Announces` had its file
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
    moments = [None, _half_written, *([_evaluating] if ANNOUNCES in "".join(overrides) else [])]
    process = begin(["train", *overrides, "--run-dir", str(run)])
    for number, goal in enumerate(goals):
        moment = moments[number % len(moments)]
        if not _kill(process, run, goal, moment, 0.0 if moment is _half_written else dice.uniform(0.0, delay)):
            break
        story.kills += 1
        story.inside_a_write += _half_written(run)
        story.inside_an_evaluation += _evaluating(run)
        story.damaged += [message for path in RunDir(run).checkpoint_dirs() for message in storage.verify(path)]
        process = begin(["resume", str(run)])
        story.resumes += 1
    code = process.wait(PATIENCE)
    if code != 0:
        raise Stuck(f"the last process exited with {code}")
    return story


def _kill(process: Any, run: Path, goal: float, moment: Callable[[Path], bool] | None, after: float) -> bool:
    """Kill a process once it has saved something beyond what it found, at the goal or later; False where it ended.

    moment: what has to begin first, None = nothing; after: so many seconds later.
    """
    before = _newest(run)
    if not _wait(process, lambda: before < _newest(run) >= goal - EVERY):
        return False
    (run.parent / MARK).unlink(missing_ok=True)
    if moment is not None and not _wait(process, lambda: moment(run)):
        return False
    time.sleep(after)
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


def _evaluating(run: Path) -> bool:
    """Tell whether the newest episode belongs to an evaluation."""
    return (run.parent / MARK).exists()
