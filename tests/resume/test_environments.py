"""Environments of users are played, and never changed: in evaluations and by a resume."""

import importlib
import json
import random

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.identical import compare, differing

import rlrun
from rlrun.core.seeds import Seeds

from .twins import copy_as_killed

SERVERS: list[list[int]] = []  # what each connection of this process was asked
SHORT = ["algorithm=dqn", "algorithm.hidden=[16]", "algorithm.batch_size=16", "algorithm.warmup_steps=40", "logger=[]"]
SHORT += ["algorithm.updates_per_step=0.2", "stop.env_steps=320", "evaluation.every=80", "evaluation.episodes=3"]
SHORT += ["checkpoint.every=110", "checkpoint.keep_last=null", "log.every=20"]


class World:
    def __init__(self, grid):
        self.grid = grid

    def view(self):
        return self.grid.ravel().astype(np.float32)


class Grid(gymnasium.Env):
    """Say which of four cells is lit; a helper and a subclass hold the objects of its attributes."""

    length = 13

    def __init__(self):
        self.observation_space, self.action_space = Box(-9.0, 9.0, (4,), np.float32), Discrete(4)
        self.grid = np.zeros((2, 2), np.int64)
        self.world = World(self.grid)
        self.begin()

    def begin(self):
        """Make the objects of a subclass."""

    def light(self):
        self.grid[:] = 0
        self.cell = int(self.draw(4))
        self.grid.flat[self.cell] = 1
        return self.world.view()

    def draw(self, count):
        return self.np_random.integers(count)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.light(), {}

    def step(self, action):
        reward = float(action == self.cell)
        self.steps += 1
        return self.light(), reward, False, self.steps >= self.length, {}


class Dice(Grid):
    """Draws from a generator of its own, which each seed sets."""

    def begin(self):
        self.dice = random.Random(5)

    def draw(self, count):
        return self.dice.randrange(count)

    def reset(self, *, seed=None, options=None):
        self.dice.seed(seed)
        return super().reset(seed=seed, options=options)


class Connected(Grid):
    """Opens a connection when it is first used, and counts its episodes in an attribute and at the server."""

    def begin(self):
        self.handle, self.episodes = None, 0

    def reset(self, *, seed=None, options=None):
        if self.handle is None:
            SERVERS.append([])
            self.handle = len(SERVERS) - 1
        self.episodes += 1
        SERVERS[self.handle].append(seed)
        assert len(SERVERS[self.handle]) == self.episodes
        return super().reset(seed=seed, options=options)


class Counter(Connected):
    """Shows the number of its episodes; nobody else can know it."""

    def light(self):
        super().light()
        return self.world.view() + np.float32(self.episodes)


class Curriculum(Grid):
    """Shows a level that rises with each episode, and offers it."""

    level = 0

    def reset(self, *, seed=None, options=None):
        self.level += 1 if self.level == 0 else 0.5  # a whole number at first
        self.levels = np.append(self.levels, self.level)
        return super().reset(seed=seed, options=options)

    def begin(self):
        self.levels = np.zeros(1)

    def light(self):
        return super().light() + np.float32(min(self.level, 100) / 50)

    def state_dict(self):
        return {"level": self.level, "levels": self.levels}

    def load_state_dict(self, state):
        self.level, self.levels = state["level"], state["levels"]


class Careless(Grid):
    """Draws from numpy's generator, which belongs to the whole process."""

    def draw(self, count):
        return np.random.randint(count)


class Optioned(Grid):
    """Takes an option of its resets, and drops it from the dict."""

    def reset(self, *, seed=None, options=None):
        self.length = options.pop("length")
        return super().reset(seed=seed, options=options)


def overrides(kind, *more):
    return [*SHORT, f"env.target=tests.resume.test_environments.{kind.__name__}", *more]


