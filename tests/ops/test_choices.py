from __future__ import annotations

import torch

from rlrun.ops import epsilon_greedy, gumbel_argmax, one_hot


def test_equal_decisions_are_coded_side_by_side():
    assert one_hot(torch.tensor([[1, 0]]), (2, 2)).tolist() == [[0, 1, 1, 0]]


def test_unequal_decisions_are_coded_side_by_side():
    assert one_hot(torch.tensor([[2, 1]]), (3, 2)).tolist() == [[0, 0, 1, 0, 1]]


def test_draws_follow_the_logits():
    torch.manual_seed(0)
    drawn = gumbel_argmax(torch.tensor([0.1, 0.2, 0.7]).log().expand(50_000, 3))
    torch.testing.assert_close(torch.bincount(drawn) / 50_000, torch.tensor([0.1, 0.2, 0.7]), atol=0.01, rtol=0)


def test_epsilon_zero_is_greedy():
    greedy = torch.randint(0, 3, (100, 1))
    assert torch.equal(epsilon_greedy(greedy, (3,), 0.0), greedy)


def test_epsilon_replaces_its_share_of_rows_in_all_decisions():
    torch.manual_seed(0)
    drawn = epsilon_greedy(torch.zeros(50_000, 2, dtype=torch.int64), (4, 3), 0.5)
    share = (drawn > 0).float().mean(0)
    torch.testing.assert_close(share, torch.tensor([0.5 * 3 / 4, 0.5 * 2 / 3]), atol=0.01, rtol=0)
    assert drawn.amax(0).tolist() == [3, 2]
    assert abs((drawn > 0).all(-1).float().mean() - 0.25) < 0.01  # rows as wholes: .5 * 3/4 * 2/3
