"""Envs resume their open episodes exactly."""

import os
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box, Discrete

from rlrun import checkpointing as storage
from rlrun.collect import RandomAgent
from rlrun.collect.collector import restart_by_seeds
from rlrun.core.errors import RlrunError
from rlrun.core.seeds import EpisodeSeeds
from rlrun.env import make, recorded
from rlrun.env.sync import SyncEnv
from rlrun.env.wrappers import ActionRepeat, FrameStack, RandomGoal
from rlrun.loading.assembly import restore_part


class Walker:
    """Steps envs as a collector does, and returns what it saw."""

    def __init__(self, env, seed=3):
        self.env, self.random = env, RandomAgent(env.spaces.action, seed=seed)
        self.seeds = EpisodeSeeds(seed, env.num_envs)
        self.episodes = 0

    def begin(self):
        self.env.record()
        self.observation = self.env.reset(self.seeds.every())
        return self

    def walk(self, steps):
        return [self.step() for _ in range(steps)]

    def step(self):
        step = self.env.step(self.random.draw(self.env.num_envs)["action"])
        seen = [frozen(part) for part in step[:4]] + [
            {env_index: frozen(step.info[env_index]) for env_index in step.info}
        ]
        episode_end = step.terminated | step.truncated
        self.episodes += int(episode_end.sum())
        self.seeds.episode += episode_end
        self.observation = restart_by_seeds(self.env, episode_end, self.seeds)
        return [*seen, frozen(self.observation)]


def frozen(value):
    """Return what is equal for equal bits only."""
    if isinstance(value, dict):
        return {key: frozen(part) for key, part in value.items() if key not in ("t", "seeds")}
    if isinstance(value, tuple | list):
        return [frozen(part) for part in value]
    array = np.asarray(value)
    return repr(value) if array.dtype.hasobject else (array.dtype.str, array.shape, array.tobytes())


def through_disk(state, folder):
    """Return a state as it comes back from a checkpoint."""
    storage.write(folder / "state", storage.snapshot({"env": state}))
    return storage.load(folder / "state")["env"]


def saved_and_resumed(build, folder, *, steps, again=None):
    """Walk, save, and resume in other envs; return both walkers."""
    original = Walker(build()).begin()
    original.walk(steps)
    two = Walker((again or build)())
    two.env.load_state_dict(through_disk(original.env.state_dict(), folder))
    resumed = two.env.resume_episodes()
    two.observation, two.random = resumed.observation, original.random
    two.seeds.episode = original.seeds.episode.copy()
    return original, two, resumed


def assert_same_steps(original, two, steps):
    drawn = original.random.state_dict()
    first = original.walk(steps)
    two.random.load_state_dict(drawn)
    for number, (theirs, ours) in enumerate(zip(first, two.walk(steps), strict=True)):
        assert ours == theirs, f"step {number} after the restart differs"


def assert_exact(build, folder, *, steps=40, more=60, again=None):
    original, two, resumed = saved_and_resumed(build, folder, steps=steps, again=again)
    assert resumed.lost == {}
    assert frozen(two.observation) == frozen(original.observation)
    assert storage.digest(two.env.state_dict()) == storage.digest(original.env.state_dict())
    assert_same_steps(original, two, more)
    assert storage.digest(two.env.state_dict()) == storage.digest(original.env.state_dict())
    for walker in (original, two):
        walker.env.close()
    return original


GAMES = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
GAMES += ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"]
SHORT = partial(wrappers.TimeLimit, max_episode_steps=25)


@pytest.mark.parametrize("id", GAMES)
def test_games_resume_exactly(id, tmp_path):
    assert assert_exact(lambda: make(id, num_envs=3, wrappers=[SHORT]), tmp_path).episodes > 3


