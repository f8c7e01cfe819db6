"""Evaluation is periodic, and keeps the best."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from rlrun.callbacks import Evaluator, Interrupted
from rlrun.collect import Evaluation
from rlrun.env.sync import SyncEnv
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Stop


class Stage:
    """A fake environment; counts copies and calls of `close`."""

    made = closed = 0

    def wrapper_states(self):
        return {}

    def copy(self, num_envs=1, render_mode=None):
        self.made += 1
        self.envs = num_envs
        return self

    def close(self):
        self.closed += 1


class Listener:
    """A fake logger and checkpointer."""

    def __init__(self):
        self.written, self.best, self.passing = [], [], []

    def write(self, step, update, metrics, *, counted):
        self.written.append((step, update, metrics))
        self.passing += [] if counted else [update]

    def mark_best(self, step, update, *, final):
        self.best.append((step, update))
        self.passing += [update] if final else []


@pytest.fixture
def results(monkeypatch):
    """The returns of the next evaluations."""
    returns = [1.0, 5.0, 2.0, 5.0, 3.0]

    def play(env, agent, *, episodes, abandon=None, **options):
        if abandon is not None:
            abandon()
        return Evaluation([returns.pop(0)] * episodes, [7] * episodes, list(range(episodes)))

    monkeypatch.setattr("rlrun.callbacks.evaluator.evaluate", play)
    return returns


def evaluator(every=50, **options):
    listener = Listener()
    return Evaluator(Stage(), None, every=every, logger=listener, checkpointer=listener, **options), listener


def steps(listener):
    return [step for step, _, _ in listener.written]


def test_evaluates_at_or_after_each_interval(results):
    callback, listener = evaluator(episodes=3)
    for update in range(1, 8):
        callback.end_cycle(update, 32 * update)
    assert steps(listener) == [64, 128, 160, 224]
    assert (callback.env.made, callback.env.envs) == (1, 3)  # no more envs than episodes
    callback, listener = evaluator(every=3)
    results.append(1.0)
    for update in range(1, 8):
        callback.end_cycle(update)
    assert [update for _, update, _ in listener.written] == [3, 6]


def test_newest_and_best_are_kept(results):
    callback, listener = evaluator(every=10, episodes=2)
    assert callback.mean_return == -math.inf
    for update in range(1, 6):
        callback.end_cycle(update, 10 * update)
    assert callback.last == {"mean_return": 3.0, "std_return": 0.0, "episodes": 2, "env_steps": 50}
    assert callback.best["mean_return"] == 5.0
    assert listener.best == [(10, 1), (20, 2), (40, 4)]  # of equals the later
    assert listener.written[0][2]["evaluation/mean_length"] == 7.0


def test_nan_is_reported_and_never_best(results, tmp_path):
    results[:] = [math.nan, math.nan, -7.0, math.nan, -8.0]
    callback, listener = evaluator(every=10)
    callback.begin_training({}, tmp_path)
    for update in range(1, 6):
        callback.end_cycle(update, 10 * update)
        assert (callback.best is None) == (update < 3)
    assert callback.best["mean_return"] == -7.0
    assert listener.best == [(30, 3)]
    texts = [f"the evaluation at step {step} has a mean return of nan: it is never the best" for step in (10, 20, 40)]
    assert [line.split(" ", 1)[1] for line in RunDir(tmp_path).log.read_text().splitlines()] == texts


@pytest.mark.parametrize(
    ("updates", "every", "error", "evaluated"),
    [
        (3, 50, None, [64, 96]),
        (3, 50, Stop("enough"), [64, 96]),
        (2, 50, Stop("enough"), [64]),  # not repeated
        (1, 50, Interrupted("SIGTERM"), []),
        (1, 50, ZeroDivisionError(), []),
        (1, 50, KeyboardInterrupt(), []),
        (5, 0, None, []),
        (5, None, None, []),
        (0, 50, Stop("nothing to do"), []),
    ],
)
def test_orderly_run_ends_with_an_evaluation(results, updates, every, error, evaluated):
    callback, listener = evaluator(every=every)
    for update in range(1, updates + 1):
        callback.end_cycle(update, 32 * update)
    callback.end_training(error)
    assert steps(listener) == evaluated
    assert callback.env.closed == bool(evaluated)


def test_extended_run_forgets_last_evaluation(results):
    results[:] = [1.0, 9.0]
    callback, listener = evaluator()
    callback.end_cycle(1, 64)
    before = callback.state_dict()
    callback.end_cycle(2, 96)
    callback.end_training(Stop("enough"))
    assert (callback.last["mean_return"], callback.best["mean_return"]) == (9.0, 9.0)
    assert callback.state_dict() == before
    assert (before["last"]["mean_return"], before["best"]["mean_return"]) == (1.0, 1.0)
    assert (listener.best, listener.passing) == ([(64, 1), (96, 2)], [2, 2])  # neither record nor mark is counted


@pytest.mark.parametrize(("before", "after", "expected"), [(0, 50, [70, 100]), (50, 0, []), (50, 30, [100])])
def test_interval_may_change_on_resume(results, before, after, expected):
    callback, _ = evaluator(every=before)
    callback.end_cycle(1, 64)
    resumed, listener = evaluator(every=after)
    resumed.load_state_dict(callback.state_dict())
    resumed.end_cycle(2, 70)
    resumed.end_cycle(3, 100)
    assert steps(listener) == expected


class Drawn(gymnasium.Env):
    """Shows the same picture in every step."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space, action_space = Box(-9, 9, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


