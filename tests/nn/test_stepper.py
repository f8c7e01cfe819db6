"""Steps of optimizers that go around torch's own way to them."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rlrun.nn import Stepper


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
    """Return the numbers that an optimizer keeps."""
    states = optimizer.state_dict()["state"].values()
    return [[value.tolist() for value in state.values() if value is not None] for state in states]


RULES = [
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.Adam, {"fused": True, "weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 0.1}),
    (torch.optim.Adam, {"fused": True, "amsgrad": True}),
    (torch.optim.Adam, {"fused": True, "maximize": True}),
    (torch.optim.Adam, {"fused": True, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
]


@pytest.mark.parametrize(("rule", "options"), RULES)
def test_parameters_and_state_are_those_of_the_optimizer_itself(rule, options):
    ours, theirs = network(), network()
    optimizer, plain = (rule(model.parameters(), lr=0.1, **options) for model in (ours, theirs))
    step = Stepper(optimizer)
    assert torch.equal(walk(ours, step, range(5)), walk(theirs, plain.step, range(5)))
    assert kept(optimizer) == kept(plain)


def test_a_learning_rate_that_changes_is_heeded():
    ours, theirs = network(), network()
    optimizer, plain = (torch.optim.Adam(model.parameters(), fused=True) for model in (ours, theirs))
    step = Stepper(optimizer)
    for seed, rate in enumerate((0.1, 0.2, 0.05)):
        optimizer.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = rate
        assert torch.equal(walk(ours, step, [seed]), walk(theirs, plain.step, [seed]))


def test_parameters_without_gradients_stay_as_they_are():
    ours, theirs = network(), network()
    optimizer, plain = (torch.optim.Adam(model.parameters(), lr=0.1, fused=True) for model in (ours, theirs))
    step = Stepper(optimizer)
    for unused in ((), ("2.bias",), ("0.weight",), ()):
        assert torch.equal(walk(ours, step, range(3), unused=unused), walk(theirs, plain.step, range(3), unused=unused))


def test_one_that_has_a_first_gradient_late_joins():
    ours, theirs = network(), network()
    optimizer, plain = (torch.optim.Adam(model.parameters(), lr=0.1, fused=True) for model in (ours, theirs))
    step = Stepper(optimizer)
    for unused in (("2.bias",), ()):
        assert torch.equal(walk(ours, step, range(3), unused=unused), walk(theirs, plain.step, range(3), unused=unused))


def test_a_state_that_was_loaded_is_gone_on_from():
    ours = network()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.1, fused=True)
    step = Stepper(optimizer)
    walk(ours, step, range(3))
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(ours.state_dict())
    wanted = walk(ours, step, range(3, 6))
    optimizer.load_state_dict(saved)
    ours.load_state_dict(weights)
    assert torch.equal(walk(ours, step, range(3, 6)), wanted)
    assert [float(state["step"]) for state in optimizer.state.values()] == [6.0] * 4


def test_hooks_of_the_optimizer_are_called():
    ours = network()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.1, fused=True)
    step, calls = Stepper(optimizer), []
    walk(ours, step, range(2))
    optimizer.register_step_post_hook(lambda *args: calls.append(args))
    walk(ours, step, range(2))
    assert len(calls) == 2


def test_hooks_of_all_optimizers_are_called():
    ours = network()
    step, calls = Stepper(torch.optim.Adam(ours.parameters(), lr=0.1, fused=True)), []
    walk(ours, step, range(2))
    handle = register_optimizer_step_pre_hook(lambda *args: calls.append(args))
    try:
        walk(ours, step, range(2))
    finally:
        handle.remove()
    assert len(calls) == 2


def forget(optimizer, network):
    optimizer.state.clear()


def turn(optimizer, network):
    optimizer.param_groups[0]["maximize"] = True


def unfuse(optimizer, network):
    optimizer.param_groups[0]["fused"] = False


def grow(optimizer, network):
    network.append(torch.nn.Linear(2, 2))
    optimizer.add_param_group({"params": network[-1].parameters(), "lr": 0.2})


@pytest.mark.parametrize("change", [forget, turn, unfuse, grow])
def test_an_optimizer_that_is_changed_between_two_steps_is_heeded(change):
    ours, theirs = network(), network()
    optimizer, plain = (torch.optim.Adam(model.parameters(), lr=0.1, fused=True) for model in (ours, theirs))
    step = Stepper(optimizer)
    walk(ours, step, range(3))
    walk(theirs, plain.step, range(3))
    for adam, of in ((optimizer, ours), (plain, theirs)):
        torch.manual_seed(1)
        change(adam, of)
    assert torch.equal(walk(ours, step, range(3, 6)), walk(theirs, plain.step, range(3, 6)))
    assert kept(optimizer) == kept(plain)


def test_what_is_counted_is_of_the_type_that_torch_counts_in():
    torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = network(), network()
        optimizer, plain = (torch.optim.Adam(model.parameters(), fused=True) for model in (ours, theirs))
        assert torch.equal(walk(ours, Stepper(optimizer), range(3)), walk(theirs, plain.step, range(3)))
    finally:
        torch.set_default_dtype(torch.float32)
    dtypes = [{state["step"].dtype for state in adam.state.values()} for adam in (optimizer, plain)]
    assert dtypes[0] == dtypes[1] == {torch.float32}


def test_what_torch_refuses_is_refused_in_its_words():
    table = nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        Stepper(torch.optim.Adam(table.parameters(), fused=True))()


FIRST_STEPS = """
import sys, torch
from rlrun.callbacks import LossCallback
from rlrun.nn import Stepper, ways
ways.fastest()
network = torch.nn.Linear(3, 4)
optimizer = torch.optim.Adam(network.parameters(), fused=True)
optimizer.zero_grad()
network(torch.ones(3)).sum().backward()
Stepper(optimizer)()
optimizer.load_state_dict(optimizer.state_dict())
class Given(LossCallback):
    def loss(self, x):
        return network(x).sum(-1)
Given(network, lambda parameters: torch.optim.Adam(parameters, fused=True)).backward(torch.ones(2, 3))
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
compiled = torch.compile(network, backend="eager")
compiled(torch.ones(3)).sum().backward()
Stepper(optimizer)()
"""


def test_training_does_not_wait_for_the_compiler():
    subprocess.run([sys.executable, "-c", FIRST_STEPS], check=True, timeout=120)
