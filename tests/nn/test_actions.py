import math

import pytest
import torch

from rlrun.core.spaces import Composite, Discrete, Spaces
from rlrun.nn import ActionCodec

from .spaces_for_tests import ACTIONS, MIXED, VECTOR, box, draw, multi, same


@pytest.mark.parametrize("joint_limit", [1, 64])
@pytest.mark.parametrize("lead", [(4,), (4, 2), ()], ids=str)
@pytest.mark.parametrize("kind", ACTIONS)
def test_action_comes_back_from_its_parts(kind, lead, joint_limit):
    codec = ActionCodec(ACTIONS[kind], joint_limit=joint_limit)
    action = draw(ACTIONS[kind], *lead)
    c, k = codec.split(action)
    assert (c is None) == (codec.continuous == 0)
    assert (k is None) == (not codec.discrete)
    assert c is None or c.shape == (*lead, codec.continuous)
    assert k is None or k.shape == (*lead, len(codec.branches))
    assert same(codec.space, codec.join(c, k), action)


@pytest.mark.parametrize("joint_limit", [1, 64])
@pytest.mark.parametrize("kind", ACTIONS)
def test_action_is_a_row_of_numbers_and_choices(kind, joint_limit):
    codec = ActionCodec(ACTIONS[kind], joint_limit=joint_limit)
    action = draw(ACTIONS[kind], 4, 2)
    rows = codec.rows(action)
    assert rows.dtype == torch.float32
    assert rows.shape == (4, 2, codec.continuous + len(codec.branches))
    assert same(codec.space, codec.from_rows(rows), action)
    coded, (c, k) = codec.coded(action), codec.split(action)
    assert coded.shape == (4, 2, codec.continuous + codec.width)
    if k is not None:
        choices = coded[..., codec.continuous :]
        assert torch.equal(codec.best(choices), k)
        assert choices.sum(-1).eq(len(codec.branches)).all()
    if c is not None:
        assert torch.equal(coded[..., : codec.continuous], c)


@pytest.mark.parametrize(
    ("space", "branches"),
    [
        (Discrete(7), (7,)),
        (Discrete(1000), (1000,)),
        (multi(2, 3), (6,)),
        (multi(8, 8), (64,)),
        (multi(8, 9), (8, 9)),
        (multi(*[2] * 10), (2,) * 10),
        (MIXED, (24,)),
        (VECTOR, ()),
    ],
    ids=str,
)
def test_few_combinations_form_one_branch(space, branches):
    assert ActionCodec(Spaces(VECTOR, space)).branches == branches


def test_last_decision_counts_fastest():
    codec = ActionCodec(multi(2, 3))
    _, k = codec.split(torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 2]]))
    assert k.tolist() == [[0], [1], [2], [3], [5]]


def test_boxes_keep_the_leaves_order():
    space = Composite({"b": box(2), "n": Discrete(2), "a": box()})
    tree = {"b": torch.tensor([[0.1, 0.2]]), "n": torch.tensor([1]), "a": torch.tensor([0.3])}
    c, k = ActionCodec(space).split(tree)
    torch.testing.assert_close(c, torch.tensor([[0.1, 0.2, 0.3]]))
    assert k.tolist() == [[1]]


VALUES = torch.tensor([[1.0, 5.0, 2.0, 0.0, 3.0], [4.0, 3.0, 0.0, 7.0, 6.0]])  # branches of 2 and 3


def additive():
    return ActionCodec(multi(2, 3), joint_limit=1)


def test_selected_values_are_summed():
    values = torch.stack([VALUES, VALUES + 1.0, VALUES + 2.0])  # [M, B, width]
    selected = additive().select(values, torch.tensor([[1, 2], [0, 0]]))
    assert selected.tolist() == [[8.0, 4.0], [10.0, 6.0], [12.0, 8.0]]


@pytest.mark.parametrize("kind", ["discrete", "multi", "many", "uneven", "mixed"])
def test_best_choices_have_the_largest_value(kind):
    codec = ActionCodec(ACTIONS[kind])
    values = torch.randn(2, 5, codec.width)
    best = codec.best(values)
    assert best.shape == (2, 5, len(codec.branches))
    groups = torch.split(values, codec.branches, -1)
    torch.testing.assert_close(codec.select(values, best), sum(group.amax(-1) for group in groups))


@pytest.mark.parametrize("kind", ["discrete", "multi", "many", "uneven"])
def test_probabilities_of_branches_sum_to_one(kind):
    codec = ActionCodec(ACTIONS[kind])
    probabilities = codec.log_softmax(torch.randn(4, codec.width)).exp()
    ones = [part.sum(-1) for part in torch.split(probabilities, list(codec.branches), -1)]
    torch.testing.assert_close(torch.stack(ones), torch.ones(len(codec.branches), 4))


def test_uniform_branches_add_their_entropies():
    codec = additive()
    log_probabilities = codec.log_softmax(torch.zeros(1, 5))
    assert math.isclose(codec.entropy(log_probabilities), math.log(2) + math.log(3), rel_tol=1e-6)
    assert math.isclose(codec.expect(log_probabilities.exp(), VALUES[:1]), 3.0 + 5.0 / 3.0, rel_tol=1e-6)


def test_additive_policy_equals_joint_one():
    joint, split = ActionCodec(multi(2, 3)), additive()
    sums = (VALUES[:, :2, None] + VALUES[:, None, 2:]).flatten(1)
    entropies = [codec.entropy(codec.log_softmax(values)) for codec, values in ((joint, sums), (split, VALUES))]
    torch.testing.assert_close(entropies[0], entropies[1])
    assert torch.equal(joint.join(None, joint.best(sums)), split.join(None, split.best(VALUES)))


def test_draws_follow_each_branchs_logits():
    torch.manual_seed(0)
    logits = torch.tensor([0.2, 0.8, 0.5, 0.1, 0.4]).log()
    drawn = additive().sample(logits.expand(50_000, 5))
    share = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1]) / 50_000
    torch.testing.assert_close(share, torch.tensor([0.1, 0.02, 0.08, 0.4, 0.08, 0.32]), atol=0.01, rtol=0)
