"""PettingZoo's classic games for two players as environments, with rules for searches."""

import importlib
import pkgutil
from collections import OrderedDict
from copy import deepcopy
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RlrunError, describe_error, did_you_mean, shown
from rlrun.core.spaces import row_count
from rlrun.core.typing import Array, Tree
from rlrun.env.match import Match, Matches, Side
from rlrun.env.simulator import Simulator

OPEN = {
    "chess_v6": 512,
    "connect_four_v3": 42,
    "go_v5": 722,
    "tictactoe_v3": 9,
}  # open games: most moves
MOVES = 512  # of other games, at most
KEPT = 8192  # positions cached as objects; others are replayed from the first one


class PettingZooRules(Simulator):
    """The rules of a classic zero-sum game of PettingZoo for two players.

    State: {"moves": [N, L] int16, the moves so far; "count": [N] int16, their number; "turn": [N] int8; "seed": [N]
        uint64, for games of chance}. PettingZoo's game object is a function of these; the newest objects are cached.

    Args:
        game: name of the module in `pettingzoo.classic`, such as `connect_four_v3`.

    Raises:
        MissingExtra: PettingZoo is not installed.
        ConfigError: there is no such game, or it is not for two players with the same observations and moves.
        BuildError: the game needs another package.
    """

    slow = True

    def __init__(self, game: str) -> None:
        self.game, self.hidden, self.longest = game, game not in OPEN, OPEN.get(game, MOVES)
        self._first = _game(game)
        spaces = [(self._first.observation_space(who), self._first.action_space(who)) for who in self._players]
        if len(spaces) != 2 or spaces[0] != spaces[1] or not isinstance(spaces[0][1], Discrete):
            raise ConfigError(f"env.kwargs.game: {game} is not for two players with the same observations and moves")
        self.observation_space, self.actions = spaces[0][0], int(spaces[0][1].n)
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    @property
    def _players(self) -> list[Any]:
        players: list[Any] = self._first.possible_agents
        return players

    def initial(self, seeds: Array) -> Tree:
        count = len(seeds)
        state: dict[str, Array] = {
            "moves": np.zeros((count, self.longest), np.int16),
            "count": np.zeros(count, np.int16),
            "turn": np.zeros(count, np.int8),
            "seed": seeds.copy() if self.hidden else np.zeros(count, np.uint64),
        }
        state["turn"][:] = [self._turn(game) for game in self._games(state)]
        return state

    def turn(self, state: Tree) -> Array:
        turn: Array = state["turn"]
        return turn

    def legal(self, state: Tree) -> Array:
        seen = [game.observe(game.agent_selection) for game in self._games(state)]
        flags = [view["action_mask"] if isinstance(view, dict) else np.ones(self.actions) for view in seen]
        legal: Array = np.reshape(flags, (row_count(state), self.actions)).astype(np.bool_)
        legal[state["turn"] < 0] = False
        return legal

    def step(self, state: Tree, action: Array) -> tuple[Tree, Array]:
        rows, action = np.arange(row_count(state)), np.asarray(action)
        after = {name: leaf.copy() for name, leaf in state.items()}
        after["moves"][rows, state["count"]] = action
        after["count"] += 1
        reward = np.zeros(len(rows), np.float32)
        for row, (game, key) in enumerate(zip(self._games(state), _keys(after), strict=True)):
            mover = game.agent_selection
            later = self._kept.get(key)
            if later is None:
                later = self._copy(game)
                later.step(int(action[row]))
                self._keep(key, later)
            paid = [float(later.rewards[who]) for who in self._players]
            if abs(sum(paid)) > 1e-6:
                raise RlrunError(f"{self.game}: one player wins what the other one loses, got rewards {paid}")
            reward[row] = later.rewards[mover]
            after["turn"][row] = self._turn(later)
        after["turn"][after["count"] >= self.longest] = -1  # as a draw, unless it is over
        return after, reward

    def observe(self, state: Tree, player: Array) -> Tree:
        seen = [game.observe(self._players[who]) for game, who in zip(self._games(state), player.tolist(), strict=True)]
        if not isinstance(self.observation_space, gymnasium.spaces.Dict):
            return np.stack(seen)
        observed = {name: np.stack([view[name] for view in seen]) for name in self.observation_space}
        return {**observed, "action_mask": self.legal(state).astype(np.int8)}

    def text(self, state: Tree, row: int) -> str:
        """Return the moves of one game so far, and the allowed moves, as text."""
        moves = " ".join(map(str, state["moves"][row, : state["count"][row]]))
        return f"moves: {moves}\nallowed: {' '.join(map(str, np.flatnonzero(self.legal(state)[row])))}"

    def _games(self, state: Tree) -> list[Any]:
        """Return PettingZoo's objects of positions, which callers must not change."""
        return [self._game(state, row, key) for row, key in enumerate(_keys(state))]

    def _game(self, state: Tree, row: int, key: bytes) -> Any:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        game = self._copy(self._first)
        game.reset(seed=int(state["seed"][row] % 2**31))
        for move in state["moves"][row, : state["count"][row]].tolist():
            game.step(move)
        return self._keep(key, game)

    def _keep(self, key: bytes, game: Any) -> Any:
        self._kept[key] = game
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return game

    def _copy(self, game: Any) -> Any:
        """Return an independent copy of a game; `copy.deepcopy` would call the constructor, and lose the position."""
        spaces = [space(who) for who in self._players for space in (game.observation_space, game.action_space)]
        other = object.__new__(type(game))
        other.__dict__.update(deepcopy(vars(game), {id(space): space for space in spaces}))
        return other

    def _turn(self, game: Any) -> int:
        over = all(game.terminations.get(who, True) or game.truncations.get(who, True) for who in self._players)
        return -1 if over else self._players.index(game.agent_selection)


