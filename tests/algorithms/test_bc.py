"""Behavior cloning: its losses by hand, and that it acts like the data."""

import math

import pytest
import torch

import rlrun
from rlrun.algorithms.bc import BCLoss
from rlrun.collect import Collector, PolicyAgent
from rlrun.env import make
from rlrun.memory import Table, files
from rlrun.nn import Policy

from .fixed import CONTINUOUS, DISCRETE, MIXED, column, fill, sgd


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
    files.store(table, tmp_path / "shown.zip")
    task = ["algorithm=bc", "env=mixedaction", f"dataset={tmp_path / 'shown.zip'}", "logger=[]"]
    numbers = ["algorithm.hidden=[32]", "algorithm.lr=0.01", "algorithm.batch_size=64", "stop.updates=300"]
    summary = rlrun.train([*task, *numbers, "evaluation.every=300"], run_dir=tmp_path / "run").summary
    assert summary["evaluation"]["mean_return"] >= 9.0  # the expert's is 10, chance has 3.3
    assert summary["env_steps"] == 0
