"""An agent that is sent to a worker acts as the original, and shares nothing with it."""

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.algorithms.actor_critic.sac import SoftPolicy, Temperature
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.collect import EpsilonGreedy, PolicyAgent
from rlrun.collect.unroll import freeze, thaw
from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.nn import ActorCritic, Critics, Normalizer

SEEN = Box((3,), np.full(3, -np.inf, np.float32), np.full(3, np.inf, np.float32))
SPACES = Spaces(observation=SEEN, action=Box((2,), -np.ones(2, np.float32), np.ones(2, np.float32)))
CHOICES = Spaces(observation=SEEN, action=Discrete(4))


def best(agent, count=5):
    observation = torch.linspace(-1, 1, count * 3).reshape(count, 3).numpy()
    return agent(observation, explore=False)["action"]


def test_sent_agent_shares_nothing():
    normalizer = Normalizer(SPACES)
    agent = PolicyAgent(ActorCritic(SPACES), preprocess=normalizer)
    normalizer.update(torch.randn(50, 3) * 9 + 4)
    sent = thaw(freeze(agent))
    before = best(agent)
    assert np.array_equal(best(sent), before)
    with torch.no_grad():
        for parameter in sent.policy.parameters():
            parameter.zero_()
    assert np.array_equal(best(agent), before)
    assert (best(sent) == 0).all()


def test_referenced_networks_are_sent():
    critics = Critics(CHOICES, hidden=(8,))
    agent = PolicyAgent(SoftPolicy(CHOICES, critics=critics, temperature=Temperature(CHOICES), hidden=(8,)))
    with torch.no_grad():  # what no state_dict of the policy holds
        for parameter in critics.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    assert len(set(best(agent, 50).tolist())) > 1
    assert np.array_equal(best(thaw(freeze(agent)), 50), best(agent, 50))


def test_shared_network_stays_shared():
    agent = PolicyAgent(ActorCritic(SPACES))
    agent.again = agent.policy
    agent.weight = agent.policy.value_head.weight
    sent = thaw(freeze(agent))
    assert sent.again is sent.policy
    assert sent.weight is sent.policy.value_head.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_of_every_dtype_are_sent(dtype, shape):
    tensor = (torch.arange(6)[: torch.Size(shape).numel()].reshape(shape) - 2).to(dtype)
    copy = thaw(freeze({"of": tensor.mT if tensor.ndim == 2 else tensor}))["of"]
    assert copy.dtype == dtype
    assert torch.equal(copy, tensor.mT if tensor.ndim == 2 else tensor)


def test_parameters_are_sent_without_gradients():
    network = nn.Linear(2, 2)
    network(torch.ones(2)).sum().backward()
    copy = thaw(freeze(network))
    assert [(type(p), p.requires_grad, p.grad) for p in copy.parameters()] == [(nn.Parameter, False, None)] * 2


def test_counters_are_sent_without_device():
    agent = EpsilonGreedy(QNetwork(CHOICES), epsilon=Linear(1.0, 0.0, 10), spaces=CHOICES, seed=1)
    agent.steps, agent.device = 7, "cuda:0"
    sent = thaw(freeze(agent))
    assert sent.state_dict() == agent.state_dict()
    assert sent.device == "cpu"


def test_unpicklable_agent_is_named():
    agent = PolicyAgent(ActorCritic(SPACES), preprocess=lambda observation: observation)
    with pytest.raises(ConfigError, match=r"^agent: a PolicyAgent cannot be sent to a worker: .*lambda"):
        freeze(agent)
