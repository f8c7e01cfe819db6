from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rlrun.compile.products import by_numpy


def product(left, right):
    return left @ right


def shifted(bias, left, right):
    return torch.addmm(bias, left, right) if left.dim() == 2 else torch.baddbmm(bias, left, right)


@pytest.mark.parametrize("lead", [(), (1,), (3,)], ids=["plain", "one member", "members"])
@pytest.mark.parametrize("turned", [False, True])
def test_numpy_computes_matrix_products(lead, turned):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*lead, *shape, generator=generator) for shape in ((5, 4), (4, 6)))
    if turned:
        left = left.mT.contiguous().mT
    bias = torch.randn(*lead, *(1,) * len(lead), 6, generator=generator)
    for function, inputs in ((product, (left, right)), (shifted, (bias, left, right))):
        module = make_fx(function)(*inputs)
        by_numpy(module.graph)
        module.recompile()
        assert "rlrun" in module.code
        torch.testing.assert_close(module(*inputs), function(*inputs))


def test_other_products_stay_unchanged():
    half = torch.ones(2, 2, dtype=torch.bfloat16)
    module = make_fx(product)(half, half)
    by_numpy(module.graph)
    assert "rlrun" not in module.code
