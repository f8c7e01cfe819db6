"""Search trees as arrays: many trees grow at once, each by one simulation or by several at a time.

    select:   from the root, take the action that a rule chooses, until it leads to a new node
    expand:   the model predicts the reward r, the discount γ, a prior P over actions, and a value v
    back up:  G ← r + γ G along the path, beginning with v; Q(s, a) = r + γ V(s'), V(s) is the mean of the G of s

(Schrittwieser et al. 2020, arXiv 1911.08265, appendix B.) Rewards and values are those of the player to move, so γ is
negative if the other player moves next. It is 0 if the game is over: a tree ends there, and simulations that end there
again back up the same value. Python loops over simulations and levels of the trees, never over trees.

The rule's choice in a node is kept, and made again if its inputs change: a simulation passed the node, or the bounds of
its tree are wider. So selection follows stored rows, and the rule runs once a simulation for all levels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from rlrun.core.errors import ConfigError, require_one_of, require_whole
from rlrun.core.spaces import map_tree, put_rows, take_rows
from rlrun.core.typing import Array, Tree

Bounds = tuple[float, float]
EXPANSIONS = ("one", "root", "all")
LOWEST = np.finfo(np.float64).min


class Node(NamedTuple):
    """A model's predictions for n nodes.

    state: for the model's next call, a tree of arrays [n, …].
    logits: of the prior [n, A]; -inf for forbidden actions.
    value: for the player to move [n].
    reward: of the action that led here, for the player who took it [n]; ignored at a root.
    discount: factor of this node's value for that player [n]: negative if another player moves here; 0 if the game is
        over.
    """

    state: Tree
    logits: Array
    value: Array
    reward: Array
    discount: Array


class Model(Protocol):
    """A given or learned model of the consequences of actions."""

    def __call__(self, state: Tree, action: Array) -> Node:
        """Return the nodes that follow actions [n] in states [n, …]."""


Rule = Callable[["SearchTrees", Array], Array]


class SearchTrees:
    """N search trees in arrays. Row i is the root of tree i; nodes of all trees follow in the order of their expansion.

    R is the number of rows. The last row is a dummy: indices of -1 point there, and paths that are over stay there.

    Args:
        root: of all trees.
        simulations: number of simulations of each tree.
        depth: largest number of actions from the root to a node.
        bounds: of values for the player to move at the root, if known; values beyond widen them.
        parallel: simulations at a time, k.
        expand: one: a simulation adds one node; root: the same, after all children of the root are added; all: a
            simulation adds all children of the node that it ends at, after those of the root.

    Attributes:
        used: number of rows that are nodes so far, the first ones.
        most_visits: upper limit of a node's visits.
        state: of the model, a tree of arrays [R, …].
        tree: index of a node's tree [R].
        prior: [R, A].
        child: the row that an action leads to [R, A]; -1 = no node yet.
        child_visits: number of simulations that took an action [R, A].
        q: value of a visited action, for the player who took it [R, A].
        visits: number of simulations that passed a node or ended there [R]; a root counts one more.
        value: mean of their returns, for the player to move [R].
        raw: value by the model [R].
        level: number of actions from the root [R].
        sign: 1 if the player to move at the root moves here, otherwise -1 [R].
        gumbel: noise of actions at the root [N, A]; 0 in searches without it.
    """

    def __init__(
        self,
        root: Node,
        simulations: int,
        depth: int | None = None,
        bounds: Bounds | None = None,
        *,
        parallel: int = 1,
        expand: str = "one",
    ) -> None:
        count, actions = root.logits.shape
        self.simulations, self.depth, self.parallel, self.expand = simulations, depth, parallel, expand
        nodes = {"one": simulations, "root": simulations + actions, "all": (simulations + 1) * actions}[expand]
        self.most_visits = 1 + nodes
        rows = count * (1 + nodes) + 1
        self.actions, self.roots = actions, np.arange(count)
        self.used = 0
        self.state = map_tree(lambda leaf: np.zeros((rows, *leaf.shape[1:]), leaf.dtype), root.state)
        self._edges = np.zeros((rows, 3, actions))  # one array, as one look-up is quicker than three
        self.prior, self.q, self.child_visits = (self._edges[:-1, part] for part in range(3))
        self.child = np.full((rows, actions), -1)
        self.value, self.raw, self._total, self._reward = np.zeros((4, rows))
        self.visits = np.zeros(rows)
        self._discount, self.sign = np.ones((2, rows))
        self._taker = np.ones(rows)  # sign of the player who took the action that led here
        self.tree, self.level, self._edge = np.zeros((3, rows), np.int64)
        self._inner = np.zeros(rows, np.bool_)  # whether a node may have children
        self._best = np.zeros((rows, parallel), np.int64)
        self._next = np.full((rows, parallel), -1)
        self.gumbel = np.zeros((count, actions))
        self.tree[:count] = self.roots
        self._write(root)
        self.visits[:count] = 1.0
        self._total[:count] = self.value[:count] = root.value
        low, high = bounds or (np.inf, -np.inf)
        self._low, self._high = np.minimum(self.value[:count], low), np.maximum(self.value[:count], high)
        self._two_sided = False

    @property
    def root_visits(self) -> Array:
        """Number of simulations that took each action at the root: [N, A]."""
        visits: Array = self.child_visits[: len(self.roots)].astype(np.int64)
        return visits

    @property
    def root_value(self) -> Array:
        """Mean of all returns at the root: [N]."""
        value: Array = self.value[: len(self.roots)].copy()
        return value

    def edges(self, at: Array) -> tuple[Array, Array, Array]:
        """Return priors, values and visits of the actions in nodes [n], each [n, A]."""
        columns = self._edges.take(at, 0).transpose(1, 2, 0).copy()  # in this order sums over actions are faster
        return columns[0].T, columns[1].T, columns[2].T

    def bounds(self, at: Array) -> tuple[Array, Array]:
        """Return the least and the largest value of the tree of each node [n], for the player to move there."""
        tree = self.tree.take(at)
        low, high = self._low.take(tree), self._high.take(tree)
        if not self._two_sided:
            return low, high
        mine = self.sign.take(at) > 0
        return np.where(mine, low, -high), np.where(mine, high, -low)

    def grow(self, model: Model, rule: Rule) -> None:
        """Run all simulations.

        rule: called with these trees and nodes [n], all roots first; returns the actions that the next k simulations
            take there [n, k].
        """
        if self.expand != "one":
            self._back_up(self.roots[None], self._expand_all(model, self.roots), float(self.actions))
        self._choose(rule, np.arange(self.used))
        for after in range(self.parallel, self.simulations + 1, self.parallel):
            before = self._low, self._high
            path, leaf, action = self._select()
            if self.expand == "all":
                gain, weight = self._expand_all(model, leaf), float(self.actions)
            else:
                path.append(self._expand(model, leaf, action))
                gain, weight = self.raw.take(np.where(path[-1] < 0, leaf, path[-1])), 1.0
            nodes = self._back_up(np.array(path), gain, weight)
            if after < self.simulations:
                self._choose(rule, self._changed(nodes, *before))

    def _select(self) -> tuple[list[Array], Array, Array]:
        """Return the nodes of each path, level by level [N k], its last node [N k], and the action there [N k]."""
        k = self.parallel
        leaf = self.roots.repeat(k)
        path, place = [leaf], leaf if k == 1 else self._place(leaf)
        while True:
            node = self._next.take(place)
            goes_on = node >= 0
            if not goes_on.any():
                return path, leaf, self._best.take(place)
            path.append(node)
            leaf = np.where(goes_on, node, leaf)
            place = leaf if k == 1 else np.where(goes_on, self._place(node), place)

    def _place(self, node: Array) -> Array:
        """Return the place of each path's choice [N k]: the i-th path in a node reads its i-th choice."""
        k = self.parallel
        nodes = node.reshape(-1, k)
        same = nodes[:, :, None] == nodes[:, None, :]
        place: Array = node * k + (same & np.tri(k, k, -1, np.bool_)).sum(2).ravel()
        return place

    def _expand(self, model: Model, leaf: Array, action: Array) -> Array:
        """Add a node below each leaf [n] that may have children; return its row [n], -1 where there is no new node."""
        rows = np.flatnonzero(self._inner.take(leaf))
        end = np.full(len(leaf), -1)
        if self.parallel == 1:
            end[rows] = self._add(model, leaf[rows], action[rows])
        else:
            key, same = np.unique(leaf[rows] * self.actions + action[rows], return_inverse=True)
            end[rows] = self._add(model, *np.divmod(key, self.actions))[same]
        return end

    def _expand_all(self, model: Model, leaf: Array) -> Array:
        """Add all children of each leaf [n] that may have some; return their mean by the prior, or the leaf's value."""
        grows = self._inner.take(leaf)
        rows, action = np.nonzero((self.prior[leaf] > 0) & grows[:, None])
        new = self._add(model, leaf[rows], action)
        self.visits[new] = 1.0
        self._total[new] = self.value[new] = self.raw[new]
        self._put(new, self.raw[new])
        prior, q, _ = self.edges(leaf)
        gain: Array = np.where(grows, (prior * q).sum(1), self.raw[leaf])
        return gain

    def _add(self, model: Model, parent: Array, action: Array) -> Array:
        """Add the nodes that follow actions [n] in parents [n]; return their rows [n]."""
        new = np.arange(self.used, self.used + len(parent))
        if len(new):
            after = model(take_rows(self.state, parent), action)
            at, edge = slice(self.used, self.used + len(new)), parent * self.actions + action
            self.child.ravel()[edge] = new
            self._edge[at] = edge + parent * 2 * self.actions
            self.level[at], self.tree[at] = self.level.take(parent) + 1, self.tree.take(parent)
            self._taker[at] = self.sign[at] = self.sign.take(parent)
            other = np.asarray(after.discount) < 0
            if other.any():
                self._two_sided = True
                self.sign[at] = np.where(other, -self.sign[at], self.sign[at])
            self._write(after)
        return new

    def _write(self, node: Node) -> None:
        at = slice(self.used, self.used + len(node.value))
        put_rows(self.state, at, node.state)
        self.prior[at] = softmax(node.logits)
        self.raw[at], self._reward[at], self._discount[at] = node.value, node.reward, node.discount
        self._inner[at] = self._discount[at] != 0
        if self.depth is not None:
            self._inner[at] &= self.level[at] < self.depth
        self.used = at.stop

    def _back_up(self, path: Array, gain: Array, weight: float) -> Array:
        """Add returns to all nodes of paths [L, n], `weight` times, beginning with a gain [n] after the last one.

        Returns: those nodes, level by level.
        """
        reward, discount = self._reward.take(path), self._discount.take(path)
        gains = np.empty(path.shape)
        for level in range(len(path) - 1, -1, -1):
            gains[level] = gain
            gain = reward[level] + discount[level] * gain
        passed = path >= 0
        nodes, gains = path[passed], gains[passed]
        np.add.at(self.visits, nodes, weight)
        np.add.at(self._total, nodes, weight * gains)
        value = self._total.take(nodes) / self.visits.take(nodes)
        self.value[nodes] = value
        roots = path.shape[1]
        self._put(nodes[roots:], value[roots:])
        return nodes

    def _put(self, at: Array, value: Array) -> None:
        """Write values and visits of nodes to the actions that lead there, and widen the bounds of their trees."""
        edge, flat = self._edge.take(at), self._edges.ravel()
        flat[edge + self.actions] = q = self._reward.take(at) + self._discount.take(at) * value
        flat[edge + 2 * self.actions] = self.visits.take(at)
        self._low, self._high = self._low.copy(), self._high.copy()
        tree, seen = self.tree.take(at), self._taker.take(at) * q
        np.minimum.at(self._low, tree, seen)
        np.maximum.at(self._high, tree, seen)

    def _changed(self, nodes: Array, low: Array, high: Array) -> Array:
        """Return the nodes whose choices may change: roots, nodes of paths, and those with children in wider bounds.

        Without children all actions have the same value in any bounds.
        """
        nodes = nodes if self.parallel == 1 else np.unique(nodes)
        wider = (self._low < low) | (self._high > high)
        if not wider.any():
            return nodes
        more = wider.take(self.tree[: self.used]) & (self.visits[: self.used] > 1)
        return np.concatenate([nodes, np.flatnonzero(more)])

    def _choose(self, rule: Rule, at: Array) -> None:
        best = rule(self, at)
        self._best[at] = best
        self._next[at] = self.child.take(at[:, None] * self.actions + best)


