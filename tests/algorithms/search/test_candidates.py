"""Candidate actions of all kinds of spaces, and searches over them."""

import numpy as np
import pytest
import torch
from tests.nn.spaces_for_tests import MIXED, VECTOR, box, multi

from rlrun.algorithms.search import Gumbel, Node, Puct, chosen_candidates, drawn_candidates, likeliest_candidates
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Composite, Discrete, Spaces, map_tree
from rlrun.nn.actions import ActionHead, Heads

PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


def head_of(action, observation=VECTOR):
    return ActionHead(Spaces(observation, action), 3)


def choices(rows, probabilities=PROBABILITIES):
    return Heads(None, None, probabilities.log().expand(rows, -1))


def normals(rows, mean=0.2, log_std=-1.0):
    return Heads(torch.full((rows, 1), mean), torch.full((rows, 1), log_std), None)


def mass(actions, logits, count=4):
    """Return the mean over rows of the prior of each action."""
    prior = logits.softmax(-1)
    return torch.stack([(prior * (actions == number)).sum(-1).mean() for number in range(count)])


def test_prior_is_the_share_of_draws():
    torch.manual_seed(0)
    actions, logits = drawn_candidates(head_of(Discrete(4)), choices(2000), 6)
    prior = logits.softmax(-1)
    assert actions.shape == logits.shape == (2000, 6)
    for number in range(4):
        chosen = actions == number
        assert ((prior > 0) & chosen).sum(-1).max() == 1  # the same action twice is one candidate
        assert torch.allclose((prior * chosen).sum(-1), chosen.float().mean(-1))
    assert torch.allclose(mass(actions, logits), PROBABILITIES, atol=0.02)


@pytest.mark.parametrize("temperature", [0.7, 3.0])
def test_prior_undoes_the_temperature_of_choices(temperature):
    torch.manual_seed(0)
    actions, logits = drawn_candidates(head_of(Discrete(4)), choices(200), 200, temperature)
    proposed = (PROBABILITIES ** (1 / temperature)) / (PROBABILITIES ** (1 / temperature)).sum()
    shares = torch.stack([(actions == number).float().mean() for number in range(4)])
    assert torch.allclose(shares, proposed, atol=0.01)
    assert torch.allclose(mass(actions, logits), PROBABILITIES, atol=0.02)


@pytest.mark.parametrize("distribution", ["squashed", "truncated"])
def test_prior_undoes_the_temperature_of_numbers(distribution):
    torch.manual_seed(0)
    head = ActionHead(Spaces(VECTOR, box(1)), 3, distribution=distribution)
    narrow, even = drawn_candidates(head, normals(20), 2000)
    wide, logits = drawn_candidates(head, normals(20), 2000, 4.0)
    assert narrow.shape == (20, 2000, 1)
    assert not even.any()
    assert wide.std() > 1.3 * narrow.std()
    prior = logits.softmax(-1)
    mean, square = ((prior * wide[..., 0] ** power).sum(-1).mean() for power in (1, 2))
    assert float(mean) == pytest.approx(float(narrow.mean()), abs=0.02)
    assert float(square - mean**2) == pytest.approx(float(narrow.var()), rel=0.05)


@pytest.mark.parametrize("action", [MIXED, multi(5, 6, 7), box(2, 2)], ids=["mixed", "many", "matrix"])
def test_candidates_of_any_space_are_actions(action):
    head = head_of(action)
    heads = head(torch.randn(5, 3))
    actions, logits = drawn_candidates(head, heads, 7, 1.5)
    assert logits.shape == (5, 7)
    repeated = Heads(*(None if part is None else part[:, None].expand(-1, 7, -1) for part in heads))
    log_prob = head.log_prob(repeated, actions)
    assert log_prob.shape == (5, 7)
    assert torch.isfinite(log_prob).all()
    third = chosen_candidates(map_tree(torch.Tensor.numpy, actions), np.full(5, 3))
    assert all(np.array_equal(part, whole[:, 3]) for part, whole in zip(flat(third), flat(actions), strict=True))


def flat(tree):
    parts = []
    map_tree(lambda leaf: parts.append(np.asarray(leaf)), tree)
    return parts


def test_forbidden_choices_are_no_candidates():
    masked = Composite({"observation": VECTOR, "action_mask": box(4)})
    head = head_of(Discrete(4), masked)
    heads = head(torch.randn(50, 3), {"observation": None, "action_mask": torch.tensor([1, 0, 0, 1]).expand(50, 4)})
    drawn, _ = drawn_candidates(head, heads, 10, 2.0)
    assert set(drawn.ravel().tolist()) == {0, 3}
    best, logits = likeliest_candidates(head, heads, 3)
    assert (logits > -torch.inf).sum(-1).tolist() == [2] * 50
    assert {*best[logits > -torch.inf].tolist()} == {0, 3}


def test_likeliest_choices_share_their_probability():
    actions, logits = likeliest_candidates(head_of(Discrete(4)), choices(2), 3)
    assert actions.tolist() == [[0, 1, 2]] * 2
    assert logits.softmax(-1)[0].tolist() == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95])
    assert likeliest_candidates(head_of(Discrete(4)), choices(2), 9)[0].shape == (2, 4)
    combined, _ = likeliest_candidates(head_of(multi(2, 2)), choices(2), 2)
    assert combined.tolist() == [[[0, 0], [0, 1]]] * 2
    for action in (box(2), MIXED, multi(5, 6, 7)):
        with pytest.raises(ConfigError, match="likeliest candidates are those of one choice"):
            likeliest_candidates(head_of(action), head_of(action)(torch.randn(2, 3)), 3)


class Target:
    """Two moves of a number; the reward is how near both come to a target, and comes with the second one."""

    def __init__(self, target, count):
        self.head, self.target, self.count = head_of(box(1)), target, count

    def node(self, place, steps, reward, discount):
        candidates, logits = drawn_candidates(self.head, normals(len(place), 0.0, 0.0), self.count)
        state = {"place": place, "steps": steps, "candidates": candidates.numpy()}
        return Node(state, logits.numpy(), np.zeros(len(place)), reward, discount)

    def root(self, rows):
        return self.node(np.zeros(rows), np.zeros(rows, int), np.zeros(rows), np.ones(rows))

    def __call__(self, state, action):
        place = state["place"] + chosen_candidates(state["candidates"], action)[:, 0]
        steps = state["steps"] + 1
        reward = np.where(steps == 2, -np.abs(place - self.target), 0.0)
        return self.node(place, steps, reward, np.where(steps == 2, 0.0, 1.0))


@pytest.mark.parametrize(
    "search",
    [Puct(simulations=300), Gumbel(simulations=300), Puct(simulations=300, parallel=6, regularized=("act", "learn"))],
    ids=["puct", "gumbel", "parallel"],
)
def test_search_over_candidates_plans_numbers(search):
    torch.manual_seed(0)
    model = Target(2.0, 8)
    trees = search.grow(model, model.root(20))
    best = search.acting(trees, 0.0).argmax(1)
    candidates = trees.state["candidates"][trees.roots]
    chosen = chosen_candidates(candidates, best)[:, 0]
    assert chosen.mean() > candidates.max(1).mean() - 0.1  # both moves must be large
    learned = (search.policy(trees) * candidates[..., 0]).sum(1)
    assert learned.mean() > candidates.mean() + 0.3
