"""Envs resume their open episodes exactly."""

import os
import random
from collections import deque
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box, Discrete

from rlrun import checkpointing as storage
from rlrun.callbacks import Schedule
from rlrun.collect import RandomAgent
from rlrun.core.errors import RlrunError
from rlrun.env import make, recorded
from rlrun.env.origin import ResetState
from rlrun.env.sync import SyncEnv
from rlrun.env.wrappers import ActionRepeat, FrameStack, RandomGoal
from rlrun.loading.assembly import restore_part


class Walker:
    """Steps envs as a collector does, and returns what it saw."""

    def __init__(self, env, seed=3):
        self.env, self.random = env, RandomAgent(env.spaces.action, seed=seed)
        self.total, self.length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
        self.episodes = 0

    def begin(self, seed=7):
        self.env.record()
        self.observation = self.env.reset(seed)
        return self

    def walk(self, steps):
        return [self.step() for _ in range(steps)]

    def step(self):
        step = self.env.step(self.random.draw(self.env.num_envs)["action"])
        self.total += step.reward
        self.length += 1
        seen = [frozen(part) for part in step[:4]] + [
            {env_index: frozen(step.info[env_index]) for env_index in step.info}
        ]
        episode_end = step.terminated | step.truncated
        self.total[episode_end], self.length[episode_end] = 0.0, 0
        self.episodes += int(episode_end.sum())
        self.observation = self.env.restart(episode_end)
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
    two.total, two.length = resumed.episode_return, resumed.length
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
    assert frozen([two.total, two.length]) == frozen([original.total, original.length])
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


class Remembering(Line):
    """Stores what it saw in containers of every kind, and draws from its own generators."""

    def __init__(self):
        super().__init__()
        self.best = -np.inf
        self.newest = deque(maxlen=4)
        self.visits = {}
        self.rooms = set()
        self.table = [np.float32(0.5), (1, np.arange(3))]
        self.dice = random.Random(5)
        self.old_dice = np.random.RandomState(6)
        self.noise = None

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if self.noise is None:
            self.noise = self.np_random  # one generator by two names
        self.action_space.seed(int(self.noise.integers(9))) if seed is not None else None
        return result

    def step(self, action):
        self.place += self.noise.normal() + self.dice.random() + self.old_dice.rand() + self.action_space.sample()
        room = int(self.place)
        self.rooms.add(room)
        self.visits[room, "x"] = self.visits.get((room, "x"), 0) + 1
        self.best = max(self.best, self.place)
        self.newest.append(np.full(2, self.place))
        return super().step(action)

    def seen(self):
        recent = float(np.sum(self.newest)) if self.newest else 0.0
        return len(self.rooms) + sum(self.visits.values()) + max(self.best, -1e6) + recent + float(self.table[1][1][2])


class Sharing(Line):
    """Its attributes are parts of others: rows of a table of tasks, views of a state."""

    tasks = tuple(np.full(2, float(number)) for number in range(5))

    def __init__(self):
        super().__init__()
        self.number = 0
        self.task = self.tasks[0]
        self.maze = np.arange(12.0).reshape(4, 3).copy()
        self.row = self.maze[0]
        self.state = np.zeros(4)
        self.position, self.speed = self.state[:2], self.state[2:]

    def reset(self, *, seed=None, options=None):
        self.number = (self.number + 1) % 4
        self.task, self.row = self.tasks[self.number], self.maze[self.number]
        super().reset(seed=seed, options=options)
        self.state[:] = self.np_random.random(4)
        return self.look(), {}

    def step(self, action):
        self.position += self.speed
        return super().step(action)

    def seen(self):
        return self.state.sum() + self.task.sum() + self.row.sum() + sum(task.sum() for task in self.tasks)


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
@pytest.mark.parametrize("kind", [Remembering, Sharing, Saving])
def test_state_across_episodes_is_restored(kind, steps, tmp_path):
    assert assert_exact(partial(envs, kind), tmp_path, steps=steps).episodes > 3