def drawn(count=1, render_mode=None):
    env = SyncEnv([Drawn() for _ in range(count)])
    env.copier = drawn
    return env


def zeros(observation, state=None, *, explore=True):
    return {"action": np.zeros((len(observation), 1), np.float32)}


def test_offline_videos_are_named_by_updates(tmp_path):
    callback = Evaluator(drawn(), zeros, every=50, episodes=1, max_steps=1, video=True, offline=100)
    callback.begin_training({}, tmp_path)
    for update, step in ((50, 0), (100, 0), (150, 50)):
        callback.end_cycle(update, step)
    callback.end_training(None)
    names = sorted(path.name for path in (tmp_path / "videos").iterdir())
    assert names == ["0000000000_offline_0000000050.mp4", "0000000000_offline_0000000100.mp4", "0000000050.mp4"]


def test_interrupted_video_leaves_evaluation_due(tmp_path):
    calls = []

    def abandon():
        calls.append(len(calls))
        if len(calls) == limit:
            raise Interrupted("SIGTERM")

    callback = Evaluator(drawn(), zeros, every=50, episodes=1, max_steps=1, video=True)
    callback.begin_training({}, tmp_path)
    callback.abandon, limit = abandon, 2  # a step of the evaluation, then one of the film
    with pytest.raises(Interrupted):
        callback.end_cycle(1, 50)
    assert (callback.last, list((tmp_path / "videos").iterdir())) == (None, [])
    callback.end_cycle(2, 51)
    assert callback.last["env_steps"] == 51
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["0000000051.mp4"]


class Lengths(gymnasium.Env):
    """An episode whose seed decides how long it is and what it pays."""

    observation_space, action_space, begun = Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (1,)), []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begun.append((id(self), seed))
        self.left, self.pay = int(self.np_random.integers(1, 30)), float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), self.pay, self.left == 0, False, {}


def lengths(count=1, render_mode=None):
    env = SyncEnv([Lengths() for _ in range(count)])
    env.copier = lengths
    return env


@pytest.mark.parametrize(("num_envs", "copies"), [(None, 16), (1, 1), (3, 3), (50, 20)])
def test_number_of_environments_changes_no_episode(num_envs, copies, monkeypatch):
    callback = Evaluator(lengths(), zeros, every=50, episodes=20, seed=100, num_envs=num_envs)
    callback.begin_training({}, None)
    monkeypatch.setattr(Lengths, "begun", [])
    callback.end_cycle(1, 50)
    assert len({env for env, _ in Lengths.begun}) == copies
    alone = Lengths()
    returns = []
    for seed in range(100, 120):
        alone.reset(seed=seed)
        returns.append(alone.left * alone.pay)
    assert callback.last["episodes"] == 20
    assert callback.last["mean_return"] == pytest.approx(np.mean(returns))
    assert callback.last["std_return"] == pytest.approx(np.std(returns))
