"""An evaluation plays exactly the episodes wanted, on any number of envs."""

import contextlib
import math
import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rlrun.collect import EpsilonGreedy, PolicyAgent, evaluate
from rlrun.collect.evaluate import mean_interval, quantile, restored_generators, sampling
from rlrun.core.errors import ConfigError
from rlrun.env.sync import SyncEnv

from .probes import Seeded, seeded


class Copycat:
    """Repeats its observation; keeps the values of `explore`."""

    outputs = ("action",)

    def __init__(self):
        self.explored = []

    def __call__(self, observation, state=None, *, explore=True):
        self.explored.append(explore)
        return {"action": observation.copy()}


def by_hand(count, seed, limit=10_000):
    """Play episodes one after the other."""
    returns, lengths = [], []
    for episode in range(count):
        env = Seeded()
        observation, _ = env.reset(seed=seed + episode)
        total, steps, over = 0.0, 0, False
        while not over and steps < limit:
            observation, reward, over, _, _ = env.step(observation)
            total, steps = total + float(np.float32(reward)), steps + 1
        returns.append(total), lengths.append(steps)
    return returns, lengths


@pytest.mark.parametrize(("episodes", "limit"), [(1, None), (5, None), (20, 4), (40, None)])
@pytest.mark.parametrize("envs", [1, 3, 16])
def test_episodes_are_independent_of_envs(envs, episodes, limit):
    evaluation = evaluate(seeded(envs), Copycat(), episodes=episodes, seed=100, max_steps=limit)
    returns, lengths = by_hand(episodes, seed=100, limit=limit or 10_000)
    assert evaluation.returns == pytest.approx(returns)
    assert evaluation.lengths == lengths
    assert limit is None or max(lengths) == limit
    assert evaluation.seeds == list(range(100, 100 + episodes))
    assert evaluation.mean_return == pytest.approx(np.mean(returns))
    assert evaluation.std_return == pytest.approx(np.std(returns))


def test_agent_explores_only_on_request():
    agent = Copycat()
    evaluate(seeded(2), agent, episodes=1, seed=0)
    assert set(agent.explored) == {False}
    evaluate(seeded(2), agent, episodes=1, seed=0, explore=True)
    assert agent.explored[-1] is True


