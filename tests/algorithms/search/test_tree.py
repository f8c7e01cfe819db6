"""Search trees against calculations by hand, a tree of objects, and games whose answers are known."""

import math
from pathlib import Path

import numpy as np
import pytest

from rlrun.algorithms.search import (
    Gumbel,
    Node,
    Playouts,
    Puct,
    SearchPlayer,
    SearchTrees,
    SimulatorModel,
    pick,
    unknown,
)
from rlrun.algorithms.search.gumbel import halving
from rlrun.algorithms.search.puct import UNEXPANDED, regularized_policy, tempered
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import row_count, take_rows
from rlrun.env.match import Matches
from rlrun.env.simulator import opponent_of, solve
from rlrun.env.toys import TicTacToe

RULES = TicTacToe.rules


class Table:
    """A model whose states are numbers: arrays say what follows them.

    after [K, A]: states; reward, discount [K, A]; logits [K, A]; value [K].
    """

    def __init__(self, after, reward, discount, logits, value):
        self.after, self.reward, self.discount = np.array(after), np.array(reward), np.array(discount)
        self.logits, self.value = np.array(logits), np.array(value)

    def root(self, state):
        state = np.array(state)
        return Node(state, self.logits[state], self.value[state], np.zeros(len(state)), np.ones(len(state)))

    def __call__(self, state, action):
        after = self.after[state, action]
        value = np.where(self.discount[state, action] == 0, 0.0, self.value[after])
        return Node(after, self.logits[after], value, self.reward[state, action], self.discount[state, action])


def random_table(seed, players, states=60, actions=4):
    rng = np.random.default_rng(seed)
    turn = rng.integers(players, size=states)
    after = rng.integers(states, size=(states, actions))
    factor = np.where(turn[after] == turn[:, None], 0.9, -0.9) * (rng.random(after.shape) > 0.15)
    logits = np.where(rng.random(after.shape) < 0.2, -np.inf, rng.normal(size=after.shape))
    logits[:, 0] = 0.0
    return Table(after, rng.normal(size=after.shape), factor, logits, rng.normal(size=states)), turn


class ByObjects:
    """The same search with an object for each node. Its values are those of player 0."""

    def __init__(self, table, turn, state, over=False):
        powers = np.exp(table.logits[state])
        self.state, self.over, self.prior = state, over, powers / powers.sum()
        self.turn = 1 - 2 * turn[state]
        self.raw = 0.0 if over else self.turn * table.value[state]
        self.children, self.returns = {}, [self.raw]

    def value(self):
        return sum(self.returns) / len(self.returns)

    def q(self, action):
        reward, factor, child = self.children[action]
        return reward + factor * child.value()


def scaled(value, turn, low, high):
    return ((value - low) if turn > 0 else (high - value)) / max(high - low, 1e-8)


