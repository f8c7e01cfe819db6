"""Values of the policy as it acts, worked by hand on networks of one layer."""

import pytest
import torch

from rlrun import load, train
from rlrun.algorithms import ddpg
from rlrun.algorithms.sac import SoftPolicy, Temperature
from rlrun.algorithms.sarsa import (
    BurnIn,
    RecurrentCritics,
    RecurrentDeterministic,
    RecurrentGaussian,
    SarsaTarget,
    WindowTarget,
)
from rlrun.callbacks import SmoothedPolicy, SoftPolicyLoss
from rlrun.core.errors import ConfigError
from rlrun.memory import Table
from rlrun.nn import Critics

from .fixed import CONTINUOUS, DISCRETE, MIXED, adam, column

pytestmark = pytest.mark.usefixtures("no_noise")


# --- networks that remember


def remembering(kind="gru"):
    """Return critics, policy and temperature with memories of three numbers."""
    torch.manual_seed(1)
    critics = RecurrentCritics(CONTINUOUS, hidden=(4, 5), core=kind, core_size=3)
    gaussian = RecurrentGaussian(CONTINUOUS, hidden=(4,), core=kind, core_size=3, output_gain=1.0)
    temperature = Temperature(CONTINUOUS, initial=0.2)
    return critics, SoftPolicy(CONTINUOUS, critics, temperature, gaussian=gaussian), temperature


def sure_and_remembering(kind="gru"):
    """Return critics and a policy that is sure of its action, with memories of three numbers."""
    critics, *_ = remembering(kind)
    return critics, RecurrentDeterministic(CONTINUOUS, hidden=(4,), core=kind, core_size=3)


def walked(critics, policy, observations):
    """Return actions and smallest values along observations [T], one step after the other from nothing remembered."""
    states = [torch.zeros(1, network.state_size) for network in (policy, critics.trunk)]
    actions, values = [], []
    for observation in observations:
        action, states[0] = policy.advance(column(observation), states[0], explore=False)
        features, states[1] = critics.trunk.step(column(observation), states[1])
        value = critics.layers(torch.cat((features, action), -1))
        actions.append(float(action.detach()))
        values.append(float(value.amin().detach()))
    return actions, values


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_windows_bootstrap_from_next_states(kind):
    critics, policy, temperature = remembering(kind)
    target = WindowTarget(critics, policy, temperature, discount=0.9)
    seen = [0.3, -0.7, 0.9, 0.1]
    _, values = walked(critics, policy.gaussian, seen)
    with torch.no_grad():
        for parameter in critics.parameters():  # the slow ones count
            parameter.zero_()
    window = column(*seen).unsqueeze(0)
    inputs = window[:, :3], window[:, 1:]
    q_target = target.begin_batch(*inputs, torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[False] * 3]))["q_target"]
    assert q_target[0].tolist() == pytest.approx([t + 1 + 0.9 * values[t + 1] for t in range(3)], abs=1e-5)
    over = target.begin_batch(*inputs, torch.ones(1, 3), torch.tensor([[False, False, True]]))["q_target"]
    assert float(over[0, 2]) == 1.0


def test_policy_windows_equal_their_steps():
    critics, policy, temperature = remembering()
    actions, values = walked(critics, policy.gaussian, [0.3, -0.7, 0.9])
    loss = SoftPolicyLoss(policy, adam, critics=critics, temperature=temperature)
    c, log_prob = policy.continuous(column(0.3, -0.7, 0.9).unsqueeze(0))
    assert c.flatten().tolist() == pytest.approx(actions, abs=1e-6)
    element, outputs, _ = loss.loss(column(0.3, -0.7, 0.9).unsqueeze(0))
    expected = [0.2 * float(log_prob[0, t].detach()) - values[t] for t in range(3)]
    assert element[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert outputs["policy_entropy"].shape == (1, 3, 1)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_deterministic_windows_equal_their_steps(kind):
    critics, policy = sure_and_remembering(kind)
    seen = [0.3, -0.7, 0.9, 0.1]
    actions, values = walked(critics, policy, seen)
    window = column(*seen).unsqueeze(0)
    assert policy(window).flatten().tolist() == pytest.approx(actions, abs=1e-6)
    changed = policy(column(-0.9, *seen[1:]).unsqueeze(0))
    assert abs(float(changed[0, -1].detach()) - actions[-1]) > 1e-5  # it does remember
    target = WindowTarget(critics, policy, discount=0.9)
    inputs = window[:, :3], window[:, 1:], torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[False, False, True]])
    q_target = target.begin_batch(*inputs)["q_target"]
    assert q_target[0].tolist() == pytest.approx([1 + 0.9 * values[1], 2 + 0.9 * values[2], 3.0], abs=1e-5)
    loss = ddpg.DeterministicPolicyLoss(policy, adam, critics=critics, actor_q="min", action_weight=0.5)
    expected = [0.5 * action**2 - value for action, value in zip(actions, values, strict=True)]
    assert loss.loss(window)[0][0].tolist() == pytest.approx(expected, abs=1e-5)


def sampled(lengths, **settings):
    """Return windows of four steps from episodes of some lengths, and the step that each begins with."""
    table = Table(spaces=CONTINUOUS, length=60, adaptors=[BurnIn(0.5)], **settings)
    for length in lengths:
        for step in range(length):
            row = {"observation": [[float(step)]], "action": [[0.0]], "reward": [0.0]}
            table.add(None, row | {"terminated": [False], "truncated": [step == length - 1]})
        table.close(None, [[float(length)]])
    batch = table.sample(100, 4)
    return batch, batch["observation"][:, 0, 0]


def test_burn_in_spares_beginning_episodes():
    batch, begin = sampled([9, 7])
    for weight, step in zip(batch["weight"].tolist(), begin.tolist(), strict=True):
        assert weight == ([1.0] * 4 if step == 0 else [0.0, 0.0, 1.0, 1.0])
    assert 0 < int((begin == 0).sum()) < 100


def test_padding_never_counts():
    batch, begin = sampled([3, 6], short="pad")
    assert torch.equal(batch["weight"] > 0, batch["valid"] & ((begin == 0).unsqueeze(-1) | (torch.arange(4) >= 2)))


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: remembering()[1],
            r"and acts; give 'callbacks\.smoothed_policy\.network=\$\{networks\.gaussian",
        ),
        (lambda: SoftPolicy(DISCRETE, Critics(DISCRETE), Temperature(DISCRETE)), "SoftPolicy has no parameters"),
    ],
)
def test_what_does_not_act_is_not_smoothed(make, message):
    with pytest.raises(ConfigError, match=message):
        SmoothedPolicy(make())


def test_smoothed_choices_are_those_of_learning_critics():
    critics = Critics(MIXED, hidden=[4])
    policy = SoftPolicy(MIXED, critics, Temperature(MIXED), hidden=[4])
    assert SmoothedPolicy(policy).target_network._borrowed[0] is critics
