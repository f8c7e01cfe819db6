"""Hooks that no graph can hold are called without one, and the log says why."""

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.compile.comparison import ADAM, Distance, both, layer
from torch import Tensor, nn

from rlrun.training.callback import Callback, SkipBatch


class Branching(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        loss = super().loss(x, y)
        return loss if float(loss.detach().mean()) > 0.1 else 2.0 * loss


class Drawing(Distance):
    def __init__(self, generator: Any, *given: Any) -> None:
        super().__init__(*given)
        self.generator = generator()

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y) * float(self.generator.random())


class Randomized(Distance):
    def __init__(self, draw: Any, *given: Any) -> None:
        super().__init__(*given)
        self.draw = draw

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y) * self.draw()


def seeded() -> Tensor:
    torch.manual_seed(5)
    return torch.rand(())


def reseeded() -> Tensor:
    torch.manual_seed(torch.initial_seed() + 1)
    return torch.rand(())


def colored() -> Tensor:
    """Fail only for a stand-in, with an error whose text would color a terminal."""
    if not torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack():
        raise ValueError("\x1b[31mred")
    return torch.ones(())


class Numbering(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        loss = super().loss(x, y)
        return loss, {}, {"size": loss.mean().item()}


class Counter:
    """Counts its calls in a tensor that belongs to no module."""

    def __init__(self, count: Any) -> None:
        self.calls, self.count = torch.zeros(2), count

    def __call__(self) -> Tensor:
        self.count(self.calls)
        return self.calls[0]


class Skipping(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        raise SkipBatch


class Arrays(Callback):
    data_group = "default"
    provides = ("z",)

    def begin_batch(self) -> dict[str, Any]:
        return {"z": np.ones(2)}


class OfArrays(Distance):
    def loss(self, x: Tensor, y: Tensor, z: Any) -> Any:  # type: ignore[override]
        return float(z[0]) * super().loss(x, y)


def alone(kind: Any, *arguments: Any) -> Any:
    return lambda: {"one": kind(*arguments, layer(), ADAM), "other": Distance(layer(), ADAM)}


def counted(count: Any) -> Any:
    return lambda: alone(Randomized, Counter(count))()


def arrays() -> dict[str, Callback]:
    return {"arrays": Arrays(), "one": OfArrays(layer(), ADAM)}


UNTRACEABLE = {
    "branch": (alone(Branching), "loss: it reads a number of a tensor"),
    "number": (alone(Numbering), "loss: it reads a number of a tensor"),
    "skipped batch": (alone(Skipping), "SkipBatch"),
    "seed": (alone(Randomized, seeded), "loss: it seeds a generator"),
    "number of Python": (alone(Randomized, lambda: random.random()), "loss: it seeds a generator"),
    "number of NumPy": (alone(Randomized, lambda: np.random.rand()), "loss: it seeds a generator"),
    "next seed": (alone(Randomized, reseeded), "loss: it seeds a generator"),
    "view of a tensor": (counted(lambda calls: calls[:1].add_(1.0)), "train or write tensors"),
    "list of tensors": (counted(lambda calls: torch._foreach_add_([calls], 1.0)), "train or write tensors"),
    "array": (arrays, "they read a ndarray"),
    "foreign text": (alone(Randomized, colored), "loss: ?[31mred"),
}


@pytest.mark.parametrize(("make", "why"), UNTRACEABLE.values(), ids=UNTRACEABLE)
def test_untraceable_hook_runs_without_graph(make, why, interpreted, warnings):
    def make_seeded() -> Any:
        random.seed(3)
        np.random.seed(3)
        return make()

    both(make_seeded, (8,) * 20)
    (message,) = warnings()
    assert message.startswith("compile: not callbacks.one.")
    assert why in message


class Twice(Distance):
    def backward(self, x: Tensor, y: Tensor, **more: Any) -> Any:  # type: ignore[override]
        super().backward(x, y)
        return super().backward(x, y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRU(3, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x.unsqueeze(1))[0][:, 0]


class TwoWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.one + (x @ self.two).square()).unsqueeze(-1)


WITHOUT_GRAPH = {
    "generator of python": (
        lambda: Drawing(partial(random.Random, 0), layer(), ADAM),
        "loss: no graph can hold its Random",
    ),
    "legacy generator of numpy": (
        lambda: Drawing(partial(np.random.RandomState, 0), layer(), ADAM),
        "loss: no graph can hold its RandomState",
    ),
    "generator of numpy": (
        lambda: Drawing(partial(np.random.default_rng, 0), layer(), ADAM),
        "loss: no graph can hold its Generator",
    ),
    "amsgrad": (
        lambda: Distance(layer(), partial(torch.optim.Adam, lr=0.1, amsgrad=True)),
        "loss: its Adam is not compiled with these options",
    ),
    "backward pass": (
        lambda: Twice(layer(), ADAM),
        "backward: it is no `loss`, which leaves gradients and steps to its",
    ),
    "recurrent layer": (lambda: Distance(Recurrent(), ADAM), "loss: no graph can hold its GRU"),
}


@pytest.mark.parametrize(("make", "why"), WITHOUT_GRAPH.values(), ids=WITHOUT_GRAPH)
def test_unsupported_loss_runs_without_graph_and_is_named_once(make, why, interpreted, warnings):
    both(lambda: {"loss": make()})
    assert interpreted == []
    (message,) = warnings()
    assert message.startswith(f"compile: not callbacks.loss.{why}")


class Changing(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        rows = self.network.one if len(x) < 8 else self.network.one + self.network.two
        return (x @ rows - y).square()


def test_parameters_that_rarely_move_have_their_own_count(interpreted, warnings):
    fused = both(lambda: {"loss": Changing(TwoWeights(), ADAM)}, (8, 8, 7, 8, 7, 8))
    steps = [int(state["step"]) for state in fused["loss"].optimizer.state.values()]
    assert steps == [6, 4]
    assert "counts their steps apart" in warnings()[0]


def test_order_of_parameters_is_kept(interpreted):
    both(lambda: {"loss": Distance(TwoWeights(), lambda parameters: ADAM(parameters[::-1]))})
    assert len(interpreted) == 1


def test_failing_compiler_stops_nothing(monkeypatch, warnings):
    def fails(*args: Any, **named: Any) -> Any:
        raise RuntimeError("no such header\nand much more")

    monkeypatch.setattr("rlrun.compile.backend.compiled", fails)
    both(lambda: {"loss": Distance(layer(), ADAM)})
    assert warnings() == ["compile: not callbacks.loss.loss: torch's compiler fails: no such header"]