def searched_by_objects(table, turn, state, simulations, unexpanded, c1, c2, parallel=1, expand="one"):
    root = ByObjects(table, turn, state)
    low = high = root.value()

    def add(node, action):
        factor = table.discount[node.state, action]
        after = ByObjects(table, turn, table.after[node.state, action], factor == 0)
        node.children[action] = node.turn * table.reward[node.state, action], abs(factor), after

    def add_all(node):
        allowed = np.flatnonzero(node.prior) if not node.over else []
        for action in allowed:
            add(node, action)
        widen(node, allowed)
        return sum(node.prior[action] * node.q(action) for action in allowed)

    def widen(node, actions):
        nonlocal low, high
        values = [node.q(action) for action in actions]
        low, high = min([low, *values]), max([high, *values])

    def best(node, taken):
        """Return the best action of a node, in which others were taken before by simulations at the same time."""
        known = [scaled(node.q(action), node.turn, low, high) for action in node.children]
        parent = scaled(node.value(), node.turn, low, high)
        other = {
            "max": max(known, default=0.0),
            "min": min(known, default=0.0),
            "none": min(known, default=0.0),
            "mean": sum(known) / max(len(known), 1),
            "mean_with_parent": (sum(known) + parent) / (len(known) + 1) if known else 0.0,
        }.get(unexpanded, unexpanded)
        visits = len(node.returns) + len(taken)
        weight = (c1 + math.log((visits + c2 + 1) / c2)) * math.sqrt(visits)
        scores = []
        for action, prior in enumerate(node.prior):
            child = node.children.get(action)
            count = (len(child[2].returns) if child else 0) + taken.count(action)
            value = scaled(node.q(action), node.turn, low, high) if child else other
            scores.append(value + weight * prior / (1 + count) if prior > 0 else -math.inf)
        return scores.index(max(scores))

    def back_up(node, path, gain, weight):
        node.returns += [gain] * weight
        for parent, action in reversed(path):
            reward, factor, _ = parent.children[action]
            gain = reward + factor * gain
            parent.returns += [gain] * weight

    actions = len(root.prior)
    if expand != "one":
        back_up(root, [], add_all(root), actions)
    for _ in range(simulations // parallel):
        paths, taken = [], {}
        for _ in range(parallel):
            node, path = root, []
            while not node.over and (expand != "all" or node.children):
                action = best(node, taken.setdefault(id(node), []))
                taken[id(node)].append(action)
                path.append((node, action))
                if action not in node.children:
                    break
                node = node.children[action][2]
            paths.append((node, path))
        for node, path in paths:
            if expand == "all":
                back_up(node, path, add_all(node), actions)
                continue
            if path and path[-1][1] not in path[-1][0].children:
                add(*path[-1])
                path[-1][0].children[path[-1][1]][2].returns.clear()
            if path and path[-1][0] is node:
                node = node.children[path[-1][1]][2]
            back_up(node, path, 0.0 if node.over else node.raw, 1)
        for _, path in paths:
            for node, action in path:
                widen(node, [action])
    visits = [len(root.children[a][2].returns) if a in root.children else 0 for a in range(actions)]
    return visits, root.value() * root.turn


@pytest.mark.parametrize("players", [1, 2])
@pytest.mark.parametrize(
    ("unexpanded", "how"),
    [
        *((rule, {}) for rule in (0.5, *UNEXPANDED)),
        *((0.5, {"parallel": count}) for count in (2, 5, 40)),
        ("mean_with_parent", {"parallel": 4}),
        ("min", {"expand": "root", "parallel": 4}),
        *((0.5, {"expand": expand}) for expand in ("root", "all")),
    ],
    ids=str,
)
def test_visits_are_those_of_a_tree_of_objects(unexpanded, how, players):
    table, turn = random_table(3, players)
    search = Puct(simulations=40, unexpanded=unexpanded, c1=1.5, c2=50.0, **how)
    roots = np.arange(8)
    trees = search.grow(table, table.root(roots))
    for root in roots:
        visits, value = searched_by_objects(table, turn, root, 40, unexpanded, 1.5, 50.0, **how)
        assert trees.root_visits[root].tolist() == visits
        assert trees.root_value[root] == pytest.approx(value)


# Root 0 leads to 1 and 2, which lead to 3, 4 and 5, 6; nothing has a reward.
SMALL = Table(
    [[1, 2], [3, 4], [5, 6], *[[3, 3]] * 4],
    np.zeros((7, 2)),
    np.ones((7, 2)),
    np.log([[0.6, 0.4]] * 7),
    [0.5, 0.2, 0.7, 0.1, 0.3, 0.9, 0.0],
)


def test_four_simulations_are_those_by_hand():
    """First a (0.6 against 0.4), a again (0.624, 0.566), b (0.693, 0.496), b again (1.1, 0.55)."""
    expected = [([1, 0], 0.35), ([2, 0], 0.8 / 3), ([2, 1], 0.375), ([2, 2], 0.48)]
    for simulations, (visits, value) in enumerate(expected, 1):
        search = Puct(simulations=simulations, c1=1.0, c2=1e12, bounds=(0.0, 1.0), unexpanded=0.0)
        trees = search.grow(SMALL, SMALL.root([0]))
        assert trees.root_visits[0].tolist() == visits
        assert trees.root_value[0] == pytest.approx(value)
    assert trees.q[0].tolist() == pytest.approx([0.15, 0.8])
    assert search.policy(trees)[0].tolist() == [0.5, 0.5]


def test_scores_are_the_known_ones():
    """Of a node of four visits, with c1 = 1.25 and c2 = 19652."""
    trees = SearchTrees(Node(np.zeros(1), np.log([[0.5, 0.3, 0.2]]), np.zeros(1), np.zeros(1), np.ones(1)), 4)
    search = Puct(bounds=(0.0, 1.0))
    trees._low[:], trees._high[:] = 0.0, 1.0
    trees.visits[0], trees.child_visits[0], trees.q[0] = 4, [1, 2, 0], [0.2, 0.6, 0.0]
    at = trees.roots
    explored = search._weights(trees.visits[at])[:, None] * trees.prior[at] / (1 + trees.child_visits[at])
    scores = search.values(trees, at) + explored
    assert scores[0] == pytest.approx([0.825127, 0.850051, 1.000102], abs=1e-6)
    assert search._best(trees, at, search._weights(np.arange(6.0))).tolist() == [[2]]


def test_values_are_means_of_returns():
    table, _ = random_table(0, 2)
    trees = Puct(simulations=60, depth=4).grow(table, table.root([5, 6]))
    grown = np.arange(trees.used)
    assert trees.level[grown].max() == 4
    for node in grown:
        total, count = 0.0, trees.visits[node]
        for action in np.flatnonzero(trees.child_visits[node]):
            child, visits = trees.child[node, action], trees.child_visits[node, action]
            q = trees._reward[child] + trees._discount[child] * trees.value[child]
            assert trees.q[node, action] == pytest.approx(q)
            assert trees.visits[child] == visits
            total, count = total + visits * q, count - visits
        assert trees.value[node] == pytest.approx((total + count * trees.raw[node]) / trees.visits[node])


@pytest.mark.parametrize("search", [Puct(simulations=30), Gumbel(simulations=30, considered=3)], ids=["puct", "gumbel"])
def test_batch_is_single_trees_and_visits_only_what_is_allowed(search):
    table, _ = random_table(1, 2)
    together = search.grow(table, table.root(np.arange(12)))
    assert (together.root_visits.sum(1) == 30).all()
    assert not together.child_visits[together.prior == 0].any()
    for row in range(12):
        alone = search.grow(table, table.root([row]))
        assert alone.root_visits[0].tolist() == together.root_visits[row].tolist()
        assert search.acting(alone)[0].tolist() == search.acting(together)[row].tolist()
        assert search.policy(alone)[0].tolist() == pytest.approx(search.policy(together)[row].tolist())


def test_noise_is_at_the_root_among_allowed_actions():
    table, _ = random_table(2, 1)
    search = Puct(simulations=20, noise=0.25, alpha=0.02)
    root = table.root(np.arange(60))
    trees, bare = search.grow(table, root, np.random.default_rng(0)), search.grow(table, root)
    noisy, prior = trees.prior[trees.roots], bare.prior[bare.roots]
    assert noisy.sum(1) == pytest.approx(np.ones(60))
    assert not noisy[prior == 0].any()
    noise = (noisy - 0.75 * prior) / 0.25
    assert noise.min() > -1e-12
    assert noise.max(1).mean() > 0.9  # alpha is small, so one action has nearly all of it
    assert not trees.child_visits[trees.prior == 0].any()
    inner = np.flatnonzero(trees.level[: trees.used] == 1)
    again = np.exp(table.logits[trees.state[inner]])
    assert trees.prior[inner] == pytest.approx(again / again.sum(1, keepdims=True))


def test_safe_branch_of_expected_rewards_is_found():
    """What `riskybranch` is on average: 1 or 0.5 behind the risky action, 1.8 or 0 behind the safe one."""
    table = Table([[1, 2]] * 3, [[0, 0], [1.0, 0.5], [1.8, 0]], [[1, 1], [0, 0], [0, 0]], np.zeros((3, 2)), np.zeros(3))
    for search in (Puct(simulations=200), Puct(simulations=200, bounds=(0.0, 2.0)), Gumbel(simulations=200)):
        trees = search.grow(table, table.root([0]))
        assert search.acting(trees, 0.0)[0].tolist() == [0.0, 1.0]
        assert trees.q[trees.roots][0, 1] == pytest.approx(1.8, abs=0.15)


def positions(stones=0):
    """Return the positions of tic-tac-toe with so many stones or more, also those that are over."""
    state, parts = RULES.initial(np.zeros(1, np.uint64)), []
    while row_count(state):
        parts.append(state)
        rows, actions = np.nonzero(RULES.legal(state))
        after, _ = RULES.step(take_rows(state, rows), actions)
        first = np.unique(after["stones"], axis=0, return_index=True)[1]
        state = take_rows(after, first)
    return {name: np.concatenate([part[name] for part in parts[stones:]]) for name in ("stones", "turn")}


def searched(search, state, judge=unknown):
    model = SimulatorModel(RULES, judge)
    return search.grow(model, model.root(state, np.zeros(row_count(state), np.uint64)))


@pytest.mark.parametrize(
    ("search", "every"),
    [
        (Puct(simulations=400, bounds=(-1.0, 1.0)), 13),
        (Puct(simulations=200, bounds=(-1.0, 1.0), regularized=("act", "search")), 41),
        (Gumbel(simulations=400), 29),
    ],
    ids=["puct", "regularized", "gumbel"],
)
def test_best_moves_of_tictactoe_are_perfect(search, every):
    state = positions(4)
    state = take_rows(state, np.flatnonzero(state["turn"] >= 0)[::every])
    best = search.acting(searched(search, state), 0.0) > 0
    scores = solve(RULES).scores(state)
    assert not (best & (scores < scores.max(1, keepdims=True))).any()


@pytest.mark.parametrize("expand", ["root", "all"])
def test_all_positions_of_tictactoe_have_their_values_one_move_deep(expand):
    """Of either player, with the moves that are allowed: by a judge who knows all values."""
    state, solution = positions(), solve(RULES)
    search = Puct(simulations=1, depth=1, expand=expand, bounds=(-1.0, 1.0), regularized=("act",))
    trees = searched(
        search, state, lambda rules, state, seeds: (np.zeros((len(seeds), 9)), solution.scores(state).max(1))
    )
    over, scores, allowed = state["turn"] < 0, solution.scores(state), RULES.legal(state)
    assert len(over) == 5478
    assert (trees.root_visits[~over] > 0).tolist() == allowed[~over].tolist()
    assert not trees.root_visits[over].any()
    assert np.array_equal(trees.q[trees.roots][allowed], scores[allowed])
    best = allowed & (scores == scores.max(1, keepdims=True))
    assert np.array_equal(search.acting(trees, 0.0) > 0, best)


# Boards row by row with x for who moves next, and the moves that are right there.
BOARDS = {
    "xoxxoo..x": {6},
    "....oo.x.": {3},
    "xoooo..xx": {6},
    "o.x.oo..x": {3},
    "........o": {4},
    "....o....": {0, 2, 6, 8},
    "....xoxoo": {2},
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"regularized": ("act", "search", "learn")}, marks=pytest.mark.slow),
        {"parallel": 4},
        {"expand": "all", "simulations": 600, "regularized": ("act", "learn")},
    ],
    ids=["puct", "regularized", "parallel", "expand"],
)
def test_wins_blocks_and_openings_are_found(options):
    stones = np.array([[sum(1 << n for n, cell in enumerate(board) if cell == of) for of in "xo"] for board in BOARDS])
    state = {"stones": stones.astype(np.uint64), "turn": np.zeros(len(BOARDS), np.int8)}
    search = Puct(**{"simulations": 1800, "bounds": (-1.0, 1.0), **options})
    best = search.acting(searched(search, state), 0.0).argmax(1)
    assert all(move in right for move, right in zip(best.tolist(), BOARDS.values(), strict=True)), best


