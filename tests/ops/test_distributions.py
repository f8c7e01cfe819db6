import math

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rlrun.ops import squashed_log_prob, squashed_sample, tanh_log_slope
from rlrun.ops.distributions import GAUSSIANS


def parts(count=64, size=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(count, size, generator=generator) for _ in range(3)]


def reference(mean, log_std):
    return TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)])


def test_sample_has_the_density_of_torch():
    mean, log_std, noise = (0.5 * part.double() for part in parts())  # torch loses digits by atanh far out
    action, log_prob = squashed_sample(mean, log_std, noise)
    torch.testing.assert_close(log_prob, reference(mean, log_std).log_prob(action), atol=1e-5, rtol=0)


def test_given_action_has_torchs_density():
    mean, log_std, noise = parts()
    action = torch.tanh(noise)
    torch.testing.assert_close(
        squashed_log_prob(mean, log_std, action), reference(mean, log_std).log_prob(action), atol=1e-4, rtol=1e-5
    )


def test_slope_is_finite_far_out():
    value = torch.tensor([-50.0, 0.0, 50.0], requires_grad=True)
    slope = tanh_log_slope(value)
    slope.sum().backward()
    torch.testing.assert_close(slope.detach(), torch.tensor([2 * math.log(2) - 100, 0.0, 2 * math.log(2) - 100]))
    torch.testing.assert_close(value.grad, torch.tensor([2.0, 0.0, -2.0]))


def test_density_at_bounds_is_finite():
    zero = torch.zeros(1, 1)
    assert torch.isfinite(squashed_log_prob(zero, zero, torch.ones(1, 1))).all()


@pytest.mark.parametrize(("mean", "log_std"), [(0.3, -1.0), (2.0, 0.5), (-3.0, -3.0), (0.0, 2.0)])
def test_truncated_normal_equals_sums_over_its_density(mean, log_std):
    truncated, points = GAUSSIANS["truncated"], torch.linspace(-1, 1, 20_001, dtype=torch.float64).unsqueeze(-1)

    def total(values):
        return torch.trapezoid(values, points.squeeze(-1))

    location, deviation = math.tanh(mean), math.exp(log_std)
    height = (-0.5 * ((points.squeeze(-1) - location) / deviation) ** 2).exp()
    density = height / total(height)
    here, there = (
        [torch.full_like(points, value) for value in those] for those in ((mean, log_std), (mean + 0.4, log_std - 0.3))
    )
    log_prob, other = truncated.log_prob(*here, points), truncated.log_prob(*there, points)
    torch.testing.assert_close(log_prob.exp(), density, rtol=1e-5, atol=1e-9)
    divergence = total(density * (log_prob - other))
    torch.testing.assert_close(truncated.divergence(*here, *there)[0], divergence, rtol=1e-4, atol=1e-7)
    back = total(other.exp() * (other - log_prob))
    torch.testing.assert_close(truncated.distance(*here, *there)[0, 0], divergence + back, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(truncated.entropy(*here, points)[0], -total(density * log_prob), rtol=1e-5, atol=0)
    # equally likely noise gives equally likely actions: their shares are the integral of the density
    share = torch.linspace(0.001, 0.999, 999, dtype=torch.float64).unsqueeze(-1)
    action, drawn = truncated.sample(here[0][:999], here[1][:999], torch.special.ndtri(share))
    integral = torch.cumulative_trapezoid(density, points.squeeze(-1))
    below = integral[torch.searchsorted(points[1:, 0].contiguous(), action.squeeze(-1)).clamp(max=19_999)]
    torch.testing.assert_close(below, share.squeeze(-1), atol=2e-3, rtol=0)
    torch.testing.assert_close(drawn, truncated.log_prob(here[0][:999], here[1][:999], action), atol=1e-6, rtol=0)


def test_truncated_normal_keeps_its_gradients_at_extremes():
    mean, log_std = torch.tensor([[-20.0, 20.0, 0.0]] * 2), torch.tensor([[-20.0] * 3, [2.0] * 3])
    for parameter in (mean, log_std):
        parameter.requires_grad_()
    for noise in (-9.0, 0.0, 9.0):
        action, log_prob = GAUSSIANS["truncated"].sample(mean, log_std, torch.full_like(mean, noise))
        assert action.abs().max() <= 1.0
        (action.sum() + log_prob.sum() + GAUSSIANS["truncated"].entropy(mean, log_std, mean).sum()).backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(log_std.grad).all()
