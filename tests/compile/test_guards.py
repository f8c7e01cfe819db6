"""Whatever a graph takes for granted is compared before each update."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile import comparison
from tests.compile.comparison import ADAM, Distance, both, changed, layer, trained
from torch import Tensor, nn

from rlrun.callbacks.diagnostics.parameters import module_outputs
from rlrun.compile import update
from rlrun.training.callback import Callback


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = layer(), nn.ReLU()
        self.register_buffer("factor", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.inner(x) + 2.0) * self.factor * (1.0 if self.training else 0.5)


class Reading(Distance):
    """Reads a tensor that is not a buffer."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kept = (torch.ones(()),)

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y) * self.kept[0]


def reload_optimizer(loss: Any) -> None:
    loss.optimizer.load_state_dict(loss.optimizer.state_dict())


def restride(weight: Tensor) -> None:
    weight.data = weight.data.clone().as_strided(weight.shape, (1, 1))


CHANGES: dict[str, tuple[Callable[[Any], object], int]] = {  # and how many graphs there are then
    "storage": (lambda loss: nn.utils.vector_to_parameters(torch.full((4,), 0.5), loss.network.parameters()), 1),
    "outputs of modules": (lambda loss: module_outputs(loss, {"x": torch.ones(2, 3), "y": torch.ones(2)}), 1),
    "number of a buffer": (lambda loss: loss.network.factor.fill_(-1.0), 1),
    "buffer": (lambda loss: setattr(loss.network, "factor", -torch.ones(())), 2),
    "mode of a module": (lambda loss: loss.network.eval(), 2),
    "hook of a module": (
        lambda loss: loss.network.inner.register_forward_hook(lambda module, inputs, output: -output),
        2,
    ),
    "betas": (lambda loss: loss.optimizer.param_groups[0].update(betas=(0.5, 0.9)), 2),
    "optimizer state": (reload_optimizer, 2),
    "cleared optimizer state": (lambda loss: loss.optimizer.state.clear(), 2),
    "strides": (lambda loss: restride(loss.network.inner.weight), 2),
    # these end the use of graphs
    "parameter": (lambda loss: setattr(loss.network.inner, "weight", nn.Parameter(torch.ones(1, 3))), 1),
    "optimizer option": (lambda loss: loss.optimizer.param_groups[0].update(maximize=True), 1),
    "step hook": (
        lambda loss: loss.optimizer.register_step_post_hook(lambda *_: loss.network.inner.bias.data.zero_()),
        1,
    ),
    "gradient hook": (lambda loss: loss.network.inner.weight.register_hook(lambda gradient: 0.0 * gradient), 1),
    "tensor of a tuple": (lambda loss: loss.kept[0].mul_(-1.0), 1),
}


def changing(change: Any) -> Any:
    def make() -> dict[str, Callback]:
        loss = Reading(Scaled(), ADAM)
        return {"loss": loss, "change": changed(3, lambda: change(loss))}

    return make


@pytest.mark.parametrize(("change", "graphs"), CHANGES.values(), ids=CHANGES)
def test_change_of_inputs_is_noticed(change, graphs, interpreted):
    both(changing(change), (8,) * 8)
    assert len(interpreted) == graphs


def test_change_of_dtype_fails_alike(interpreted):
    with pytest.raises(RuntimeError, match="dtype"):  # as without a graph
        trained(changing(lambda loss: loss.network.double())())


class Strided(comparison.Batches):
    """Rows have a stride from the fourth batch on."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            group = batch["default"]
            yield {"default": group if number < 3 else {**group, "y": torch.stack([group["y"]] * 2, 1)[:, 0]}}


def test_compiled_graph_takes_strided_rows_and_notices_changed_tensor(monkeypatch):
    """This one is compiled: a graph that is called as traced bears any stride, and has no copies."""

    def make() -> dict[str, Callback]:
        loss = Reading(Scaled(), ADAM)
        return {"loss": loss, "change": changed(6, lambda: loss.kept[0].mul_(-1.0))}

    monkeypatch.setattr(comparison, "Batches", Strided)
    both(make, (8,) * 8)


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
