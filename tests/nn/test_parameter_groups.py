"""Each parameter has the settings of the groups that it fits."""

from functools import partial

import pytest
import torch
from omegaconf import OmegaConf
from tests.callbacks.batches import Batches
from torch import nn

from rlrun.callbacks import LossCallback
from rlrun.config import compose
from rlrun.core.errors import ConfigError, WiringError
from rlrun.core.schedules import Linear
from rlrun.nn import Deconvolutions, grouped
from rlrun.training.trainer import Trainer

ADAMW, SGD = partial(torch.optim.AdamW, lr=0.1), partial(torch.optim.SGD, lr=0.1)
DECAYED = {"modules": ["Linear"], "names": ["weight*"], "exclude": ["head"], "weight_decay": 0.5}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.free = nn.Parameter(torch.ones(()))
        self.trunk = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 3))
        self.head = nn.Linear(3, 1)
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)


class Nothing(LossCallback):
    """A loss with gradients of zero."""

    def loss(self, x):
        return sum(0.0 * parameter.sum() for parameter in self.parameters)


def loss_of(optimizer=ADAMW, schedule=None, **groups):
    recipe = partial(grouped, optimizer=optimizer, groups=groups, weight_decay=0.0)
    return Nothing(Network(), recipe, schedule=schedule)


@pytest.mark.parametrize(
    ("changes", "decayed"),
    [
        ({}, ["trunk.0.weight"]),
        ({"exclude": []}, ["head.weight", "trunk.0.weight"]),
        ({"modules": ["Linear", "LayerNorm"], "exclude": ["*.0.*"]}, ["head.weight", "trunk.1.weight"]),
        ({"modules": ["Module"], "names": ["trunk.1", "free"]}, ["free", "trunk.1.weight", "trunk.1.bias"]),
    ],
)
@pytest.mark.parametrize("optimizer", [ADAMW, SGD])
def test_only_chosen_parameters_decay(optimizer, changes, decayed):
    loss = loss_of(optimizer, decayed=DECAYED | changes, spared={"names": ["trunk.2"], "weight_decay": 0.0})
    before = {name: value.detach().clone() for name, value in loss.network.named_parameters()}
    Trainer({"loss": loss}, Batches("x")).train()
    for name, value in loss.network.named_parameters():  # 1 - 0.1 · 0.5 remains
        torch.testing.assert_close(value, before[name] * (0.95 if name in decayed else 1.0))
    groups = loss.optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len(loss.parameters) == 9
    saved = loss.state_dict()  # forks find an optimizer's state by its place among the names
    ordered = [parameter for group in groups for parameter in group["params"]]
    assert [id(value) for value in ordered] == [id(loss.network.get_parameter(name)) for name in saved["names"]]


def test_weights_of_decoders_decay():
    """By the groups of `+with=weight_decay`."""
    config = compose(["algorithm=sac", "env=pendulum", "+with=weight_decay"]).config
    groups = OmegaConf.to_container(config.optimizer.groups)
    network = Deconvolutions(4, (1, 16, 16))
    optimizer = grouped(network, optimizer=ADAMW, groups=groups, weight_decay=0.0)
    decay = {id(value): group["weight_decay"] for group in optimizer.param_groups for value in group["params"]}
    names = [name for name, value in network.named_parameters() if decay[id(value)]]
    assert len(names) == 3
    assert names == [name for name, _ in network.named_parameters() if name.endswith("weight")]


def test_schedules_keep_the_ratio_of_learning_rates():
    loss = loss_of(schedule=Linear(0.4, 0.2, 1), slow={"names": ["head"], "lr": 0.01})
    Trainer({"loss": loss}, Batches("x", times=2)).train()
    assert [group["lr"] for group in loss.optimizer.param_groups] == pytest.approx([0.2, 0.02])
    assert "slow 4" in loss.note(str)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"a": {"weight_decy": 0.1}},
            r"groups.a: AdamW has no setting 'weight_decy' \(did you mean 'weight_decay'\?\)",
        ),
        ({"a": 3}, "groups.a: wanted a dict, got 3"),
        ({"a": {"names": ["[" * 30_000]}}, "groups.a.names: wanted names of at most 200 letters"),
        ({"a": {"names": "weight"}}, "groups.a.names: wanted a list, got 'weight'"),
        ({"a": {"names": ["wieght"]}}, "callbacks.loss.optimizer.groups.a matches no parameter of any loss"),
        ({"a": {"exclude": ["haed"]}}, "callbacks.loss.optimizer.groups.a.exclude: 'haed' matches no parameter"),
    ],
)
def test_groups_that_say_nothing_are_refused(groups, message):
    with pytest.raises((ConfigError, WiringError), match=message):
        Trainer({"loss": loss_of(**groups)}, Batches("x"))
