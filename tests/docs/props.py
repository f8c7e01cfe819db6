"""What a page takes for granted: runs, sweeps and files under the very names that the page gives them."""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rlrun
from rlrun.callbacks import Budget
from rlrun.cli.main import main
from rlrun.core.errors import Left

from .alone import called
from .small import small_runs

DATE = r"[\d-]+_[\d-]+"
TINY = ("algorithm.hidden=[4]", "algorithm.batch_size=8", "evaluation.episodes=1", "evaluation.max_steps=10")
SHORT = (*TINY, "algorithm.warmup_steps=16", "stop.env_steps=24", "memory.length=1_000")
BEGUN = ("algorithm=dqn", *TINY, "memory.export.every=16", "memory.export.min_seconds=0")
NEAR = ("memory.length=1_000", "algorithm.warmup_steps=16", "evaluation.every=8", "stop.env_steps=32")
# It has a checkpoint at step 20,000; many envs come there quickly.
FAR = ("num_envs=100", "algorithm.warmup_steps=19_900", "evaluation.every=10_000", "stop.env_steps=20_800")
SWEEP = ("train", "-m", "algorithm=sac,dqn", "env=cartpole", "seed=range(5)", "--sweep-dir", "sweep")
CODE = """
import gymnasium
import torch
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.training.callback import Callback

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, level=0):
        self.level = level

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), False, True, {}

class MyNetwork(QNetwork): pass

class Net(torch.nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)

class SoftQNetwork(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.LazyLinear(hidden[0]), torch.nn.ReLU(), torch.nn.LazyLinear(1))

    def forward(self, observation, action):
        return self.layers(torch.cat((observation, action), -1))

class MyCallback(Callback): pass

class Rocking:
    def act(self, observation, explore=False):
        return torch.where(observation[:, 1] < 0.0, 0, 2)
"""


class Run(NamedTuple):
    """A run that pages speak of: its overrides, and whether it was stopped before its end."""

    overrides: tuple[str, ...]
    stopped: bool = False


RUNS = {
    "dqn-cartpole": Run((*BEGUN, "env=cartpole", *NEAR), stopped=True),
    "dqn-frozenlake": Run((*BEGUN, "env.id=FrozenLake-v1", *FAR), stopped=True),
    "sac-cartpole": Run(("algorithm=sac", "env=cartpole", *SHORT)),
    "sac-pendulum": Run(("algorithm=sac", "env=pendulum", *SHORT)),
}


class Store:
    """Runs and a sweep, each made once, and copied to where pages have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, kind: str) -> Path:
        """Return a run of a kind in `RUNS`."""
        place = self.folder / kind
        if not place.exists():
            _train(RUNS[kind], place)
        return place

    def policy(self, kind: str) -> Path:
        """Return the folder of such a run's export."""
        place = self.folder / f"{kind} exported"
        if not place.exists():
            place.mkdir()
            rlrun.export_onnx(self.run(kind), place / "policy.onnx")
        return place

    def sweep(self) -> Path:
        """Return a sweep of two jobs."""
        if not (self.folder / "sweep").exists():
            with small_runs():
                answer = called(main, ["rlrun", *SWEEP], self.folder)
            assert answer.code == 0, answer.err
        return self.folder / "sweep"


def _train(run: Run, place: Path) -> None:
    """Train; one that is to be stopped gets a signal after its second update."""
    watch = Budget.end_cycle

    def end_cycle(self: Budget, update: int, step: int = 0) -> None:
        if run.stopped and update == 2:
            signal.raise_signal(signal.SIGTERM)
        watch(self, update, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "end_cycle", end_cycle)
        try:
            rlrun.train([*run.overrides, "logger=[]"], run_dir=place)
        except Left:
            assert run.stopped


def set_up(page: str, line: str, folder: Path, store: Store) -> None:
    """Put what a command line of a page names into the folder where it is typed, unless it is there."""
    text = line.partition(" #")[0]
    for pattern, make in PLACES.items():
        for match in re.finditer(rf"(?<![\w./-]){pattern}(?![\w.-])", text):
            if not (folder / match[0]).exists():
                make(store, folder / match[0], page)
    if "my_pkg." in text:
        (folder / "my_pkg.py").write_text(CODE)


def _a_run(store: Store, place: Path, page: str) -> None:
    """Copy the run that a folder's name says, or what the page itself has made there, or the one it is about."""
    kind = next((kind for kind in RUNS if kind in str(place)), None)
    runs = sorted(path for path in place.parent.glob("*_s*") if (path / "manifest.json").exists())
    source = runs[-1] if kind is None and runs else store.run(kind or ABOUT.get(page, "dqn-cartpole"))
    shutil.copytree(source, place)


def _runs(store: Store, place: Path, page: str) -> None:
    _a_run(store, place / "one", page)


def _a_sweep(store: Store, place: Path, page: str) -> None:
    shutil.copytree(store.sweep(), place)


def _a_job(store: Store, place: Path, page: str) -> None:
    """Call a job by the name that the page has for it: those of one page are different jobs, in turn."""
    jobs = sorted((store.sweep() / "jobs").iterdir())
    earlier = [path for path in place.parent.iterdir() if path.name.endswith("…")]
    shutil.copytree(jobs[len(earlier) % len(jobs)], place)


def _a_policy(store: Store, place: Path, page: str) -> None:
    if page in ABOUT:  # else the page makes it
        shutil.copytree(store.policy(ABOUT[page]), place.parent, dirs_exist_ok=True)


PLACES: dict[str, Callable[[Store, Path, str], Any]] = {
    rf"sweeps/(?:…|{DATE})": _a_sweep,
    r"sweeps/[\d_-]+/jobs/\w+…": _a_job,
    r"sweeps/lr": _a_sweep,
    rf"runs(?:/[\w-]+)?/(?:…|{DATE}_s\d+)": _a_run,
    r"RUN|A|B": _a_run,
    r"(?:RUN/exports/)?policy\.onnx": _a_policy,
    r"runs/[a-z]+-[a-z]+": _runs,
    r"runs|before|after": _runs,
}
# Where the run is another one than DQN's on CartPole.
ABOUT = {"docs/evaluation.md": "dqn-frozenlake", "docs/forks.md": "sac-pendulum"}
