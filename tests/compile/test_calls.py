"""Whatever is hooked to a module is called, and gradients are off as long as they shall be."""

import pytest
import torch
from torch import nn

from rlrun.compile.calls import NoGrad
from rlrun.core.spaces import Discrete, Spaces
from rlrun.nn import Critics, Policy
from rlrun.nn.ensemble import Ensemble
from rlrun.nn.mlp import MLP

NETWORKS = {"mlp": lambda: MLP(3, 2, hidden=(4,)), "ensemble": lambda: Ensemble(3, 2, members=2, hidden=(4,))}
HOOKS = {
    "forward": lambda module, call: module.register_forward_hook(call),
    "before": lambda module, call: module.register_forward_pre_hook(call),
    "backward": lambda module, call: module.register_full_backward_hook(call),
    "before backward": lambda module, call: module.register_full_backward_pre_hook(call),
    "of all modules": lambda module, call: nn.modules.module.register_module_forward_hook(call),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hooks_of_inner_modules_are_called(make, hook):
    network, seen = make(), []
    inner = next(module for module in network.modules() if isinstance(module, nn.ReLU))
    inner.inplace = False  # which backward hooks want
    handle = hook(inner, lambda module, *_: seen.append(module))
    network(torch.ones(5, 3)).sum().backward()
    handle.remove()
    calls = len(seen)
    network(torch.ones(5, 3)).sum().backward()
    assert inner in seen
    assert len(seen) == calls


NETWORKS_OF_SPACES = {"policy": (Policy, ("trunk", "head")), "critics": (Critics, ("layers",))}


@pytest.mark.parametrize(("kind", "parts"), NETWORKS_OF_SPACES.values(), ids=NETWORKS_OF_SPACES)
def test_hooks_of_parts_are_called(kind, parts):
    network, seen = kind(Spaces(Discrete(3), Discrete(2))), []
    for name in parts:
        getattr(network, name).register_forward_hook(lambda *_, name=name: seen.append(name))
    network(torch.zeros(2, dtype=torch.int64))
    assert tuple(seen) == parts


def test_compiled_layers_are_called():
    network, seen = MLP(3, 2, hidden=(4,)), []
    inner = next(module for module in network.modules() if isinstance(module, nn.ReLU))
    inner._compiled_call_impl = lambda x: seen.append(inner) or inner.forward(x)
    network(torch.ones(5, 3))
    assert seen == [inner]


def test_own_call_of_a_class_is_made():
    class Doubled(Ensemble):
        def __call__(self, *inputs):
            return 2.0 * super().__call__(*inputs)

    network, x = Critics(Spaces(Discrete(3), Discrete(2))), torch.zeros(2, dtype=torch.int64)
    plain = network(x)
    network.layers.__class__ = Doubled
    torch.testing.assert_close(network(x), 2.0 * plain)


@pytest.mark.parametrize("outside", [True, False])
def test_gradients_return_after_an_error(outside):
    seen = []
    with torch.set_grad_enabled(outside):
        with pytest.raises(ZeroDivisionError), NoGrad(), NoGrad():
            seen.append(1 / torch.is_grad_enabled())
        assert torch.is_grad_enabled() is outside
    assert not seen
