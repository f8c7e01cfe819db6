"""Returns and advantages against numbers worked by hand, and against a slow loop that reads like the definitions."""

import itertools

import pytest
import torch

from rlrun import ops

ONES, TWOS = torch.ones(1, 4), torch.full((1, 4), 2.0)
GOING = torch.zeros(1, 4, dtype=torch.bool)


def at(*steps: int) -> torch.Tensor:
    flags = GOING.clone()
    flags[0, list(steps)] = True
    return flags


@pytest.mark.parametrize(
    ("terminated", "episode_end", "returns", "advantages"),
    [
        (GOING, GOING, [7.5341, 6.149, 4.61, 2.9], [6.0928, 5.488, 4.48, 2.8]),
        (GOING, at(1), [4.61, 2.9, 4.61, 2.9], [4.48, 2.8, 4.48, 2.8]),  # cut off by time: its last value counts
        (at(1), at(1), [3.8, 2.0, 4.61, 2.9], [3.4, 1.0, 4.48, 2.8]),  # really over: 2.8 + 0.6 * 1.0
    ],
)
def test_returns_and_advantages_by_hand(terminated, episode_end, returns, advantages):
    options = {"terminated": terminated, "episode_end": episode_end, "discount": 0.9}
    actual = ops.discounted_return(TWOS, ONES, **options)
    torch.testing.assert_close(actual, torch.tensor([returns]), atol=1e-5, rtol=0)
    actual = ops.gae(3 * ONES, TWOS, TWOS, **options, lambda_=2 / 3)
    torch.testing.assert_close(actual, torch.tensor([advantages]), atol=1e-5, rtol=0)
    torch.testing.assert_close(ops.lambda_return(3 * ONES, TWOS, TWOS, **options, lambda_=2 / 3), actual + 2.0)


def test_reward_dimensions_are_summed_separately():
    options = {"terminated": at(1), "episode_end": at(1), "lambda_": 2 / 3}
    advantage = ops.gae(3 * ONES, TWOS, TWOS, discount=0.9, **options)
    reward, value = (torch.stack((column, 2 * column), -1) for column in (3 * ONES, TWOS))
    both = ops.gae(reward, value, value, discount=0.9, **options)
    torch.testing.assert_close(both, torch.stack((advantage, 2 * advantage), -1))
    apart = ops.gae(reward, value, value, discount=torch.tensor([0.9, 0.5]), **options)
    torch.testing.assert_close(apart[..., 0], advantage)
    torch.testing.assert_close(apart[..., 1], 2 * ops.gae(3 * ONES, TWOS, TWOS, discount=0.5, **options))


def test_targets_of_all_switches_by_definition():
    patterns = torch.tensor(list(itertools.product([False, True], repeat=5)))
    torch.manual_seed(0)
    reward, value = torch.randn(2, 32, 5).double()
    for terminated in range(6):  # 5: nowhere
        over = torch.arange(5).expand(32, 5) == terminated
        targets = ops.compare_through(reward, value, switched=patterns, terminated=over, episode_end=over, discount=0.9)
        for b, t in itertools.product(range(32), range(5)):
            expected, power, n = 0.0, 1.0, t
            while True:
                expected += power * reward[b, n]
                power *= 0.9
                if n == terminated:
                    break
                if patterns[b, n] or n == 4:
                    expected += power * value[b, n]
                    break
                n += 1
            assert float(targets[b, t]) == pytest.approx(float(expected), abs=1e-6)


def windows(seed: int = 0):
    """Return random windows [5, 9]: reward, value, next value and log-ratio; and options with ends of both kinds."""
    draw = torch.Generator().manual_seed(seed)
    reward, value, final_value, log_ratio = (torch.randn(5, 9, generator=draw) for _ in range(4))
    terminated = torch.rand(5, 9, generator=draw) < 0.15
    episode_end = terminated | (torch.rand(5, 9, generator=draw) < 0.15)
    last = episode_end.clone()
    last[:, -1] = True
    next_value = torch.where(last, final_value, value.roll(-1, 1))
    options = {"terminated": terminated, "episode_end": episode_end, "discount": 0.9}
    return reward, value, next_value, log_ratio, options


