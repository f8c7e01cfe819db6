"""The interface of games: rules as pure functions of many positions at once, and opponents."""

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from rlrun.core.errors import ConfigError, RlrunError, did_you_mean
from rlrun.core.spaces import RULES_STATE, map_tree, row_count, take_rows
from rlrun.core.typing import Array, Tree

NAMES = ("random", "perfect")  # of opponents
POSITIONS = 200_000  # of a game that is solved, at most
AHEAD = 1_000_000  # most positions of a lookahead for one move
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Simulator(ABC):
    """The rules of a game for one player, or for two who play against each other.

    A state is a tree of arrays [N, …]: N independent positions. Methods do not change their arguments.

    Attributes:
        observation_space: Gymnasium's, of one player's observation of one position.
        actions: number of moves, A.
        players: 1 or 2.
        hidden: a player does not see the whole position, so searches by the rules are refused.
        slow: a step takes a good part of a millisecond, so lookahead is limited, and games are not solved.
    """

    observation_space: gymnasium.Space[Any]
    actions: int
    players: int = 2
    hidden: bool = False
    slow: bool = False

    @abstractmethod
    def initial(self, seeds: Array) -> Tree:
        """Return first positions, one for each seed [N] uint64, from which chance is drawn (`uniform`)."""

    @abstractmethod
    def turn(self, state: Tree) -> Array:
        """Return the player to move [N]: 0 or 1, and -1 if the game is over."""

    @abstractmethod
    def legal(self, state: Tree) -> Array:
        """Return flags [N, A] of the allowed moves; all False if the game is over."""

    @abstractmethod
    def step(self, state: Tree, action: Array) -> tuple[Tree, Array]:
        """Return the positions after allowed moves [N], and the mover's reward [N]; the other player gets minus it."""

    @abstractmethod
    def observe(self, state: Tree, player: Array) -> Tree:
        """Return the observations of players [N], a tree of arrays [N, …]; also of positions that are over."""


