"""Particle inference next to numpyro's: what is compared, and the verdict."""

import json

import numpy as np
import pytest
from benchmarks import particles


def test_density_is_averaged_over_particles():
    outputs, labels = np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([0.0, 1.0])
    peak = 1.0 / (2.0 * np.sqrt(2.0 * np.pi))  # of a normal density with deviation 2
    values = particles.log_likelihood(outputs, labels, 2.0)
    assert values.tolist() == pytest.approx([np.log(peak * (1.0 + np.exp(-0.5)) / 2.0), np.log(peak)])


def test_rows_to_learn_from_leave_gap(tmp_path):
    _, path, labels = particles.rows_of(3, tmp_path)
    rows = np.load(path)
    inside, gap = np.split(np.abs(rows["places"][:, 0]), 2)
    assert rows["observation"].shape == rows["label"].shape == (80, 1)
    assert min(np.abs(rows["observation"]).min(), inside.min()) >= particles.GAP > gap.max()
    errors = labels - np.sin(2.0 * rows["places"][:, 0])
    assert errors.std() == pytest.approx(particles.NUMBERS["deviation"], rel=0.1)


@pytest.mark.parametrize(("own", "passed"), [((-0.1, 0.1), True), ((-0.2, 0.1), False)])
def test_verdict_compares_means(own, passed, page_of):
    parts = {"intervals": 0.1, "gap": -0.1, "lr": 0.01, "seconds": 3.0}
    theirs = [{**parts, "all": 0.0, "versions": {"numpyro": "0.22.0"}}] * 2
    runs = {"rlrun": [{**parts, "all": value} for value in own], "numpyro": theirs}
    result = particles.summary(runs, {side: {0.01: [0.0, 1.0]} for side in runs})
    assert result["passed"] is passed
    text = page_of("particles", json.loads(json.dumps({**result, "updates": 10, "load": 1.0})))
    assert f"bar ≥ 0: {'met' if passed else 'missed'}" in text
    assert "| numpyro |  | 0.01 | 0.000 (0.000–0.000) |" in text
    assert "* numpyro: 0.01: 0.500" in text


@pytest.mark.parametrize("side", ["rlrun", "rlrun, functions"])
def test_own_sides_are_measured(side):
    job = particles.Job(side, lr=0.01, data=1, seed=0)
    first, again = particles.batch([job, job], updates=2)
    (longer,) = particles.batch([job], updates=200)
    assert first["all"] == again["all"] < longer["all"]
    assert first["all"] == pytest.approx((first["intervals"] + first["gap"]) / 2.0)
