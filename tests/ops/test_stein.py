"""Kernels, drifts and scores of particles, by numbers worked by hand, closed forms and autograd."""

import math

import pytest
import torch

from rlrun.ops import stein

LINE = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)  # U = x² / 2, so that its gradient is x


def points(rows, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, dtype=torch.float64, generator=generator)


def width(values):
    return stein.kernel_width(stein.squared_distances(values, values))


def test_width_is_the_lower_median():
    assert float(width(LINE)) == pytest.approx(1.0 / math.log(3.0))  # of 0 0 0 1 1 4 4 9 9
    assert float(width(torch.ones(4, 2))) == 1.0
    assert float(width(torch.ones(1, 2))) == 1.0


def test_drifts_of_three_particles():
    h = width(LINE)
    svgd = stein.svgd_drift(LINE, LINE, LINE, h, 1.0)
    gfsf = stein.gfsf_drift(LINE, LINE, h, 1.0)
    assert svgd.flatten().tolist() == pytest.approx([0.355410, 0.119627, 0.985919], abs=1e-6)
    assert gfsf.flatten().tolist() == pytest.approx([1.078293, -0.036967, 2.958164], abs=1e-6)


@pytest.mark.parametrize("weight", [0.0, 1.0, 0.3])
def test_svgd_equals_autograd(weight):
    targets, sources, slope, h = points(5, 3), points(7, 3, 1), points(7, 3, 2), torch.tensor(1.7)
    expected = torch.zeros_like(targets)
    for i, target in enumerate(targets):
        for j, source in enumerate(sources):
            leaf = source.clone().requires_grad_()
            kernel = (-(leaf - target).square().sum() / h).exp()
            (repulsion,) = torch.autograd.grad(kernel, leaf)
            expected[i] += (kernel.detach() * slope[j] - weight * repulsion) / len(sources)
    torch.testing.assert_close(stein.svgd_drift(targets, sources, slope, h, weight), expected, atol=1e-6, rtol=0)


def test_pairs_are_single_sources():
    targets, sources, slope, h = points(4, 2), points(4, 2, 1), points(4, 2, 2), torch.tensor(0.8)
    rows = zip(targets.split(1), sources.split(1), slope.split(1), strict=True)
    expected = torch.cat([stein.svgd_drift(*row, h, 0.7) for row in rows])
    torch.testing.assert_close(stein.paired_svgd_drift(targets, sources, slope, h, 0.7), expected, atol=1e-6, rtol=0)


def test_score_solves_steins_identity():
    values, h, ridge = points(6, 2), torch.tensor(2.0), 1e-3
    matrix = stein.rbf(stein.squared_distances(values, values), h) + ridge * torch.eye(6)
    right = torch.stack([sum(2.0 / h * (x - y) * (-(x - y).square().sum() / h).exp() for y in values) for x in values])
    torch.testing.assert_close(matrix @ stein.kernel_score(values, h, ridge), -right, atol=1e-6, rtol=0)


def test_slope_of_the_kernel():
    sources, targets, h = points(3, 2).requires_grad_(), points(4, 2, 1), torch.tensor(1.3)
    kernel, slope = stein.kernel_slope(sources, targets, h)
    assert kernel.shape == (3, 4)
    for i in range(4):
        (expected,) = torch.autograd.grad(kernel[:, i].sum(), sources, retain_graph=True)
        torch.testing.assert_close(slope[:, i].detach(), expected, atol=1e-6, rtol=0)


def test_gpvi_of_the_identity_is_svgd():
    values, others, slope, h = points(5, 2), points(6, 2, 1), points(6, 2, 2), torch.tensor(1.1)
    kernel, product = stein.kernel_slope(others, values, h)  # J = I
    drift = stein.gpvi_drift(kernel, slope, product, 0.6)
    torch.testing.assert_close(drift, stein.svgd_drift(values, others, slope, h, 0.6), atol=1e-6, rtol=0)


def test_best_critic_is_the_stein_drift():
    values = points(100_000, 1)  # q standard normal; U = x² / 8, so that f = -(x / 4 - x) / 2λ is a line
    slopes = torch.linspace(0.0, 0.3, 61, dtype=torch.float64)
    losses = [
        stein.stein_critic_loss(a * values, values / 4.0, a.expand(len(values)), 1.0, l2=3.0).mean() for a in slopes
    ]
    best = float(slopes[torch.stack(losses).argmin()])
    assert best == pytest.approx(0.75 / 6.0, abs=0.006)
