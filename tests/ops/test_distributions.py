import math

import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rlrun.ops import squashed_log_prob, squashed_sample, tanh_log_slope


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
