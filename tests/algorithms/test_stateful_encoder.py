"""Encoders with a state in front of policy and critics: one that all share, windows, and what is refused."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import rlrun
from rlrun.algorithms.actor_critic.sac import SoftQTarget
from rlrun.callbacks import CriticLoss, SoftPolicyLoss
from rlrun.collect import PolicyAgent
from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import Box, Composite, Spaces
from rlrun.nn import Critics, DetachedEncoder, DeterministicPolicy, SoftPolicy, Temperature, Trunk
from rlrun.nn.recurrent import StatefulEncoder, present, with_state

from .fixed import COIN, CONTINUOUS, LINE, adam
from .test_recurrent import PRESENT, SMALL, batch_of, stepped

pytestmark = pytest.mark.usefixtures("no_noise")
MASKED = Spaces(Composite({"action_mask": Box((2,), np.zeros(2), np.ones(2), "int8"), "x": LINE}), COIN)
LAST = torch.tensor([[0.9]])


class Filter(nn.Module):
    """A filter whose features are no part of its state: x minus the mean so far, which the state follows."""

    state_size = 1

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))

    def step(self, observation, state):
        after = state + self.gain * (observation - state)
        return torch.cat((observation - after, after * after), -1), after

    def forward(self, observation, state):
        outputs = []
        for row in observation.unbind(1):
            features, state = self.step(row, state)
            outputs.append(features)
        return torch.stack(outputs, 1)


def lstm(spaces):
    return Trunk(spaces, hidden=(4,), core="lstm", core_size=3)


def networks(encoder):
    torch.manual_seed(1)
    spaces = CONTINUOUS
    critics = Critics(spaces, hidden=(4,), encoder=encoder(spaces) if encoder is lstm else encoder())
    policy = SoftPolicy(
        spaces, critics, Temperature(spaces, initial=0.2), hidden=(4,), encoder=DetachedEncoder(critics)
    )
    return critics, policy


@pytest.mark.parametrize(("encoder", "size"), [(lstm, 6), (Filter, 1)])
def test_one_state_for_policy_and_critics(encoder, size):
    critics, policy = networks(encoder)
    assert (policy.state_size, policy.encoders()) == (size, [critics.encoder])
    state = torch.randn(2, size)
    now = with_state(PRESENT[:2].view(2, 1), state)
    action, after = policy.advance(PRESENT[:2].view(2, 1), state, False)
    assert torch.equal(action, policy.act(now, False))
    assert torch.equal(after, critics.encoder.step(PRESENT[:2].view(2, 1), state)[1])


@pytest.mark.parametrize(("encoder", "size"), [(lstm, 6), (Filter, 1)])
def test_windows_are_those_of_steps(encoder, size):
    critics, policy = networks(encoder)
    state = torch.randn(1, size)
    now, then, reward, terminated = batch_of(state, ends=False)
    features = [critics.encoder.step(x.view(1, 1), state)[0] for x in PRESENT[:1]]
    assert torch.allclose(critics.encode(now)[:, 0], features[0], atol=1e-6)
    actions, own = [], state
    for x in PRESENT:
        actions.append(policy.gaussian(with_state(x.view(1, 1), own))[0])
        own = critics.encoder.step(x.view(1, 1), own)[1]
    values = [float(value.amin()) for value in stepped(critics, PRESENT, state, actions)]
    drawn, log_prob = policy.continuous(now)
    assert drawn.flatten().tolist() == pytest.approx([c.item() for c in actions[:4]], abs=1e-5)
    loss = SoftPolicyLoss(policy, adam, critics=critics, temperature=policy._borrowed[1])
    expected = [0.2 * log_prob[0, step].item() - values[step] for step in range(4)]
    assert loss.loss(now)[0][0].tolist() == pytest.approx(expected, abs=1e-5)
    target = SoftQTarget(critics, policy, policy._borrowed[1], discount=0.9).begin_batch(then, reward, terminated)
    costs = policy.continuous(then)[1][0].tolist()
    expected = [step + 1 + 0.9 * (values[step + 1] - 0.2 * costs[step]) for step in range(4)]
    assert target["q_target"][0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("encoder", [lstm, Filter])
def test_critics_alone_train_it(encoder):
    critics, policy = networks(encoder)
    now, *_ = batch_of(torch.randn(1, policy.state_size), ends=True)

    def moved(step):
        before = [parameter.detach().clone() for parameter in critics.encoder.parameters()]
        step()
        return [not torch.equal(old, new) for old, new in zip(before, critics.encoder.parameters(), strict=True)]

    policy_loss = SoftPolicyLoss(policy, adam, critics=critics, temperature=policy._borrowed[1])
    assert not any(moved(lambda: policy_loss.backward(now)))
    action = torch.zeros(1, 4, 1)
    assert all(moved(lambda: CriticLoss(critics, adam).backward(now, action, torch.ones(1, 4))))


def test_two_encoders_have_a_part_each():
    torch.manual_seed(1)
    critics, policy = Critics(CONTINUOUS, encoder=lstm(CONTINUOUS)), DeterministicPolicy(CONTINUOUS, encoder=Filter())
    PolicyAgent(policy, critics=critics)
    state = torch.randn(2, policy.state_size)
    seen = with_state(PRESENT[:2].view(2, 1), state)
    assert policy.state_size == 7
    assert torch.equal(policy.encode(seen), policy.encoder.step(seen["observation"], state[:, :1])[0])
    assert torch.equal(critics.encode(seen), critics.encoder.step(seen["observation"], state[:, 1:])[0])


def test_it_sees_no_action_mask():
    critics = Critics(MASKED, encoder=Filter())
    seen = {"action_mask": torch.ones(1, 5, 2), "x": PRESENT.view(1, 5, 1)}
    observation = with_state(seen, torch.zeros(1, 1), torch.tensor([[1, 4]]))
    expected = critics.encoder.module(PRESENT.view(1, 5, 1), torch.zeros(1, 1))[:, [1, 4]]
    assert torch.equal(critics.encode(observation), expected)
    assert present(observation)["x"].tolist() == PRESENT[[1, 4]].view(1, 2, 1).tolist()


def changed(**calls):
    return type("Mine", (Filter,), {"state_size": 1, **calls})()


FAULTY = [
    (lambda: changed(step=None), "Mine does not fit: 'NoneType' object is not callable"),
    (lambda: changed(step=lambda self, x, state: (x, x[:, 1:])), "states and windows [[2, 1], [2, 0], [2, 3, 1]]"),
    (lambda: changed(forward=lambda self, x, state: x), "of 2 rows, wanted [[2, 2], [2, 1], [2, 3, 2]]"),
    (lambda: changed(forward=lambda self, x, state: x[:, 0]), "windows [[2, 2], [2, 1], [2, 1]] of 2 rows"),
    (lambda: changed(forward=lambda self, x: x), "takes 2 positional arguments but 3 were given"),
    (lambda: changed(step=lambda self, x, state: 7), "cannot unpack non-iterable int object"),
]


@pytest.mark.parametrize(("make", "message"), FAULTY)
def test_faulty_encoders_are_refused(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Critics(CONTINUOUS, encoder=make())


def test_single_steps_need_a_state():
    with pytest.raises(RequestError, match="a recurrent network or encoder needs the state before a step"):
        StatefulEncoder(Filter(), LINE, place="here")(LAST)


ENCODER = (*SMALL, "encoder=recurrent", "encoder.hidden=[6]", "encoder.core_size=3")
RUNS = {
    "sac": ("algorithm=sac", "+with=shared_encoder", "memory=prioritized", "algorithm.n_step=2"),
    "smoothed": ("algorithm=td3", "+with=[shared_encoder,smoothed_policy]", "num_envs=2"),
    "async": ("algorithm=sac", "+with=[shared_encoder,async]"),
    "oac": ("algorithm=oac", "+with=shared_encoder", "encoder.core=gru"),
    "own": ("algorithm=qrsac", "+with=shared_encoder"),
    "repeats": ("algorithm=action_repeat", "algorithm.most_steps=3", "+with=shared_encoder"),
    **{name: (f"algorithm={name}", "+with=shared_encoder") for name in ("dsac", "mdq", "sarsa", "taac")},
}
SIZES = {"oac": 3, "own": 1}


@pytest.mark.parametrize("name", RUNS)
def test_algorithms_learn_with_one_state(name, tmp_path):
    encoder = (*SMALL, "encoder._target_=tests.algorithms.test_stateful_encoder.Filter") if name == "own" else ENCODER
    overrides = [*encoder, *RUNS[name], "env=recall", "env.kwargs.continuous=true"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    assert result.summary["status"] == "completed"
    table = result.trainer.loader.table
    assert table.storage.columns["state"].shape == (SIZES.get(name, 6),)
    policy, observation = rlrun.load(tmp_path / "run"), np.ones(1, np.float32)
    first = policy.predict(observation)[1]
    state, after = (
        part["recurrent"] if isinstance(part, dict) else part for part in (first, policy.predict(observation, first)[1])
    )
    assert state.shape == (1, SIZES.get(name, 6))
    assert not np.array_equal(after, state)


REFUSED = {
    "ppo": (
        ("algorithm=ppo", "env=cartpole"),
        "PPO, A2C, PPG, TRAC, IQL and cloning remember by that alone",
    ),
    "iql": (
        ("algorithm=iql", "env=pendulum"),
        r"^encoder: one with a state \(encoder=recurrent\) does not go .*; networks\.policy\.encoder reads it",
    ),
    "both": (("algorithm=dqn", "env=cartpole", "algorithm.recurrent=gru"), r"algorithm\.recurrent: give it null"),
    "colored": (("algorithm=sac", "env=pendulum", "+with=colored_noise"), "colored_noise: .* that keeps a state"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_keeps_no_such_state_refuses(name, tmp_path):
    overrides, message = REFUSED[name]
    with pytest.raises((ConfigError, RequestError), match=message):
        rlrun.train(["encoder=recurrent", "preset=null", "logger=[]", *overrides], run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
