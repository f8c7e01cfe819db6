"""Which library makes the products of dense layers in the least time on this machine, and with how many threads."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from rlrun.nn import products
from rlrun.nn.mlp import Dense

GAIN = 1.2  # of speed, from which on another library than torch is worth other roundings
_SHAPES = ((64, nn.Tanh), (256, nn.ReLU))  # of two hidden layers, as most algorithms on and off policy have them
_ALIKE, _LOST = 1.1, 5.0  # times as long: about as fast; and as where threads wait for each other
_ROWS, _INPUTS, _ROUNDS, _PASSES = 256, 8, 6, 3


def fastest() -> str:
    """Return by what networks take so much less time as matters, and are as exact."""
    generator = torch.Generator().manual_seed(0)  # the run's own numbers stay as they are
    networks = [_network(width, activation, generator) for width, activation in _SHAPES]
    x = torch.randn(_ROWS, _INPUTS, generator=generator)
    with _restoring():
        fit = _there()
        errors = {way: _error(way, networks[-1], x) for way in fit}
        fit = [way for way in fit if errors[way] <= 8.0 * errors["torch"]]  # others have a processor's shorter numbers
        rounds = [[[_seconds(way, network, x) for way in fit] for network in networks] for _ in range(_ROUNDS)]
    least = [map(min, zip(*times, strict=True)) for times in zip(*rounds, strict=True)]
    cost = dict(zip(fit, map(math.prod, zip(*least, strict=True)), strict=True))
    best = min(fit, key=cost.__getitem__)
    return best if cost["torch"] > GAIN ** len(networks) * cost[best] else "torch"


def set_threads(count: int) -> None:
    """Let torch and numpy's products take so many threads."""
    torch.set_num_threads(count)
    threadpool_limits(count, "blas")


def best_threads(at_most: int) -> int:
    """Return with how many threads a wide network takes least time: the fewest that are about as fast as any.

    One, unless more are faster by so much as matters: they wait for each other, and where another process is busy that
    takes many times as long as the work.
    """
    shape, before = _SHAPES[-1], torch.get_num_threads()
    generator = torch.Generator().manual_seed(0)
    network, x = _network(*shape, generator), torch.randn(_ROWS, _INPUTS, generator=generator)
    counts = sorted({1, at_most, *(2**power for power in range(1, at_most.bit_length()) if 2**power <= at_most)})
    taken: dict[int, float] = {}
    with _restoring():
        try:
            for count in counts:
                set_threads(count)
                taken[count] = _least(network, x, taken.get(1, math.inf))
                if math.isinf(taken[count]):
                    break
        finally:
            set_threads(before)
    quick = min(taken.values())
    return 1 if taken[1] < GAIN * quick else min(count for count, time in taken.items() if time < _ALIKE * quick)


def _there() -> list[str]:
    return [way for way in products.WAYS if products.use(way) == way]


def _least(network: Dense, x: torch.Tensor, so_far: float) -> float:
    """Return the least seconds of some rounds, by whatever way; infinity, if a pass takes far longer than so far."""
    times = []
    for way in _there():
        first = min(_seconds(way, network, x, passes=1) for _ in range(2))  # the first of all wakes threads
        if first * _PASSES > _LOST * so_far:
            return math.inf
        times.append(min(_seconds(way, network, x) for _ in range(_ROUNDS)))
    return min(times)


def _network(width: int, activation: Callable[[], nn.Module], generator: torch.Generator) -> Dense:
    """Return two hidden layers and one output, without a number drawn from the run's own."""
    sizes = ((_INPUTS, width), (width, width), (width, 1))
    with torch.random.fork_rng(devices=[]):  # to make them on no device would import torch's compiler
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in sizes]
    first, second, last = layers
    with torch.no_grad():
        for parameter in chain.from_iterable(layer.parameters() for layer in layers):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return Dense(first, activation(), second, activation(), last)


def _output(way: str, network: Dense, x: torch.Tensor) -> torch.Tensor:
    products.use(way)
    output: torch.Tensor = network(x)
    return output


@torch.no_grad()
def _error(way: str, network: Dense, x: torch.Tensor) -> float:
    """Return how far an output is at most from that of double precision."""
    exact = copy.deepcopy(network).double()(x.double())
    return float((_output(way, network, x).double() - exact).abs().max())


def _seconds(way: str, network: Dense, x: torch.Tensor, passes: int = _PASSES) -> float:
    """Return how long some passes forward and backward take."""
    parameters = list(network.parameters())
    begun = time.perf_counter()
    for _ in range(passes):
        torch.autograd.backward(_output(way, network, x).sum(), inputs=parameters)
    return time.perf_counter() - begun


@contextmanager
def _restoring() -> Iterator[None]:
    """Leave products as they were made before."""
    before = products.in_use()
    try:
        with torch.enable_grad():
            yield
    finally:
        products.use(before)
