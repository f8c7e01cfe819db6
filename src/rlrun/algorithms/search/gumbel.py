"""Gumbel MuZero's search (Danihelka et al. 2022, https://openreview.net/forum?id=bERaNdoegnO).

    root:      argmax over actions of a round of sequential halving of   g(a) + log P(a) + σ(q̂(a)),  g ~ Gumbel(0)
    below:     argmax  π'(a) - N(a) / (1 + Σ_b N(b))
    policy:    π' = softmax(log P + σ(q̂))
    σ(q̂) = (c_visit + max_b N(b)) c_scale q̂

q̂ is Q of actions that were taken. The others have the mixed value (v + Σ N · Σ P Q / Σ P) / (1 + Σ N) there, sums of P
over actions that were taken (appendix D). All of them are brought to [0, 1] by the least and the largest of the node.
With few simulations the policy still improves, as actions are drawn without replacement.
"""

from dataclasses import dataclass

import numpy as np

from rlrun.algorithms.search.tree import Model, Node, Search, SearchTrees, in_turn, require_size, softmax
from rlrun.core.errors import require_number, require_whole
from rlrun.core.typing import Array

LEAST = -1e9  # of the scores of actions that are allowed


@dataclass(frozen=True, kw_only=True)
class Gumbel(Search):
    """Gumbel MuZero's search.

    Args:
        simulations: of a search.
        considered: actions that the first round of sequential halving compares, at most.
        c_visit, c_scale: of σ.
        noise: factor of g.
        depth: actions from the root to a node, at most.
        parallel: simulations at a time, which the model gets at once; the same node may be the end of several.

    Raises:
        ConfigError: a number is out of range, or `simulations` is no multiple of `parallel`.
    """

    simulations: int = 50
    considered: int = 16
    c_visit: float = 50.0
    c_scale: float = 0.1
    noise: float = 1.0
    depth: int | None = None
    parallel: int = 1

    def __post_init__(self) -> None:
        require_size(self.simulations, self.depth, self.parallel)
        require_whole("considered", self.considered, 1)
        for name in ("c_visit", "c_scale", "noise"):
            require_number(name, getattr(self, name), 0)

    def grow(self, model: Model, root: Node, rng: np.random.Generator | None = None) -> SearchTrees:
        size = self.simulations, self.depth, (-np.inf, np.inf)  # values are compared within a node, so no bounds
        trees = SearchTrees(root, *size, parallel=self.parallel)
        if rng is not None:
            trees.gumbel[:] = self.noise * rng.gumbel(size=trees.gumbel.shape)
        counts = range(min(self.considered, root.logits.shape[1]) + 1)
        rounds = np.array([halving(count, self.simulations) for count in counts])
        rounds = rounds[(trees.prior[trees.roots] > 0).sum(1).clip(max=len(rounds) - 1)]  # [N, simulations]

        def rule(trees: SearchTrees, at: Array) -> Array:
            scores, visits = self._scores(trees, at)
            improved, at_roots = softmax(scores), self._noisy(trees, scores)
            improved[scores == -np.inf] = -np.inf
            taken = visits.sum(1, keepdims=True)

            def score(visits: Array, number: int) -> Array:
                """Return how far the share of visits is below the probability; at roots g + log P + σ(q̂)."""
                gap = improved - visits / (taken + (1 + number))
                wanted = rounds[trees.roots, taken[trees.roots, 0].astype(np.int64) + number]
                gap[trees.roots] = np.where(visits[trees.roots] == wanted[:, None], at_roots, -np.inf)
                return gap  # type: ignore[no-any-return]

            return in_turn(self.parallel, visits, score)

        trees.grow(model, rule)
        return trees

    def policy(self, trees: SearchTrees) -> Array:
        return softmax(self._scores(trees, trees.roots)[0])

    def acting(self, trees: SearchTrees, temperature: float | Array = 1.0) -> Array:
        """Return 1 for the best of the most visited actions, else 0 [N, A]; its noise explores, so no temperature."""
        scores, visits = self._scores(trees, trees.roots)
        best = np.where(visits == visits.max(1, keepdims=True), self._noisy(trees, scores), -np.inf).argmax(1)
        chosen: Array = (np.arange(visits.shape[1]) == best[:, None]) & (visits > 0)
        return chosen.astype(np.float64)

    def _noisy(self, trees: SearchTrees, scores: Array) -> Array:
        """Return g + log P + σ(q̂) of the actions at roots [N, A], of scores [n, A] that begin with those of roots."""
        scores = scores[: len(trees.roots)]
        return np.where(scores > -np.inf, np.maximum(trees.gumbel + scores, LEAST), -np.inf)

    def _scores(self, trees: SearchTrees, at: Array) -> tuple[Array, Array]:
        """Return log P + σ(q̂) and the visits of each action, both [n, A]; -inf for those that are not allowed."""
        prior, q, visits = trees.edges(at)
        taken, total = visits > 0, visits.sum(1)
        known = np.where(taken, np.maximum(prior, np.finfo(np.float64).tiny), 0.0)
        mean = (known * q).sum(1) / np.where(total > 0, known.sum(1), 1.0)
        mixed = (trees.raw.take(at) + total * mean) / (total + 1)
        completed = np.where(taken, q, mixed[:, None])
        low, high = completed.min(1, keepdims=True), completed.max(1, keepdims=True)
        factor = (self.c_visit + visits.max(1, keepdims=True)) * self.c_scale / np.maximum(high - low, 1e-8)
        with np.errstate(divide="ignore"):
            return np.log(prior) + factor * (completed - low), visits


def halving(actions: int, simulations: int) -> list[int]:
    """Return for each simulation how many visits the action that it takes has, by sequential halving.

    All actions get as many visits in a round, and the better half of them goes on. About as many simulations fall to
    each of the log2(actions) rounds. The last two go on until the simulations end.
    """
    order: list[int] = []
    visits, rounds, left = [0] * actions, max(1, (actions - 1).bit_length()), actions
    while len(order) < simulations:
        for _ in range(max(1, simulations // (rounds * max(left, 1)))):
            order += visits[:left] if actions > 1 else [len(order)]
            visits[:left] = [count + 1 for count in visits[:left]]
        left = max(2, left // 2)
    return order[:simulations]
