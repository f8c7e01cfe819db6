"""Exactly the episodes that were asked for, whoever plays them side by side."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch

from rlrun.collect import PolicyAgent, evaluate
from rlrun.collect.evaluate import undisturbed

from .probes import Seeded, seeded


class Copycat:
    """Repeats what it sees; counts what it is asked."""

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


@pytest.mark.parametrize("episodes", [1, 5, 40])
@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_episodes_are_the_same_on_any_number_of_lanes(lanes, episodes):
    found = evaluate(seeded(lanes), Copycat(), episodes=episodes, seed=100)
    returns, lengths = by_hand(episodes, seed=100)
    assert found.returns == pytest.approx(returns)
    assert found.lengths == lengths
    assert found.seeds == list(range(100, 100 + episodes))


def test_short_episodes_are_not_favoured():
    found = evaluate(seeded(16), Copycat(), episodes=20, seed=0)
    assert found.mean_return == pytest.approx(np.mean(by_hand(20, seed=0)[0]))
    assert found.std_return == pytest.approx(np.std(by_hand(20, seed=0)[0]))


@pytest.mark.parametrize("lanes", [1, 3])
def test_long_episodes_are_cut(lanes):
    found = evaluate(seeded(lanes), Copycat(), episodes=20, seed=0, max_steps=4)
    returns, lengths = by_hand(20, seed=0, limit=4)
    assert max(found.lengths) == 4
    assert found.lengths == lengths
    assert found.returns == pytest.approx(returns)


def test_agent_plays_at_its_best_unless_told():
    agent = Copycat()
    evaluate(seeded(2), agent, episodes=1, seed=0)
    assert set(agent.explored) == {False}
    evaluate(seeded(2), agent, episodes=1, seed=0, explore=True)
    assert agent.explored[-1] is True


def test_evaluation_can_be_given_up():
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


def test_watcher_sees_each_frame_of_each_episode():
    frames = []
    found = evaluate(seeded(3), Copycat(), episodes=5, seed=0, watch=lambda lane, episode: frames.append(episode))
    assert [frames.count(episode) for episode in range(5)] == found.lengths


def test_generators_of_the_process_are_put_back_whatever_happens():
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    with contextlib.suppress(ZeroDivisionError), undisturbed():
        random.random(), np.random.random(), torch.rand(())
        raise ZeroDivisionError
    assert (random.random(), np.random.random(), float(torch.rand(()))) == expected


def test_policies_play_in_evaluation_mode_and_go_back():
    class Dropping(torch.nn.Module):
        modes = ()

        def act(self, observation, explore):
            self.modes += (self.training,)
            return observation

    agent = PolicyAgent(Dropping())
    evaluate(seeded(1), agent, episodes=1, seed=0, max_steps=2)
    assert set(agent.policy.modes) == {False}
    assert agent.policy.training
