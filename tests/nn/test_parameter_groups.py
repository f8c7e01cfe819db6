"""Each parameter has the settings of the groups that it fits."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tests.callbacks.batches import Batches
from torch import nn

import rlrun
from rlrun.callbacks import LossCallback
from rlrun.commands.fork.fits import _moments
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.core.errors import ConfigError, RequestError, WiringError
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


class Deep(nn.Module):
    """Names that an encoder may have in a network; `tied` is a second path to one of them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)
        self.gaussian = nn.ModuleDict({"encoder": nn.Linear(2, 2), "my_encoder_x": nn.Linear(2, 2)})
        self.trunk = nn.ModuleList([nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2))}), nn.Linear(2, 2)])
        self.first = nn.Linear(2, 2)
        self.last = nn.ModuleDict({"tied": self.first})


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["encoder"], ["encoder", "gaussian.encoder", "trunk.0.encoder.0"]),
        (["gaussian.encoder", "encoder.0"], ["gaussian.encoder", "trunk.0.encoder.0"]),
        (["*encoder*"], ["encoder", "gaussian.encoder", "gaussian.my_encoder_x", "trunk.0.encoder.0"]),
        (["trunk"], ["trunk.0.encoder.0", "trunk.1"]),
        (["1"], ["trunk.1"]),
        (["tied"], ["first"]),
    ],
)
def test_names_fit_anywhere_on_a_path(names, chosen):
    network = Deep()
    optimizer = grouped(network, optimizer=ADAMW, groups={"slow": {"names": names, "lr": 0.01}})
    slow = {id(value) for group in optimizer.param_groups if group["lr"] == 0.01 for value in group["params"]}
    assert [name for name, value in network.named_parameters() if id(value) in slow] == [
        f"{module}.{name}" for module in chosen for name in ("weight", "bias")
    ]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len([*network.parameters()])


ENCODERS = ["+with=parameter_groups", "optimizer.groups.encoder={names: [encoder], lr: 1.0e-4}", "encoder=small"]
ENCODERS += ["env.target=tests.nn.test_parameter_groups.Pictures", "env.kwargs.continuous=true", "preset=null"]
ENCODERS += ["algorithm.hidden=[8]", "logger=[]", "evaluation.every=0", "checkpoint.every=0", "stop.updates=2"]
OFF_POLICY = ["algorithm.batch_size=4", "algorithm.warmup_steps=8", "memory.length=100"]


class Pictures(gymnasium.Env):
    """Black pictures for any action."""

    def __init__(self, continuous):
        self.observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
        numbers = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = numbers if continuous else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros((36, 36, 3), np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.zeros((36, 36, 3), np.uint8), 0.0, False, self.steps == 5, {}


RUNS = {
    "sac": (["algorithm=sac", *OFF_POLICY], {"q_loss", "policy"}),
    "td3": (["algorithm=td3", *OFF_POLICY], {"q_loss", "policy"}),
    "shared": (["algorithm=sac", *OFF_POLICY, "+with=[parameter_groups,shared_encoder]"], {"q_loss"}),
    "dqn": (["algorithm=dqn", *OFF_POLICY, "env.kwargs.continuous=false"], {"q_loss"}),
    "ppo": (["algorithm=ppo", "algorithm.horizon=8", "algorithm.batch_size=8"], {"ppo"}),
    "a2c": (["algorithm=a2c"], {"a2c"}),
}


@pytest.mark.parametrize("case", RUNS)
def test_encoders_of_all_algorithms_have_their_rate(case, tmp_path):
    overrides, losses = RUNS[case]
    result = rlrun.train([*ENCODERS, *overrides], run_dir=tmp_path / "run")
    callbacks, chosen = result.trainer.callbacks, set()
    for name, callback in callbacks.items():
        groups = getattr(getattr(callback, "optimizer", None), "param_groups", [])
        if rates := {group["name"]: group["lr"] for group in groups}:
            metrics = callback.metrics
            assert {key for key in metrics if key.startswith("learning_rate/")} == {
                f"learning_rate/{name}/{group}" if group else f"learning_rate/{name}" for group in rates
            }
        if "encoder" in rates:
            factor = rates[""] / result.config.algorithm.lr  # a schedule has changed both alike
            assert metrics[f"learning_rate/{name}/encoder"] == pytest.approx(1.0e-4 * factor)
            chosen.add(name)
    assert chosen == losses
    if case == "sac":  # a resumed run has the groups, and their moments
        resumed = rlrun.resume(tmp_path / "run", ["stop.updates=3"]).trainer.callbacks["policy"]
        assert [group["name"] for group in resumed.optimizer.param_groups] == ["", "encoder"]
        assert {int(entry["step"]) for entry in resumed.optimizer.state.values()} == {3}


def test_groups_alone_change_nothing(tmp_path):
    overrides = ["algorithm=sac", "env=pendulum", *OFF_POLICY, *ENCODERS[6:], "preset=null"]
    ends = [
        rlrun.train([*overrides, *more], run_dir=tmp_path / name).trainer.callbacks["q_loss"].parameters
        for name, more in (("plain", []), ("groups", ["+with=parameter_groups"]))
    ]
    for ours, theirs in zip(*ends, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer=sgd"], r"optimizer\.momentum: AdamW has no such setting; .* torch\.optim\.SGD with optimizer=sgd"),
        (["optimizer.groups.a={names: [critix]}"], r"groups\.a\.names: 'critix' matches no parameter of any loss"),
    ],
)
def test_what_a_user_may_forget_is_said(overrides, message):
    with pytest.raises(RequestError, match=message):
        _ = Experiment(compose(["algorithm=sac", "env=pendulum", "+with=parameter_groups", *overrides])).trainer


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


