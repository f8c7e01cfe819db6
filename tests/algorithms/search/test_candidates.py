"""Candidate actions of all kinds of spaces, and searches over them."""

import numpy as np
import pytest
import torch
from tests.nn.spaces_for_tests import MIXED, VECTOR, box, multi

from rlrun.algorithms.search import Candidates, Gumbel, Node, Puct
from rlrun.algorithms.search.candidates import chosen_candidates, drawn_candidates, likeliest_candidates
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Composite, Discrete, Spaces
from rlrun.nn.actions import ActionHead, Heads

PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


def head_of(action, observation=VECTOR):
    return ActionHead(Spaces(observation, action), 3)


def choices(rows, probabilities=PROBABILITIES):
    return Heads(None, None, probabilities.log().expand(rows, -1))


def normals(rows, mean=0.2, log_std=-1.0):
    return Heads(torch.full((rows, 1), mean), torch.full((rows, 1), log_std), None)


def seeds(rows, first=0):
    return np.arange(first, first + rows, dtype=np.uint64)


def mass(actions, logits, count=4):
    """Return the mean over rows of the prior of each action."""
    prior = logits.softmax(-1)
    return torch.stack([(prior * (actions[..., 0] == number)).sum(-1).mean() for number in range(count)])


def test_prior_is_the_share_of_draws():
    actions, logits = drawn_candidates(head_of(Discrete(4)), choices(2000), 6, seeds(2000))
    prior = logits.softmax(-1)
    assert actions.shape == (*logits.shape, 1) == (2000, 6, 1)
    for number in range(4):
        chosen = actions[..., 0] == number
        assert ((prior > 0) & chosen).sum(-1).max() == 1  # the same action twice is one candidate
        assert torch.allclose((prior * chosen).sum(-1), chosen.float().mean(-1))
    assert torch.allclose(mass(actions, logits), PROBABILITIES, atol=0.02)


@pytest.mark.parametrize("temperature", [0.7, 3.0])
def test_prior_undoes_the_temperature_of_choices(temperature):
    actions, logits = drawn_candidates(head_of(Discrete(4)), choices(200), 200, seeds(200), temperature)
    proposed = (PROBABILITIES ** (1 / temperature)) / (PROBABILITIES ** (1 / temperature)).sum()
    shares = torch.stack([(actions == number).float().mean() for number in range(4)])
    assert torch.allclose(shares, proposed, atol=0.01)
    assert torch.allclose(mass(actions, logits), PROBABILITIES, atol=0.02)


@pytest.mark.parametrize("distribution", ["squashed", "truncated"])
def test_prior_undoes_the_temperature_of_numbers(distribution):
    head = ActionHead(Spaces(VECTOR, box(1)), 3, distribution=distribution)
    narrow, even = drawn_candidates(head, normals(20), 2000, seeds(20))
    wide, logits = drawn_candidates(head, normals(20), 2000, seeds(20), 4.0)
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
    rows, logits = drawn_candidates(head, heads, 7, seeds(5), 1.5)
    assert logits.shape == (5, 7)
    repeated = Heads(*(None if part is None else part[:, None].expand(-1, 7, -1) for part in heads))
    log_prob = head.log_prob(repeated, head.codec.from_rows(rows))
    assert log_prob.shape == (5, 7)
    assert torch.isfinite(log_prob).all()
    assert torch.equal(head.codec.rows(head.codec.from_rows(rows)), rows)
    assert np.array_equal(chosen_candidates(rows.numpy(), np.full(5, 3)), rows[:, 3])


@pytest.mark.parametrize("action", [MIXED, Discrete(9), box(2)], ids=["mixed", "choice", "numbers"])
def test_draws_of_a_policy_are_a_function_of_its_seed(action):
    head = head_of(action)
    heads = head(torch.ones(4, 3))
    first, _ = drawn_candidates(head, heads, 6, np.array([1, 2, 3, 1], np.uint64))
    assert torch.equal(first[0], first[3])
    assert not torch.equal(first[0], first[1])
    alone, _ = drawn_candidates(head, Heads(*(None if part is None else part[1:2] for part in heads)), 6, seeds(1, 2))
    assert torch.equal(alone[0], first[1])