BREAKOUT = {"id": "ALE/Breakout-v5", "wrappers": [SHORT]}
LOOK = partial(wrappers.AtariPreprocessing, terminal_on_life_loss=True)
SIMULATORS = [
    ({"id": "HalfCheetah-v5"}, 0),
    ({**BREAKOUT, "kwargs": {"obs_type": "ram", "repeat_action_probability": 0.25}}, 4),
    ({**BREAKOUT, "kwargs": {"frameskip": 1}, "wrappers": [LOOK, partial(FrameStack, count=4), SHORT]}, 1),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("arguments", "episodes"), SIMULATORS)
def test_simulators_resume_exactly(arguments, episodes, tmp_path):
    build = partial(make, **arguments, num_envs=2)
    again = partial(build, vectorization="async" if LOOK in arguments.get("wrappers", ()) else "sync")
    assert assert_exact(build, tmp_path, steps=30, more=50, again=again).episodes >= episodes


WRAPPERS = {
    "time limit": [partial(wrappers.TimeLimit, max_episode_steps=9)],
    "frames": [partial(wrappers.FrameStackObservation, stack_size=3)],
    "our frames": [partial(FrameStack, count=3)],
    "delay": [partial(wrappers.DelayObservation, delay=2)],
    "both norms": [wrappers.NormalizeObservation, wrappers.NormalizeReward],
    "sticky": [partial(wrappers.StickyAction, repeat_action_probability=0.5)],
    "statistics": [wrappers.RecordEpisodeStatistics],
    "transform": [partial(wrappers.TransformReward, func=lambda reward: 0.1 * reward)],
    "time": [wrappers.TimeAwareObservation],
    "repeat": [partial(ActionRepeat, count=2)],
    "goal": [partial(RandomGoal, count=3)],
}