class Positions:
    """Observations of a game with the state of its rules, as bytes in the part `rules_state`.

    Networks do not read that part; a search starts from it.

    Args:
        rules: of the game.

    Attributes:
        observation_space: Gymnasium's, of one observation.
    """

    def __init__(self, rules: Simulator) -> None:
        self.rules, space = rules, rules.observation_space
        self._first = rules.initial(np.zeros(1, np.uint64))
        size = packed(self._first).shape[1]
        parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {"observation": space}
        state = gymnasium.spaces.Box(0, 255, (size,), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({**parts, RULES_STATE: state})

    def observe(self, state: Tree, player: Array) -> dict[str, Any]:
        """Return the observations of players [N], with the positions."""
        return {**self.seen(state, player), RULES_STATE: packed(state)}

    def seen(self, state: Tree, player: Array) -> dict[str, Any]:
        """Return the observations of players [N] without the positions, as networks see them."""
        seen = self.rules.observe(state, player)
        return seen if isinstance(seen, dict) else {"observation": seen}

    def of(self, observation: Tree) -> Tree:
        """Return the positions [N, …] of observations."""
        rows, begin = observation[RULES_STATE], 0

        def leaf_of(like: Array) -> Array:
            nonlocal begin
            end = begin + like.nbytes
            flat, begin = np.ascontiguousarray(rows[:, begin:end]), end
            leaf: Array = flat.view(like.dtype).reshape(len(rows), *like.shape[1:])
            return leaf

        return map_tree(leaf_of, self._first)


def packed(state: Tree) -> Array:
    """Return each position as bytes [N, K]."""
    parts: list[Array] = []
    map_tree(lambda leaf: parts.append(_bytes(leaf)), state)
    return np.concatenate(parts, 1)


def uniform(seeds: Array, number: Array | int) -> Array:
    """Return random numbers [N] in [0, 1), a function of seeds [N] uint64 and a count alone (splitmix64).

    So the draws of an episode are independent of other episodes, and need no stored state.
    """
    return (mixed(seeds, number) >> np.uint64(11)) * 2.0**-53


def mixed(seeds: Array, number: Array | int) -> Array:
    """Return random seeds [N] uint64, a function of seeds [N] and a count alone."""
    for offset in (np.uint64(0), np.asarray(number).astype(np.uint64) + np.uint64(1)):  # neighbors become independent
        seeds = seeds + _STEP * (np.zeros_like(seeds) + offset)
        seeds = (seeds ^ (seeds >> np.uint64(30))) * _FIRST
        seeds = (seeds ^ (seeds >> np.uint64(27))) * _SECOND
        seeds = seeds ^ (seeds >> np.uint64(31))
    return seeds


class Move(NamedTuple):
    """Moves [n], and the player's state after them: a tree of arrays [n, …], or None."""

    action: Array
    memory: Tree = None


class Opponent(Protocol):
    """A player of many games at once."""

    def begin(self, rules: Simulator, count: int) -> Tree:
        """Return the player's state at the start of `count` games: a tree of arrays [count, …], or None.

        Raises:
            ConfigError: it cannot play by these rules.
        """

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        """Return a move in each of n positions.

        draws: random numbers [n] in [0, 1), for moves that are drawn.
        """


class RandomPlayer:
    """Draws an allowed move with equal chances."""

    def begin(self, rules: Simulator, count: int) -> Tree:
        return None

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        return Move(drawn(rules.legal(state), draws))


class PerfectPlayer:
    """Draws one of the best moves with equal chances, by a table of all positions of a small game."""

    def begin(self, rules: Simulator, count: int) -> Tree:
        require_seen(rules)
        solve(rules)

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        scores = solve(rules).scores(state)
        return Move(drawn(scores == scores.max(1, keepdims=True), draws))


class Lookahead:
    """Draws one of the best moves of a minimax search of limited depth, in which open positions count 0."""

    def __init__(self, moves: int) -> None:
        if moves < 1:
            raise ConfigError(f"it looks ahead at least 1 move, got {moves}")
        self.moves = moves

    def begin(self, rules: Simulator, count: int) -> Tree:
        require_seen(rules)
        require_few(rules, self.moves)

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        scores = lookahead(rules, state, self.moves)
        return Move(drawn(scores == scores.max(1, keepdims=True), draws))


def opponent_of(name: Any) -> Opponent:
    """Return the opponent of a name: `random`, `perfect`, or a number of moves that it looks ahead.

    Raises:
        ConfigError: the name is unknown.
    """
    if isinstance(name, str) and name in NAMES:
        return RandomPlayer() if name == "random" else PerfectPlayer()
    if not isinstance(name, bool) and str(name).isdecimal():
        return Lookahead(int(name))
    if callable(name) and hasattr(name, "begin"):
        return name  # type: ignore[no-any-return]
    near = did_you_mean(str(name), NAMES)
    raise ConfigError(f"wanted random, perfect, or a number of moves that it looks ahead, got {name!r}{near}")


def drawn(allowed: Array, draws: Array) -> Array:
    """Return the index of a random true flag of each row [n, A], by random numbers [n] in [0, 1)."""
    upto = allowed.cumsum(1)
    index: Array = (upto > np.floor(draws * upto[:, -1])[:, None]).argmax(1)
    return index


def lookahead(rules: Simulator, state: Tree, moves: int) -> Array:
    """Return the minimax value [N, A] of each move for the mover, `moves` deep; -inf for forbidden moves."""
    scores = np.full((row_count(state), rules.actions), -np.inf)
    rows, actions = np.nonzero(rules.legal(state))
    if len(rows):
        after, reward = rules.step(take_rows(state, rows), actions)
        turn, later = rules.turn(after), np.zeros(len(rows))
        if moves > 1 and (open_rows := np.flatnonzero(turn >= 0)).size:
            later[open_rows] = lookahead(rules, take_rows(after, open_rows), moves - 1).max(1)
        scores[rows, actions] = reward + np.where(turn == rules.turn(state)[rows], later, -later)
    return scores


def require_seen(rules: Simulator) -> None:
    """Refuse to search by rules with hidden state.

    Raises:
        ConfigError: the rules have hidden state.
    """
    if rules.hidden:
        raise ConfigError(f"{type(rules).__name__}: a search by these rules would see what is hidden from a player")


@lru_cache(maxsize=4)
def require_few(rules: Simulator, moves: int) -> None:
    """Refuse a lookahead with too many positions, counted from the first one.

    Raises:
        ConfigError: naming the largest possible number of moves.
    """
    state, count, limit = rules.initial(np.zeros(1, np.uint64)), 0, AHEAD // 100 if rules.slow else AHEAD
    for ahead in range(moves):
        rows, actions = np.nonzero(rules.legal(state))
        count += len(rows)
        if count > limit:
            raise ConfigError(
                f"it looks ahead at most {ahead} moves in {type(rules).__name__}, got {moves}: more are over {limit:,} "
                "positions for each move"
            )
        if not len(rows):
            return
        state, _ = rules.step(take_rows(state, rows), actions)


class Solution:
    """The minimax value of each move in each position.

    Args:
        keys: of all positions, sorted.
        table: values of their moves [K, A] for the mover, -inf for forbidden moves.
    """

    def __init__(self, keys: Array, table: Array) -> None:
        self.keys, self._table = keys, table

    def scores(self, state: Tree) -> Array:
        """Return the value of each move [N, A].

        Raises:
            RlrunError: the game cannot reach a position from its first one.
        """
        wanted = _keys(state)
        places = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        if (self.keys[places] != wanted).any():
            raise RlrunError("perfect moves are known of a game that always begins with the same position")
        values: Array = self._table[places]
        return values


@lru_cache(maxsize=4)
def solve(rules: Simulator) -> Solution:
    """Return the values of all moves of a game, position by position from the last ones to the first.

    Raises:
        ConfigError: the game has too many positions.
    """
    plies: list[tuple[Array, Array, Array, Array, Array, Array]] = []
    state = rules.initial(np.zeros(1, np.uint64))
    count = 0
    while row_count(state):
        count += row_count(state)
        if count > (0 if rules.slow else POSITIONS):
            raise ConfigError(
                f"perfect moves come from a table, and {type(rules).__name__} has more than {POSITIONS:,} "
                "positions, or slow ones; wanted random, or a number of moves that it looks ahead"
            )
        rows, actions = np.nonzero(rules.legal(state))
        after, reward = rules.step(take_rows(state, rows), actions)
        _, first, child = np.unique(_keys(after), return_index=True, return_inverse=True)
        plies.append((_keys(state), rules.turn(state), rows, actions, np.asarray(reward), child))
        state = take_rows(after, first)
    value, turn_after = np.zeros(0), np.zeros(0, np.int64)
    tables = []
    for key, turn, rows, actions, reward, child in reversed(plies):
        scores = np.full((len(key), rules.actions), -np.inf)
        later = value[child]
        scores[rows, actions] = reward + np.where(turn_after[child] == turn[rows], later, -later)
        value, turn_after = np.where(turn < 0, 0.0, scores.max(1)), turn
        tables.append((key, scores))
    keys, first = np.unique(np.concatenate([key for key, _ in tables]), return_index=True)
    return Solution(keys, np.concatenate([scores for _, scores in tables])[first])


def _keys(state: Tree) -> Array:
    """Return each position as bytes [N], all of one length."""
    rows = np.concatenate((packed(state), np.ones((row_count(state), 1), np.uint8)), 1)  # numpy drops zeros at the end
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}")[:, 0]


def _bytes(leaf: Array) -> Array:
    return np.ascontiguousarray(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).view(np.uint8)