def test_draws_of_choices_and_numbers_are_independent():
    mixed = Composite({"choice": Discrete(2), "number": box(1)})
    rows, _ = drawn_candidates(head_of(mixed), Heads(*(torch.zeros(500, n) for n in (1, 1, 2))), 20, seeds(500))
    number, choice = rows.flatten(0, 1).T
    assert abs(float(torch.corrcoef(torch.stack((number, choice)))[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(rows[..., 0].T)[0, 1])) < 0.15
    assert float(number.atanh().std()) == pytest.approx(1.0, abs=0.03)
    assert float(choice.mean()) == pytest.approx(0.5, abs=0.02)


def test_forbidden_choices_are_no_candidates():
    masked = Composite({"observation": VECTOR, "action_mask": box(4)})
    head = head_of(Discrete(4), masked)
    heads = head(torch.randn(50, 3), {"observation": None, "action_mask": torch.tensor([1, 0, 0, 1]).expand(50, 4)})
    drawn, _ = drawn_candidates(head, heads, 10, seeds(50), 2.0)
    assert set(drawn.ravel().tolist()) == {0, 3}
    best, logits = likeliest_candidates(head, heads, 3)
    assert (logits > -torch.inf).sum(-1).tolist() == [2] * 50
    assert {*best[..., 0][logits > -torch.inf].tolist()} == {0, 3}


def test_likeliest_choices_share_their_probability():
    actions, logits = likeliest_candidates(head_of(Discrete(4)), choices(2), 3)
    assert actions[..., 0].tolist() == [[0, 1, 2]] * 2
    assert logits.softmax(-1)[0].tolist() == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95])
    pair = head_of(multi(2, 2))
    combined, _ = Candidates(pair.codec, 2, likeliest=True)(pair, choices(2), seeds(2))
    assert pair.codec.from_rows(torch.from_numpy(combined)).tolist() == [[[0, 0], [0, 1]]] * 2


@pytest.mark.parametrize(
    ("action", "options", "drawn", "actions", "shape"),
    [
        (Discrete(4), {}, False, 4, 0),
        (multi(2, 3), {}, False, 6, 0),
        (Discrete(4), {"count": 3}, True, 3, [3, 1]),
        (Discrete(4), {"count": 9}, True, 9, [9, 1]),
        (Discrete(4), {"count": 9, "likeliest": True}, True, 4, [4, 1]),
        (multi(5, 6, 7), {}, True, 16, [16, 3]),
        (box(2, 2), {"count": 5, "temperature": 2.0}, True, 5, [5, 4]),
        (MIXED, {}, True, 16, [16, 7]),
    ],
)
def test_the_space_says_how_many_actions_a_node_has(action, options, drawn, actions, shape):
    candidates = Candidates(head_of(action).codec, **options)
    assert (candidates.drawn, candidates.actions, candidates.shape) == (drawn, actions, shape)


@pytest.mark.parametrize(
    ("action", "options", "message"),
    [
        (box(1), {"count": 1}, r"^count: wanted a whole number from 2, got 1"),
        (box(1), {"count": "abc"}, r"^count: wanted a whole number from 2, got 'abc'"),
        (box(1), {"count": [3]}, r"^count: wanted a whole number from 2, got \[3\]"),
        (box(1), {"temperature": 0.0}, r"^temperature: wanted a number above 0, got 0\.0"),
        (box(1), {"temperature": None}, r"^temperature: wanted a number above 0, got null"),
        (box(1), {"likeliest": True}, r"^likeliest: wanted false, as actions are more than one choice"),
        (Discrete(3), {"likeliest": True}, r"^likeliest: .* as no number of candidates is given"),
        (Discrete(3), {"temperature": 2.0}, r"^temperature: wanted 1 where all actions are searched"),
        (Discrete(3), {"count": 2, "likeliest": True, "temperature": 2.0}, r"wanted 1 where the likeliest actions are"),
    ],
)
def test_wrong_options_are_refused(action, options, message):
    with pytest.raises(ConfigError, match=message):
        Candidates(head_of(action).codec, **options)


class Target:
    """Two moves of a number; the reward is how near both come to a target, and comes with the second one."""

    def __init__(self, target, count):
        self.head, self.target, self.count = head_of(box(1)), target, count

    def node(self, place, steps, reward, discount):
        drawn = np.random.default_rng(len(place)).integers(1 << 60, size=len(place), dtype=np.uint64)
        candidates, logits = drawn_candidates(self.head, normals(len(place), 0.0, 0.0), self.count, drawn)
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
    model = Target(2.0, 8)
    trees = search.grow(model, model.root(20))
    best = search.acting(trees, 0.0).argmax(1)
    candidates = trees.state["candidates"][trees.roots]
    chosen = chosen_candidates(candidates, best)[:, 0]
    assert chosen.mean() > candidates.max(1).mean() - 0.1  # both moves must be large
    learned = (search.policy(trees) * candidates[..., 0]).sum(1)
    assert learned.mean() > candidates.mean() + 0.3