class PettingZoo(Match):
    """A classic game of PettingZoo against an opponent, or with the agent on both sides.

    game: as of `PettingZooRules`; opponent, side, opening, rules_state: as of `Matches`.
    """

    def __init__(
        self,
        game: str = "connect_four_v3",
        opponent: Any = "random",
        side: Side = "both",
        opening: int = 0,
        rules_state: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.rules = rules_of_game(game)
        super().__init__(opponent, side, opening, rules_state, render_mode)

    @classmethod
    def vector_entry_point(
        cls,
        num_envs: int,
        opponent: Any = "random",
        side: Side = "both",
        opening: int = 0,
        rules_state: bool = False,
        game: str = "connect_four_v3",
    ) -> Matches:
        """Return `num_envs` games that are played at once."""
        options: dict[str, Any] = {"opponent": opponent, "side": side, "opening": opening}
        return Matches(rules_of_game(game), num_envs, **options, rules_state=rules_state)


@lru_cache(maxsize=4)
def rules_of_game(game: str) -> PettingZooRules:
    """Return the rules of a game; one process shares their cached positions."""
    return PettingZooRules(game)


def _game(name: str) -> Any:
    """Return a fresh object of a game of PettingZoo, without the wrappers that check moves."""
    place = "env.kwargs.game"
    try:
        classic = importlib.import_module("pettingzoo.classic")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{place} '{name}'", "pettingzoo", "pettingzoo") from error
    known = [module.name for module in pkgutil.iter_modules(classic.__path__) if "_v" in module.name]
    if name not in known:
        near = did_you_mean(str(name), known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"{place}: PettingZoo has no classic game {shown(name)}{near}")
    try:
        return importlib.import_module(f"pettingzoo.classic.{name}").raw_env()
    except ImportError as error:
        raise BuildError(f"{place} '{name}': {describe_error(error)}; pip install 'pettingzoo[classic]'") from error


def _keys(state: Tree) -> list[bytes]:
    counts = state["count"].tolist()
    rows = zip(state["seed"], state["moves"], counts, strict=True)
    return [seed.tobytes() + moves[:count].tobytes() for seed, moves, count in rows]