@pytest.mark.parametrize("wrapped", [False, True])
def test_attribute_set_from_outside_is_restored(wrapped, tmp_path):
    chosen = [partial(wrappers.TimeLimit, max_episode_steps=20), *([partial(RandomGoal, count=3)] if wrapped else [])]
    walker = Walker(make("Pendulum-v1", num_envs=2, wrappers=chosen)).begin()
    walker.walk(5)
    walker.env.envs[1].unwrapped.g = 3.0  # a callback, say, that makes the task easier
    walker.walk(20)
    two = make("Pendulum-v1", num_envs=2, wrappers=chosen)
    two.load_state_dict(through_disk(walker.env.state_dict(), tmp_path))
    assert frozen(two.resume_episodes().observation) == frozen(walker.observation)
    assert [env.unwrapped.g for env in two.envs] == [10.0, 3.0]


def test_shared_table_of_tasks_is_unchanged(tmp_path):
    original, two, _ = saved_and_resumed(partial(envs, Sharing), tmp_path, steps=30)
    assert [task.tolist() for task in Sharing.tasks] == [[number, number] for number in range(5)]
    for walker in (original, two):
        walker.walk(20)
        for env in walker.env.envs:
            assert env.maze.tolist() == np.arange(12.0).reshape(4, 3).tolist()
            assert env.position.base is env.state


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
        (Breaks, "sync", "ValueError: out of range"),
        (Breaks, "async", "ValueError: out of range"),
        (Refuses, "sync", "KeyError: 'lvl'"),
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


TWISTER = {**np.random.MT19937(0).state, "state": {"key": np.ones(624), "pos": -50_000_000}}
PHILOX = {**np.random.Philox(0).state, "buffer_pos": -9}
BEYOND = {"generator": 0, "numpy": TWISTER}
OWN = {"dict": [["x", {"generator": 0, "numpy": PHILOX}]]}


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("lanes", [None] * 3, "has 3 envs, and this environment has 2"),
        ("begun", [0], "shorter"),
        ("lanes", 5, "does not fit"),
        ("lanes", [{"seed": 0, "layers": [{"attributes": {"x": BEYOND}}]}, None], "pos -50000000 is not 0 to 624"),
        ("lanes", [{"seed": 0, "layers": [{"attributes": {}, "own": OWN}]}, None], "buffer_pos -9 is not 0 to 4"),
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


@pytest.mark.parametrize(("value", "shown"), [("x", "x"), ({}, "{}"), (10**400, "1000")])
def test_what_is_no_number_is_refused_where_there_is_one(value, shown):
    with pytest.raises(RlrunError, match=f"part 'rate': 'newest' is {shown}.*, wanted a number"):
        restore_part(Schedule("rate", 0.5), {"newest": value}, "part 'rate'")


@pytest.mark.parametrize("name", ["reset", "step", "np_random", "unwrapped", "__dict__", "__x"])
def test_only_data_attributes_are_set(name):
    env = Line()
    before = dict(vars(env))
    reset_state = ResetState(env)
    (state,) = reset_state.capture()
    state["attributes"][name] = 3
    with pytest.raises(RlrunError, match=f"'{name}' is not an attribute of a Line"):
        reset_state.restore([state])
    assert vars(env).keys() == before.keys()


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


class WithState(Endless):
    def get_state(self):
        return {"place": self.place, "count": self.count, "bits": self.np_random.bit_generator.state}

    def set_state(self, state):
        self.place, self.count = state["place"], state["count"]
        self.np_random.bit_generator.state = state["bits"]


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


def test_long_episode_resumes_by_get_state(short_log, tmp_path):
    original, two, resumed = saved_and_resumed(partial(envs, WithState), tmp_path, steps=50)
    assert resumed.lost == {}
    assert np.isnan(resumed.episode_return).all()
    assert resumed.length.tolist() == [-1, -1]
    assert_same_steps(original, two, 30)


def test_log_holds_open_episodes_only():
    env = envs(Line)
    walker = Walker(env).begin()
    walker.walk(22)  # two episodes of nine, and four steps
    state = env.state_dict()
    assert (state["begun"], state["actions"].shape) == ([0, 0], (4, 2))
    assert len(env._action_log.log) == 4
    env.reset_envs(np.array([True, False]), [5])
    walker.walk(2)
    assert env.state_dict()["begun"] == [4, 0]
