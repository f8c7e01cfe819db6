"""Search trees as arrays: many trees grow at once, one node each in a simulation.

    select:   from the root, take the action that a rule chooses, until it leads to no node yet
    expand:   the model says what follows: reward r, discount γ, a prior P over actions, and a value v
    back up:  G ← r + γ G along the path, beginning with v; Q(s, a) = r + γ V(s'), V(s) is the mean of the G of s

(Schrittwieser et al. 2020, arXiv 1911.08265, appendix B.) Rewards and values are those of who moves. So γ is negative
where the other player moves next. It is 0 where the game is over: a tree ends there, and the same end is backed up
again. Python loops over simulations and levels of the trees, never over trees.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from rlrun.core.spaces import map_tree, put_rows, take_rows
from rlrun.core.typing import Array, Tree

Bounds = tuple[float, float]


class Node(NamedTuple):
    """What a model says of n nodes.

    state: that the model goes on from, a tree of arrays [n, …].
    logits: of the prior [n, A]; -inf for actions that are not allowed.
    value: of who moves here [n].
    reward: of the action that led here, for who took it [n]; of a root it counts nothing.
    discount: factor of this node's value for who took that action [n], negative where another player moves here; 0
        where the game is over.
    """

    state: Tree
    logits: Array
    value: Array
    reward: Array
    discount: Array


class Model(Protocol):
    """A model of what follows actions, given or learned."""

    def __call__(self, state: Tree, action: Array) -> Node:
        """Return the nodes that follow actions [n] in states [n, …]."""


class SearchTrees:
    """N trees of up to M nodes, node m of tree i in row i · M + m of all arrays; the root is the first one.

    Args:
        root: of all trees.
        simulations: M - 1.
        depth: actions from the root to a node, at most.
        bounds: of values for who moves at the root, known before. Values beyond widen them.

    Attributes:
        state: of the model, a tree of arrays [N · M, …].
        prior: [N · M, A].
        child: the row that an action leads to [N · M, A], -1 for none.
        child_visits: simulations that took an action [N · M, A].
        q: value of an action that was taken, for who took it [N · M, A].
        visits: simulations that passed a node or ended there [N · M], and the one that made the root.
        value: mean of their returns, for who moves [N · M].
        raw: value by the model [N · M].
        level: actions from the root [N · M].
        sign: 1 where who moves at the root moves here, -1 where the other one does [N · M].
        gumbel: noise of actions at the root, of searches that have one [N, A].
    """

    def __init__(self, root: Node, simulations: int, depth: int | None = None, bounds: Bounds | None = None) -> None:
        count, actions = root.logits.shape
        self.simulations, self.size, self.depth = simulations, simulations + 1, depth
        nodes = count * self.size
        self.roots = np.arange(count) * self.size
        self.state = map_tree(lambda leaf: np.zeros((nodes, *leaf.shape[1:]), leaf.dtype), root.state)
        self.prior, self.q = np.zeros((2, nodes, actions))
        self.child_visits = np.zeros((nodes, actions), np.int64)
        self.child = np.full((nodes, actions), -1)
        self.value, self.raw, self._reward, self._discount = np.zeros((4, nodes))
        self.visits, self.level, self._parent, self._action = np.zeros((4, nodes), np.int64)
        self.sign = np.ones(nodes)
        self._inner = np.zeros(nodes, np.bool_)  # whether a simulation may go on from a node
        self.gumbel = np.zeros((count, actions))
        self._write(self.roots, root)
        self.visits[self.roots], self.value[self.roots] = 1, root.value
        low, high = bounds or (np.inf, -np.inf)
        self._low, self._high = np.minimum(root.value, low), np.maximum(root.value, high)

    @property
    def root_visits(self) -> Array:
        """Simulations that took each action at the root: [N, A]."""
        visits: Array = self.child_visits[self.roots]
        return visits

    @property
    def root_value(self) -> Array:
        """Mean of all returns at the root: [N]."""
        value: Array = self.value[self.roots]
        return value

    def bounds(self, at: Array) -> tuple[Array, Array]:
        """Return the least and the largest value of the tree of each node [n], for who moves there."""
        row, mine = at // self.size, self.sign[at] > 0
        low, high = self._low[row], self._high[row]
        return np.where(mine, low, -high), np.where(mine, high, -low)

    def grow(self, model: Model, choose: Callable[["SearchTrees", Array], Array]) -> None:
        """Run all simulations.

        choose: called with these trees and nodes [n], all of one level; returns the action of each.
        """
        for number in range(1, self.size):
            leaf, action = self._select(choose)
            rows = np.flatnonzero(action >= 0)
            if len(rows):
                parent, new = leaf[rows], self.roots[rows] + number
                self._expand(model, parent, action[rows], new)
                leaf[rows] = new
            self._back_up(leaf)

    def _select(self, choose: Callable[["SearchTrees", Array], Array]) -> tuple[Array, Array]:
        """Return the last node of each path [N], and the action to be expanded there [N]: -1 for none."""
        node, action = self.roots.copy(), np.full(len(self.roots), -1)
        rows = np.flatnonzero(self._inner[node])
        while len(rows):
            at = node[rows]
            chosen = choose(self, at)
            child = self.child[at, chosen]
            new = child < 0
            action[rows[new]] = chosen[new]
            rows, child = rows[~new], child[~new]
            node[rows] = child
            rows = rows[self._inner[child]]
        return node, action

    def _expand(self, model: Model, parent: Array, action: Array, new: Array) -> None:
        after = model(take_rows(self.state, parent), action)
        self.child[parent, action] = new
        self._parent[new], self._action[new], self.level[new] = parent, action, self.level[parent] + 1
        self.sign[new] = np.where(after.discount < 0, -self.sign[parent], self.sign[parent])
        self._write(new, after)

    def _write(self, at: Array, node: Node) -> None:
        put_rows(self.state, at, node.state)
        self.prior[at] = softmax(node.logits)
        self.raw[at], self._reward[at], self._discount[at] = node.value, node.reward, node.discount
        self._inner[at] = node.discount != 0
        if self.depth is not None:
            self._inner[at] &= self.level[at] < self.depth

    def _back_up(self, node: Array) -> None:
        gain = self.raw[node]
        while True:
            self.visits[node] += 1
            self.value[node] += (gain - self.value[node]) / self.visits[node]
            below = self.level[node] > 0
            node = node[below]
            if not len(node):
                return
            parent, action, factor = self._parent[node], self._action[node], self._discount[node]
            q = self._reward[node] + factor * self.value[node]
            gain = self._reward[node] + factor * gain[below]
            self.q[parent, action] = q
            self.child_visits[parent, action] += 1
            row, seen = node // self.size, self.sign[parent] * q
            self._low[row], self._high[row] = np.minimum(self._low[row], seen), np.maximum(self._high[row], seen)
            node = parent


class Search(ABC):
    """A way to grow trees and to read them."""

    @abstractmethod
    def grow(self, model: Model, root: Node, rng: np.random.Generator | None = None) -> SearchTrees:
        """Return trees that are grown from roots.

        rng: of the noise at the root; None: without noise.
        """

    @abstractmethod
    def policy(self, trees: SearchTrees) -> Array:
        """Return the probabilities that a policy learns [N, A]; all are 0 where the game is over."""

    @abstractmethod
    def acting(self, trees: SearchTrees, temperature: float | Array = 1.0) -> Array:
        """Return the probabilities of actions in the environment [N, A].

        temperature: one or [N]; 0: the best ones, each as likely.
        """


def softmax(logits: Array) -> Array:
    """Return probabilities [n, A]; all are 0 in rows of -inf alone."""
    logits = np.asarray(logits, np.float64)
    largest = logits.max(1, keepdims=True)
    powers: Array = np.exp(logits - np.where(largest > -np.inf, largest, 0.0))
    return shares(powers)


def shares(numbers: Array) -> Array:
    """Return the share of each number in the sum of its row [n, A]; 0 in rows of zeros."""
    total = numbers.sum(1, keepdims=True)
    parts: Array = numbers / np.where(total > 0, total, 1.0)
    return parts


def pick(probabilities: Array, draws: Array) -> Array:
    """Return actions [N] of probabilities [N, A], by random numbers [N] in [0, 1)."""
    upto = probabilities.cumsum(1)
    action: Array = (upto > (draws * upto[:, -1])[:, None]).argmax(1)
    return action