def by_definition(reward, next_value, terminated, episode_end, t, *, discount, steps):
    """Return the sum of up to `steps` rewards from step t of one window on, bootstrapped behind the last of them."""
    total = 0.0
    for ahead in range(steps):
        total += discount**ahead * float(reward[t + ahead])
        if episode_end[t + ahead] or t + ahead == len(reward) - 1 or ahead == steps - 1:
            bootstrap = 0.0 if terminated[t + ahead] else float(next_value[t + ahead])
            return total + discount ** (ahead + 1) * bootstrap
    raise AssertionError


def n_step_returns(reward, next_value, *, terminated, episode_end, discount, steps):
    """Return the definition [B, T] of returns of up to `steps` rewards."""
    rows = [*zip(reward, next_value, terminated, episode_end, strict=True)]
    return torch.tensor([[by_definition(*row, t, discount=discount, steps=steps) for t in range(9)] for row in rows])


def test_returns_agree_at_their_limits():
    reward, value, next_value, _, options = windows(1)
    longest = n_step_returns(reward, next_value, steps=9, **options)
    torch.testing.assert_close(ops.discounted_return(reward, next_value, **options), longest)
    torch.testing.assert_close(ops.lambda_return(reward, value, next_value, lambda_=1.0, **options), longest)
    one_step = ops.one_step_return(reward, next_value, terminated=options["terminated"], discount=0.9)
    torch.testing.assert_close(ops.lambda_return(reward, value, next_value, lambda_=0.0, **options), one_step)


def test_lambda_returns_mix_n_step_returns():
    reward, value, next_value, _, options = windows(2)
    mixture = torch.zeros(5, 9)
    for steps in range(1, 60):
        n_step = n_step_returns(reward, next_value, steps=steps, **options)
        mixture += (0.3 if steps < 59 else 1.0) * 0.7 ** (steps - 1) * n_step
    torch.testing.assert_close(
        ops.lambda_return(reward, value, next_value, lambda_=0.7, **options), mixture, atol=1e-4, rtol=0
    )


def test_v_trace_is_equation_1():
    reward, value, next_value, log_ratio, options = windows(4)
    target, advantage = ops.v_trace(
        reward, value, next_value, log_ratio, **options, lambda_=0.8, rho_limit=1.5, c_limit=0.9
    )
    rho, c = log_ratio.exp().clamp(max=1.5), 0.8 * log_ratio.exp().clamp(max=0.9)
    error = rho * (reward + 0.9 * next_value * ~options["terminated"] - value)
    for window in range(5):
        for t in range(9):
            expected, factor = float(value[window, t]), 1.0
            for later in range(t, 9):
                expected += factor * float(error[window, later])
                if options["episode_end"][window, later]:
                    break
                factor *= 0.9 * float(c[window, later])
            assert float(target[window, t]) == pytest.approx(expected, abs=1e-4)
    following = torch.where(options["episode_end"], next_value, torch.cat((target[:, 1:], next_value[:, -1:]), 1))
    torch.testing.assert_close(advantage, rho * (reward + 0.9 * following * ~options["terminated"] - value))


def test_infinite_terminal_values_are_dropped():
    reward, value, next_value, log_ratio, options = windows(5)
    next_value = next_value.masked_fill(options["terminated"], float("inf"))
    for estimate in (
        ops.gae(reward, value, next_value, lambda_=0.9, **options),
        ops.discounted_return(reward, next_value, **options),
        *ops.v_trace(reward, value, next_value, log_ratio, **options),
    ):
        assert estimate.isfinite().all()


def test_advantages_carry_no_gradients():
    reward, value, next_value, _, options = windows(6)
    assert not ops.gae(reward, value.requires_grad_(), next_value, **options, lambda_=0.9).requires_grad
