"""What a graph takes for granted is looked at before each update, and what no graph can tell is called as ever."""

from __future__ import annotations

import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.fused.alike import ADAM, Distance, both, changed, layer, trained
from torch import Tensor, nn

from rlrun.callbacks.target import TargetCallback
from rlrun.compile import FusedUpdate, update
from rlrun.core.errors import ConfigError
from rlrun.training.callback import Callback

SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.fixture
def refusals(caplog: pytest.LogCaptureFixture) -> Iterable[Callable[[], list[str]]]:
    """What the log says of hooks that are called as ever."""
    with caplog.at_level(logging.WARNING, "rlrun"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "rlrun"]


def test_a_size_that_changes_later_has_a_graph_of_its_own(interpreted):
    both(lambda: {"loss": Distance(layer(), ADAM)}, ((8, 4), (7, 4), (7, 5), (6, 5), (6, 4)))
    assert len(interpreted) == 3


class Encoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, z: Tensor) -> Tensor:
        return self.head(z)


class Encoding(Callback):
    data_group = "default"
    provides = ("z",)

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder

    def begin_batch(self, x: Tensor) -> dict[str, Tensor]:
        return {"z": self.encoder(x).relu()}


class EncodingTarget(TargetCallback):
    provides = ("z",)

    def begin_batch(self, x: Tensor) -> dict[str, Tensor]:
        return {"z": self.network.encoder(x).relu()}


class OfEncoded(Distance):
    def loss(self, z: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        return (self.network(z).squeeze(-1) - y).square()


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("kind", [Encoding, EncodingTarget])
def test_gradients_go_on_beyond_a_graph(kind, optimizer, interpreted, refusals):
    def make():
        network = Encoded()
        encoding = Encoding(network.encoder) if kind is Encoding else EncodingTarget(network)
        return {"encode": encoding, "loss": OfEncoded(network, optimizer)}

    fused = both(make)
    moved = fused["loss"].network.encoder.weight
    assert not torch.equal(moved, Encoded().encoder.weight)
    assert all("has a gradient" in message or "hands on a gradient" in message for message in refusals())


class Leaving(Distance):
    def loss(self, x: Tensor, y: Tensor) -> Any:
        self.normal = torch.distributions.Normal(self.network(x).squeeze(-1), 1.0, validate_args=False)
        return -self.normal.log_prob(y)


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
        self.generator = generator

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y) * float(self.generator.random())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Leaving(layer(), ADAM), "it leaves 'normal', which holds a Normal"),
        (lambda: Recent(layer(), ADAM), "it gathers something"),
        (lambda: Drawing(random.Random(0), layer(), ADAM), "it draws numbers"),
        (lambda: Drawing(np.random.RandomState(0), layer(), ADAM), "it draws numbers"),
        (lambda: Drawing(np.random.default_rng(0), layer(), ADAM), "it draws numbers"),
    ],
    ids=["object", "full deque", "python", "numpy's old", "numpy"],
)
def test_what_no_graph_leaves_behind_is_called_as_ever(make, why, interpreted, refusals):
    fused = both(lambda: {"one": make()})
    assert [why in message for message in refusals()] == [True]
    loss = fused["one"]
    if isinstance(loss, Leaving):
        assert float(loss.normal.mean.detach().mean()) == pytest.approx(
            float(trained({"one": make()}).callbacks["one"].normal.mean.mean())
        )
    if isinstance(loss, Recent):
        assert all(float(value) > 0 for value in loss.recent)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = layer(), nn.ReLU()
        self.scales, self.factor = [1.0], np.float32(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.inner(x) + 2.0) * self.scales[0] * float(self.factor)


class Reading(Distance):
    """Reads what can change in many ways."""

    distance: Any = staticmethod(F.mse_loss)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._shares = {"a": 1.0}
        self.distance, self.weights = F.mse_loss, np.ones(2)
        self.recent = deque([1.0, 1.0], maxlen=2)
        self.kept = (torch.ones(()),)

    def loss(self, x: Tensor, y: Tensor) -> Any:
        loss = self.distance(self.network(x).squeeze(-1), y, reduction="none") * self._shares["a"]
        loss = loss * float(self.weights[0]) * sum(self.recent) * self.kept[0]
        return loss * getattr(self, "bonus", 1.0)


