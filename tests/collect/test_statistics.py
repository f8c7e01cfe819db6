"""Statistics of collection."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.collect.statistics import Tally, observed
from rlrun.core.spaces import Box, Composite, Discrete
from rlrun.nn import Normalizer

SPACE = Composite({"place": Box((2,), -np.ones(2), np.ones(2)), "sign": Discrete(3)})


def test_observation_size_counts_numbers():
    tree = {"place": np.array([[3.0, 4.0], [3.0, 4.0]], np.float32), "sign": np.array([1, 2])}
    assert observed(tree, SPACE) == {"observation/size": pytest.approx(12.5**0.5)}
    assert observed({"sign": np.array([1, 2])}, Composite({"sign": Discrete(3)})) == {}


def test_observation_size_is_normalized():
    normalizer = Normalizer([1])
    normalizer.update(torch.tensor([[0.0], [20.0]]))  # mean 10, deviation 10
    metrics = observed(np.array([[40.0]], np.float32), Box((1,), np.zeros(1), np.ones(1)), (normalizer,))
    assert metrics == {"observation/size": pytest.approx(3.0)}
    assert observed(np.array([[40.0]], np.float32), Box((1,), np.zeros(1), np.ones(1)), (normalizer, abs)) == {}


def test_share_of_truncated_episodes_is_restored():
    tally, restored = Tally(2, 0, window=3), Tally(2, 0, window=3)
    assert "episode/truncated" not in tally.metrics
    for truncated in (False, True, True, True):
        tally.end(np.array([0]), np.array([truncated]))
    tally.end(np.array([1]), np.array([False]))
    assert tally.metrics["episode/truncated"] == pytest.approx(2 / 3)
    restored.load_state_dict(tally.state_dict())
    assert restored.metrics == tally.metrics
    old = {name: value for name, value in tally.state_dict().items() if name != "truncated"}
    restored.load_state_dict(old)  # of a run before this was counted
    assert "episode/truncated" not in restored.metrics