class Search(ABC):
    """A search algorithm: how trees grow, and which policies are read from them."""

    @abstractmethod
    def grow(self, model: Model, root: Node, rng: np.random.Generator | None = None) -> SearchTrees:
        """Return the trees of a search from root nodes.

        rng: of noise and draws; None = without noise.
        """

    @abstractmethod
    def policy(self, trees: SearchTrees) -> Array:
        """Return the probabilities that a policy learns [N, A]; all are 0 where the game is over."""

    @abstractmethod
    def acting(self, trees: SearchTrees, temperature: float | Array = 1.0) -> Array:
        """Return the probabilities of actions in the environment [N, A].

        temperature: one or [N]; 0 = the best ones, with equal probability.
        """


def require_size(simulations: int, depth: int | None, parallel: int, expand: str = "one") -> None:
    """Check the numbers that set the size of a search.

    Raises:
        ConfigError: a number is out of range, or two of them do not fit together.
    """
    require_whole("simulations", simulations, 1)
    require_whole("depth", 1 if depth is None else depth, 1)
    require_whole("parallel", parallel, 1)
    require_one_of("expand", expand, EXPANSIONS)
    if simulations % parallel:
        below = simulations // parallel * parallel
        near = f"{below} or {below + parallel}" if below else str(parallel)
        raise ConfigError(f"simulations: wanted a multiple of parallel={parallel}, such as {near}, got {simulations}")
    if expand == "all" and parallel > 1:
        raise ConfigError(f"parallel: wanted 1 where expand=all adds all children at a time, got {parallel}")


