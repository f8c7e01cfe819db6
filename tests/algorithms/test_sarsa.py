"""Values of the policy as it acts, worked by hand on networks of one layer."""

import pytest
import torch

from rlrun import load, train
from rlrun.algorithms.actor_critic.sac import SoftPolicy, Temperature
from rlrun.algorithms.actor_critic.sarsa import SarsaTarget
from rlrun.callbacks import SmoothedPolicy
from rlrun.core.errors import ConfigError
from rlrun.nn import Critics

from .fixed import DISCRETE, MIXED

pytestmark = pytest.mark.usefixtures("no_noise")


# --- whole runs

RUN = ("env=pendulum", "preset=null", "algorithm.hidden=[8]", "evaluation.every=0", "checkpoint.every=0", "logger=[]")


def test_on_policy_updates_have_each_new_step_once(tmp_path, monkeypatch):
    batches, target = [], SarsaTarget.target

    def spy(self, next_observation, reward, terminated, discount):
        batches.append((reward.clone(), discount))
        return target(self, next_observation, reward, terminated, discount)

    monkeypatch.setattr(SarsaTarget, "target", spy)
    overrides = [*RUN, "algorithm=sarsa", "+with=on_policy", "on_policy.horizon=6", "num_envs=4", "stop.env_steps=240"]
    train(overrides, run_dir=tmp_path / "run")
    assert [len(reward) for reward, _ in batches] == [24] * 10
    assert len(torch.cat([reward for reward, _ in batches]).unique()) == 240
    assert all(discount.tolist() == pytest.approx([0.99] * 24) for _, discount in batches)
    with pytest.raises(ConfigError, match=r"algorithm\.n_step: .* give 1 here"):
        train([*overrides, "algorithm.n_step=2"], run_dir=tmp_path / "other")


@pytest.mark.parametrize("algorithm", ["sarsa", "sarsa_ddpg"])
def test_smoothed_policy_acts_and_is_loaded(algorithm, tmp_path):
    overrides = [*RUN, f"algorithm={algorithm}", "+with=smoothed_policy", "algorithm.warmup_steps=20"]
    trainer = train([*overrides, "algorithm.tau=0.5", "stop.env_steps=24"], run_dir=tmp_path / "run").trainer
    callback, agent = trainer.callbacks["smoothed_policy"], trainer.callbacks["collector"].agent
    assert agent.policy is callback.target_network is not callback.network
    slow, fast = (
        [parameter.clone() for parameter in network.parameters()] for network in (agent.policy, callback.network)
    )
    callback.end_batch()
    for before, goal, now in zip(slow, fast, agent.policy.parameters(), strict=True):
        torch.testing.assert_close(now, 0.5 * before + 0.5 * goal)
    observation = torch.tensor([0.2, 0.4, -1.0])
    action, _ = load(str(tmp_path / "run")).predict(observation.numpy())
    for old, parameter in zip(slow, agent.policy.parameters(), strict=True):
        parameter.data.copy_(old)
    expected = 2.0 * agent.policy.act(observation.unsqueeze(0), False)[0].detach().numpy()
    assert action == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["sarsa", "td3", "mdq"])
def test_smoothed_policies_keep_states_of_critics(algorithm, tmp_path):
    windows = ("algorithm.recurrent=gru", "algorithm.core_size=3", "algorithm.unroll=4", "algorithm.burn_in=1")
    steps = ("algorithm.warmup_steps=10", "algorithm.batch_size=4", "stop.env_steps=14")
    overrides = [*RUN, *windows, *steps, f"algorithm={algorithm}", "+with=smoothed_policy"]
    trainer = train(overrides, run_dir=tmp_path / "run").trainer
    policy, critics = trainer.callbacks["collector"].agent.policy, trainer.callbacks["q_loss"].network
    own, of_critics = policy.encoders()
    assert of_critics is critics.encoder
    assert own is not trainer.callbacks["policy"].network.encoders()[0]
    state = trainer.loader.table.sample(4)["observation"]["recurrent_state"]
    assert state.shape == (4, policy.state_size) == (4, 6)
    assert load(str(tmp_path / "run")).agent.policy.state_size == 6


def test_policies_without_parameters_cannot_be_smoothed():
    with pytest.raises(ConfigError, match="SoftPolicy has no parameters"):
        SmoothedPolicy(SoftPolicy(DISCRETE, Critics(DISCRETE), Temperature(DISCRETE)))


def test_smoothed_choices_are_those_of_learning_critics():
    critics = Critics(MIXED, hidden=[4])
    policy = SoftPolicy(MIXED, critics, Temperature(MIXED), hidden=[4])
    assert SmoothedPolicy(policy).target_network._borrowed[0] is critics
