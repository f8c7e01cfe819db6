"""Behavior cloning, plain and causal: losses by hand, and that clones act like the data, or like its expert."""

import math
from functools import partial

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.actor_critic.iql import AdvantageWeightedLoss
from rlrun.algorithms.imitation.bc import BCLoss
from rlrun.algorithms.imitation.causal_bc import CausalBCLoss, Residual, ResidualLoss
from rlrun.collect import Collector, PolicyAgent
from rlrun.env import make
from rlrun.memory import Table
from rlrun.memory.formats import table_file
from rlrun.nn import Policy

from .fixed import CONTINUOUS, DISCRETE, MIXED, column, deterministic, fill, sgd


def loss_of(spaces, **options):
    """Return a loss of a policy whose mean is 0.5 and whose choices have 1/4 and 3/4, wherever it is."""
    network = Policy(spaces, hidden=())
    numbers = [0.5, math.log(2.0)] if network.codec.continuous else []
    fill(network.head.layer, *numbers, *([0.0, math.log(3.0)] if network.codec.discrete else []))
    return BCLoss(network, sgd, **options)


def density(c):
    """Return log p of c by hand: a normal of mean 1/2 and deviation 2 at atanh c, over the slope 1 - c²."""
    z = (math.atanh(c) - 0.5) / 2.0
    return -0.5 * z**2 - math.log(2.0) - 0.5 * math.log(2 * math.pi) - math.log(1 - c**2)


def test_likelihood_of_numbers():
    """Actions on the bounds, or nearer to them than the edge, are read as a little inside."""
    actions = [0.3, -0.9, 1.0, -1.0, 0.97]
    losses = loss_of(CONTINUOUS, edge=0.05).loss(column(*[0.0] * 5), column(*actions))
    assert losses.tolist() == pytest.approx([-density(c) for c in (0.3, -0.9, 0.95, -0.95, 0.95)], abs=1e-4)


@pytest.mark.parametrize("loss_class", [BCLoss, AdvantageWeightedLoss])
def test_actions_far_from_a_narrow_policy_teach(loss_class):
    network = Policy(CONTINUOUS, hidden=())
    fill(network.head.layer, 0.0, -20.0)  # of mean and log_std: the log-density of 0.9 is -2e17
    batch = [column(0.0), column(0.9)] + [torch.zeros(1)] * (loss_class is AdvantageWeightedLoss)
    result = loss_class(network, sgd).loss(*batch)
    loss = result if loss_class is BCLoss else result[0]
    loss.sum().backward()
    assert network.head.layer.bias.grad[0] < -1e15


def test_likelihood_of_choices_is_cross_entropy():
    for objective in ("likelihood", "mode"):
        losses = loss_of(DISCRETE, objective=objective).loss(column(0.0, 0.0), torch.tensor([0, 1]))
        assert losses.tolist() == pytest.approx([math.log(4.0), math.log(4.0 / 3.0)])


def test_parts_of_an_action_add_up():
    action = {"level": column(0.3, 1.0), "side": torch.tensor([0, 1])}
    likely = loss_of(MIXED, edge=0.05).loss(column(0.0, 0.0), action)
    assert likely.tolist() == pytest.approx([-density(0.3) + math.log(4), -density(0.95) + math.log(4 / 3)], abs=1e-4)
    near = loss_of(MIXED, objective="mode").loss(column(0.0, 0.0), action)
    level = math.tanh(0.5)
    assert near.tolist() == pytest.approx([(level - 0.3) ** 2 + math.log(4), (level - 1) ** 2 + math.log(4 / 3)])


class Expert:
    """Does what the observation says: an action that a network of one layer can learn."""

    def act(self, observation, explore):
        return {"choice": (observation[:, 0] > 0.5).long(), "level": observation * 2.0 - 1.0}


def test_clone_repeats_the_expert(tmp_path):
    env = make(target="rlrun.env.toys.MixedAction")
    table = Table(spaces=env.spaces, length=1000)
    collector = Collector(env, PolicyAgent(Expert()), table)
    collector.begin_training()
    collector.collect(400)
    table_file.store(table, tmp_path / "shown.zip")
    task = ["algorithm=bc", "env=mixedaction", f"dataset={tmp_path / 'shown.zip'}", "logger=[]"]
    numbers = ["algorithm.hidden=[32]", "algorithm.lr=0.01", "algorithm.batch_size=64", "stop.updates=300"]
    summary = rlrun.train([*task, *numbers, "evaluation.every=300"], run_dir=tmp_path / "run").summary
    assert summary["evaluation"]["mean_return"] >= 9.0  # the expert's is 10, chance has 3.3
    assert summary["env_steps"] == 0