def test_roots_that_are_over_stay_alone():
    state = RULES.initial(np.zeros(2, np.uint64))
    state["turn"][1] = -1
    model = SimulatorModel(RULES)
    for search in (Puct(simulations=5), Gumbel(simulations=5), Puct(simulations=5, regularized=("act", "learn"))):
        trees = search.grow(model, model.root(state, np.zeros(2, np.uint64)), np.random.default_rng(0))
        assert trees.root_visits.sum(1).tolist() == [5, 0]
        for probabilities in (search.policy(trees), search.acting(trees, 0.0), search.acting(trees)):
            assert probabilities.sum(1).tolist() == pytest.approx([1.0, 0.0])


def test_regularized_policy_is_the_known_one():
    prior, values = np.array([[0.5, 0.3, 0.2]]), np.array([[0.0, 0.5, 1.0]])
    assert regularized_policy(prior, values, 0.5)[0] == pytest.approx([0.212456, 0.221659, 0.565885], abs=1e-6)
    exponential = regularized_policy(prior, values, 0.5, "kl")[0]
    assert exponential == pytest.approx([0.179000, 0.291944, 0.529056], abs=1e-6)


@pytest.mark.parametrize("divergence", ["rkl", "kl"])
def test_regularized_policy_is_the_maximum(divergence):
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.full(40, 0.5), 300)
    prior[prior < 1e-3] = 0.0
    prior /= prior.sum(1, keepdims=True)
    values, weight = rng.random(prior.shape), rng.uniform(0.05, 2.0, 300)
    policy = regularized_policy(prior, values, weight, divergence)
    assert policy.sum(1) == pytest.approx(np.ones(300), abs=1e-9)
    assert not policy[prior == 0].any()

    def objective(policy):
        first, second = (prior, policy) if divergence == "rkl" else (policy, prior)
        known = prior > 0
        terms = np.where(known, first * np.log(np.where(known, first / np.where(known, second, 1), 1)), 0)
        return (policy * values).sum(1) - weight * terms.sum(1)

    for _ in range(20):
        other = 0.98 * policy + 0.02 * rng.dirichlet(np.ones(40), 300) * (prior > 0)
        assert (objective(other / other.sum(1, keepdims=True)) <= objective(policy) + 1e-9).all()


