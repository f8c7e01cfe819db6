"""Aggregates and intervals: equal to rliable's, and right where rliable has nothing to say.

`fixtures/rliable.json` has scores, and what `library.get_interval_estimates` of rliable 1.2.0 gives for them after
`numpy.random.seed(seed)`, whatever its own `random_state` says. rliable does not work with pandas 3.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rlrun.analysis.report import statistics
from rlrun.analysis.report.statistics import Scores

ORACLE = json.loads((Path(__file__).parent / "fixtures" / "rliable.json").read_text())
DRAWN = {"resamples": ORACLE["resamples"], "seed": ORACLE["seed"]}
ARMS = {name: Scores.of(np.array(scores).T.tolist()) for name, scores in ORACLE["scores"].items()}


def assert_equal(found, expected):
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(
            np.atleast_1d(getattr(found, name)), np.ravel(expected[name]), atol=1e-6, rtol=0, err_msg=name
        )


@pytest.mark.parametrize("group", ARMS)
def test_aggregates_and_their_intervals_are_those_of_rliable(group):
    expected = ORACLE["aggregates"][group]
    estimates = statistics.estimate({name: getattr(statistics, name) for name in expected}, ARMS[group], **DRAWN)
    for name in ("iqm", "mean", "median", "optimality_gap"):
        assert_equal(estimates[name], expected[name])


@pytest.mark.parametrize("group", ARMS)
def test_performance_profiles_are_those_of_rliable(group):
    shares = statistics.shares(np.array(ORACLE["thresholds"]))
    assert_equal(statistics.estimate({"": shares}, ARMS[group], **DRAWN)[""], ORACLE["profiles"][group])


@pytest.mark.parametrize("pair", ORACLE["improvement"])
def test_the_probability_of_improvement_is_that_of_rliable(pair):
    first, second = (ARMS[name] for name in pair.split())
    assert_equal(statistics.compare(first, second, **DRAWN)[1], ORACLE["improvement"][pair])


def test_where_tasks_have_different_numbers_of_runs_each_task_counts_alike_in_means():
    scores = Scores.of([[1.0, 3.0], [10.0, 20.0, 30.0]])
    values = statistics.estimate({"mean": statistics.mean, "median": statistics.median}, scores, resamples=500, seed=0)
    assert values["mean"].value == pytest.approx((2.0 + 20.0) / 2)
    assert values["median"].value == pytest.approx((2.0 + 20.0) / 2)
    assert (1.0 + 10.0) / 2 <= values["mean"].low < 11.0 < values["mean"].high <= (3.0 + 30.0) / 2


def test_runs_are_drawn_within_their_task_only():
    scores = Scores.of([[1.0, 3.0, 5.0], [100.0, 200.0]])
    tasks = {"0": lambda times, _: times[:, scores.tasks == 0].sum(1)}
    estimate = statistics.estimate(tasks, scores, resamples=200, seed=0)["0"]
    assert estimate == (3.0, 3.0, 3.0)


def test_the_size_of_a_part_changes_no_number(monkeypatch):
    before = statistics.compare(ARMS["one"], ARMS["other"], resamples=300, seed=1)
    chance = statistics.permutation(ARMS["one"], ARMS["other"], resamples=300, seed=1)
    monkeypatch.setattr(statistics, "AT_ONCE", 100)
    after = statistics.compare(ARMS["one"], ARMS["other"], resamples=300, seed=1)
    assert np.ravel(after) == pytest.approx(np.ravel(before))
    assert statistics.permutation(ARMS["one"], ARMS["other"], resamples=300, seed=1) == chance


def test_one_run_of_a_task_has_no_interval():
    alone, pair = Scores.of([[1.0, 2.0], [3.0]]), Scores.of([[1.0, 2.0], [3.0, 4.0]])
    estimate = statistics.estimate({"iqm": statistics.iqm}, alone, resamples=100, seed=0)["iqm"]
    assert math.isfinite(estimate.value)
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert all(math.isnan(interval.low) for interval in statistics.compare(alone, pair, resamples=100, seed=0))


def test_the_permutation_test_is_exact():
    first, second = Scores.of([[1.0, 2.0, 3.0]]), Scores.of([[4.0, 5.0, 6.0]])
    p_value = statistics.permutation(first, second, resamples=20_000, seed=0)
    assert p_value == pytest.approx(2 / 20, abs=0.01)  # of the 20 assignments two are as far apart
    assert statistics.permutation(first, first, resamples=1_000, seed=0) == 1.0


def test_runs_are_shuffled_within_their_task_only():
    """Tasks of different scale: across them, chance could do nearly anything; within them, nothing."""
    first, second = Scores.of([[0.0, 0.0], [100.0, 100.0]]), Scores.of([[0.0, 0.0], [100.0, 100.0]])
    shifted = Scores.of([[1.0, 1.0], [101.0, 101.0]])
    assert statistics.permutation(first, second, resamples=500, seed=0) == 1.0
    assert statistics.permutation(first, shifted, resamples=20_000, seed=0) == pytest.approx(2 / 36, abs=0.01)


def test_under_no_difference_p_is_small_no_more_often_than_it_says():
    random = np.random.default_rng(0)
    draws = [[Scores.of([random.normal(size=5)]) for _ in range(2)] for _ in range(400)]
    chances = np.array([statistics.permutation(*pair, resamples=200, seed=0) for pair in draws])
    assert (chances <= 0.05).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(draws))
    assert (chances <= 0.5).mean() == pytest.approx(0.5, abs=0.1)


def test_p_is_corrected_by_the_steps_of_holm():
    assert statistics.holm([0.01, 0.04, 0.03], 3) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.01, 0.04], 10) == pytest.approx([0.1, 0.36])
    assert statistics.holm([0.6, 0.7], 2) == [1.0, 1.0]


def test_bands_of_curves_are_the_intervals_of_each_point():
    values = np.random.default_rng(0).normal(size=(6, 3)).cumsum(1)
    bands = statistics.bands(values, np.zeros(6, dtype=np.intp), resamples=400, seed=3)
    for place in range(3):
        point = Scores.of([values[:, place]])
        alone = statistics.estimate({"iqm": statistics.iqm}, point, resamples=400, seed=3)["iqm"]
        assert (bands.value[place], bands.low[place], bands.high[place]) == pytest.approx(alone)
