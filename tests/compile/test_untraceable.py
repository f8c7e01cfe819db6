"""Hooks that no graph can hold are called without one, and the log says why."""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.compile.comparison import ADAM, SGD, Distance, Target, both, layer, trained
from torch import Tensor, nn

from rlrun.compile import update
from rlrun.training.callback import Callback, SkipBatch


class Branching(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        loss = super().loss(x, y)
        return loss if float(loss.detach().mean()) > 0.1 else 2.0 * loss


class Counting(Distance):
    count = 0

    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.count += 1
        return self.count * super().loss(x, y)


class Gathering(Distance):
    def __init__(self, sequence: type, *given: Any) -> None:
        super().__init__(*given)
        self.seen = sequence()

    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.seen.append(y)
        return super().loss(x, y)


class Recent(Distance):
    """Puts numbers into a deque that is full from the beginning."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.recent: deque[Any] = deque([torch.zeros(()), torch.zeros(())], maxlen=2)

    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.recent.append(super().loss(x, y).detach().mean())
        return super().loss(x, y) * (1.0 + sum(self.recent))


class Drawing(Distance):
    def __init__(self, generator: Any, *given: Any) -> None:
        super().__init__(*given)
        self.generator = generator()

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y) * float(self.generator.random())


class Skipping(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        raise SkipBatch


class Leaving(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.normal = torch.distributions.Normal(self.network(x).squeeze(-1), 1.0, validate_args=False)
        return -self.normal.log_prob(y)


class Rows(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.rows = x.shape[0]
        return super().loss(x, y)


class Strict(Distance):
    def __init_subclass__(cls, *, name: str) -> None:
        super().__init_subclass__()


class Arrays(Callback):
    data_group = "default"
    provides = ("z",)

    def begin_batch(self) -> dict[str, Any]:
        return {"z": np.ones(2)}


class OfArrays(Distance):
    def loss(self, x: Tensor, y: Tensor, z: Any) -> Any:  # type: ignore[override]
        return float(z[0]) * super().loss(x, y)


class Moving(Target):
    def begin_batch(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.catch_up()
        return super().begin_batch(x, y)


def alone(kind: Any, *arguments: Any) -> Any:
    return lambda: {"one": kind(*arguments, layer(), ADAM), "other": Distance(layer(), ADAM)}


def arrays() -> dict[str, Callback]:
    return {"arrays": Arrays(), "one": OfArrays(layer(), ADAM)}


def moving() -> dict[str, Callback]:
    network = layer()
    return {"one": Moving(network, tau=0.1), "loss": Distance(network, ADAM)}


def same_mean(loss: Any) -> bool:
    expected = trained(alone(Leaving)(), (8,) * 20).callbacks["one"].normal.mean.mean()
    return float(loss.normal.mean.detach().mean()) == pytest.approx(float(expected))


UNTRACEABLE = {
    "branch": (alone(Branching), "loss", None),
    "count": (
        alone(Counting),
        f"{update.LIMIT} graphs of them were not enough",
        lambda loss: loss.count == 20,
    ),
    "deque": (
        alone(Gathering, deque),
        "it gathers something from update to update",
        lambda loss: len(loss.seen) == 20,
    ),
    "list": (alone(Gathering, list), "", lambda loss: len(loss.seen) == 20),
    "full deque": (
        alone(Recent),
        "it gathers something",
        lambda loss: all(float(value) > 0 for value in loss.recent),
    ),
    "generator of python": (
        alone(Drawing, partial(random.Random, 0)),
        "it draws numbers that torch does not draw",
        None,
    ),
    "legacy generator of numpy": (alone(Drawing, partial(np.random.RandomState, 0)), "it draws numbers", None),
    "generator of numpy": (alone(Drawing, partial(np.random.default_rng, 0)), "it draws numbers", None),
    "skipped batch": (alone(Skipping), "SkipBatch", None),
    "object": (alone(Leaving), "it leaves 'normal', which holds a Normal", same_mean),
    "strict class": (lambda: {"one": Strict(layer(), ADAM)}, "Strict cannot be looked at", None),
    "array": (arrays, "", None),
    "hidden write": (moving, "out of sight", None),
}


@pytest.mark.parametrize(("make", "why", "check"), UNTRACEABLE.values(), ids=UNTRACEABLE)
def test_untraceable_hook_runs_without_graph(make, why, check, interpreted, warnings):
    fused = both(make, (8,) * 20)
    (message,) = warnings()
    assert message.startswith("compile: not callbacks.one.")
    assert why in message
    alone_without_graph = [UNTRACEABLE[name][0] for name in ("skipped batch", "strict class", "array", "hidden write")]
    assert interpreted or make in alone_without_graph
    assert check is None or check(fused["one"])


def test_stored_size_excludes_its_hook(interpreted, warnings):
    fused = both(alone(Rows), (8, 7, 6, 5))
    (message,) = warnings()
    assert message.startswith("compile: not callbacks.one.loss:")
    assert fused["one"].rows == 5


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
    "sgd": lambda: Distance(layer(), SGD),
    "amsgrad": lambda: Distance(layer(), partial(torch.optim.Adam, lr=0.1, amsgrad=True)),
    "backward pass": lambda: Twice(layer(), ADAM),
    "recurrent layer": lambda: Distance(Recurrent(), ADAM),
    "order of parameters": lambda: Distance(TwoWeights(), lambda parameters: ADAM(parameters[::-1])),
}


@pytest.mark.parametrize("make", WITHOUT_GRAPH.values(), ids=WITHOUT_GRAPH)
def test_unsupported_loss_runs_without_graph(make, interpreted):
    both(lambda: {"loss": make()})
    assert interpreted == []


def test_failing_compiler_stops_nothing(monkeypatch, warnings):
    def fails(*args: Any, **named: Any) -> Any:
        raise RuntimeError("no such header\nand much more")

    monkeypatch.setattr("rlrun.compile.graph.compiled", fails)
    both(lambda: {"loss": Distance(layer(), ADAM)})
    assert warnings() == ["compile: not callbacks.loss.loss: torch's compiler fails: no such header"]
