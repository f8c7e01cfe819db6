"""Search in games with known rules: their model, evaluations of positions, and an opponent."""

from typing import Protocol

import numpy as np

from rlrun.algorithms.search.gumbel import Gumbel
from rlrun.algorithms.search.puct import Puct
from rlrun.algorithms.search.tree import Node, Search, pick
from rlrun.core.errors import require_whole
from rlrun.core.spaces import row_count, take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.simulator import Move, Simulator, drawn, mixed, require_seen, uniform


class Judge(Protocol):
    """An estimate of policy and value at positions, before a search."""

    def __call__(self, rules: Simulator, state: Tree, seeds: Array) -> tuple[Array, Array]:
        """Return logits of moves [n, A] and the value for the player to move [n], of positions that are not over.

        seeds: of random draws [n], uint64.
        """


def unknown(rules: Simulator, state: Tree, seeds: Array) -> tuple[Array, Array]:
    """Return equal logits of all moves, and 0 as the value of all positions."""
    count = row_count(state)
    return np.zeros((count, rules.actions)), np.zeros(count)


class Playouts:
    """Estimate values by the mean return of random games, with equal logits of all moves; for games that end.

    Args:
        count: number of games from each position.
    """

    def __init__(self, count: int = 1) -> None:
        require_whole("count", count, 1)
        self.count = count

    def __call__(self, rules: Simulator, state: Tree, seeds: Array) -> tuple[Array, Array]:
        rows = np.arange(len(seeds)).repeat(self.count)
        games, draws = take_rows(state, rows), mixed(seeds[rows], np.tile(np.arange(self.count), len(seeds)))
        player, total = rules.turn(games), np.zeros(len(rows))
        at, number = np.arange(len(rows)), 0
        while len(at):
            turn = rules.turn(games)
            games, reward = rules.step(games, drawn(rules.legal(games), uniform(draws[at], number)))
            total[at] += np.where(turn == player[at], reward, -reward)
            goes_on = rules.turn(games) >= 0
            at, games, number = at[goes_on], take_rows(games, goes_on), number + 1
        return np.zeros((len(seeds), rules.actions)), total.reshape(-1, self.count).mean(1)


class SimulatorModel:
    """The rules of a game as a model of a search.

    A state is {"position": of the rules, "seed": [n] uint64}. Seeds are functions of the root's seed and the moves.

    Args:
        rules: of the game.
        judge: returns policy and value of positions.
        discount: γ of a move.
    """

    def __init__(self, rules: Simulator, judge: Judge = unknown, discount: float = 1.0) -> None:
        self.rules, self.judge, self.discount = rules, judge, discount

    def root(self, state: Tree, seeds: Array) -> Node:
        """Return roots of positions [n, …], also of those that are over; seeds: [n] uint64."""
        return self._node(state, seeds, np.zeros(len(seeds)), self.rules.turn(state))

    def __call__(self, state: Tree, action: Array) -> Node:
        """Return the nodes that follow moves [n]."""
        before = self.rules.turn(state["position"])
        after, reward = self.rules.step(state["position"], action)
        return self._node(after, mixed(state["seed"], action), reward, before)

    def _node(self, position: Tree, seeds: Array, reward: Array, before: Array) -> Node:
        turn = self.rules.turn(position)
        at = np.flatnonzero(turn >= 0)
        logits, value = np.full((len(seeds), self.rules.actions), -np.inf), np.zeros(len(seeds))
        if len(at):
            games = take_rows(position, at)
            judged, value[at] = self.judge(self.rules, games, seeds[at])
            logits[at] = np.where(self.rules.legal(games), judged, -np.inf)
        discount = np.where(turn < 0, 0.0, np.where(turn == before, self.discount, -self.discount))
        return Node({"position": position, "seed": seeds}, logits, value, reward, discount)


class SearchPlayer:
    """An opponent that chooses each move by a search with the rules of the game; it does not learn.

    It plays the most visited move.

    Args:
        simulations: number of simulations of a search.
        playouts: number of random games that evaluate a position; 0 = the value of positions that are not over is 0.
        gumbel: search as Gumbel MuZero does; otherwise by PUCT.
        depth: largest number of moves to look ahead.
    """

    def __init__(
        self, simulations: int = 50, playouts: int = 0, gumbel: bool = False, depth: int | None = None
    ) -> None:
        require_whole("playouts", playouts, 0)
        self.judge: Judge = Playouts(playouts) if playouts else unknown
        self.search: Search = (
            Gumbel(simulations=simulations, depth=depth, c_scale=1.0)
            if gumbel
            else Puct(simulations=simulations, depth=depth, bounds=(-1.0, 1.0))
        )

    def begin(self, rules: Simulator, count: int) -> Tree:
        require_seen(rules)

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        model = SimulatorModel(rules, self.judge)
        trees = self.search.grow(model, model.root(state, (draws * 2.0**53).astype(np.uint64)))
        return Move(pick(self.search.acting(trees, 0.0), draws))
