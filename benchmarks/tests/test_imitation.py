"""The distance of transitions has known answers."""

import numpy as np
import pytest
from benchmarks.claims_of_imitation import sliced_wasserstein
from benchmarks.sections_of_outcomes import _learned


def test_the_distance_of_a_moved_sample_is_that_of_the_projected_move():
    """In the plane, |cos| has the mean 2 / π over directions; the order of rows does not matter."""
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(200, 2))
    moved = rng.permutation(sample) + np.array([3.0, 4.0])
    assert sliced_wasserstein(sample, moved, projections=4_000) == pytest.approx(5.0 * 2.0 / np.pi, rel=0.02)
    assert sliced_wasserstein(sample, rng.permutation(sample)) == pytest.approx(0.0, abs=1e-12)


def test_the_distance_of_normal_samples_is_that_of_their_deviations():
    """Projections have the deviations 1 and 3, so quantiles differ by 2 |z|, and |z| has the mean √(2 / π)."""
    rng = np.random.default_rng(0)
    narrow, wide = rng.normal(size=(20_000, 3)), 3.0 * rng.normal(size=(10_000, 3))
    assert sliced_wasserstein(narrow, wide) == pytest.approx(2.0 * np.sqrt(2.0 / np.pi), rel=0.03)


def test_figures_of_a_style_are_shown_beside_its_number():
    record = {"value": 2.0, "beside": {"distance_share": 1.01, "gain_share": 0.758}}
    assert _learned(record) == "2 (distance_share 1.01, gain_share 0.758)"
    games = {"run": {"lines": 5}, "alone": {"lost": 1, "lines": 5}}
    assert _learned({"value": 3, "beside": games}) == "3 of 5 (network alone 1 of 5)"
