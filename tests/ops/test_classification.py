"""Scores of classes, worked by hand."""

import math

import pytest
import torch

from rlrun.ops import accuracy, auroc, log_likelihood


def test_accuracy_and_likelihood_by_hand():
    output = torch.tensor([[0.0, math.log(3.0)], [math.log(3.0), 0.0]])
    label = torch.tensor([1, 1])
    assert accuracy(output, label).tolist() == [1.0, 0.0]
    torch.testing.assert_close(log_likelihood(output, label).exp(), torch.tensor([0.75, 0.25]))


@pytest.mark.parametrize(
    ("score", "positive", "expected"),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),  # 3 of 4 pairs are in order
        ([1.0, 2.0], [0, 1], 1.0),
        ([2.0, 1.0], [0, 1], 0.0),
        ([5.0, 5.0, 5.0], [0, 1, 1], 0.5),
        ([1.0, 2.0, 2.0, 3.0], [0, 0, 1, 1], 0.875),  # one pair of four is equal
        ([1.0, 2.0], [1, 1], math.nan),
    ],
)
def test_auroc_counts_pairs_in_order(score, positive, expected):
    result = float(auroc(torch.tensor(score), torch.tensor(positive)))
    assert result == pytest.approx(expected, nan_ok=True)