# --- causal: an expert whose noise plain cloning takes for the policy

GAIN, STEPS = 0.3, 6_000
OBSERVED, DONE = 0.3, 0.09  # scales, so that actions stay where tanh is straight


def windows(*rows):
    """Return windows [B, T, 1]."""
    return torch.tensor(rows).float().unsqueeze(-1)


def made(*, level, slope, bias, **options):
    """Return both losses: a policy that plays `level`, and f(s) = slope · s + bias."""
    policy, residual = deterministic(level), Residual(CONTINUOUS, hidden=())
    fill(residual.layers[-1], bias)
    torch.nn.init.constant_(residual.layers[-1].weight, slope)
    return CausalBCLoss(policy, sgd, residual=residual, bc_weight=0.5), ResidualLoss(residual, sgd, **options)


def test_losses_by_hand():
    """Errors are 0.5 and -0.5 in the last rows; f says 2 and -1 of the first ones."""
    policy, residual = made(level=0.5, slope=3.0, bias=-1.0, penalty=0.1)
    observation, action = windows([1.0, 7.0], [0.0, 8.0]), windows([9.0, 1.0], [9.0, 0.0])
    losses, outputs, _ = policy.loss(observation, action)
    assert outputs["residual"].flatten().tolist() == pytest.approx([0.5, -0.5])
    assert losses.tolist() == pytest.approx([2 * 0.5 * 2 + 0.5 * 0.25, 2 * -0.5 * -1 + 0.5 * 0.25])
    size = ((4 + 1) / 2) ** 0.5
    residual_loss = residual.loss(observation, outputs["residual"]).tolist()
    assert residual_loss == pytest.approx([4 - 2 * 0.5 * 2 + 0.1 * size, 1 - 2 * -0.5 * -1 + 0.1 * size])


def test_policy_follows_the_predicted_residual():
    policy, residual = made(level=0.0, slope=0.0, bias=1.0)
    outputs = policy.backward(windows([0.0, 0.0]), windows([0.0, 0.5]))
    # the gradient is - (2 f + 2 · 0.5 · e), tanh has slope 1 at 0, and the learning rate is 1
    assert policy.network.layers[-1].bias.item() == pytest.approx(2.5)
    assert residual.network.layers[-1].bias.item() == 1.0
    residual.penalty = 0.0
    residual.backward(windows([0.0, 0.0]), outputs["residual"])
    assert residual.network.layers[-1].bias.item() == pytest.approx(1.0 - (2.0 - 2 * 0.5))
    assert policy.network.layers[-1].bias.item() == pytest.approx(2.5)


def test_zero_residual_has_no_gradient():
    _, residual = made(level=0.0, slope=0.0, bias=0.0, penalty=1.0)
    residual.backward(windows([0.0, 0.0]), torch.zeros(1, 1))
    assert residual.network.layers[-1].bias.item() == 0.0


def expert():
    """Return what an expert saw and did [N, 2, 1]: its noise of a step moves the next state, and half of it stays."""
    generator = np.random.default_rng(0)
    own, drift = generator.standard_normal(STEPS + 1), generator.standard_normal(STEPS)
    noise, state = own[1:] + own[:-1], np.zeros(STEPS)
    for step in range(1, STEPS):
        state[step] = 0.8 * state[step - 1] + noise[step - 1] + drift[step]
    seen, done = OBSERVED * state, DONE * (GAIN * state + noise)
    return tuple(torch.tensor(np.stack((of[:-1], of[1:]), 1)).float().unsqueeze(-1) for of in (seen, done))


def off(play, observation):
    """Return how far a policy's slope is from the expert's, as a share of that."""
    with torch.no_grad():
        played = play(observation[:, 1])
    slope = float((played * observation[:, 1]).sum() / observation[:, 1].square().sum())
    return abs(slope / (GAIN * DONE / OBSERVED) - 1.0)


def test_causal_cloning_ignores_lasting_noise():
    observation, action = expert()
    plain = BCLoss(Policy(CONTINUOUS, hidden=()), partial(torch.optim.Adam, lr=0.03), objective="mode")
    policy, residual = made(level=0.0, slope=0.0, bias=0.0)
    policy = CausalBCLoss(policy.network, partial(torch.optim.Adam, lr=0.01), residual=residual.network)
    residual = ResidualLoss(residual.network, partial(torch.optim.Adam, lr=0.1))
    for _ in range(150):
        plain.backward(observation[:, 1], action[:, 1])
        outputs = policy.backward(observation, action)
        residual.backward(observation, outputs["residual"])
    assert off(plain.network.mode, observation) >= 0.20
    assert off(policy.network, observation) <= 0.08