def test_forks_find_what_each_optimizer_remembers():
    momentum = {"names": ["head"], "optimizer": partial(torch.optim.SGD, momentum=0.9)}
    loss = loss_of(own=momentum)
    before = [parameter.detach().clone() for parameter in loss.parameters]
    kept = {name: {*_moments(loss.optimizer, number)} for number, name in enumerate(loss.names)}
    assert kept["head.bias"] == {"momentum_buffer"}
    assert kept["free"] == {"step", "exp_avg", "exp_avg_sq"}
    assert all(map(torch.equal, loss.parameters, before))


def test_all_parameters_may_have_another_optimizer():
    loss = loss_of(all={"optimizer": partial(torch.optim.RMSprop, alpha=0.5)}, head={"names": ["head"], "lr": 0.02})
    groups = loss.optimizer.param_groups
    assert [(group["name"], group["lr"], group["alpha"]) for group in groups] == [
        ("all", 0.1, 0.5),
        ("all.head", 0.02, 0.5),
    ]
    assert "(rmsprop, " in loss.note(str)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"a": {"weight_decy": 0.1}},
            r"groups.a: AdamW has no setting 'weight_decy' \(did you mean 'weight_decay'\?\)",
        ),
        ({"a": {"betas": 3}}, "groups.a: AdamW: 'int' object is not subscriptable"),
        ({"a": {"lr": -1.0}}, "groups.a: AdamW: Invalid learning rate: -1.0"),
        ({"a": {"lr": "x"}}, "groups.a: AdamW: "),
        ({"a": {"optimizer": partial(torch.optim.SGD, lr=0.1), "momentum": -1}}, "groups.a: SGD: Invalid momentum"),
        ({"a": 3}, "groups.a: wanted a dict, got 3"),
        ({"a": {"names": "weight"}}, "groups.a.names: wanted a list, got 'weight'"),
        (
            {"a": {"names": ["wieght"]}},
            r"callbacks.loss.optimizer.groups.a.names: 'wieght' matches no parameter of any loss \(did you",
        ),
        ({"a": {"names": ["trunk", "hed"]}}, r"groups.a.names: 'hed' matches .* \(did you mean 'head'\?\)"),
        ({"a": {"names": ["zzzzz"]}}, "'zzzzz' matches .*; their paths have 0, 1, 2, bias, fixed, free, head, trunk, "),
        ({"a": {"modules": ["LayerNorm"], "names": ["head"]}}, "groups.a matches no parameter of any loss"),
        ({"a": {"optimizer": 3}}, r"groups.a.optimizer: wanted .*torch.optim.SGD, _partial_: true.*, got 3"),
        ({"a": {"optimizer": SGD, "betas": (0.9, 0.9)}}, "groups.a: SGD has no setting 'betas'"),
        ({"a": {"optimizer": SGD}, "b": {"names": ["head"], "betas": (0.9, 0.9)}}, "groups.b: SGD has no setting 'b"),
        ({"a": {"exclude": ["haed"]}}, "callbacks.loss.optimizer.groups.a.exclude: 'haed' matches no parameter"),
    ],
)
def test_groups_that_say_nothing_are_refused(groups, message):
    with pytest.raises((ConfigError, WiringError), match=message):
        Trainer({"loss": loss_of(**groups)}, Batches("x"))