def in_turn(times: int, visits: Array, score: Callable[[Array, int], Array]) -> Array:
    """Return the actions of the highest scores, chosen in turn: [n, times]. Each one counts as a visit for the next.

    visits: before [n, A].
    score: function of visits [n, A] and the number of actions chosen so far that returns scores [n, A].
    """
    if times == 1:
        best: Array = score(visits, 0).argmax(1)[:, None]
        return best
    actions, visits = np.empty((len(visits), times), np.int64), visits.copy()
    for number in range(times):
        actions[:, number] = best = score(visits, number).argmax(1)
        visits[np.arange(len(visits)), best] += 1.0
    return actions


def softmax(logits: Array) -> Array:
    """Return probabilities [n, A]; rows of only -inf are 0."""
    logits = np.asarray(logits, np.float64, order="F")
    largest = logits.max(1, keepdims=True)
    powers = np.exp(logits - np.maximum(largest, LOWEST))
    parts: Array = powers / np.maximum(powers.sum(1, keepdims=True), 1e-300)  # a sum is 0 or at least 1
    return parts


def shares(numbers: Array) -> Array:
    """Return the share of each number in the sum of its row [n, A]; 0 in rows of zeros."""
    total = numbers.sum(1, keepdims=True)
    parts: Array = numbers / np.where(total > 0, total, 1.0)
    return parts


def pick(probabilities: Array, draws: Array) -> Array:
    """Return actions [N] drawn from probabilities [N, A] by random numbers [N] in [0, 1)."""
    upto = probabilities.cumsum(1)
    action: Array = (upto > (draws * upto[:, -1])[:, None]).argmax(1)
    return action
