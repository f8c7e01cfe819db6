"""Exploration by noise around deterministic actions, and by colored noise."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch

from rlrun import env as envs
from rlrun.collect import AsyncCollector, Collector, Noisy, RandomAgent
from rlrun.collect.agents import random_agent
from rlrun.collect.noisy import colored
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Box, Composite, Discrete, Spaces

from .probes import collector_for

EYE = Box((1,), np.array([-1.0]), np.array([1.0]))
LEVER = Box((1,), np.array([-5.0]), np.array([5.0]))
LOOK = np.zeros((4000, 1), np.float32)


class Level(torch.nn.Module):
    """Always the same action."""

    def __init__(self, level=0.1):
        super().__init__()
        self.level = level

    def act(self, observation, explore=False):
        return torch.full((len(observation), 1), self.level)


def noisy(level=0.1, spaces=None, **options):
    settings = {"deviation": 0.05, "seed": 3, **options}
    return Noisy(Level(level), spaces=spaces or Spaces(EYE, LEVER), **settings)


def noise(agent, steps):
    """Return the noise of some steps [T, N]."""
    return np.stack([agent(LOOK)["action"][:, 0] - agent.policy.level for _ in range(steps)])


def test_undamped_noise_is_independent():
    draws = noise(noisy(), 2)
    assert draws.std(1) == pytest.approx([0.05, 0.05], rel=0.05)
    assert draws.mean(1) == pytest.approx([0, 0], abs=0.005)
    assert abs(np.corrcoef(draws)[0, 1]) < 0.05


def test_damped_noise_is_autoregressive():
    draws = noise(noisy(damping=0.2), 40)
    # its deviation grows to 0.05 / √(1 - 0.8²), neighbors correlate by 0.8
    assert draws[0].std() == pytest.approx(0.05, rel=0.05)
    assert draws[-1].std() == pytest.approx(0.05 / 0.6, rel=0.05)
    assert np.corrcoef(draws[-2:])[0, 1] == pytest.approx(0.8, abs=0.03)
    assert np.corrcoef(draws[-5], draws[-1])[0, 1] == pytest.approx(0.8**4, abs=0.05)
    assert len(np.unique(draws[-1])) > 3_990  # envs have noise of their own


def test_noisy_actions_are_bounded():
    action = noisy(level=0.99, deviation=0.5)(LOOK)["action"]
    assert action.max() == 1.0
    assert -1.0 <= action.min() < 0.9


def test_deviation_follows_steps_of_all_envs():
    agent = noisy(deviation=Linear(0.1, 0.0, steps=8000))
    assert noise(agent, 3).std(1) == pytest.approx([0.1, 0.05, 0.0], rel=0.05, abs=1e-6)
    assert agent.metrics == {"explore/deviation": 0.0}


def test_share_of_actions_is_uniform():
    agent = noisy(deviation=0.0, random=0.25)
    actions = agent(LOOK)["action"][:, 0]
    uniform = actions[actions != np.float32(0.1)]
    assert len(uniform) / len(actions) == pytest.approx(0.25, abs=0.03)
    assert (uniform.mean(), uniform.std()) == (pytest.approx(0.0, abs=0.08), pytest.approx(1 / 3**0.5, rel=0.05))
    assert (agent(LOOK, explore=False)["action"] == np.float32(0.1)).all()
    sampled = agent.respond(torch.from_numpy(LOOK), None, True)[0][:, 0]  # as an export does
    uniform = sampled[sampled != 0.1]
    assert len(uniform) / len(sampled) == pytest.approx(0.25, abs=0.03)
    assert (float(uniform.mean()), float(uniform.std())) == (
        pytest.approx(0.0, abs=0.08),
        pytest.approx(0.577, rel=0.05),
    )
    state = agent.state_dict()
    expected = agent(LOOK)["action"]
    agent.load_state_dict(state)
    assert (agent(LOOK)["action"] == expected).all()


def test_random_actions_have_noise():
    plain = RandomAgent(LEVER, seed=5)(LOOK)["action"]
    agent = noisy(deviation=Linear(0.1, 0.0, steps=8000))
    actions = random_agent(agent, LEVER, seed=5)(LOOK)["action"]
    inside = np.abs(plain) < 0.5
    assert (actions - plain)[inside].std() == pytest.approx(0.1, rel=0.05)
    assert actions.dtype == plain.dtype
    assert np.abs(actions).max() == 1.0
    # of a uniform number in [-1, 1] with a normal one of 0.1 around it, 0.1 / √(2π) lie beyond the bounds
    assert (np.abs(actions) == 1.0).mean() == pytest.approx(0.04, abs=0.01)
    assert agent.steps == 0  # a schedule is one of the policy's steps


def test_warm_up_noise_is_correlated():
    agent = noisy(damping=0.1)
    again = random_agent(agent, LEVER, seed=5)
    plain = RandomAgent(LEVER, seed=5)
    drawn = [again(LOOK)["action"] - plain(LOOK)["action"] for _ in range(30)]
    within = np.abs(np.stack(drawn)).max(0) < 0.3
    assert np.corrcoef(drawn[-2][within], drawn[-1][within])[0, 1] > 0.7


def test_worker_makes_noise_of_a_collector():
    runs = []
    for kind in (Collector, partial(AsyncCollector, kind="thread")):
        env = envs.make(id="Pendulum-v1", num_envs=2)
        agent = Noisy(Level(), deviation=0.3, damping=0.5, spaces=env.spaces, seed=3)
        collector = collector_for(env, agent, kind=kind, warm_up_seed=7)
        collector.collect(20, random=True)
        collector.collect(20)
        collector.end_training(None)
        runs.append((collector.table.state_dict()["columns"]["blocks"]["packed rows"], agent.state_dict()))
    assert np.array_equal(runs[0][0], runs[1][0])
    assert runs[0][1]["rng"] == runs[1][1]["rng"]
    assert torch.equal(runs[0][1]["noise"][0], runs[1][1]["noise"][0])


def test_random_agent_is_sent_without_network():
    sent = pickle.dumps(random_agent(noisy(), LEVER, seed=5))
    assert b"Level" not in sent
    agent, again = noisy(), pickle.loads(sent)
    again.act_for(agent)
    assert np.array_equal(again(LOOK)["action"], random_agent(noisy(), LEVER, seed=5)(LOOK)["action"])


def test_exported_noise_is_as_large():
    agent = noisy(damping=0.2)
    torch.manual_seed(0)
    action, state = agent.respond(torch.zeros(4000, 1), None, True)
    assert state is None
    assert float((action - 0.1).std()) == pytest.approx(0.05 / 0.6, rel=0.05)
    assert agent.respond(torch.zeros(2, 1), None, False)[0].tolist() == [[pytest.approx(0.1)]] * 2


class Counting(torch.nn.Module):
    """Counts its calls in its state; a hundredth of that is its action."""

    state_size = 1

    def initial_state(self, count):
        return torch.zeros(count, 1)

    def advance(self, observation, state, explore=False):
        assert not explore
        return (state + 1) / 100, state + 1


def test_recurrent_state_has_no_noise():
    agent = Noisy(Counting(), deviation=0.05, spaces=Spaces(EYE, LEVER), seed=3)
    assert agent.outputs == ("action", "state")
    state = agent.initial_state(len(LOOK))
    for step in (1, 2, 3):
        response = agent(LOOK, state)
        state = response["state"]
        assert np.unique(state) == [step]
        assert response["action"].mean() == pytest.approx(step / 100, abs=0.005)
        assert response["action"].std() == pytest.approx(0.05, rel=0.05)
    assert np.unique(agent(LOOK, state, explore=False)["action"]) == pytest.approx([0.04])
    assert agent.steps == 3 * len(LOOK)
    for explore, deviation in ((True, 0.05), (False, 0.0)):
        action, after = agent.respond(torch.zeros(4000, 1), torch.ones(4000, 1), explore)
        assert float(action.std()) == pytest.approx(deviation, rel=0.05, abs=1e-6)
        assert after.unique().tolist() == [2.0]


def test_every_part_has_noise():
    class Both(torch.nn.Module):
        def act(self, observation, explore=False):
            return {name: torch.zeros(len(observation), 1) for name in ("left", "right")}

    spaces = Spaces(EYE, Composite({"left": LEVER, "right": LEVER}))
    agent = Noisy(Both(), deviation=0.1, damping=0.5, spaces=spaces, seed=0)
    agent(LOOK)
    action = agent(LOOK)["action"]
    assert action["left"].std() == pytest.approx(0.1 * 1.25**0.5, rel=0.05)
    assert abs(np.corrcoef(action["left"][:, 0], action["right"][:, 0])[0, 1]) < 0.05


def test_impossible_noise_is_refused():
    with pytest.raises(SpaceError, match="numbers; here they are Discrete"):
        noisy(spaces=Spaces(EYE, Discrete(2)))
    with pytest.raises(ConfigError, match=r"agent\.damping: wanted a share above 0 and at most 1, got 0"):
        noisy(damping=0.0)


def exploring(*more, num_envs=2):
    overrides = ["env=pendulum", "preset=null", "+with=colored_noise", "algorithm.hidden=[8]", "device=cpu"]
    builder = Builder(compose([*overrides, f"num_envs={num_envs}", *more]).config)
    return builder.get("exploring"), builder


@pytest.mark.parametrize("length", [199, 200])
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_power_falls_with_frequency(beta, length):
    noise = colored(np.random.default_rng(0), (2_000, 2), length=length, beta=beta)
    assert noise.shape == (2_000, length, 2)
    np.testing.assert_allclose(noise.mean((0, 2)), 0.0, atol=0.08)
    np.testing.assert_allclose(noise.var((0, 2)), 1.0, atol=0.12)
    power = (np.abs(np.fft.rfft(noise, axis=1)) ** 2).mean((0, 2))
    slope = np.polyfit(np.log(np.arange(1, 99)), np.log(power[1:99]), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.03)


def steps(agent, state, count):
    """Return what an agent does at one observation [count, N], and the state after it."""
    observation = np.zeros((len(state), 3), np.float32)
    actions = []
    for _ in range(count):
        response = agent(observation, state)
        actions.append(response["action"][:, 0])
        state = response["state"]
    return np.stack(actions), state


def test_sac_noise_is_replaced_by_sequences():
    agent, builder = exploring("algorithm=sac", "colored_noise.beta=2", "colored_noise.length=1000")
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    actions, _ = steps(agent, agent.initial_state(2), 1_000)
    assert torch.equal(torch.random.get_rng_state(), before)
    gaussian = builder.get("networks.policy").gaussian
    mean, log_std = (value.detach().numpy() for value in gaussian.normal(torch.zeros(1, 3)))
    noise = (np.arctanh(actions) - mean) / np.exp(log_std)
    assert np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1] > 0.95  # red noise is correlated
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.95  # and is another one elsewhere
    still = np.zeros((2, 3), np.float32)
    best = builder.get("agent")(still, explore=False)["action"]
    np.testing.assert_array_equal(agent(still, agent.initial_state(2), explore=False)["action"], best)


@pytest.mark.parametrize("algorithm", ["td3", "ddpg"])
def test_deterministic_noise_is_replaced(algorithm):
    agent, _ = exploring(f"algorithm={algorithm}", "algorithm.noise.deviation=0.05", "colored_noise.length=500")
    mode = agent(np.zeros((2, 3), np.float32), agent.initial_state(2), explore=False)["action"][:, 0]
    actions, _ = steps(agent, agent.initial_state(2), 500)
    noise = (actions - mode) / 0.05
    assert noise.std() == pytest.approx(1.0, abs=0.3)
    np.testing.assert_allclose(noise, agent._sequences[0][:, :, 0].T, atol=1e-4)


def test_each_episode_begins_a_sequence():
    agent, _ = exploring("algorithm=td3", "colored_noise.length=10")
    _, state = steps(agent, agent.initial_state(2), 4)
    before = agent._sequences[0].copy()
    state[1] = 0
    _, state = steps(agent, state, 1)
    assert state.tolist() == [5, 1]
    np.testing.assert_array_equal(agent._sequences[0][0], before[0])
    assert (agent._sequences[0][1] != before[1]).all()
    steps(agent, state, 6)
    assert (agent._sequences[0][0] != before[0]).all()  # ten steps are over


def test_other_num_envs_draw_new_sequences():
    several, fewer = (exploring("algorithm=sac", num_envs=number)[0] for number in (3, 2))
    steps(several, several.initial_state(3), 2)
    fewer.load_state_dict(several.state_dict())
    steps(fewer, np.full(2, 5), 2)  # within an episode
    assert fewer._sequences[0].shape[0] == 2
    assert np.abs(fewer._sequences[0][:, 5]).min() > 0


def test_sequences_have_length_of_time_limit():
    assert exploring("algorithm=sac")[0].length == 200
    assert exploring("algorithm=sac", "env.id=null", "env.target=rlrun.env.toys.HitTheMiddle")[0].length == 1_000


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["algorithm=dqn", "env=cartpole"], SpaceError, "actions that are numbers"),
        (["algorithm=taac"], ConfigError, "keeps a state"),
        (["algorithm=sac", "colored_noise.length=1"], ConfigError, "length >= 2"),
        (["algorithm=sac", "colored_noise.length=0"], ConfigError, "length >= 2"),
        (["algorithm=sac", "colored_noise.beta=-1"], ConfigError, "beta >= 0"),
        (["algorithm=mdq"], ConfigError, "draws no normal noise"),
    ],
)
def test_impossible_colored_noise_is_refused(overrides, error, message):
    with pytest.raises(error, match=message):
        steps(exploring(*overrides)[0], np.zeros(2, np.int64), 1)
