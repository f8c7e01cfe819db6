"""Phases of an update come in one order, hook by hook and in a graph: loss, gradients, clip, step, buffers, targets."""

from functools import partial
from typing import Any

import pytest
import torch
from tests.compile.comparison import ADAM, SGD, Batches, Distance, Target, tensors
from torch import Tensor, nn

from rlrun.callbacks import JointLoss
from rlrun.compile import FusedUpdate
from rlrun.core.schedules import Linear
from rlrun.nn import grouped
from rlrun.training.callback import Callback
from rlrun.training.metrics import as_numbers
from rlrun.training.trainer import Trainer


class Counting(nn.Module):
    """A layer beside the mean of its inputs and a count of updates."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - self.mean)


class Writes(Distance):
    """Counts updates and follows the mean of inputs."""

    def loss(self, x: Tensor, y: Tensor) -> Any:
        own = self.network
        updates = {"network.seen": own.seen + 1.0, "network.mean": own.mean.lerp(x.mean(0), 0.1)}
        return super().loss(x, y), {"updates": updates}, {"own/before": own.seen.clone()}


class Reads(Distance):
    """Learns beside another network, whose buffers it reads."""

    def __init__(self, network: nn.Module, read: Any, *given: Any, **options: Any) -> None:
        super().__init__(network, *given, **options)
        self.read = read

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return super().loss(x, y + self.read.mean.sum()), {}, {"own/seen": self.read.seen.clone()}


class Bootstraps(Target):
    """Reads the buffers of the network, which a loss writes later in the update."""

    def target(self, x: Tensor, y: Tensor) -> Any:
        value = self.target_network(x).squeeze(-1) + self.network.seen
        return {"y": 0.5 * y + 0.01 * value}, {"own/seen_by_target": self.network.seen.clone()}


class Keeps(Callback):
    """Records a buffer after each update, as an agent reads it."""

    data_group = "default"

    def __init__(self, network: Any) -> None:
        self.network, self.history = network, []

    def end_batch(self) -> None:
        self.history.append((float(self.network.seen), self.network.mean.tolist()))


def writer_and_reader() -> dict[str, Callback]:
    first, second = Counting(), Counting()
    return {"write": Writes(first, ADAM), "read": Reads(second, first, SGD), "keep": Keeps(first)}


def reader_before_writer() -> dict[str, Callback]:
    first, second = Counting(), Counting()
    return {"read": Reads(second, first, SGD), "write": Writes(first, ADAM), "keep": Keeps(first)}


def two_writers() -> dict[str, Callback]:
    network = Counting()
    other = nn.ModuleDict({"own": nn.Linear(3, 1)})

    class Also(Distance):
        def __init__(self) -> None:
            super().__init__(other, SGD)
            self.shared = network

        def loss(self, x: Tensor, y: Tensor) -> Any:
            loss = (other["own"](x).squeeze(-1) - y - self.shared.seen).square()
            return loss, {"updates": {"shared.seen": 2.0 * self.shared.seen}}, {}

    return {"write": Writes(network, ADAM), "also": Also(), "keep": Keeps(network)}


def targets_and_delays(*, pace: int = 2) -> dict[str, Callback]:
    network, policy = Counting(), Counting()
    return {
        "target": Bootstraps(network, tau=0.3, every=pace),
        "critic": Writes(network, ADAM, max_grad_norm=0.1, schedule=Linear(first=0.1, last=0.0, steps=40)),
        "policy": Reads(policy, network, ADAM, every=2 * pace - 1, max_grad_norm=0.2, grad_clip="adaptive"),
        "jump": Target(policy, tau=1.0, every=pace),
        "keep": Keeps(network),
    }


def joint() -> dict[str, Callback]:
    first, second = Counting(), Counting()
    terms = {"write": Writes(first, None), "read": Reads(second, first, None)}
    return {
        "joint": JointLoss(ADAM, terms=terms, loss_weight={"read": 0.5}, max_grad_norm=0.5),
        "later": Reads(Counting(), first, SGD),
        "keep": Keeps(first),
    }


def groups_of_parameters() -> dict[str, Callback]:
    network = Counting()
    chosen = {"biases": {"names": ["bias"], "lr": 0.05, "weight_decay": 0.1}}
    optimizer = partial(grouped, optimizer=partial(torch.optim.AdamW, lr=0.01), weight_decay=0.0, groups=chosen)
    return {"write": Writes(network, optimizer), "keep": Keeps(network)}


def held_out() -> dict[str, Callback]:
    network = Counting()
    return {"held": Writes(network, None), "learn": Reads(network, network, SGD), "keep": Keeps(network)}


class Alternates(Distance):
    by_turns = True


def alternating() -> dict[str, Callback]:
    """Two optimizers step the same parameters, each at a pace of its own."""
    network = Counting()
    first, second = Writes(network, ADAM), Alternates(network, SGD, every=3)
    first.by_turns = second.by_turns = True
    return {"first": first, "second": second, "keep": Keeps(network)}


MAKERS = (
    *(writer_and_reader, reader_before_writer, two_writers, targets_and_delays, joint),
    *(groups_of_parameters, held_out, alternating),
)


def run(make: Any, *, compile: bool) -> Any:
    callbacks = make()
    Trainer(callbacks, Batches(*(8,) * 50), fuse=FusedUpdate(compile, "cpu")).train()
    return callbacks


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_graph_makes_the_phases_of_hooks(make, double, interpreted, warnings):
    eager, fused = run(make, compile=False), run(make, compile=True)
    assert interpreted
    assert warnings() == []
    for name, callback in fused.items():
        other = eager[name]
        for ours, theirs in zip(tensors(callback), tensors(other), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
        assert getattr(callback, "turns", 0) == getattr(other, "turns", 0)
        assert getattr(callback, "updates", 0) == getattr(other, "updates", 0)
        assert as_numbers(callback.metrics) == pytest.approx(as_numbers(other.metrics), rel=1e-8, abs=1e-10)
    assert fused["keep"].history == eager["keep"].history  # buffers exactly


@pytest.mark.parametrize("compile", [False, True])
def test_buffer_is_written_before_a_later_loss_reads_it(compile, interpreted):
    callbacks = run(writer_and_reader, compile=compile)
    assert as_numbers(callbacks["read"].metrics)["own/seen"] == 50.0
    assert as_numbers(callbacks["write"].metrics)["own/before"] == 49.0


@pytest.mark.parametrize("compile", [False, True])
def test_buffer_of_no_module_is_written_too(compile, interpreted, warnings):
    class Plain(Distance):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.total = torch.zeros(())

        def loss(self, x: Tensor, y: Tensor) -> Any:
            return super().loss(x, y), {"updates": {"total": self.total + 1.0}}, {}

    class After(Distance):
        def loss(self, x: Tensor, y: Tensor) -> Any:
            return super().loss(x, y), {}, {"own/total": self.before.total.clone()}

    def make() -> dict[str, Callback]:
        plain, after = Plain(nn.Linear(3, 1), SGD), After(nn.Linear(3, 1), SGD)
        after.before = plain
        return {"plain": plain, "after": after}

    callbacks = run(make, compile=compile)
    assert float(callbacks["plain"].total) == as_numbers(callbacks["after"].metrics)["own/total"] == 50.0
    if compile:
        assert "callbacks.plain.loss: it updates 'total', which is not a buffer of a module" in warnings()[0]


def test_compiled_graph_writes_buffers_at_their_phase(double):
    """This one is compiled, so that the compiler's own order of writes counts."""
    make = partial(targets_and_delays, pace=1)
    eager, fused = run(make, compile=False), run(make, compile=True)
    for name, callback in fused.items():
        for ours, theirs in zip(tensors(callback), tensors(eager[name]), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    assert [seen for seen, _ in fused["keep"].history] == [seen for seen, _ in eager["keep"].history]