def test_visits_approach_the_regularized_policy():
    table, _ = random_table(4, 1)
    root = table.root(np.arange(20))
    shown = Puct(simulations=2000, depth=1, bounds=(-4.0, 4.0), c1=2.0)
    trees = shown.grow(table, root)
    closed = Puct(regularized=("learn",), c1=2.0).policy(trees)
    assert np.abs(closed - shown.policy(trees)).max() < 0.01


def test_actions_without_visits_keep_their_prior_by_none():
    trees = SearchTrees(Node(np.zeros(1), np.log([[0.5, 0.3, 0.2]]), np.zeros(1), np.zeros(1), np.ones(1)), 2)
    trees.child_visits[0], trees.visits[0], trees.q[0] = [1, 1, 0], 3, [1.0, 0.0, 0.0]
    policy = Puct(unexpanded="none", bounds=(0, 1), regularized=("learn",)).policy(trees)[0]
    assert policy[2] == pytest.approx(0.2)
    assert policy.sum() == pytest.approx(1.0)
    assert policy[0] > 0.5


def test_completed_values_are_those_by_hand():
    """Mixed value 0.4375, so q̂ is 0, 1, 0.09375 of its range, times (50 + 2) · 0.1."""
    root = Node(np.zeros(1), np.log([[0.5, 0.3, 0.2]]), np.array([0.1]), np.zeros(1), np.ones(1))
    trees = SearchTrees(root, 3)
    trees.child_visits[0], trees.q[0] = [2, 1, 0], [0.4, 0.8, 0.0]
    powers = np.array([0.5, 0.3 * math.exp(5.2), 0.2 * math.exp(0.4875)])
    assert Gumbel().policy(trees)[0] == pytest.approx(powers / powers.sum())


