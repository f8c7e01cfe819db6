"""Which library makes the products of dense layers in the least time on this processor."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from rlrun.nn import products
from rlrun.nn.tandem import tandem

GAIN = 1.2  # of speed, from which on another library than torch is worth other roundings
_SHAPES = ((64, nn.Tanh), (256, nn.ReLU))  # of two hidden layers, as most algorithms on and off policy have them
_ROWS, _INPUTS, _ROUNDS, _PASSES = 256, 8, 6, 3


def use(way: str) -> str:
    """Have products made by one of `products.WAYS`, or by the fastest (`auto`); return by which they are."""
    return products.use(fastest() if way == "auto" else way)


@functools.cache
def fastest() -> str:
    """Return by what networks take so much less time as matters, and are as exact; timed once in a process."""
    generator = torch.Generator().manual_seed(0)  # the run's own numbers stay as they are
    networks = [_network(width, activation, generator) for width, activation in _SHAPES]
    x = torch.randn(_ROWS, _INPUTS, generator=generator)
    with _kept():
        fit = [way for way in products.WAYS if products.use(way) == way]
        errors = {way: _error(way, networks[-1], x) for way in fit}
        fit = [way for way in fit if errors[way] <= 8.0 * errors["torch"]]  # others have a processor's shorter numbers
        rounds = [[[_seconds(way, network, x) for way in fit] for network in networks] for _ in range(_ROUNDS)]
    least = [map(min, zip(*times, strict=True)) for times in zip(*rounds, strict=True)]
    cost = dict(zip(fit, map(math.prod, zip(*least, strict=True)), strict=True))
    best = min(fit, key=cost.__getitem__)
    return best if cost["torch"] > GAIN ** len(networks) * cost[best] else "torch"


def _network(width: int, activation: Callable[[], nn.Module], generator: torch.Generator) -> nn.Sequential:
    """Return two hidden layers and one output, without a number drawn from the run's own."""
    sizes = ((_INPUTS, width), (width, width), (width, 1))
    layers = [nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu") for inputs, outputs in sizes]
    first, second, last = layers
    with torch.no_grad():
        for parameter in chain.from_iterable(layer.parameters() for layer in layers):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return nn.Sequential(first, activation(), second, activation(), last)


def _output(way: str, network: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    products.use(way)
    return tandem(x, network)[0]


@torch.no_grad()
def _error(way: str, network: nn.Sequential, x: torch.Tensor) -> float:
    """Return how far an output is at most from that of double precision."""
    exact = copy.deepcopy(network).double()(x.double())
    return float((_output(way, network, x).double() - exact).abs().max())


def _seconds(way: str, network: nn.Sequential, x: torch.Tensor) -> float:
    """Return how long some passes forward and backward take."""
    parameters, weights = list(network.parameters()), torch.ones(len(x), 1)
    begun = time.perf_counter()
    for _ in range(_PASSES):
        torch.autograd.backward(_output(way, network, x), weights, inputs=parameters)
    return time.perf_counter() - begun


@contextmanager
def _kept() -> Iterator[None]:
    """Leave products as they were made before."""
    before = products.in_use()
    try:
        with torch.enable_grad():
            yield
    finally:
        products.use(before)