def trained_and_resumed(kind, folder, *more, at=110):
    whole = rlrun.train(overrides(kind, *more), run_dir=folder / "whole")
    copy_as_killed(folder / "whole", folder / "resumed", at=at)
    resumed = rlrun.resume(folder / "resumed")
    return whole, resumed, manifest_of(folder / "resumed")


def manifest_of(run):
    return json.loads((run / "manifest.json").read_text())


NORMALIZED = ["env.wrappers=[{_target_: gymnasium.wrappers.NormalizeReward}]"]
CASES = {
    "shared objects": (Grid, ["num_envs=2"]),
    "own generator": (Dice, ["env.vectorization=async", "num_envs=2"]),
    "options": (Optioned, ["env.reset_options.length=11"]),
    "state_dict": (Curriculum, ["num_envs=2"]),
    "state_dict in workers": (Curriculum, ["env.vectorization=async", "num_envs=3"]),
    "wrapper that learns": (Grid, NORMALIZED),
}


@pytest.mark.parametrize(("kind", "more"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("at", [110, 220])
def test_resume_is_exact(kind, more, at, tmp_path):
    *_, manifest = trained_and_resumed(kind, tmp_path, *more, at=at)
    same = compare(tmp_path / "whole", tmp_path / "resumed")
    assert all(same.values()), differing(tmp_path / "whole", tmp_path / "resumed")
    assert manifest["resume"] == "exact"


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("kind", [Counter, Careless])
def test_episode_that_goes_another_way_is_approximate(kind, vectorization, tmp_path):
    *_, manifest = trained_and_resumed(kind, tmp_path, "num_envs=2", f"env.vectorization={vectorization}")
    assert manifest["resume"] == "approximate"
    assert "every env: played again, its episode went another way" in json.dumps(manifest)


def test_without_seeds_of_episodes_it_is_approximate(tmp_path):
    *_, manifest = trained_and_resumed(Grid, tmp_path, "env.seed_episodes=false")
    assert manifest["resume"] == "approximate"
    assert "its episode has no seed (env.seed_episodes)" in json.dumps(manifest)


def test_connections_are_made_once(tmp_path):
    servers = importlib.import_module("tests.resume.test_environments").SERVERS
    servers.clear()
    whole = rlrun.train(overrides(Connected, "num_envs=2"), run_dir=tmp_path / "whole")
    assert len(servers) == 2 + 3  # of training, and of evaluation
    assert [len(asked) for asked in servers[2:]] == [4, 4, 4]  # one episode each evaluation
    copy_as_killed(whole.run_dir, tmp_path / "resumed", at=110)
    servers.clear()  # of the process that was killed
    rlrun.resume(tmp_path / "resumed")
    assert len(servers) == 2 + 3
    assert manifest_of(tmp_path / "resumed")["resume"] == "exact"


@pytest.mark.parametrize("kind", [Grid, Dice, Connected, Curriculum])
def test_evaluations_are_those_of_the_policy(kind, tmp_path):
    """Evaluation within training equals `rlrun eval` and a loop by hand, at every checkpoint."""
    run = rlrun.train(overrides(kind, "checkpoint.every=80", "stop.env_steps=240"), run_dir=tmp_path / "run")
    name = "evaluation/mean_return"
    lines = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluated = {line["env_steps"]: line[name] for line in lines if name in line}
    assert sorted(evaluated) == [80, 160, 240]
    seed = Seeds(0).evaluation
    for steps, mean in evaluated.items():
        result = rlrun.evaluate(run, checkpoint=str(steps), episodes=3, seed=seed)
        assert result.mean_return == pytest.approx(mean)
        policy, returns = rlrun.load(f"{run.run_dir}@{steps}"), []
        for episode in range(3):
            env, truncated = kind(), False
            observation, _ = env.reset(seed=seed + episode)
            returns.append(0.0)
            while not truncated:
                observation, reward, _, truncated, _ = env.step(policy.predict(observation)[0])
                returns[-1] += reward
        assert returns == result.returns
