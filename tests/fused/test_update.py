"""What goes into a graph, and what is called as ever."""

from __future__ import annotations

import logging
import os
import shutil
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.fused import alike
from tests.fused.alike import ADAM, Batches, Distance, both, changed, layer
from torch import Tensor, nn

from rlrun.callbacks import Schedule
from rlrun.callbacks.loss import LossCallback
from rlrun.callbacks.target import TargetCallback
from rlrun.compile import FusedUpdate, graph, update
from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Linear
from rlrun.training.callback import Callback, SkipBatch


def test_numbers_that_change_are_no_constants(interpreted):
    class Weighed(Distance):
        def loss(self, x: Tensor, y: Tensor, share: float) -> Any:  # type: ignore[override]
            return share * super().loss(x, y)

    def make():
        share = Schedule("share", Linear(first=1.0, last=0.0, steps=8))
        rate = Schedule("learning_rate", Linear(first=0.1, last=0.0, steps=8))
        return {"share": share, "rate": rate, "loss": Weighed(layer(), ADAM)}

    fused = both(make)
    assert len(interpreted) == 1
    assert fused["loss"].metrics["learning_rate/loss"] == pytest.approx(0.1 - 0.1 * 6 / 8)


def test_attributes_that_change_are_no_constants(interpreted):
    class Growing(Distance):
        share = 1.0

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.factor, self.offset = 1.0, torch.zeros(())

        def loss(self, x: Tensor, y: Tensor) -> Any:
            return self.factor * super().loss(x, y + self.offset)

    class Turn(Callback):
        data_group = "default"

        def __init__(self, loss: Growing) -> None:
            self.loss = loss

        def end_batch(self, update: int) -> None:
            self.loss.offset = torch.tensor(float(update))
            if update == 3:
                self.loss.factor = 2.0

    def make():
        loss = Growing(layer(), ADAM)
        return {"loss": loss, "turn": Turn(loss)}

    both(make)
    assert len(interpreted) == 2


def test_one_graph_serves_all_sizes(interpreted):
    both(lambda: {"loss": Distance(layer(), ADAM, max_grad_norm=0.1)}, (8, 7, 8, 5, 6, 9, 7))
    assert len(interpreted) == 2


def test_a_batch_of_one_row_has_a_graph_of_its_own(interpreted):
    both(lambda: {"loss": Distance(layer(), ADAM)}, (4, 5, 1, 6, 1))
    assert len(interpreted) == 3


class Slow(TargetCallback):
    provides = ("y",)

    def begin_batch(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return {"y": 0.5 * y + self.target(x).squeeze(-1)}


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_slow_copies_move_when_they_should(interpreted, rate):
    def make():
        network = layer()
        return {"slow": Slow(network, tau=rate, every=2), "loss": Distance(network, ADAM)}

    both(make)
    assert len(interpreted) == 2  # with a move and without


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rlrun"]


class Looking(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        loss = super().loss(x, y)
        return loss if float(loss.detach().mean()) > 0.1 else 2.0 * loss


class Counting(Distance):
    count = 0

    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.count += 1
        return self.count * super().loss(x, y)


class Gathering(Distance):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: deque[Tensor] = deque()

    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.seen.append(y)
        return super().loss(x, y)


class Drawing(Distance):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.generator = np.random.default_rng(0)

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y) * float(self.generator.random())


class Skipping(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        raise SkipBatch


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Looking, "loss"),
        (Counting, f"{update.LIMIT} graphs of them were not enough"),
        (Gathering, "it gathers something from update to update"),
        (Drawing, "it draws numbers that torch does not draw"),
        (Skipping, "SkipBatch"),
    ],
)
def test_what_no_graph_does_is_called_as_ever(kind, why, interpreted, caplog):
    def make():
        return {"one": kind(layer(), ADAM), "other": Distance(layer(), ADAM)}

    with caplog.at_level(logging.WARNING, "rlrun"):
        fused = both(make, (8,) * 20)
    (message,) = refused(caplog)
    assert message.startswith("compile: not callbacks.one.loss")
    assert why in message
    assert interpreted or kind is Skipping
    if kind is Gathering:
        assert len(fused["one"].seen) == 20
    if kind is Counting:
        assert fused["one"].count == 20


