"""What is compiled of a graph differs from it by rounding alone, and on a GPU it is recorded once."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from rlrun.compile import backend, graph


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def calls(module: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(("outputs", "inputs", "turned"), [(40, 20, True), (20, 40, False), (40, 40, False)])
def test_gradients_of_few_inputs_are_turned(outputs, inputs, turned):
    gradient, x = numbers(16, outputs), numbers(16, inputs)
    module = graph.traced(lambda gradient, x: [gradient.t().mm(x)], [gradient, x])
    backend.turn_narrow(module.graph)
    module.recompile()
    product = next(node for node in module.graph.nodes if node.target is torch.ops.aten.mm.default)
    assert [*product.meta["val"].shape] == ([inputs, outputs] if turned else [outputs, inputs])
    result = module(gradient, x)[0]
    torch.testing.assert_close(result, gradient.t().mm(x))
    assert result.is_contiguous()  # as views that follow expect


def test_products_of_rows_are_not_turned():
    module = graph.traced(lambda x, weight: [x.mm(weight)], [numbers(40, 30), numbers(30, 20)])
    backend.turn_narrow(module.graph)
    assert calls(module) == [torch.ops.aten.mm.default]


NARROW = {  # shapes of x and of the weight
    "input": ((40, 1), (1, 30)),
    "inputs": ((40, 8), (8, 30)),
    "output": ((40, 30), (30, 1)),
    "outputs": ((40, 30), (30, 8)),
    "rows": ((8, 30), (30, 40)),
    "inputs of members": ((2, 40, 3), (2, 3, 30)),
    "outputs of members": ((2, 40, 30), (2, 30, 3)),
    "rows of members": ((2, 3, 30), (2, 30, 40)),
}


@pytest.mark.parametrize("stored", ["by rows", "by columns", "weight by columns"])
@pytest.mark.parametrize(("left", "right"), NARROW.values(), ids=NARROW)
def test_narrow_products_are_sums(left, right, stored):
    x, weight, bias = numbers(*left), numbers(*right) + 1.0, numbers(*left[:-2], 1, right[-1])
    x = x.mT.contiguous().mT if stored == "by columns" else x
    weight = weight if stored == "by rows" else weight.mT.contiguous().mT

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        return [x @ weight, torch.addmm(bias, x, weight) if x.dim() == 2 else torch.baddbmm(bias, x, weight)]

    module = graph.traced(function, [x, weight, bias])
    few_rows = left[-2] < 10 and stored != "by rows"  # of weights by columns, which sums would read with gaps
    products = {getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")}
    assert few_rows == bool({*calls(module)} & products)
    reference = function(x.double(), weight.double(), bias.double())
    for result, exact in zip(module(x, weight, bias), reference, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)
        assert result.is_contiguous()


@pytest.mark.parametrize("sides", [(9, 9, 9), (40, 0, 30)])
def test_other_products_are_no_sums(sides):
    rows, inner, columns = sides
    module = graph.traced(lambda x, weight: [x.mm(weight)], [numbers(rows, inner), numbers(inner, columns)])
    assert calls(module) == [torch.ops.aten.mm.default]


@pytest.mark.parametrize(("beta", "alpha"), [(2.0, 1.0), (1.0, 0.5)])
def test_narrow_layers_keep_their_factors(beta, alpha):
    def function(bias: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
        return [torch.addmm(bias, x, weight, beta=beta, alpha=alpha)]

    inputs = [numbers(30), numbers(40, 3), numbers(3, 30)]
    torch.testing.assert_close(graph.traced(function, inputs)(*inputs), function(*inputs))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_sums_are_single_precision(kind):
    module = graph.traced(lambda x: [x.mm(x)], [numbers(4, 4).to(kind)])
    assert calls(module) == [torch.ops.aten.mm.default]


@pytest.mark.skipif(sys.platform == "win32", reason="torch compiles no headers in advance there")
@pytest.mark.parametrize("mode", [0o700, 0o770, 0o707])
def test_headers_of_others_stay_out(mode, monkeypatch, tmp_path):
    """Torch keeps compiled headers where others can make a folder first; one that they write is code of theirs."""
    monkeypatch.setattr("torch._inductor.codecache._HEADER_DIR", str(tmp_path / "torch" / "headers"))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch").chmod(mode)
    settings = []

    def compile(*arguments: Any, options: Any, **others: Any) -> Any:
        settings.append(options["config_patches"])

    monkeypatch.setattr("torch._inductor.standalone_compile", compile)
    module = graph.traced(lambda x: [x + x], [numbers(3)])
    backend.compiled(module, [numbers(3)], "cpu", sized=True, own=0)
    assert settings[0].get("cpp_cache_precompile_headers", True) == (mode == 0o700)


class Recording:
    """Stands in for a CUDA graph: it repeats what was called while it was recorded, in the same tensors."""

    calls: list[Callable[[], None]]

    def replay(self) -> None:
        for call in self.calls:
            call()


@pytest.fixture
def recorder(monkeypatch) -> Callable[[Any], Any]:
    """Return a function that makes a function of (weight, x) as a GPU records it: it adds up x and the weight."""
    current: list[Recording] = []

    @contextmanager
    def record(recording: Recording, **options: Any) -> Iterator[None]:
        recording.calls = []
        current.append(recording)
        yield
        current.pop()

    def function(weight: Tensor, x: Tensor) -> list[Tensor]:
        result = torch.zeros_like(x)

        def kernel() -> None:
            weight.add_(1.0)
            torch.add(weight, x, out=result)

        current[-1].calls.append(kernel) if current else kernel()
        return [result]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return function


def test_recording_keeps_strides(recorder):
    update, x = backend.CudaGraph(recorder, own=1), torch.ones(2, 3)[:, :1]
    weight = torch.zeros(1)
    results = [update(weight, x)[0].tolist() for _ in range(3)]
    assert update._inputs[0].stride() == (3, 1)
    assert results == [[[2.0]] * 2, [[3.0]] * 2, [[4.0]] * 2]


def test_recording_is_replayed(recorder):
    update, weight = backend.CudaGraph(recorder, own=1), torch.zeros(2)
    inputs = [torch.full((2,), x) for x in (10.0, 20.0, 30.0, 40.0)]
    results = [update(weight, x)[0] for x in inputs]
    assert [x.tolist() for x in inputs] == [[10.0] * 2, [20.0] * 2, [30.0] * 2, [40.0] * 2]
    assert [result.tolist() for result in results] == [[11.0] * 2, [22.0] * 2, [33.0] * 2, [44.0] * 2]
    assert weight.tolist() == [4.0, 4.0]


def test_moved_weights_are_recorded_again(recorder):
    update, x = backend.CudaGraph(recorder, own=1), torch.zeros(1)
    first, second = torch.zeros(1), torch.full((1,), 100.0)
    results = [update(weight, x)[0].item() for weight in (first, first, second, second, second, first)]
    assert results == [1.0, 2.0, 101.0, 102.0, 103.0, 3.0]
    assert (first.item(), second.item()) == (3.0, 103.0)


def test_refused_recording_runs_plainly(recorder, monkeypatch, caplog):
    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    update, weight = backend.CudaGraph(recorder, own=1), torch.zeros(1)
    with caplog.at_level("WARNING", "rlrun"):
        results = [update(weight, torch.zeros(1))[0].item() for _ in range(4)]
    assert results == [1.0, 2.0, 3.0, 4.0]
    assert [record.getMessage() for record in caplog.records] == [
        "compile: kernels are started one by one: operation not permitted when stream is capturing"
    ]


class OnGpu:
    is_cuda = True


@pytest.mark.parametrize(
    ("inputs", "sized", "recorded"),
    [([OnGpu()], True, True), ([OnGpu(), torch.zeros(1)], True, False), ([OnGpu()], False, False), ([], True, False)],
)
def test_numbers_of_the_host_are_not_recorded(inputs, sized, recorded, monkeypatch):
    monkeypatch.setattr("torch._inductor.standalone_compile", lambda module, values, **options: module)
    module = graph.traced(lambda x: [x + 1.0], [torch.zeros(1)])
    run = backend.compiled(module, inputs, "cuda", sized=sized, own=0)
    assert isinstance(run, backend.CudaGraph) == recorded


def test_signals_do_not_reach_the_compiler(monkeypatch):
    code = "import signal; print(*(number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    blocked: list[str] = []

    def compile(module: Any, values: Any, **options: Any) -> Any:
        blocked.append(subprocess.check_output([sys.executable, "-c", code], text=True).strip())
        return module

    monkeypatch.setattr("torch._inductor.standalone_compile", compile)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    module = graph.traced(lambda x: [x + 1.0], [torch.zeros(1)])
    backend.compiled(module, [torch.zeros(1)], "cpu", sized=True, own=0)
    assert {"SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"} <= {*blocked[0].split()}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