def test_halving_compares_fewer_and_fewer_actions():
    assert halving(8, 32) == [*[0] * 8, *[1] * 4, *[2] * 4, *(n for n in range(3, 11) for _ in range(2))][:32]
    assert halving(1, 3) == [0, 1, 2]
    assert halving(4, 5) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("parallel", [1, 4])
def test_gumbel_finds_the_best_arm(parallel):
    values = np.array([0.3, 0.9, 0.1, 0.5, 0.8, 0.2, 0.4, 0.6])
    arms = Table(np.zeros((1, 8), int), values[None], np.zeros((1, 8)), np.zeros((1, 8)), [0.0])
    search = Gumbel(simulations=32, considered=8, c_scale=1.0, parallel=parallel)
    trees = search.grow(arms, arms.root([0] * 50), np.random.default_rng(0))
    assert (search.acting(trees).argmax(1) == 1).all()
    assert np.sort(trees.root_visits, 1).tolist() == [[1, 1, 1, 1, 3, 3, 11, 11]] * 50
    few = Gumbel(simulations=2, considered=2).grow(arms, arms.root([0] * 400), np.random.default_rng(0))
    assert (few.root_visits > 0).sum(0).min() > 60  # drawn without replacement, each of eight in a quarter


def test_first_action_ignores_the_prior_without_the_own_visit():
    table, _ = random_table(5, 1)
    root = table.root(np.arange(60))
    allowed = np.isfinite(root.logits)
    plain = Puct(simulations=1, own_visit=False).grow(table, root)
    assert (plain.root_visits.argmax(1) == allowed.argmax(1)).all()
    noisy = Puct(simulations=1, own_visit=False, tie_noise=1e-6, noise=0.0)
    trees = noisy.grow(table, root, np.random.default_rng(0))
    assert not trees.root_visits[~allowed].any()
    assert (trees.root_visits[allowed.all(1)].sum(0) > 2).all()  # of some 30 trees
    lone = SearchTrees(root, 1)
    policy = Puct(own_visit=False, regularized=("learn",)).policy(lone)
    assert policy == pytest.approx(allowed / allowed.sum(1, keepdims=True))


