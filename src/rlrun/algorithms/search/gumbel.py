"""Gumbel MuZero's search (Danihelka et al. 2022, https://openreview.net/forum?id=bERaNdoegnO).

    root:      argmax g(a) + log P(a) + σ(q̂(a)) over the actions of a round of sequential halving,  g ~ Gumbel(0)
    below:     argmax  π'(a) - N(a) / (1 + Σ_b N(b))
    policy:    π' = softmax(log P + σ(q̂))
    σ(q̂) = (c_visit + max_b N(b)) c_scale q̂

q̂ is Q of visited actions, and the mixed value (v + Σ N · Σ P Q / Σ P) / (1 + Σ N) of the others, with sums of P over
visited actions (appendix D). The q̂ of a node are scaled to [0, 1] by their minimum and maximum. With few simulations
the policy still improves, as actions are drawn without replacement.
"""

from dataclasses import dataclass

import numpy as np

from rlrun.algorithms.search.tree import Model, Node, Search, SearchTrees, in_turn, require_size, softmax
from rlrun.core.errors import require_number, require_whole
from rlrun.core.typing import Array

LEAST = -1e9  # lower limit of the scores of allowed actions


@dataclass(frozen=True, kw_only=True)
class Gumbel(Search):
    """Gumbel MuZero's search.

    Args:
        simulations: number of simulations of a search.
        considered: largest number of actions in the first round of sequential halving.
        c_visit, c_scale: of σ.
        noise: factor of g.
        depth: largest number of actions from the root to a node.
        parallel: simulations at a time, by one call of the model; several may end at the same node.

    Raises:
        ConfigError: a number is out of range, or `simulations` is not a multiple of `parallel`.
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
        """Return 1 for the best of the most visited actions, else 0 [N, A]; g explores, so temperature is unused."""
        scores, visits = self._scores(trees, trees.roots)
        best = np.where(visits == visits.max(1, keepdims=True), self._noisy(trees, scores), -np.inf).argmax(1)
        chosen: Array = (np.arange(visits.shape[1]) == best[:, None]) & (visits > 0)
        return chosen.astype(np.float64)

    def _noisy(self, trees: SearchTrees, scores: Array) -> Array:
        """Return g + log P + σ(q̂) of the actions at roots [N, A], from scores [n, A] that begin with the roots'."""
        scores = scores[: len(trees.roots)]
        return np.where(scores > -np.inf, np.maximum(trees.gumbel + scores, LEAST), -np.inf)

    def _scores(self, trees: SearchTrees, at: Array) -> tuple[Array, Array]:
        """Return log P + σ(q̂) and the visits of each action, both [n, A]; -inf for forbidden actions."""
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
    """Return, for each simulation, how many visits its action already has, by sequential halving.

    All actions of a round get equally many visits, and the better half goes on to the next round. Each of the
    log2(actions) rounds has about equally many simulations. The last two actions go on to the end.
    """
    order: list[int] = []
    visits, rounds, left = [0] * actions, max(1, (actions - 1).bit_length()), actions
    while len(order) < simulations:
        for _ in range(max(1, simulations // (rounds * max(left, 1)))):
            order += visits[:left] if actions > 1 else [len(order)]
            visits[:left] = [count + 1 for count in visits[:left]]
        left = max(2, left // 2)
    return order[:simulations]