CHANGES: dict[str, Callable[[Any], object]] = {
    "private dict": lambda loss: loss._shares.update(a=-1.0),
    "list of a module": lambda loss: setattr(loss.network, "scales", [-1.0]),
    "number of numpy": lambda loss: setattr(loss.network, "factor", np.float32(-1.0)),
    "function": lambda loss: setattr(loss, "distance", F.l1_loss),
    "array": lambda loss: loss.weights.fill(-1.0),
    "deque": lambda loss: loss.recent.append(-3.0),
    "new attribute": lambda loss: setattr(loss, "bonus", -1.0),
    "module": lambda loss: setattr(loss.network, "act", nn.Tanh()),
    "hook of a module": lambda loss: loss.network.inner.register_forward_hook(lambda module, inputs, output: -output),
    "tensor of a tuple": lambda loss: loss.kept[0].mul_(-1.0),
    "kind of number": lambda loss: loss.network.double(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_hook_read_and_has_changed_is_seen(change, interpreted):
    def make():
        loss = Reading(Scaled(), ADAM)
        return {"loss": loss, "turn": changed(3, lambda: change(loss))}

    if change is CHANGES["kind of number"]:
        callbacks = make()
        with pytest.raises(RuntimeError, match="dtype"):  # as without a graph
            trained(callbacks)
        return
    both(make, (8,) * 8)
    assert interpreted


def test_what_a_graph_holds_by_itself_is_seen_to_change():
    """Compiled for real: a graph that is called as traced has no copies."""

    def make():
        loss = Reading(Scaled(), ADAM)
        return {"loss": loss, "turn": changed(3, lambda: CHANGES["tensor of a tuple"](loss))}

    both(make)


def test_what_is_out_of_sight_is_not_written_to(refusals):
    class Catching(TargetCallback):
        provides = ("y",)

        def begin_batch(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            self.catch_up()
            with torch.no_grad():
                return {"y": 0.5 * y + self.target(x).squeeze(-1)}

    def make():
        network = layer()
        return {"slow": Catching(network, tau=0.1), "loss": Distance(network, ADAM)}

    both(make)
    assert ["out of sight" in message for message in refusals()] == [True]


def test_what_is_written_again_is_written_each_time(interpreted):
    class Fresh(Distance):
        fresh = True
        cache: Any = None

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.seen: list[tuple[bool, Any]] = []
            self.fresh, self.cache = True, None

        def loss(self, x: Tensor, y: Tensor) -> Any:
            self.fresh, self.cache = True, None
            return super().loss(x, y)

        def end_batch(self) -> None:
            self.seen.append((self.fresh, self.cache))
            self.fresh, self.cache = False, 1

    fused = both(lambda: {"loss": Fresh(layer(), ADAM)})
    assert fused["loss"].seen == [(True, None)] * 6
    assert len(interpreted) == 1


def test_parts_of_a_sum_have_gradients_of_their_own(interpreted):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.offset = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ (self.base + self.offset)).unsqueeze(-1)

    def make():
        return {"loss": Distance(Sum(), ADAM, max_grad_norm=0.01)}

    plain, fused = (trained(make(), compile=compile).callbacks["loss"] for compile in (False, True))
    for ours, theirs in zip(fused.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    first, second = fused.parameters
    assert first.grad.data_ptr() != second.grad.data_ptr()


def test_what_no_hook_reads_may_change(interpreted, refusals):
    class Keeping(Distance):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.history: list[int] = []
            self.counts: dict[str, int] = {}
            self.latest: deque[int] = deque(maxlen=3)

        def end_batch(self, update: int) -> None:
            self.history.append(update)
            self.counts["updates"] = update
            self.latest.append(update)

    fused = both(lambda: {"loss": Keeping(layer(), ADAM)}, (8,) * (update.LIMIT + 4))
    assert len(interpreted) == 1
    assert refusals() == []
    assert len(fused["loss"].history) == update.LIMIT + 4


def test_what_is_given_and_held_is_both(interpreted):
    """It may be two the next time."""

    class Giving(Callback):
        data_group = "default"
        provides = ("w",)

        def __init__(self, shared: Any) -> None:
            self.shared = shared

        def begin_batch(self, update: int) -> dict[str, Tensor]:
            return {"w": self.shared.w if update < 4 else self.shared.w.clone() * 2.0}

    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.w = layer(), torch.ones(())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.w

    class Both(Distance):
        def loss(self, x: Tensor, y: Tensor, w: Tensor) -> Any:  # type: ignore[override]
            return w * super().loss(x, y)

    def make():
        network = Holding()
        return {"give": Giving(network), "loss": Both(network, ADAM), "turn": changed(0, lambda: network.w.mul_(0.5))}

    both(make)


def test_a_size_that_is_kept_lets_only_its_hook_out(interpreted, refusals):
    class Rows(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            self.rows = x.shape[0]
            return super().loss(x, y)

    fused = both(lambda: {"one": Rows(layer(), ADAM), "other": Distance(layer(), ADAM)}, (8, 7, 6, 5))
    (message,) = refusals()
    assert message.startswith("compile: not callbacks.one.loss:")
    assert fused["one"].rows == 5


def test_dicts_of_other_kinds_stay_what_they_are(interpreted):
    class Counting(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            loss = super().loss(x, y)
            self.sums = defaultdict(float, {"all": loss.detach().sum()})
            return loss

    fused = both(lambda: {"loss": Counting(layer(), ADAM)})
    assert fused["loss"].sums["another"] == 0.0


def test_parameters_in_another_order_are_not_mixed_up(interpreted):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.one + (x @ self.two).square()).unsqueeze(-1)

    both(lambda: {"loss": Distance(Two(), lambda parameters: ADAM(parameters[::-1]))})
    assert interpreted == []


def test_a_class_that_minds_being_derived_from_is_called_as_ever(interpreted, refusals):
    class Strict(Distance):
        def __init_subclass__(cls, *, name: str) -> None:
            super().__init_subclass__()

    both(lambda: {"loss": Strict(layer(), ADAM)})
    assert "Strict cannot be looked at" in refusals()[0]


def test_only_the_compiler_that_torch_takes_counts(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: name if name == "clang++" else None)
    with pytest.raises(ConfigError, match=r"there is no 'g\+\+' here; CXX may name another one"):
        FusedUpdate(True, "cpu")
    monkeypatch.setenv("CXX", "clang++")
    FusedUpdate(True, "cpu")