@pytest.mark.parametrize("chosen", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_resume_exactly(chosen, tmp_path):
    walker = assert_exact(lambda: make("CartPole-v1", num_envs=3, wrappers=chosen), tmp_path)
    assert walker.episodes > 3


TASKS = {
    "CartPole-v1": [wrappers.NormalizeReward, partial(wrappers.StickyAction, repeat_action_probability=0.3)],
    "Pendulum-v1": [wrappers.NormalizeObservation],
    "rlrun.env.toys.TupleSpaces": [],
}


@pytest.mark.parametrize(
    ("before", "after", "task"),
    [("sync", "async", "CartPole-v1"), ("async", "sync", "Pendulum-v1"), *(("async", "async", task) for task in TASKS)],
)
def test_workers_resume_exactly(before, after, task, tmp_path):
    name = {"target": task} if "." in task else {"id": task}
    build = partial(make, **name, num_envs=2, wrappers=TASKS[task])
    again = partial(build, vectorization=after)
    assert_exact(partial(build, vectorization=before), tmp_path, again=again)


class Line(gymnasium.Env):
    """Walk on a line; subclasses say what is odd about it."""

    limit = 9

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.count = float(self.np_random.random()), 0
        return self.look(), {}

    def step(self, action):
        self.place += float(action) - 1.0
        self.count += 1
        return self.look(), self.place, self.count == self.limit, False, {}

    def look(self):
        return np.array([self.place, self.count, self.seen()], np.float32)

    def seen(self):
        return 0.0


class Saving(Line):
    """Its state is in no attribute, but in its own `state_dict`."""

    def __init__(self):
        super().__init__()
        self.hidden = lambda: None
        self.hidden.level = 0

    def reset(self, *, seed=None, options=None):
        self.hidden.level += 1
        return super().reset(seed=seed, options=options)

    def seen(self):
        return self.hidden.level

    def state_dict(self):
        return {"level": self.hidden.level}

    def load_state_dict(self, state):
        self.hidden.level = state["level"]


def envs(kind, count=2):
    return SyncEnv([kind() for _ in range(count)])


@pytest.mark.parametrize("steps", [0, 5, 30])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_state_across_episodes_is_restored(vectorization, steps, tmp_path):
    build = partial(make, target=f"{__name__}.Saving", num_envs=2, vectorization=vectorization)
    assert assert_exact(build, tmp_path, steps=steps).episodes > 3


# --- lost episodes


class EndsEarly(Line):
    def step(self, action):
        step = super().step(action)
        return *step[:2], step[2] or (bool(os.environ.get("EARLY")) and self.count == 3), *step[3:]


class Breaks(Line):
    def step(self, action):
        if os.environ.get("EARLY") and self.count == 3:
            raise ValueError("out of range\nin detail")
        return super().step(action)


class Refuses(Saving):
    def load_state_dict(self, state):
        raise KeyError("lvl")


@pytest.mark.parametrize(
    ("kind", "vectorization", "reason"),
    [
        (EndsEarly, "sync", "played again, its episode ended after 3 of 5 steps"),
        (Breaks, "sync", "ValueError: out of range in detail"),
        (Breaks, "async", "ValueError: out of range in detail"),
        (Refuses, "sync", "env: load_state_dict of Refuses failed: KeyError: 'lvl'"),
    ],
)
def test_failed_replay_is_lost_with_reason(kind, vectorization, reason, tmp_path, monkeypatch):
    build = partial(make, target=f"{__name__}.{kind.__name__}", num_envs=2, vectorization=vectorization)
    walker = Walker(build()).begin()
    walker.walk(5)
    monkeypatch.setenv("EARLY", "1")  # a worker has the variables of its start
    two = build()
    two.load_state_dict(through_disk(walker.env.state_dict(), tmp_path))
    assert two.resume_episodes().lost == {0: reason, 1: reason}
    walker.env.close()
    two.close()


def test_signals_are_checked_during_replay(tmp_path):
    walker = Walker(envs(Endless)).begin()
    walker.walk(2500)
    two, looks = envs(Endless), []
    two.load_state_dict(walker.env.state_dict())
    assert two.resume_episodes(lambda: looks.append(1)).lost == {}
    assert len(looks) >= 6


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("episodes", [None] * 3, "has 3 envs, and this environment has 2"),
        ("begun", [0], "shorter"),
        ("episodes", 5, "does not fit"),
        ("episodes", [None, None], "does not fit"),
        ("hashes", [[1]], "shorter"),
        ("actions", 5, "does not fit"),
        ("actions", np.zeros((3, 1)), "out of bounds"),
        ("actions", {"x": np.zeros((3, 2))}, "does not fit"),
    ],
)
def test_hostile_state_is_refused_before_replay(entry, value, message):
    walker = Walker(envs(Line, 2)).begin()
    walker.walk(3)
    state = walker.env.state_dict()
    envs(Line, 2).load_state_dict(state)
    with pytest.raises(RlrunError, match=message):
        restore_part(envs(Line, 2), {**state, entry: value}, "env")


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_unrecorded_envs_have_no_state(vectorization):
    env = make("CartPole-v1", num_envs=2, vectorization=vectorization)
    env.reset(0)
    assert env.state_dict() == {}
    env.load_state_dict({})
    assert env.resume_episodes() is None
    env.close()


# --- long episodes


class Endless(Line):
    limit = None


@pytest.fixture
def short_log(monkeypatch):
    monkeypatch.setattr(recorded, "LIMIT", 20)


def test_too_long_episode_is_lost(short_log, tmp_path):
    def build():
        return SyncEnv([Endless(), Line()])

    original, two, resumed = saved_and_resumed(build, tmp_path, steps=21)
    assert resumed.lost == {0: "its episode has more than 20 steps"}
    assert frozen(two.observation[1]) == frozen(original.observation[1])
    assert len(original.env.state_dict()["actions"]) == 3
    original, _, resumed = saved_and_resumed(build, tmp_path, steps=20)
    assert resumed.lost == {}


def test_log_holds_open_episodes_only():
    env = envs(Line)
    walker = Walker(env).begin()
    walker.walk(22)  # two episodes of nine, and four steps
    state = env.state_dict()
    assert (state["begun"], state["actions"].shape) == ([0, 0], (4, 2))
    assert len(env._action_log.log) == 4
    env.restart(np.array([True, False]), [5])
    walker.walk(2)
    assert env.state_dict()["begun"] == [4, 0]