def test_other_optimizers_and_backward_passes_are_called_as_ever(interpreted):
    class Twice(Distance):
        def backward(self, x: Tensor, y: Tensor, **more: Any) -> Any:  # type: ignore[override]
            super().backward(x, y)
            return super().backward(x, y)

    both(lambda: {"sgd": Distance(layer(), partial(torch.optim.SGD, lr=0.1)), "twice": Twice(layer(), ADAM)})
    both(lambda: {"grad": Distance(layer(), partial(torch.optim.Adam, lr=0.1, amsgrad=True))})
    assert interpreted == []


def test_recurrent_layers_are_called_as_ever(interpreted):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell = nn.GRU(3, 1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(x.unsqueeze(1))[0][:, 0]

    both(lambda: {"loss": Distance(Recurrent(), ADAM)})
    assert interpreted == []


def test_hooks_between_have_what_those_before_made(interpreted):
    seen = []

    class Named(Distance):
        provides = ("error",)

        def loss(self, x: Tensor, y: Tensor) -> Any:
            loss = super().loss(x, y)
            return loss, {"error": loss.detach().sqrt()}

    class Between(Callback):
        data_group = "default"
        provides = ("z",)

        def backward(self, error: Tensor) -> dict[str, Tensor]:
            seen.append(float(error.mean()))
            return {"z": error.mean()}

    class Last(Distance):
        def loss(self, x: Tensor, y: Tensor, z: Tensor) -> Any:  # type: ignore[override]
            return z * super().loss(x, y)

    both(lambda: {"one": Named(layer(), ADAM), "between": Between(), "last": Last(layer(), ADAM)})
    assert len(interpreted) == 2
    assert seen[:6] == pytest.approx(seen[6:], rel=1e-5)


def test_parameters_that_nothing_reaches_stay(interpreted):
    class Half(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            return (x @ self.network.weight[0] - y).square()

    fused = both(lambda: {"loss": Half(layer(), ADAM, max_grad_norm=1.0)})
    loss = fused["loss"]
    assert [len(loss.optimizer.state[parameter]) for parameter in loss.parameters] == [3, 0]
    assert loss.network.bias.grad is None


def test_what_an_optimizer_kept_can_be_replaced(interpreted):
    class Fresh(Callback):
        data_group = "default"

        def __init__(self, loss: LossCallback) -> None:
            self.loss = loss

        def end_batch(self, update: int) -> None:
            if update == 3:
                self.loss.optimizer.load_state_dict(self.loss.optimizer.state_dict())
            if update == 5:
                self.loss.optimizer.param_groups[0]["betas"] = (0.5, 0.9)

    def make():
        loss = Distance(layer(), ADAM)
        return {"loss": loss, "fresh": Fresh(loss)}

    both(make, (8,) * 8)
    assert len(interpreted) == 3


def test_a_failing_compiler_stops_nothing(monkeypatch, caplog):
    def fails(*args: Any, **named: Any) -> Any:
        raise RuntimeError("no such header\nand much more")

    monkeypatch.setattr("rlrun.compile.graph.compiled", fails)
    both(lambda: {"loss": Distance(layer(), ADAM)})
    assert refused(caplog) == ["compile: not callbacks.loss.loss: torch's compiler fails: no such header"]


def test_without_a_compiler_it_is_refused(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="compile=true: updates on a CPU need a C\\+\\+ compiler"):
        FusedUpdate(True, "cpu")
    FusedUpdate(False, "cpu")


def test_what_is_replaced_is_seen(interpreted):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.factor = layer(), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * F.dropout(self.inner(x), 0.0, self.training)

    class Scope(Distance):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.kept = {"offset": torch.zeros(())}

        def loss(self, x: Tensor, y: Tensor) -> Any:
            return super().loss(x, y + self.kept["offset"])

    class Turn(Callback):
        data_group = "default"

        def __init__(self, loss: Scope) -> None:
            self.loss = loss

        def end_batch(self, update: int) -> None:
            network: Any = self.loss.network
            if update == 2:
                self.loss.kept = {"offset": torch.ones(())}
            elif update == 4:
                network.factor = 3.0
            elif update == 6:
                network.eval()
            elif update == 8:
                network.inner.weight = nn.Parameter(torch.ones(1, 3))

    def make():
        loss = Scope(Scaled(), ADAM)
        return {"loss": loss, "turn": Turn(loss)}

    both(make, (8,) * 10)
    assert len(interpreted) == 5


def halved(number: int, group: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let rows lie apart from the fourth batch on."""
    if number >= 3:
        group["y"] = torch.stack([group["y"], -group["y"]], 1)[:, 0]
    return group


def test_rows_may_lie_in_any_way(monkeypatch, tmp_path):
    class Strided(Batches):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                yield {"default": halved(number, batch["default"])}

    monkeypatch.setattr(alike, "Batches", Strided)
    both(lambda: {"loss": Distance(layer(), ADAM)})  # compiled for real: a graph that is called as traced bears it


class Keeping(Distance):
    """Reads and writes what is no attribute with a tensor."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.pair, self.named, self.newest = (1.0, 0.0), {"share": 1.0}, []

    def loss(self, x: Tensor, y: Tensor) -> Any:
        if not hasattr(self, "first"):
            self.first = y.detach()
        if "first" not in self.named:
            self.named["first"] = x.detach()
        loss = self.pair[0] * self.named["share"] * (super().loss(x, y) + self.first + self.named["first"].sum(-1))
        loss = loss + sum(self.newest) if self.newest else loss
        self.newest = [*self.newest[-1:], loss.detach().mean()]
        return loss


CHANGES = {
    "storage": lambda loss: nn.utils.vector_to_parameters(torch.full((4,), 0.5), loss.network.parameters()),
    "tuple": lambda loss: setattr(loss, "pair", (-1.0, 0.0)),
    "dict": lambda loss: loss.named.update(share=-1.0),
    "rule": lambda loss: loss.optimizer.param_groups[0].update(maximize=True),
    "step hook": lambda loss: loss.optimizer.register_step_post_hook(lambda *_: loss.network.bias.data.zero_()),
    "gradient hook": lambda loss: loss.network.weight.register_hook(lambda gradient: 0.0 * gradient),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", [Distance, Keeping])
def test_what_changes_otherwise_is_seen(kind, change, interpreted):
    def make():
        loss = kind(layer(), ADAM)
        loss.pair, loss.named = getattr(loss, "pair", ()), getattr(loss, "named", {})
        return {"loss": loss, "turn": changed(3, lambda: change(loss))}

    both(make, (8,) * 8)
    assert interpreted


def test_what_is_no_key_or_grows_is_called_as_ever(interpreted, caplog):
    class Growing(Distance):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.kept: list[Tensor] = []

        def loss(self, x: Tensor, y: Tensor) -> Any:
            self.kept.append(y)
            return super().loss(x, y)

    class Array(Callback):
        data_group = "default"
        provides = ("z",)

        def begin_batch(self) -> dict[str, Any]:
            return {"z": np.ones(2)}

    class Asking(Distance):
        def loss(self, x: Tensor, y: Tensor, z: Any) -> Any:  # type: ignore[override]
            return float(z[0]) * super().loss(x, y)

    with caplog.at_level(logging.WARNING, "rlrun"):
        fused = both(lambda: {"grows": Growing(layer(), ADAM)})
        both(lambda: {"array": Array(), "asks": Asking(layer(), ADAM)})
    assert len(fused["grows"].kept) == 6
    assert [message.partition(": not ")[0] for message in refused(caplog)] == ["compile", "compile"]


def test_what_was_compiled_is_another_processors(monkeypatch, tmp_path):
    """Code made for one that has more instructions would be the end of a run on one that has less."""
    monkeypatch.setattr("rlrun.compile.graph.folder", lambda: tmp_path)
    folders = []
    for flags in ("avx2 avx512f avx512_bf16", "avx2 avx512f", "avx2 avx512f"):
        monkeypatch.setattr(
            Path, "read_text", lambda self, errors, flags=flags: f"model name\t: A\nflags\t\t: {flags}\n"
        )
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        graph.keep_compiled()
        folders.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    assert folders[0] != folders[1] == folders[2]
    assert {folder.parent for folder in folders} == {tmp_path / "compiled"}
