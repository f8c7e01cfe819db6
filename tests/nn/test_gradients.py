"""Gradients that lie one behind the other, and stacks of layers that autograd takes for one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlrun.nn import Gradients
from rlrun.nn.gradients import LARGEST
from rlrun.nn.mlp import dense
from rlrun.nn.tandem import tandem


def branches():
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(3, 5) for name in ("one", "other")})


def test_they_are_what_torch_finds():
    ours, x = branches(), torch.randn(7, 3)
    parameters = list(ours.parameters())
    gradients = Gradients(parameters)
    for scale in (1.0, -2.0):  # the second pass adds nothing to what the first left
        loss = scale * (ours["one"](x) * ours["other"](x)).square().mean()
        wanted = torch.autograd.grad(loss, parameters, retain_graph=True)
        gradients.clear()
        torch.autograd.backward(loss, inputs=parameters)
        gradients.settle()
        for parameter, expected in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(parameter.grad, expected)
        torch.testing.assert_close(gradients.flat.norm(), torch.cat([each.flatten() for each in wanted]).norm())


def test_what_a_pass_did_not_reach_has_none():
    ours, x = branches(), torch.randn(7, 3)
    parameters = list(ours.parameters())
    gradients = Gradients(parameters)
    for name, other in (("one", "other"), ("other", "one"), ("one", "other")):
        gradients.clear()
        torch.autograd.backward(ours[name](x).sum() * 0.0, inputs=parameters)  # zeros that were computed are gradients
        gradients.settle()
        assert [each.grad is None for each in ours[name].parameters()] == [False, False]
        assert [each.grad is None for each in ours[other].parameters()] == [True, True]


def test_two_losses_of_one_network_have_their_own():
    ours, x = branches(), torch.randn(7, 3)
    parameters = list(ours.parameters())
    first, second = Gradients(parameters), Gradients(parameters)
    for gradients in (first, second, first):
        gradients.clear()
        torch.autograd.backward(ours["one"](x).sum(), inputs=parameters)
        gradients.settle()
        assert parameters[0].grad.data_ptr() == gradients.flat.data_ptr()


def test_large_networks_and_mixed_kinds_keep_their_own_tensors():
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


def stacks(widths=((8,), (16, 8)), activation="tanh"):
    torch.manual_seed(1)
    return [dense(4, hidden, activation=activation) for hidden in widths]


@pytest.mark.parametrize("widths", [((8,), (16, 8)), ((64, 64), (64, 64)), ((5,),)])
def test_stacks_in_tandem_give_what_each_gives_and_its_gradients(widths):
    pair, x = stacks(widths), torch.randn(32, 4, requires_grad=True)
    inputs = [x, *(parameter for stack in pair for parameter in stack.parameters())]
    weights = [torch.randn(32, hidden[-1]) for hidden in widths]

    def gradients(outputs):
        return torch.autograd.grad(sum((w * o).sum() for w, o in zip(weights, outputs, strict=True)), inputs)

    ours, theirs = tandem(x, *pair), [stack(x) for stack in pair]
    assert type(ours[0].grad_fn).__name__ == "_TandemBackward"
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)
    for one, other in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_tanh_is_exact_to_rounding_over_its_range():
    stack = dense(1, (1,), activation="tanh")
    nn.init.ones_(stack[0].weight)
    nn.init.zeros_(stack[0].bias)
    x = torch.linspace(-20.0, 20.0, 100_001).unsqueeze(-1)
    ours = tandem(x, stack)[0].detach()
    assert float((ours.double() - x.double().tanh()).abs().max()) < 2e-7
    assert float(ours.abs().max()) <= 1.0


def watched():
    one, other = stacks()
    one[1].register_forward_hook(lambda module, given, output: None)
    return one, other


def unbiased():
    one, other = stacks()
    one[0] = nn.Linear(4, 8, bias=False)
    return one, other


@pytest.mark.parametrize(
    "pair",
    [stacks(activation="elu"), stacks(((), (8,))), watched(), unbiased(), [each.double() for each in stacks()]],
    ids=["elu", "empty", "hook", "no bias", "double"],
)
def test_whatever_else_a_stack_is_goes_its_own_way(pair):
    x = torch.randn(6, 4).to(next(pair[1].parameters()).dtype)
    ours = tandem(x, *pair)
    assert all(torch.equal(one, stack(x)) for one, stack in zip(ours, pair, strict=True))


def test_windows_go_through_each_stack():
    pair, x = stacks(), torch.randn(3, 6, 4)
    assert all(torch.equal(one, stack(x)) for one, stack in zip(tandem(x, *pair), pair, strict=True))


def test_a_gradient_of_a_gradient_is_that_of_the_layers():
    stack, x = stacks(((8, 8),))[0], torch.randn(5, 4, requires_grad=True)

    def slope(output):
        (first,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), stack[0].weight)
        return second

    torch.testing.assert_close(slope(tandem(x, stack)[0]), slope(stack(x)), rtol=1e-4, atol=1e-5)
