"""Many critics: who of them counts in targets, and what leads the policy."""

from __future__ import annotations

import pytest
import torch
from tests.configs import ALGORITHMS, env_of, keys

from rlrun import ops
from rlrun.algorithms.sac import QTarget
from rlrun.config import compose
from rlrun.env import make
from rlrun.errors import ConfigError
from rlrun.experiment import Experiment
from rlrun.nn import Critics, SoftPolicy, Temperature

SPACES = make("Pendulum-v1").spaces


def target(members, drawn):
    critics, temperature = Critics(SPACES, hidden=[4], members=members), Temperature(SPACES)
    return QTarget(critics, SoftPolicy(SPACES, critics, temperature, hidden=[4]), temperature, drawn=drawn)


def test_the_smallest_of_a_random_pair_counts():
    torch.manual_seed(0)
    q_target, value = target(3, 2), torch.tensor([[1.0], [2.0], [3.0]])
    minima = [q_target.smallest(value).item() for _ in range(3_000)]
    assert set(minima) == {1.0, 2.0}
    assert minima.count(1.0) / 3_000 == pytest.approx(2 / 3, abs=0.03)  # two of the three pairs hold the first
    assert target(3, None).smallest(value).item() == target(3, 3).smallest(value).item() == 1.0


@pytest.mark.parametrize("drawn", [0, 4])
def test_no_more_can_be_drawn_than_there_are(drawn):
    with pytest.raises(ConfigError, match=f"drawn: wanted a number from 1 to 3, of critics, got {drawn}"):
        target(3, drawn)


@pytest.mark.parametrize(("guide", "leads"), [("first", 2.0), ("smallest", 1.0), ("mean", 2.0)])
def test_what_leads_a_policy(guide, leads):
    assert ops.guiding(torch.tensor([[2.0], [1.0], [3.0]]), guide).tolist() == [leads]


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if {"drawn", "layer_norm", "dropout"} <= keys(name)])
def test_many_regularised_critics_by_plain_numbers(algorithm):
    words = ["algorithm.ensemble=5", "algorithm.drawn=2", "algorithm.layer_norm=true", "algorithm.dropout=0.01"]
    words += ["algorithm.updates_per_step=20"] + ["algorithm.guide=mean"] * (algorithm != "dqn")
    experiment = Experiment(compose([f"algorithm={algorithm}", env_of(algorithm), "algorithm.hidden=[8,8]", *words]))
    critics = experiment.trainer.callbacks["q_loss"].critics
    ensemble = critics.features if hasattr(critics, "features") else critics.layers
    assert (critics.members, ensemble.dropout, ensemble.layers[0].normed) == (5, 0.01, True)
    assert experiment.trainer.callbacks["q_target"].drawn == 2
    assert experiment.trainer.loader.rate == 20


def test_units_are_left_out_of_updates_alone():
    critics, seen = Critics(SPACES, hidden=[64], dropout=0.5), (torch.ones(1, 3), torch.ones(1, 1))
    with torch.no_grad():  # acting, and targets
        assert torch.equal(critics(*seen), critics(*seen))
    assert not torch.equal(critics(*seen), critics(*seen))
    critics.eval()
    assert torch.equal(critics(*seen), critics(*seen))
