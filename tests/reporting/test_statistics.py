"""Aggregates and intervals: equal to rliable's, and right where rliable has nothing to say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlrun.reporting import statistics
from rlrun.reporting.statistics import Scores

ORACLE = json.loads((Path(__file__).parent / "fixtures" / "rliable.json").read_text())
DRAWN = {"resamples": ORACLE["resamples"], "seed": ORACLE["seed"]}
ARMS = {name: Scores.of(np.array(scores).T.tolist()) for name, scores in ORACLE["scores"].items()}


def assert_equal(found, expected):
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(
            np.atleast_1d(getattr(found, name)), np.ravel(expected[name]), atol=1e-6, rtol=0, err_msg=name
        )


@pytest.mark.parametrize("arm", ARMS)
def test_aggregates_and_their_intervals_are_those_of_rliable(arm):
    expected = ORACLE["aggregates"][arm]
    found = statistics.estimate({name: getattr(statistics, name) for name in expected}, ARMS[arm], **DRAWN)
    for name in ("iqm", "mean", "median", "optimality_gap"):
        assert_equal(found[name], expected[name])


@pytest.mark.parametrize("arm", ARMS)
def test_performance_profiles_are_those_of_rliable(arm):
    shares = statistics.shares(np.array(ORACLE["thresholds"]))
    assert_equal(statistics.estimate({"": shares}, ARMS[arm], **DRAWN)[""], ORACLE["profiles"][arm])


@pytest.mark.parametrize("pair", ORACLE["improvement"])
def test_the_probability_of_improvement_is_that_of_rliable(pair):
    one, other = (ARMS[name] for name in pair.split())
    assert_equal(statistics.compare(one, other, **DRAWN)[1], ORACLE["improvement"][pair])