class Arms(gymnasium.Env):
    """Pays the number of the arm; an episode has 500 steps."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Discrete(5)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action), self.steps == 500, False, {}


class Last:
    """Knows that arm 4 is the best; a sampled arm is 0 or 1, and what a state says is how many were sampled."""

    def __init__(self, state_size=0):
        self.state_size = state_size

    def act(self, observation, explore):
        count = len(observation)
        return torch.randint(0, 2, (count,)) if explore else torch.full((count,), 4)

    def advance(self, observation, state, explore):
        return self.act(observation, explore) + (100 * state[:, 0].long() if explore else 0), state + explore

    def initial_state(self, count):
        return torch.zeros(count, self.state_size)


def test_epsilon_replaces_some_best_actions_by_sampled_ones():
    env, mean = SyncEnv([Arms() for _ in range(8)]), {0.0: 4.0, 0.2: 0.8 * 4.0 + 0.2 * 0.5, 1.0: 0.5}
    for epsilon, expected in mean.items():
        torch.manual_seed(5)
        returns = evaluate(env, sampling(PolicyAgent(Last()), epsilon, seed=0), episodes=8, seed=0).returns
        assert np.mean(returns) / 500 == pytest.approx(expected, abs=0.06)
    agent = EpsilonGreedy(Last(), epsilon=0.0, spaces=env.spaces, seed=1)  # training has ended to explore
    before = agent.state_dict()
    returns = [
        evaluate(env, sampling(agent, epsilon, seed=0), episodes=8, seed=0).mean_return / 500 for epsilon in (0.2, 1.0)
    ]
    assert returns == pytest.approx([0.8 * 4.0 + 0.2 * 2.0, 2.0], abs=0.06)  # any arm is as likely
    assert agent.state_dict() == before


def test_epsilon_keeps_the_state_of_the_action_that_was_taken():
    torch.manual_seed(5)
    env = SyncEnv([Arms() for _ in range(8)])
    mean = evaluate(env, sampling(PolicyAgent(Last(1)), 0.1, seed=0), episodes=8, seed=0).mean_return
    sampled = 0.1 * 500  # the state counts them, and each pays 100 for each one before
    assert mean == pytest.approx(100 * sampled**2 / 2, rel=0.3)


def test_agent_without_respond_cannot_sample():
    with pytest.raises(ConfigError, match=r"evaluation\.epsilon: a Copycat has no respond"):
        sampling(Copycat(), 0.5, seed=0)
    assert isinstance(sampling(Copycat(), 0.0, seed=0), Copycat)


def test_evaluation_can_be_abandoned():
    calls = []

    def abandon():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    env, agent = seeded(2), Copycat()
    with pytest.raises(KeyboardInterrupt):
        evaluate(env, agent, episodes=20, seed=0, abandon=abandon)
    assert len(agent.explored) == 2
    assert evaluate(env, agent, episodes=5, seed=0).returns == pytest.approx(by_hand(5, seed=0)[0])


@pytest.mark.parametrize("envs", [1, 3])
def test_watcher_sees_every_moment(envs):
    seen = []
    evaluation = evaluate(seeded(envs), Copycat(), episodes=5, seed=20, watch=seen.append)
    for episode, length in enumerate(evaluation.lengths):
        moments = [moment for moment in seen if moment.episode == episode]
        assert [moment.step for moment in moments] == list(range(length + 1))
        assert {moment.seed for moment in moments} == {20 + episode}
        assert np.cumsum([moment.reward for moment in moments]) == pytest.approx([moment.total for moment in moments])
        assert moments[-1].total == pytest.approx(evaluation.returns[episode])
        assert [moment.ending for moment in moments] == [None] * length + [evaluation.endings[episode]]


class Ending(gymnasium.Env):
    """Ends after three steps with these flags and this info."""

    observation_space, action_space = Box(-9, 9, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    def __init__(self, terminated=False, truncated=False, info=None):
        self.last = terminated, truncated, info or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        last = self.last if self.steps == 3 else (False, False, {"is_success": False})
        return np.zeros(1, np.float32), 1.0, *last


@pytest.mark.parametrize(
    ("options", "limit", "ending"),
    [
        ({"terminated": True}, None, "terminated"),
        ({"truncated": True}, None, "truncated"),
        ({"terminated": True, "truncated": True}, None, "terminated"),
        ({"truncated": True}, 3, "truncated"),  # the environment's own limit comes first
        ({"truncated": True}, 2, "cut"),
    ],
)
def test_ending_of_episode_is_reported(options, limit, ending):
    env = SyncEnv([Ending(**options) for _ in range(2)])
    assert evaluate(env, Copycat(), episodes=3, seed=0, max_steps=limit).endings == [ending] * 3


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({"is_success": True}, True),
        ({"is_success": np.float32(1.0)}, True),
        ({"is_success": np.zeros(1)}, False),
        ({"success": True}, None),
        ({"is_success": [1, 0]}, None),
    ],
)
def test_success_is_that_of_last_step(info, success):
    env = SyncEnv([Ending(terminated=True, info=info) for _ in range(2)])
    assert evaluate(env, Copycat(), episodes=3, seed=0).successes == [success] * 3


def test_process_generators_are_restored():
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    with contextlib.suppress(ZeroDivisionError), restored_generators():
        random.random(), np.random.random(), torch.rand(())
        raise ZeroDivisionError
    assert (random.random(), np.random.random(), float(torch.rand(()))) == expected


def test_policies_play_in_evaluation_mode():
    class Dropping(torch.nn.Module):
        modes = ()

        def act(self, observation, explore):
            self.modes += (self.training,)
            return observation

    agent = PolicyAgent(Dropping())
    evaluate(seeded(1), agent, episodes=1, seed=0, max_steps=2)
    assert set(agent.policy.modes) == {False}
    assert agent.policy.training


def likely(bound, freedom, parts=200_000):
    """Return how likely |t| < bound is, by the density."""
    t = (np.arange(parts) + 0.5) * bound / parts
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    return float(2 * height * ((1 + t**2 / freedom) ** (-(freedom + 1) / 2)).sum() * bound / parts)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 100, 1001])
def test_quantile_holds_95_percent(freedom):
    assert likely(quantile(freedom), freedom) == pytest.approx(0.95, abs=1e-7)


def test_interval_has_standard_errors():
    low, high = mean_interval([1.0, 2.0, 6.0])
    error = math.sqrt((4 + 1 + 9) / 2 / 3)
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((3.0, quantile(2) * error))
    assert mean_interval([4.0, 4.0]) == (4.0, 4.0)


@pytest.mark.parametrize("numbers", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_unknown_spread_has_no_interval(numbers):
    assert mean_interval(numbers) is None
