"""MuZero's search: PUCT, and the policy that it approximates.

    a = argmax  Q̃(s, a) + c P(s, a) √N(s) / (1 + N(s, a)),      c = c₁ + log((N(s) + c₂ + 1) / c₂)

(Schrittwieser et al. 2020, arXiv 1911.08265, appendix B.) Q̃ is Q scaled to [0, 1] by the bounds of the tree's values.
At the root, P is mixed with Dirichlet noise over the allowed actions (Silver et al. 2018).

Visit counts approximate a policy that can be computed (Grill et al. 2020, arXiv 2007.12509, section 3):

    π̄ = argmax over p of  Σ_a p(a) Q̃(s, a) - c / √N(s) · KL(P, p)

Parallel simulations take the best actions of a node in turn, each counting those before as visits, or draw from π̄
independently.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.algorithms.search.tree import (
    Bounds,
    Model,
    Node,
    Search,
    SearchTrees,
    in_turn,
    pick,
    require_size,
    shares,
)
from rlrun.core.errors import ConfigError, is_number, require_number, require_one_of, shown
from rlrun.core.typing import Array
from rlrun.env.simulator import uniform

UNEXPANDED = ("max", "min", "mean", "mean_with_parent", "none")
PLACES = ("act", "search", "learn")
DIVERGENCES = ("rkl", "kl")


@dataclass(frozen=True, kw_only=True)
class Puct(Search):
    """MuZero's search.

    Args:
        simulations: number of simulations of a search.
        c1, c2: of the weight c of the prior.
        noise: share of noise in the prior at the root.
        alpha: of the Dirichlet distribution; small ones favor few actions.
        bounds: least and largest value for the player to move at the root; values beyond widen them. None = the tree's.
        smallest_range: lower limit of the range by which values are divided.
        unexpanded: Q̃ of unvisited actions: a number; max, min or mean of the visited ones; mean_with_parent, which
            includes the node's own value; none: as min, and π̄ of these actions is their prior.
        depth: largest number of actions from the root to a node.
        regularized: where π̄ replaces visits: act, learn, search. A search draws actions from it; without a generator
            draws depend on simulation and level only, so that trees do not depend on each other.
        divergence: of π̄. rkl: Σ P log(P / p), by which each action keeps a share; kl: Σ p log(p / P).
        parallel: simulations at a time, by one call of the model; several may end at the same node.
        expand: one: a simulation adds one node; root: the same, after an extra simulation that adds all children of the
            root; all: each simulation adds all children of the node that it ends at. All children at a time count as A
            simulations that return their mean by the prior. Visits then say little about a child, so `regularized`
            should have act and learn.
        own_visit: whether N(s) includes the visit that added the node. Without it the prior has no effect on the first
            action of a node.
        tie_noise: upper limit of random numbers added to scores, only with a generator.
        learn_temperature: T of the policy to be learned, p ** (1 / T).

    Raises:
        ConfigError: a number or a name is out of range, or two of them do not fit together.
    """

    simulations: int = 50
    c1: float = 1.25
    c2: float = 19652.0
    noise: float = 0.25
    alpha: float = 0.3
    bounds: Bounds | None = None
    smallest_range: float = 1e-8
    unexpanded: float | str = 0.5
    depth: int | None = None
    regularized: Collection[str] = ()
    divergence: str = "rkl"
    parallel: int = 1
    expand: str = "one"
    own_visit: bool = True
    tie_noise: float = 0.0
    learn_temperature: float = 1.0

    def __post_init__(self) -> None:
        require_size(self.simulations, self.depth, self.parallel, self.expand)
        for name in ("alpha", "c2", "smallest_range"):
            require_number(name, getattr(self, name), above=0)
        for name in ("c1", "tie_noise", "learn_temperature"):
            require_number(name, getattr(self, name), 0)
        require_number("noise", self.noise, 0, 1)
        if self.bounds is not None and not _are_bounds(self.bounds):
            raise ConfigError(
                f"bounds: wanted a number and a larger one, as [-1, 1], or null, got {shown(self.bounds)}"
            )
        if isinstance(self.unexpanded, str):
            require_one_of("unexpanded", self.unexpanded, ("a number", *UNEXPANDED))
        else:
            require_number("unexpanded", self.unexpanded)
        if isinstance(self.regularized, str) or not isinstance(self.regularized, Collection):
            raise ConfigError(f"regularized: wanted a list of {', '.join(PLACES)}, got {shown(self.regularized)}")
        for place in self.regularized:
            require_one_of("regularized", place, PLACES)
        require_one_of("divergence", self.divergence, DIVERGENCES)

    def grow(self, model: Model, root: Node, rng: np.random.Generator | None = None) -> SearchTrees:
        size = self.simulations, self.depth, self.bounds
        trees = SearchTrees(root, *size, parallel=self.parallel, expand=self.expand)
        if rng is not None and self.noise:
            prior = trees.prior[trees.roots]
            drawn = rng.standard_gamma(self.alpha, prior.shape) + 1e-300  # small alphas give rows of zeros
            trees.prior[trees.roots] = (1 - self.noise) * prior + self.noise * shares(drawn * (prior > 0))
        weights = self._weights(np.arange(trees.most_visits + 1.0))

        def rule(trees: SearchTrees, at: Array) -> Array:
            if "search" not in self.regularized:
                return self._best(trees, at, weights, rng)
            policy, times = self.regularized_policy(trees, at), range(self.parallel)
            if rng is not None:
                return np.stack([pick(policy, rng.random(len(at))) for _ in times], 1)
            level, count = trees.level[at].astype(np.uint64), trees.visits[trees.tree[at]]
            return np.stack([pick(policy, uniform(level, count + time)) for time in times], 1)

        trees.grow(model, rule)
        return trees

    def policy(self, trees: SearchTrees) -> Array:
        policy = self._policy(trees, "learn")
        return policy if self.learn_temperature == 1.0 else tempered(policy, self.learn_temperature)

    def acting(self, trees: SearchTrees, temperature: float | Array = 1.0) -> Array:
        return tempered(self._policy(trees, "act"), temperature)

    def _policy(self, trees: SearchTrees, place: str) -> Array:
        if place in self.regularized:
            return self.regularized_policy(trees, trees.roots)
        return shares(trees.root_visits)

    def _best(self, trees: SearchTrees, at: Array, weights: Array, rng: np.random.Generator | None = None) -> Array:
        """Return the k best actions of nodes [n], taken in turn: [n, k]. weights: c √N for N = 0, 1, 2, …"""
        prior, q, child_visits = trees.edges(at)
        values = np.where(prior > 0, self._values(trees, at, q, child_visits > 0), -np.inf)
        if rng is not None and self.tie_noise:
            values += self.tie_noise * rng.random(values.shape)
        parents = self._visits(trees, at).astype(np.int64)

        def score(visits: Array, number: int) -> Array:
            scores: Array = values + weights.take(parents + number)[:, None] * prior / (1.0 + visits)
            return scores

        return in_turn(self.parallel, child_visits, score)

    def _visits(self, trees: SearchTrees, at: Array) -> Array:
        """Return N(s) [n]."""
        visits: Array = trees.visits.take(at)
        return visits if self.own_visit else visits - 1.0

    def _weights(self, visits: Array) -> Array:
        """Return c √N(s) [n] of visits N(s) [n]."""
        weights: Array = (self.c1 + np.log1p((visits + 1) / self.c2)) * np.sqrt(visits)
        return weights

    def values(self, trees: SearchTrees, at: Array) -> Array:
        """Return Q̃ of each action [n, A] in nodes [n]."""
        _, q, visits = trees.edges(at)
        return self._values(trees, at, q, visits > 0)

    def _values(self, trees: SearchTrees, at: Array, q: Array, expanded: Array) -> Array:
        low, high = trees.bounds(at)
        width = np.maximum(high - low, self.smallest_range)
        values = (q - low[:, None]) / width[:, None]
        if isinstance(self.unexpanded, str):
            other = _summary(values, expanded, (trees.value[at] - low) / width, self.unexpanded)[:, None]
        else:
            other = np.asarray(self.unexpanded)
        chosen: Array = np.where(expanded, values, other)
        return chosen

    def regularized_policy(self, trees: SearchTrees, at: Array) -> Array:
        """Return π̄ [n, A] in nodes [n]."""
        prior, q, child_visits = trees.edges(at)
        expanded = child_visits > 0
        values, visits = self._values(trees, at, q, expanded), self._visits(trees, at)
        weight = np.maximum(self._weights(visits), 1e-300) / np.maximum(visits, 1.0)
        if self.unexpanded == "none":
            known = prior * expanded
            policy = regularized_policy(shares(known), values, weight, self.divergence)
            policy = np.where(expanded, policy * known.sum(1, keepdims=True), prior)
        else:
            policy = regularized_policy(prior, values, weight, self.divergence)
        return policy if self.own_visit else np.where(visits[:, None] > 0, policy, shares(prior > 0))


def _are_bounds(bounds: object) -> bool:
    pair = [*bounds] if isinstance(bounds, Sequence) and not isinstance(bounds, str) else []
    return len(pair) == 2 and all(map(is_number, pair)) and pair[0] < pair[1]


def _summary(values: Array, expanded: Array, parent: Array, rule: str) -> Array:
    """Return the value of unvisited actions [n], from the visited ones; 0 where no action is visited."""
    if rule == "max":
        summary = np.where(expanded, values, -np.inf).max(1)
    elif rule in ("min", "none"):
        summary = np.where(expanded, values, np.inf).min(1)
    else:
        extra = rule == "mean_with_parent"
        summary = ((values * expanded).sum(1) + extra * parent) / np.maximum(expanded.sum(1) + extra, 1)
    return np.where(expanded.any(1), summary, 0.0)


def regularized_policy(prior: Array, values: Array, weight: Array | float, divergence: str = "rkl") -> Array:
    """Return the probabilities p [n, A] that maximize Σ p · values - weight · divergence from a prior [n, A].

    rkl: p = P / (β - u), where u = (values - max) / weight, and Newton's method finds the β at which they sum to 1.
    kl: p ∝ P exp(values / weight) (Grill et al. 2020, arXiv 2007.12509).

    weight: one or [n], above 0.
    divergence: rkl or kl.
    """
    allowed = prior > 0
    values = np.where(allowed, values, -np.inf)
    best = values.max(1, keepdims=True)
    gap = (values - np.where(best > -np.inf, best, 0.0)) / np.reshape(weight, (-1, 1))  # u
    if divergence == "kl":
        return shares(prior * np.exp(gap))
    beta = np.where(allowed, prior + gap, -np.inf).max(1, keepdims=True)  # p ≤ 1, so β is not below
    beta = np.where(allowed.any(1, keepdims=True), beta, 1.0)
    for _ in range(100):
        parts = prior / (beta - gap)
        excess = parts.sum(1, keepdims=True) - 1.0
        if not (excess > 1e-12).any():
            break
        slope = (parts / (beta - gap)).sum(1, keepdims=True)
        beta = beta + np.maximum(excess, 0.0) / np.where(slope > 0, slope, 1.0)
    return shares(prior / (beta - gap))


def tempered(policy: Array, temperature: float | Array) -> Array:
    """Return probabilities [N, A] proportional to policy ** (1 / temperature).

    temperature: one or [N]; 0 = the largest ones, with equal probability.
    """
    heat = np.zeros((len(policy), 1)) + np.reshape(temperature, (-1, 1))
    relative = policy / np.maximum(policy.max(1, keepdims=True), np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore"):
        powers = np.exp(np.log(relative) / np.where(heat > 0, heat, 1.0))
    return shares(np.where(heat > 0, powers, (policy > 0) & (relative == 1.0)))
