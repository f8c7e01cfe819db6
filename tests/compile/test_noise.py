"""Random numbers of a compiled update are inputs, drawn in the order of the hooks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlrun.compile import backend, graph, noise

Function = Callable[[Tensor], list[Tensor]]
LIFTED: dict[str, Function] = {
    "like": lambda x: [torch.randn_like(x), torch.rand_like(x[:2]), torch.randint_like(x, 9)],
    "sizes": lambda x: [
        torch.randn(3),
        torch.rand(2, dtype=torch.float64),
        torch.randperm(5),
        torch.randint(0, 4, (2,)),
    ],
    "filled": lambda x: [torch.empty_like(x).exponential_().log_().neg_(), torch.empty(4).uniform_(-1.0, 3.0)],
    "read twice": lambda x: [(drawn := torch.empty_like(x).normal_()) + x, drawn * 2.0],
    "dropout": lambda x: [nn.functional.dropout(x + 1.0, 0.5), torch.randn_like(x)],
    "transposed": lambda x: [
        torch.rand_like(x.t()).t().view(-1),
        torch.empty_like(x.t()).exponential_(),
        nn.functional.dropout((x + 1.0).t(), 0.5),
    ],
    "unread": lambda x: [torch.randn_like(x)[:0], torch.randn_like(x)],
}
KEPT: dict[str, Function] = {
    "probabilities": lambda x: [torch.bernoulli(x.sigmoid())],
    "probabilities beside noise": lambda x: [torch.randn_like(x), torch.bernoulli(x.sigmoid())],
    "filled by probabilities": lambda x: [torch.empty_like(x).bernoulli_(x.sigmoid())],
    "part of a tensor": lambda x: [(filled := x * 2.0)[:2].normal_(), filled],
}


def traced(function: Function, x: Tensor) -> tuple[torch.fx.GraphModule, list[noise.Draw]]:
    module = graph.traced(function, [x])
    state = torch.get_rng_state()
    drawn = noise.draws(module)
    assert torch.equal(state, torch.get_rng_state())
    module.recompile()
    return module, drawn


def randomness(module: torch.fx.GraphModule) -> list[Any]:
    random = torch.Tag.nondeterministic_seeded
    return [node for node in module.graph.nodes if random in getattr(node.target, "tags", ())]


@pytest.mark.parametrize("name", LIFTED)
def test_noise_is_an_input(name):
    x = torch.arange(6.0).reshape(3, 2)
    module, drawn = traced(LIFTED[name], x)
    assert drawn
    assert not randomness(module)
    torch.manual_seed(3)
    plain = LIFTED[name](x)
    torch.manual_seed(3)
    inputs = [draw.function() for draw in drawn]
    for number, draw in zip(inputs, drawn, strict=True):
        assert (number.shape, number.dtype) == (draw.like.shape, draw.like.dtype)
        assert number is not draw.like  # a graph may write to it
    for result, expected in zip(module(x, *inputs), plain, strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("name", KEPT)
def test_noise_that_depends_on_data_stays(name):
    x = torch.arange(6.0).reshape(3, 2)
    module, drawn = traced(KEPT[name], x)
    assert not drawn
    torch.manual_seed(3)
    plain = KEPT[name](x)
    for run in (module, backend.compiled(module, [x], "cpu", sized=True, own=0)):
        torch.manual_seed(3)
        for result, expected in zip(run(x), plain, strict=True):
            assert torch.equal(result, expected)