def test_drawn_simulations_at_a_time_follow_the_regularized_policy():
    table, _ = random_table(4, 1)
    search = Puct(simulations=400, parallel=400, regularized=("search",), noise=0.0)
    trees = search.grow(table, table.root(np.arange(20)), np.random.default_rng(0))
    before = SearchTrees(table.root(np.arange(20)), 1)
    expected = Puct(regularized=("learn",)).policy(before)
    assert np.abs(search.policy(trees) - expected).max() < 0.09
    assert trees.used == 20 + (trees.root_visits > 0).sum()  # all were drawn at once, and share their nodes


def test_learned_policy_has_a_temperature_of_its_own():
    table, _ = random_table(4, 1)
    search = Puct(simulations=30)
    trees = search.grow(table, table.root([3]))
    powers = search.policy(trees)[0] ** 2
    assert Puct(learn_temperature=0.5).policy(trees)[0] == pytest.approx(powers / powers.sum())
    assert Puct(learn_temperature=0.5).acting(trees)[0].tolist() == search.acting(trees)[0].tolist()


def test_temperature_sharpens_and_draws_follow():
    policy = np.array([[0.5, 0.25, 0.25], [0.4, 0.4, 0.2], [0, 0, 0]])
    assert tempered(policy, 0.5)[0].tolist() == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    assert tempered(policy, np.array([1.0, 0.0, 1.0])).tolist() == [[0.5, 0.25, 0.25], [0.5, 0.5, 0], [0, 0, 0]]
    actions = pick(np.repeat(policy[:1], 8, 0), np.linspace(0, 0.999, 8))
    assert actions.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"simulations": 0}, "simulations: wanted a whole number from 1, got 0"),
        ({"simulations": 2.5}, "simulations: wanted a whole number from 1, got 2.5"),
        ({"depth": "3"}, "depth: wanted a whole number from 1, got '3'"),
        ({"tie_noise": -1.0}, "tie_noise: wanted a number from 0, got -1.0"),
        ({"learn_temperature": math.nan}, "learn_temperature: wanted a number from 0, got nan"),
        ({"noise": 2.0}, "noise: wanted a number from 0 to 1, got 2.0"),
        ({"unexpanded": "parent"}, "unexpanded: wanted one of a number, max, min"),
        ({"regularized": ["acting"]}, "regularized: wanted one of act, search, learn, got 'acting'"),
        ({"bounds": (1, -1)}, "bounds: wanted a number and a larger one"),
        ({"simulations": 50, "parallel": 4}, "simulations: wanted a multiple of parallel=4, such as 48 or 52, got 50"),
        ({"simulations": 3, "parallel": 4}, "simulations: wanted a multiple of parallel=4, such as 4, got 3"),
        ({"parallel": 0}, "parallel: wanted a whole number from 1, got 0"),
        ({"parallel": 2, "expand": "all"}, "parallel: wanted 1 where expand=all adds all children"),
        ({"expand": "every"}, "expand: wanted one of one, root, all, got 'every'"),
    ],
)
def test_wrong_numbers_are_one_line(kwargs, message):
    with pytest.raises(ConfigError, match="^" + message):
        Puct(**kwargs)


