"""Whatever a graph takes for granted is compared before each update."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.compile.comparison import ADAM, Distance, both, changed, layer, trained
from torch import Tensor, nn

from rlrun.compile import update
from rlrun.training.callback import Callback


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = layer(), nn.ReLU()
        self.scales, self.factor = [1.0], np.float32(1.0)

    def forward(self, x: Tensor) -> Tensor:
        value = self.act(self.inner(x) + 2.0) * self.scales[0] * float(self.factor)
        return F.dropout(value, 0.0, self.training)


class Reading(Distance):
    """Reads what can change in many ways."""

    distance: Any = staticmethod(F.mse_loss)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._shares = {"a": 1.0}
        self.distance, self.weights = F.mse_loss, np.ones(2)
        self.recent = deque([1.0, 1.0], maxlen=2)
        self.kept, self.named, self.offset, self.share = (
            (torch.ones(()),),
            {"offset": torch.zeros(())},
            torch.zeros(()),
            1.0,
        )

    def loss(self, x: Tensor, y: Tensor) -> Any:
        y = y + self.named["offset"] + self.offset
        loss = self.distance(self.network(x).squeeze(-1), y, reduction="none") * self._shares["a"] * self.share
        loss = loss * float(self.weights[0]) * sum(self.recent) * self.kept[0]
        return loss * getattr(self, "bonus", 1.0)


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


def reload_optimizer(loss: Any) -> None:
    loss.optimizer.load_state_dict(loss.optimizer.state_dict())


COMMON: dict[str, Callable[[Any], object]] = {
    "storage": lambda loss: nn.utils.vector_to_parameters(torch.full((4,), 0.5), loss.network.parameters()),
    "optimizer option": lambda loss: loss.optimizer.param_groups[0].update(maximize=True),
    "betas": lambda loss: loss.optimizer.param_groups[0].update(betas=(0.5, 0.9)),
    "optimizer state": reload_optimizer,
    "step hook": lambda loss: loss.optimizer.register_step_post_hook(lambda *_: loss.network.inner.bias.data.zero_()),
    "gradient hook": lambda loss: loss.network.inner.weight.register_hook(lambda gradient: 0.0 * gradient),
}
READ: dict[str, Callable[[Any], object]] = {
    "number": lambda loss: setattr(loss, "share", 2.0),
    "tensor": lambda loss: setattr(loss, "offset", torch.tensor(3.0)),
    "private dict": lambda loss: loss._shares.update(a=-1.0),
    "dict of tensors": lambda loss: setattr(loss, "named", {"offset": torch.ones(())}),
    "list of a module": lambda loss: setattr(loss.network, "scales", [-1.0]),
    "number of a module": lambda loss: setattr(loss.network, "factor", 3.0),
    "number of numpy": lambda loss: setattr(loss.network, "factor", np.float32(-1.0)),
    "function": lambda loss: setattr(loss, "distance", F.l1_loss),
    "array": lambda loss: loss.weights.fill(-1.0),
    "deque": lambda loss: loss.recent.append(-3.0),
    "new attribute": lambda loss: setattr(loss, "bonus", -1.0),
    "module": lambda loss: setattr(loss.network, "act", nn.Tanh()),
    "mode of a module": lambda loss: loss.network.eval(),
    "parameter": lambda loss: setattr(loss.network.inner, "weight", nn.Parameter(torch.ones(1, 3))),
    "hook of a module": lambda loss: loss.network.inner.register_forward_hook(lambda module, inputs, output: -output),
    "tensor of a tuple": lambda loss: loss.kept[0].mul_(-1.0),
}
KEPT: dict[str, Callable[[Any], object]] = {
    "tuple": lambda loss: setattr(loss, "pair", (-1.0, 0.0)),
    "dict": lambda loss: loss.named.update(share=-1.0),
}
CASES = [
    *(pytest.param(Reading, change, id=name) for name, change in (COMMON | READ).items()),
    *(pytest.param(Keeping, change, id=f"{name}, keeping") for name, change in (COMMON | KEPT).items()),
]
# a tensor is an input of the graph; hooks and options of an optimizer end the use of graphs
ONE_GRAPH = ("tensor", "storage", "optimizer option", "step hook", "gradient hook")


def changing(kind: Any, change: Any) -> Any:
    def make() -> dict[str, Callback]:
        loss = kind(Scaled(), ADAM)
        return {"loss": loss, "change": changed(3, lambda: change(loss))}

    return make


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_change_of_inputs_is_noticed(kind, change, interpreted):
    both(changing(kind, change), (8,) * 8)
    graphs = 1 if change in [(COMMON | READ)[name] for name in ONE_GRAPH] else 2
    assert len(interpreted) == graphs if kind is Reading else interpreted


def test_change_of_dtype_fails_alike(interpreted):
    with pytest.raises(RuntimeError, match="dtype"):  # as without a graph
        trained(changing(Reading, lambda loss: loss.network.double())())


def test_compiled_graph_notices_changed_tensor():
    """A graph that is called as traced has no copies, so this one is compiled."""
    both(changing(Reading, READ["tensor of a tuple"]))


def test_unread_attributes_need_no_graph(interpreted, warnings):
    class Recording(Distance):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.history: list[int] = []
            self.counts: dict[str, int] = {}
            self.latest: deque[int] = deque(maxlen=3)

        def end_batch(self, update: int) -> None:
            self.history.append(update)
            self.counts["updates"] = update
            self.latest.append(update)

    fused = both(lambda: {"loss": Recording(layer(), ADAM)}, (8,) * (update.LIMIT + 4))
    assert len(interpreted) == 1
    assert warnings() == []
    assert len(fused["loss"].history) == update.LIMIT + 4


def test_shared_tensor_may_split_later(interpreted):
    """What a batch and a module share may be two tensors the next time."""

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

    class Weighted(Distance):
        def loss(self, x: Tensor, y: Tensor, w: Tensor) -> Any:  # type: ignore[override]
            return w * super().loss(x, y)

    def make():
        network = Holding()
        loss, change = Weighted(network, ADAM), changed(0, lambda: network.w.mul_(0.5))
        return {"give": Giving(network), "loss": loss, "change": change}

    both(make)
