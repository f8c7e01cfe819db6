"""Exploring with noise whose steps are correlated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.build import Builder
from rlrun.collect.noisy import colored
from rlrun.config import compose
from rlrun.errors import ConfigError, SpaceError

WITH = "+with=colored_noise"


def exploring(*overrides, num_envs=2):
    words = [
        "env=pendulum",
        "preset=null",
        WITH,
        "algorithm.hidden=[8]",
        f"num_envs={num_envs}",
        "device=cpu",
        *overrides,
    ]
    builder = Builder(compose(words).config)
    return builder.get("exploring"), builder


@pytest.mark.parametrize("length", [199, 200])
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_power_falls_with_the_frequency_and_single_steps_are_standard_normal(beta, length):
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


def test_noise_of_soft_actor_critic_is_replaced_by_sequences_of_each_environment():
    agent, builder = exploring("algorithm=sac", "colored_noise.beta=2", "colored_noise.length=1000")
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    actions, _ = steps(agent, agent.initial_state(2), 1_000)
    assert torch.equal(torch.random.get_rng_state(), before)
    gaussian = builder.get("networks.policy").gaussian
    mean, log_std = (value.detach().numpy() for value in gaussian.normal(torch.zeros(1, 3)))
    noise = (np.arctanh(actions) - mean) / np.exp(log_std)
    assert np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1] > 0.95  # red noise goes on
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.95  # and is another one elsewhere
    still = np.zeros((2, 3), np.float32)
    best = builder.get("agent")(still, explore=False)["action"]
    np.testing.assert_array_equal(agent(still, agent.initial_state(2), explore=False)["action"], best)


@pytest.mark.parametrize("algorithm", ["td3", "ddpg"])
def test_noise_of_deterministic_policies_is_replaced_and_its_damping_too(algorithm):
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


def test_saved_noise_goes_on():
    agent, builder = exploring("algorithm=sac", "colored_noise.length=10")
    _, state = steps(agent, agent.initial_state(2), 4)
    restored, twin = exploring("algorithm=sac", "colored_noise.length=10", "seed=7")
    restored.load_state_dict(agent.state_dict())
    twin.get("networks.policy").load_state_dict(builder.get("networks.policy").state_dict())
    np.testing.assert_array_equal(steps(agent, state, 20)[0], steps(restored, state, 20)[0])


def test_noise_of_other_numbers_of_environments_begins_anew():
    several, fewer = (exploring("algorithm=sac", num_envs=number)[0] for number in (3, 2))
    steps(several, several.initial_state(3), 2)
    fewer.load_state_dict(several.state_dict())
    steps(fewer, np.full(2, 5), 2)  # amid an episode
    assert fewer._sequences[0].shape[0] == 2
    assert np.abs(fewer._sequences[0][:, 5]).min() > 0


def test_sequences_are_as_long_as_the_time_limit():
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
    ],
)
def test_what_it_cannot_explore_with_is_refused(overrides, error, message):
    with pytest.raises(error, match=message):
        exploring(*overrides)


def test_an_agent_without_normal_noise_is_refused_at_its_first_step():
    agent, _ = exploring("algorithm=mdq")
    with pytest.raises(ConfigError, match="draws no normal noise"):
        steps(agent, agent.initial_state(2), 1)