def test_playouts_have_the_value_of_random_games():
    state = RULES.initial(np.zeros(1, np.uint64))
    logits, value = Playouts(4000)(RULES, state, np.ones(1, np.uint64))
    assert value[0] == pytest.approx(0.585 - 0.288, abs=0.04)
    assert logits.shape == (1, 9)
    several = take_rows(state, np.zeros(3, int))
    seeds = np.array([1, 2, 1], np.uint64)
    values = Playouts(5)(RULES, several, seeds)[1]
    assert values[0] == values[2] == Playouts(5)(RULES, state, seeds[:1])[1][0]


@pytest.mark.parametrize(
    ("kwargs", "agent", "least", "most"),
    [
        ({"simulations": 1000}, "perfect", 0.0, 0.0),
        ({"playouts": 1}, "random", -1.0, -0.7),
        ({"gumbel": True, "depth": 2}, "random", -1.0, -0.7),
    ],
    ids=["puct", "playouts", "gumbel"],
)
def test_player_is_an_opponent_that_does_not_lose(kwargs, agent, least, most):
    matches, player = Matches(RULES, 30, opponent=SearchPlayer(**kwargs), side="second"), opponent_of(agent)
    matches.reset(seed=0)
    total, over = np.zeros(30), np.zeros(30, np.bool_)
    while not over.all():
        at, action = np.flatnonzero(~over), np.zeros(30, np.int64)
        draws = np.random.default_rng(len(at)).random(len(at))
        action[at] = player(RULES, take_rows(matches._state, at), draws, None).action
        _, reward, over, _, _ = matches.step(action)
        total += reward
    assert least <= total.mean() <= most
    assert total.min() >= least


def test_trees_are_those_of_mctx():
    """240 roots, half of them of two players; `answers_of_mctx.py` has written the answers."""
    with np.load(Path(__file__).with_name("mctx.npz")) as file:
        known = dict(file)
    for number in range(len(known["after"])):
        table = Table(*(known[name][number] for name in ("after", "reward", "discount", "logits", "value")))
        root = table.root(np.arange(len(table.value)))
        root = root._replace(logits=np.where(known["allowed"][number], root.logits, -np.inf))
        trees = Puct(simulations=32, bounds=(-12.0, 12.0), unexpanded=0.0).grow(table, root)
        assert trees.root_visits.tolist() == known["puct"][number].tolist()
        for name, simulations, considered in (("all", 32, 4), ("half", 20, 2)):
            search = Gumbel(simulations=simulations, considered=considered)
            trees = search.grow(table, root)
            assert trees.root_visits.tolist() == known[name][number].tolist()
            assert np.abs(search.policy(trees) - known[f"{name}_policy"][number]).max() < 1e-9
