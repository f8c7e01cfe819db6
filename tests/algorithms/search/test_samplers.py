"""Draws of actions from the probabilities of a search."""

import numpy as np
import pytest
import torch

from rlrun.algorithms.search import BestOrDraw, Draw, PersistentDraw
from rlrun.core.errors import ConfigError
from rlrun.ops.distributions import log_gamma_quantile

PROBABILITIES = np.array([0.55, 0.3, 0.0, 0.15])


def shares(sampler, count=3000):
    rows = np.tile(PROBABILITIES, (count, 1))
    action, _ = sampler(rows, sampler.initial(count, 4), np.random.default_rng(0))
    return np.bincount(action, minlength=4) / count


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Draw(), PROBABILITIES),
        (BestOrDraw(0.0), [1.0, 0.0, 0.0, 0.0]),
        (BestOrDraw(0.2), [0.91, 0.06, 0.0, 0.03]),
        (BestOrDraw(1.0), PROBABILITIES),
        (PersistentDraw(), PROBABILITIES),
        (PersistentDraw(0.01), PROBABILITIES),
        (PersistentDraw(50.0), PROBABILITIES),
    ],
    ids=["draw", "best", "best_or_draw", "by_probability", "persistent", "seldom_renewed", "concentrated"],
)
def test_shares_of_actions(sampler, expected):
    measured = shares(sampler)
    assert measured == pytest.approx(np.asarray(expected), abs=0.03)
    assert measured[2] == 0.0


def test_persistent_draw_stays_near_its_actions():
    rng = np.random.default_rng(0)
    rows, sampler = np.tile(PROBABILITIES, (2000, 1)), PersistentDraw(0.1, renewal=0.0)
    memory = sampler.initial(2000, 4)
    first, memory = sampler(rows, memory, rng)
    others = np.tile([0.5, 0.33, 0.0, 0.17], (2000, 1))
    second, kept = sampler(others, memory, rng)
    assert np.array_equal(memory, kept)
    assert (first == second).mean() > 0.85  # independent draws agree in 0.40
    _, renewed = PersistentDraw(0.1, renewal=0.5)(rows, memory, rng)
    assert (renewed != memory).any(1).mean() == pytest.approx(0.5, abs=0.05)
    memory[3] = 0.0
    _, after = sampler(rows, memory, rng)
    assert np.array_equal(np.flatnonzero((after != memory).any(1)), [3])


def test_quantiles_are_those_of_gamma_distributions():
    torch.manual_seed(0)
    shape = torch.tensor([1e-30, 1e-4, 0.03, 0.5, 1.0, 7.0, 200.0], dtype=torch.float64)[:, None]
    probability = torch.tensor([1e-9, 0.01, 0.4, 0.999, 1.0 - 1e-12], dtype=torch.float64)
    y = log_gamma_quantile(shape.expand(-1, 5), probability.expand(7, -1))
    known = y > -20
    reached = torch.special.gammainc(shape.expand(-1, 5), y.exp())
    assert torch.allclose(reached[known], probability.expand(7, -1)[known], rtol=1e-8, atol=1e-13)
    small = (probability.log() + torch.lgamma(shape + 1.0)) / shape
    assert torch.allclose(y[~known], small[~known], rtol=1e-6)
    assert y[4] == pytest.approx((-torch.log1p(-probability)).log().numpy(), rel=1e-6)
    assert torch.isfinite(log_gamma_quantile(torch.ones(2), torch.tensor([0.0, 1.0]))).all()


def test_wrong_numbers_are_one_line():
    for sampler, options in ((BestOrDraw, {"epsilon": 1.5}), (PersistentDraw, {"renewal": -0.1})):
        with pytest.raises(ConfigError, match="wanted a probability from 0 to 1"):
            sampler(**options)
    with pytest.raises(ConfigError, match="concentration: wanted a number above 0, got 0"):
        PersistentDraw(0.0)
