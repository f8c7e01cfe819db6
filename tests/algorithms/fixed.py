"""Networks of one layer whose numbers are written by hand, on one-dimensional spaces."""

import math
from functools import partial

import numpy as np
import torch

from rlrun.algorithms.actor_critic.sac import SoftPolicy, Temperature
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces
from rlrun.nn import Critics, DeterministicPolicy

LINE = Box((1,), np.array([-1.0], np.float32), np.array([1.0], np.float32))
COIN = Discrete(2)
SWITCHES = MultiDiscrete(np.full(7, 2), np.zeros(7, np.int64))  # 128 combinations: seven branches that add up
CONTINUOUS, DISCRETE = Spaces(LINE, LINE), Spaces(LINE, COIN)
MIXED, MANY = Spaces(LINE, Composite({"level": LINE, "side": COIN})), Spaces(LINE, SWITCHES)
ALL = {"continuous": CONTINUOUS, "discrete": DISCRETE, "mixed": MIXED, "many": MANY}

sgd = partial(torch.optim.SGD, lr=1.0)
adam = partial(torch.optim.Adam, lr=0.1)


def column(*numbers):
    """Return a batch [B, 1]."""
    return torch.tensor(numbers).float().unsqueeze(-1)


def write(critics, *members):
    """Set each member's row of the inputs' weights [in, out] and its biases [out]."""
    layer = critics.layers.layers[0]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weight for weight, _ in members]).float())
        layer.bias.copy_(torch.tensor([[bias] for _, bias in members]).float())
    return critics


def fill(layer, *biases):
    """Let a layer return these numbers, whatever it sees."""
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor(biases))


def critics_of(spaces, *members):
    return write(Critics(spaces, hidden=(), members=len(members)), *members)


def q_network(spaces, *biases):
    """Return a Q-network with the same values [K] for every observation, one list a member."""
    zeros = [[0.0] * len(biases[0])] * spaces.observation.size
    return write(QNetwork(spaces, hidden=(), members=len(biases)), *[(zeros, bias) for bias in biases])


def play(policy, level):
    """Have a deterministic policy play the same action for every observation."""
    fill(policy.layers[-1], math.atanh(level))
    return policy


def deterministic(level):
    return play(DeterministicPolicy(CONTINUOUS, hidden=()), level)


def targets(target, **extra):
    """Return the targets of an interior step and of a terminal one, both with reward 1 and next_observation 1."""
    return target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]), **extra)["q_target"]


def evaluate_loss(loss, *values, **options):
    """Return the loss of each element, outputs, and metrics as they are logged."""
    elements, outputs, metrics = loss.loss(*values, **options)
    loss.store.put(metrics)
    return elements, outputs, loss.store.read()


def policy_of(spaces, critics, *, level=0.5, log_prob=-1.5, alphas=(0.2,), prior=None):
    """Return a policy that, without noise, plays `level` with this log-density; and its temperatures."""
    temperature = Temperature(spaces)
    with torch.no_grad():
        temperature.log.copy_(torch.tensor(alphas).log())
    policy = SoftPolicy(spaces, critics, temperature, hidden=(), prior=prior)
    if policy.gaussian is not None:
        log_std = -log_prob - 0.5 * math.log(2 * math.pi) - math.log(1 - level**2)
        fill(policy.gaussian.layers[-1], math.atanh(level), log_std)
    return policy, temperature
