"""An update as one graph gives what its hooks give one by one."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compile.comparison import ADAM, SGD, Batches, Distance, Target, both, layer, tensors, trained
from torch import Tensor, nn

from rlrun.callbacks import JointLoss, Schedule
from rlrun.compile import FusedUpdate, backend, graph
from rlrun.compile.update import Region
from rlrun.core.errors import ConfigError, WiringError
from rlrun.core.schedules import Linear
from rlrun.memory import JointLoader
from rlrun.nn import grouped
from rlrun.training.callback import Callback
from rlrun.training.metrics import Histogram, Image, Text, as_numbers
from rlrun.training.plan import HookCall
from rlrun.training.trainer import Trainer
from rlrun.training.update import Hooks


def test_scheduled_numbers_are_no_constants(interpreted):
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


class Weights(Callback):
    """Weights of the three steps of each row's window; those of the first row are padding but for one."""

    data_group = "default"
    provides = ("weight",)

    def begin_batch(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        weight = 0.5 * torch.arange(3.0 * len(x)).reshape(len(x), 3)
        weight[0, 1:] = 0.0
        return {"weight": weight}


def test_windows_are_weighted_alike(interpreted, warnings):
    both(lambda: {"weights": Weights(), "loss": Distance(layer(), ADAM)}, (8, 8, 3, 3, 8))
    assert interpreted
    assert warnings() == []


def test_loss_of_other_elements_is_refused_alike(interpreted):
    class Folded(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            return super().loss(x, y)[:2]

    with pytest.raises(WiringError, match=r"callbacks\.loss\.loss: its shape is \[2\]"):
        trained({"weights": Weights(), "loss": Folded(layer(), ADAM)}, compile=True)


def test_counts_are_no_constants(interpreted, warnings):
    class Fading(Distance):
        def loss(self, x: Tensor, y: Tensor, update: int) -> Any:  # type: ignore[override]
            return (1.0 - 0.9999**update) * super().loss(x, y)

    both(lambda: {"loss": Fading(layer(), SGD)}, (8,) * 20)
    assert len(interpreted) == 1
    assert warnings() == []


@pytest.mark.parametrize(("device", "kind"), [("cpu", torch.float64), ("mps:0", torch.float32)])
def test_counts_are_of_a_kind_of_the_device(device, kind, monkeypatch):
    monkeypatch.setattr(torch, "tensor", lambda value, **options: (value, options))
    callback = Distance(layer(), ADAM)
    step = HookCall(callback, "backward", "loss", {"update": "update"}, {}, callback.loss)
    region = Region(Hooks([step], {id(callback): True}), FusedUpdate(False, device))
    assert region._values({"update": 7}) == [(7, {"dtype": kind, "device": device})]


def test_count_may_be_a_size(interpreted, warnings):
    class Rows(Callback):
        data_group = "default"
        provides = ("rows",)

        def begin_batch(self, update: int) -> dict[str, int]:  # type: ignore[override]
            return {"rows": 3 if update < 4 else 5}

    class First(Distance):
        def loss(self, x: Tensor, y: Tensor, rows: int) -> Any:  # type: ignore[override]
            return super().loss(x[:rows], y[:rows])

    both(lambda: {"rows": Rows(), "loss": First(layer(), ADAM)})
    assert len(interpreted) == 2
    assert warnings() == []


@pytest.mark.parametrize(
    ("sizes", "graphs"),
    [
        ((8, 7, 8, 5, 6, 9, 7), 2),
        ((4, 5, 1, 6, 1), 3),  # a batch of one row has a graph of its own
        (((8, 4), (7, 4), (7, 5), (6, 5), (6, 4)), 3),  # so has a second size that changes later
    ],
)
def test_one_graph_serves_many_sizes(sizes, graphs, interpreted):
    both(lambda: {"loss": Distance(layer(), ADAM, max_grad_norm=0.1)}, sizes)
    assert len(interpreted) == graphs


class Mixed(Batches):
    """Yields whole numbers of another type every other time."""

    def __iter__(self) -> Iterator[dict[str, dict[str, Tensor]]]:
        for number, batch in enumerate(super().__iter__()):
            x, y = batch["default"].values()
            yield {"default": {"x": x, "y": y.long() if number % 2 else y}}


def test_types_need_graphs_of_their_own(interpreted, monkeypatch):
    monkeypatch.setattr("tests.compile.comparison.Batches", Mixed)
    both(lambda: {"loss": Distance(layer(), ADAM)})
    assert len(interpreted) == 2


@pytest.mark.parametrize(
    ("shapes", "allowed"),
    [
        (((8, 3), (8,)), True),
        (((9, 3), (8,)), False),  # they were of one size
        (((8, 4), (8,)), False),  # which never varied
        (((1, 3), (1,)), False),  # torch broadcasts it
        (((30, 3), (30,)), False),  # the function's other case
    ],
)
def test_graph_keeps_to_its_sizes(shapes, allowed):
    sizes = graph.Sizes([torch.zeros(4, 3), torch.zeros(4)], [[0], [0]])
    graph.traced(lambda x, y: [x.sum(-1) + y if x.shape[0] < 20 else y], [], sizes)
    assert sizes.allow(tuple(map(torch.Size, shapes))) is allowed


class Packed(Batches):
    """Yields columns of packed rows, and every other time columns of their own."""

    def __iter__(self) -> Iterator[dict[str, dict[str, Tensor]]]:
        for number, batch in enumerate(super().__iter__()):
            x, y = batch["default"].values()
            rows = torch.cat((x, torch.zeros(len(x), 2), y[:, None]), 1)
            yield {"default": {"x": rows[:, :3], "y": rows[:, -1]}} if number % 2 else batch


def test_strides_need_no_graph_of_their_own(interpreted, monkeypatch):
    monkeypatch.setattr("tests.compile.comparison.Batches", Packed)
    both(lambda: {"loss": Distance(layer(), ADAM)})
    assert len(interpreted) == 1


def test_tanh_of_a_graph_is_exact():
    x = torch.linspace(-12.0, 12.0, 2001)
    (result,) = graph.traced(lambda x: [x.tanh()], [x])(x)
    torch.testing.assert_close(result.double(), x.double().tanh(), rtol=0.0, atol=3e-7)


def test_inputs_have_strides_of_the_graph():
    rows = torch.arange(12.0).reshape(3, 4)
    part, wide = rows[:, 1:3], rows[:, :1].expand(3, 2)
    tensors = graph.laid_out([part, part, part.contiguous(), wide, wide], [(4, 1), None, (4, 1), (4, 0), (2, 1)])
    assert tensors[0] is part
    assert [tensor.stride() for tensor in tensors] == [(4, 1), (2, 1), (4, 1), (4, 0), (2, 1)]
    assert all(tensor.equal(part) for tensor in tensors[:3])
    assert all(tensor.equal(wide) for tensor in tensors[3:])


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_target_network_moves_when_due(interpreted, tau):
    def make():
        network = layer()
        return {"target": Target(network, tau=tau, every=2), "loss": Distance(network, ADAM)}

    both(make)
    assert len(interpreted) == 2  # with a move and without


class Encoding(Callback):
    data_group = "default"
    provides = ("z",)

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder

    def begin_batch(self, x: Tensor) -> dict[str, Tensor]:
        return {"z": self.encoder(x).relu()}


class OfEncoded(Distance):
    def loss(self, z: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        return (self.network[1](z).squeeze(-1) - y).square()


def test_gradient_from_outside_runs_without_graph(interpreted, warnings):
    def make():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        return {"encode": Encoding(network[0]), "loss": OfEncoded(network, ADAM)}

    fused = both(make)
    torch.manual_seed(0)
    assert not torch.equal(fused["loss"].network[0].weight, nn.Linear(3, 4).weight)
    assert ["has a gradient" in message or "with a gradient" in message for message in warnings()] == [True]


def test_summed_parameters_have_own_gradients(interpreted):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.offset = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ (self.base + self.offset)).unsqueeze(-1)

    both(lambda: {"loss": Distance(Sum(), ADAM, max_grad_norm=0.01)})


def test_metrics_may_be_no_numbers(interpreted):
    class Spread(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            loss = super().loss(x, y)
            kinds = {
                "own/spread": Histogram([loss.mean(), loss.amax()]),
                "own/view": Image(loss.reshape(1, -1)),
                "own/note": Text("new"),
            }
            return loss, {}, {**kinds, "windowed[3]:own/loss": loss}

    plain, fused = (
        trained({"loss": Spread(layer(), ADAM)}, compile=fuse).callbacks["loss"].metrics for fuse in (False, True)
    )
    assert len(interpreted) == 1
    numbers = as_numbers(fused)
    assert numbers == pytest.approx(as_numbers(plain), rel=1e-4)
    assert {"own/spread/q50", "own/loss", "own/loss/cumulative"} <= numbers.keys()
    torch.testing.assert_close(fused["own/view"].pixels, plain["own/view"].pixels, rtol=1e-4, atol=1e-6)
    assert fused["own/note"] == Text("new")


GROUPS = {"weights": {"names": ["weight"], "weight_decay": 0.1, "lr": 0.02, "betas": (0.5, 0.9)}}
OWN = {"weights": {"names": ["weight"], "optimizer": partial(SGD, momentum=0.9)}}
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": partial(SGD, momentum=0.9, weight_decay=0.1),
    "adam": partial(ADAM, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1, fused=True),
    "groups": partial(grouped, optimizer=partial(torch.optim.AdamW, lr=0.01), weight_decay=0.0, groups=GROUPS),
    "several": partial(grouped, optimizer=partial(torch.optim.AdamW, lr=0.01), groups=OWN),
    "momenta": partial(grouped, optimizer=SGD, groups={"weights": {"names": ["weight"], "momentum": 0.9}}),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_equal_those_of_torch(optimizer, interpreted):
    def make():
        return {"loss": Distance(layer(), optimizer, max_grad_norm=1.0)}

    fused, eager = both(make)["loss"], trained(make(), compile=False).callbacks["loss"]
    assert len(interpreted) == 1
    states = [loss.optimizer.state_dict()["state"] for loss in (fused, eager)]
    assert states[0].keys() == states[1].keys()
    for ours, theirs in zip(states[0].values(), states[1].values(), strict=True):
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value)
    assert as_numbers(fused.metrics) == pytest.approx(as_numbers(eager.metrics), rel=1e-4)


def test_joint_losses_are_one_graph(interpreted):
    def make():
        terms = {"near": Distance(layer(), None), "far": Distance(layer(), None)}
        return {"loss": JointLoss(ADAM, terms=terms, loss_weight={"far": 0.5}, max_grad_norm=1.0)}

    fused, eager = both(make)["loss"], trained(make(), compile=False).callbacks["loss"]
    assert len(interpreted) == 1
    assert as_numbers(fused.metrics) == pytest.approx(as_numbers(eager.metrics), rel=1e-4)
    assert fused.metrics["loss/loss"] == pytest.approx(1.5 * fused.metrics["loss/near"])


def test_groups_at_rates_have_their_graphs(interpreted):
    def run(compile):
        network, further = layer(), layer()
        callbacks = {
            "target": Target(network, tau=0.5),
            "loss": Distance(network, ADAM),
            "held": Distance(network, None),
            "slow": Target(further, tau=0.1, data_group="more"),
            "more": Distance(further, ADAM, data_group="more"),
        }
        more = {"loader": Batches(*(8,) * 9, group="more"), "times": 2}
        loader = JointLoader(default={"loader": Batches(*(8,) * 6)}, more=more)
        Trainer(callbacks, loader, fuse=FusedUpdate(compile, "cpu")).train()
        return callbacks

    fused, eager = run(True), run(False)
    assert [fused[name].turns for name in fused] == [5, 5, 5, 9, 9]
    assert len(interpreted) == 5  # targets and losses of two groups, and all of `more` where it is alone
    for name, callback in fused.items():
        torch.testing.assert_close(tensors(callback), tensors(eager[name]), rtol=1e-5, atol=1e-6)
    assert as_numbers(fused["held"].metrics) == pytest.approx(as_numbers(eager["held"].metrics), rel=1e-4)


def test_unreached_parameters_stay(interpreted):
    class Half(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            return (x @ self.network.weight[0] - y).square()

    fused = both(lambda: {"loss": Half(layer(), ADAM, max_grad_norm=1.0)})
    loss = fused["loss"]
    assert [len(loss.optimizer.state[parameter]) for parameter in loss.parameters] == [3, 0]
    assert loss.network.bias.grad is None


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        (None, r"compile=true: updates on a CPU need a C\+\+ compiler"),
        ("clang++", r"there is no 'g\+\+' here; CXX may name another one"),
    ],
)
def test_missing_compiler_is_refused(compiler, message, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: name if name == compiler else None)
    with pytest.raises(ConfigError, match=message):
        FusedUpdate(True, "cpu")
    FusedUpdate(False, "cpu")
    if compiler:
        monkeypatch.setenv("CXX", compiler)
        FusedUpdate(True, "cpu")


def test_compiled_code_belongs_to_processor(monkeypatch, tmp_path):
    """Code made for one that has more instructions would be the end of a run on one that has less."""
    monkeypatch.setattr("rlrun.core.user_cache.folder", lambda: tmp_path)
    folders = []
    for flags in ("avx2 avx512f avx512_bf16", "avx2 avx512f", "avx2 avx512f"):
        monkeypatch.setattr(
            Path, "read_text", lambda self, errors, flags=flags: f"model name\t: A\nflags\t\t: {flags}\n"
        )
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        backend.keep_compiled()
        folders.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    assert folders[0] != folders[1] == folders[2]
    assert {folder.parent for folder in folders} == {tmp_path / "compiled"}


@pytest.mark.skipif(os.name != "posix", reason="no modes of files")
@pytest.mark.parametrize("fault", [None, "writable", "full", "no home", "a space", "a quote'", "a\nline"])
def test_compiled_code_stays_private(fault, monkeypatch, tmp_path, warnings):
    def folder() -> Path:
        if fault == "no home":
            raise RuntimeError(fault)
        return tmp_path / (fault if fault and fault.startswith("a") else "rlrun")

    clean_up: list[Any] = []
    monkeypatch.setattr("rlrun.core.user_cache.folder", folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(
        "rlrun.compile.backend.Finalize", lambda _, call, args, exitpriority: clean_up.append((call, args))
    )
    (tmp_path / "tmp").mkdir()
    if fault == "writable":
        (tmp_path / "rlrun").mkdir()
        (tmp_path / "rlrun").chmod(0o777)
    if fault == "full":
        (tmp_path / "rlrun").write_text("")  # no folder can be made there
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    backend.keep_compiled()
    place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert place.stat().st_mode & 0o777 == 0o700
    assert place.is_relative_to(tmp_path / ("tmp" if fault else "rlrun"))
    lines = warnings()
    assert [line.split(":")[1].strip() for line in lines] == ["compiled code is not kept"] * bool(fault)
    for call, args in clean_up:
        call(*args)
    assert place.exists() != bool(fault)


def test_own_folder_of_compiled_code_counts(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend.keep_compiled()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
