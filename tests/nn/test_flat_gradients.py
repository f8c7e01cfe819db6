"""Gradients of a network in one tensor."""

from __future__ import annotations

import torch
from torch import nn

from rlrun.nn import Gradients
from rlrun.nn.stepper import LARGEST


def branches():
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(3, 5) for name in ("left", "right")})


def test_flat_gradients_equal_torch():
    ours, x = branches(), torch.randn(7, 3)
    parameters = list(ours.parameters())
    gradients = Gradients(parameters)
    for scale in (1.0, -2.0):  # the second pass adds nothing to what the first left
        loss = scale * (ours["left"](x) * ours["right"](x)).square().mean()
        wanted = torch.autograd.grad(loss, parameters, retain_graph=True)
        gradients.clear()
        torch.autograd.backward(loss, inputs=parameters)
        gradients.settle()
        for parameter, expected in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(parameter.grad, expected)
        torch.testing.assert_close(gradients.flat.norm(), torch.cat([gradient.flatten() for gradient in wanted]).norm())


def test_unreached_parameters_have_no_gradient():
    ours, x = branches(), torch.randn(7, 3)
    parameters = list(ours.parameters())
    gradients = Gradients(parameters)
    for name, unused in (("left", "right"), ("right", "left"), ("left", "right")):
        gradients.clear()
        torch.autograd.backward(ours[name](x).sum() * 0.0, inputs=parameters)  # zeros that were computed are gradients
        gradients.settle()
        assert [parameter.grad is None for parameter in ours[name].parameters()] == [False, False]
        assert [parameter.grad is None for parameter in ours[unused].parameters()] == [True, True]


def test_losses_have_their_own_gradients():
    ours, x = branches(), torch.randn(7, 3)
    parameters = list(ours.parameters())
    first, second = Gradients(parameters), Gradients(parameters)
    for gradients in (first, second, first):
        gradients.clear()
        torch.autograd.backward(ours["left"](x).sum(), inputs=parameters)
        gradients.settle()
        assert parameters[0].grad.data_ptr() == gradients.flat.data_ptr()


def test_large_and_mixed_networks_stay_separate():
    for parameters in (
        [nn.Parameter(torch.zeros(LARGEST)), nn.Parameter(torch.zeros(1))],
        [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))],
    ):
        gradients = Gradients(parameters)
        gradients.clear()
        torch.autograd.backward(parameters[0].sum(), inputs=parameters)
        gradients.settle()
        assert gradients.flat is None
        assert [parameter.grad is None for parameter in parameters] == [False, True]
