"""Large products of a compiled graph go to oneDNN, with results that differ by rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlrun.compile import graph, matmul
from rlrun.nn import fast_linear

SIDE = 120  # a product of three such sides is large


@pytest.fixture
def onednn() -> Any:
    before = fast_linear.in_use()
    if fast_linear.use("onednn") != "onednn":
        pytest.skip("torch is built without oneDNN")
    yield
    fast_linear.use(before)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def calls(module: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("bias", [(), (SIDE,), (1, SIDE), (SIDE, SIDE)])
def test_product_of_matrices(onednn, bias):
    def function(x: Tensor, weight: Tensor, added: Tensor) -> list[Tensor]:
        return [torch.addmm(added, x, weight) if bias else x.t().mm(weight)]

    agrees(function, [numbers(SIDE, SIDE), numbers(SIDE, SIDE) + 1.0, numbers(*bias)], products=1)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("bias", [(), (1, SIDE), (SIDE, SIDE)])
def test_members_are_multiplied_one_by_one(onednn, members, bias):
    def function(x: Tensor, weight: Tensor, added: Tensor) -> list[Tensor]:
        return [torch.baddbmm(added, x, weight) if bias else x.transpose(1, 2).bmm(weight)]

    inputs = [numbers(members, SIDE, SIDE), numbers(members, SIDE, SIDE) + 1.0, numbers(members, *bias)]
    agrees(function, inputs, products=members)


def test_small_products_stay(onednn):
    small = [numbers(8, 8), numbers(8, 8), numbers(2, 8, 8)]
    agrees(lambda x, weight, stacked: [x.mm(weight), stacked.bmm(stacked)], small, products=0)


def test_double_precision_stays(onednn):
    inputs = [numbers(SIDE, SIDE).double(), numbers(SIDE, SIDE).double()]
    agrees(lambda x, weight: [x.mm(weight)], inputs, products=0)


def agrees(function: Any, inputs: list[Tensor], *, products: int) -> None:
    """Compare a function with its graph, in which so many products are oneDNN's and no large one is left."""
    module = graph.traced(function, inputs)
    kept = calls(module)
    matmul.use_onednn(module.graph)
    module.recompile()
    assert calls(module).count(matmul._operator()) == products
    if products:
        assert not {*calls(module)} & {*matmul.PRODUCTS}
    else:
        assert calls(module) == kept
    for result, exact in zip(module(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-4)


def test_compiled_code_calls_onednn_directly(onednn, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    inputs = [numbers(2, SIDE, SIDE), numbers(2, SIDE, SIDE), numbers(2, 1, SIDE)]

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        return [torch.baddbmm(bias, x, weight).relu().bmm(weight.transpose(1, 2))]

    module = graph.traced(function, inputs)
    run = graph.compiled(module, inputs, "cpu", sized=True)
    torch.testing.assert_close(run(*inputs)[0], function(*inputs)[0], rtol=1e-4, atol=1e-3)
    code = "".join(path.read_text() for path in Path(tmp_path).rglob("*.cpp"))
    assert code.count("aoti_torch_cpu__linear_pointwise(") == 4
    assert "custom_op_wrapper" not in code.split("call_impl")[-1]
