"""Steps of optimizers without the overhead of torch equal those of torch."""

import copy
import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rlrun.compile.fused_adam import Stepper
from rlrun.core.errors import RlrunError
from rlrun.nn.optimizers import load_optimizer


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def walk(network, step, seeds, *, unused=()):
    """Take a step for each seed; the named parameters get no gradient."""
    for seed in seeds:
        noise = torch.Generator().manual_seed(seed)
        for name, parameter in network.named_parameters():
            parameter.grad = None if name in unused else torch.randn(parameter.shape, generator=noise)
        step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def kept(optimizer):
    """Return the state of an optimizer as numbers."""
    states = optimizer.state_dict()["state"].values()
    return [[value.tolist() for value in state.values() if value is not None] for state in states]


RULES = [
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.Adam, {"fused": True, "weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 0.1}),
    (torch.optim.Adam, {"fused": True, "amsgrad": True}),
    (torch.optim.Adam, {"fused": True, "maximize": True}),
    *[
        (torch.optim.Adam, {"fused": True, name: True, "weight_decay": 0.1})
        for name in inspect.signature(torch.optim.Adam).parameters
        if name == "decoupled_weight_decay"  # torch 2.6 has none
    ],
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
]


def assert_equal_steps(rule, options, phases):
    """Step both ways, three times in each phase: after a change, some parameters without gradients."""
    ours, theirs = network(), network()
    optimizer, plain = (rule(model.parameters(), lr=0.1, **options) for model in (ours, theirs))
    step = Stepper(optimizer).step
    for number, (change, unused) in enumerate(phases):
        for changed, model in ((optimizer, ours), (plain, theirs)):
            torch.manual_seed(1)
            change(changed, model)
        seeds = range(3 * number, 3 * number + 3)
        assert torch.equal(walk(ours, step, seeds, unused=unused), walk(theirs, plain.step, seeds, unused=unused))
    assert kept(optimizer) == kept(plain)


def leave(optimizer, network):
    pass


@pytest.mark.parametrize(("rule", "options"), RULES)
def test_steps_equal_those_of_torch(rule, options):
    assert_equal_steps(rule, options, [(leave, ())] * 2)


@pytest.mark.parametrize("unused", [[(), ("2.bias",), ("0.weight",), ()], [("2.bias",), ()]])
def test_gradients_may_come_and_go(unused):
    assert_equal_steps(torch.optim.Adam, {"fused": True}, [(leave, names) for names in unused])


def load(optimizer, network):
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg"].mul_(2.0)
    optimizer.load_state_dict(state)


def grow(optimizer, network):
    network.append(torch.nn.Linear(2, 2))
    optimizer.add_param_group({"params": network[-1].parameters(), "lr": 0.2})


CHANGES = {
    "rate": lambda optimizer, network: optimizer.param_groups[0].update(lr=0.05),
    "load": load,
    "forget": lambda optimizer, network: optimizer.state.clear(),
    "maximize": lambda optimizer, network: optimizer.param_groups[0].update(maximize=True),
    "unfuse": lambda optimizer, network: optimizer.param_groups[0].update(fused=False),
    "grow": grow,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_optimizers_take_effect(change):
    assert_equal_steps(torch.optim.Adam, {"fused": True}, [(leave, ()), (change, ()), (leave, ())])


@pytest.mark.parametrize(
    "register",
    [
        lambda optimizer, hook: optimizer.register_step_post_hook(hook),
        lambda optimizer, hook: register_optimizer_step_pre_hook(hook),
    ],
    ids=["own", "global"],
)
def test_hooks_of_optimizers_are_called(register):
    ours, calls = network(), []
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.1, fused=True)
    step = Stepper(optimizer).step
    walk(ours, step, range(2))
    handle = register(optimizer, lambda *args: calls.append(args))
    try:
        walk(ours, step, range(2))
    finally:
        handle.remove()
    assert len(calls) == 2


def test_step_counts_are_float32():
    torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = network(), network()
        optimizer, plain = (torch.optim.Adam(model.parameters(), fused=True) for model in (ours, theirs))
        assert torch.equal(walk(ours, Stepper(optimizer).step, range(3)), walk(theirs, plain.step, range(3)))
    finally:
        torch.set_default_dtype(torch.float32)
    dtypes = [{state["step"].dtype for state in adam.state.values()} for adam in (optimizer, plain)]
    assert dtypes[0] == dtypes[1] == {torch.float32}


@pytest.mark.parametrize(("name", "value"), [("exp_avg", torch.zeros(1)), ("step", torch.zeros(3))])
def test_moments_of_other_shapes_are_refused(name, value):
    """The fused kernel would write behind them."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    walk(model, Stepper(optimizer).step, [0])
    state = optimizer.state_dict()
    state["state"][1][name] = value
    with pytest.raises(RlrunError, match=rf"optimizer: {name} has shape \[{len(value)}\], wanted"):
        load_optimizer(torch.optim.Adam(model.parameters(), fused=True), state)


def test_sparse_gradients_are_refused():
    table = nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        Stepper(torch.optim.Adam(table.parameters(), fused=True)).step()


FIRST_STEPS = """
import functools, sys, torch
from rlrun.algorithms.actor_critic.lagrangian import LagrangianWeights
from rlrun.callbacks import LossCallback
from rlrun.nn import grouped
network = torch.nn.Linear(3, 4)
adam = functools.partial(torch.optim.Adam, fused=True)
class Given(LossCallback):
    def loss(self, x):
        return network(x).sum(-1)
loss = Given(network, adam)
loss.name = "given"
loss.backward(torch.ones(2, 3))
loss.load_state_dict(loss.state_dict())
Given(network, functools.partial(grouped, optimizer=adam, groups={"biases": {"names": ["bias"]}}))
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
"""


def test_training_imports_no_compiler():
    subprocess.run([sys.executable, "-c", FIRST_STEPS], check=True, timeout=120)


def test_networks_may_be_compiled():
    ours = network()
    step = Stepper(torch.optim.Adam(ours.parameters(), fused=True)).step
    walk(ours, step, range(2))
    torch.compile(ours, backend="eager")(torch.ones(3)).sum().backward()
    step()
