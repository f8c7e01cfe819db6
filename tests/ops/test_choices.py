from __future__ import annotations

import pytest
import torch

from rlrun.ops import gumbel_argmax, one_hot


@pytest.mark.parametrize(
    ("choices", "counts", "coded"), [([1, 0], (2, 2), [0, 1, 1, 0]), ([2, 1], (3, 2), [0, 0, 1, 0, 1])]
)
def test_decisions_are_one_hot(choices, counts, coded):
    assert one_hot(torch.tensor([choices]), counts).tolist() == [coded]


def test_draws_follow_the_logits():
    torch.manual_seed(0)
    drawn = gumbel_argmax(torch.tensor([0.1, 0.2, 0.7]).log().expand(50_000, 3))
    torch.testing.assert_close(torch.bincount(drawn) / 50_000, torch.tensor([0.1, 0.2, 0.7]), atol=0.01, rtol=0)
