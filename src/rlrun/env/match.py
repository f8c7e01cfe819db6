"""Games as environments, by the rules of a `Simulator`: the agent plays against an opponent, or both sides."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.core.errors import ConfigError, RlrunError, require_one_of, require_whole, shown
from rlrun.core.spaces import RULES_STATE, describe, leaves, map_tree, put_rows, take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.simulator import Opponent, Positions, Simulator, drawn, mixed, opponent_of, uniform
from rlrun.env.spaces import from_gymnasium
from rlrun.env.vector import Env

SIDES = ("first", "second")
Side = Literal["both", "first", "second"]
OPENING, REPLY = 0, 1  # streams of random numbers
Row = tuple[Any, float, bool, bool, dict[str, Any]]


class Matches(VectorEnv[Any, Any, Any]):
    """N games that are played at once; ended ones are reset by a mask.

    Args:
        rules: of the game.
        num_envs: N.
        opponent: moves within a step: `random`, `perfect` (in small games), a number of moves to look ahead, or an
            `rlrun.env.Opponent`. None: each step is a move of the player to move, who gets its reward.
        side: of the agent: first, second, or both: second in games of odd seeds.
        opening: random moves at the start of a game, which do not end it. Seeds 2k and 2k + 1 have the same ones.
        rules_state: observations also have the position, in the form of `Positions`.

    A forbidden move loses at once: reward -1. With an opponent the info has the agent's `side`.
    """

    def __init__(
        self,
        rules: Simulator,
        num_envs: int,
        *,
        opponent: Any = "random",
        side: Side = "both",
        opening: int = 0,
        rules_state: bool = False,
    ) -> None:
        require_one_of("env.kwargs.side", side, ("both", *SIDES))
        require_whole("env.kwargs.opening", opening, 0)
        if not isinstance(rules_state, bool):
            raise ConfigError(f"env.kwargs.rules_state: wanted true or false, got {shown(rules_state)}")
        if rules_state and rules.hidden:
            raise ConfigError(f"env.kwargs.rules_state: wanted false: {type(rules).__name__} hides much from a player")
        if rules.players == 1 and (opponent is not None or side == "second"):
            raise ConfigError(f"env.kwargs.opponent: {type(rules).__name__} is for one player; null")
        self.rules, self.num_envs, self.side, self.opening = rules, num_envs, side, opening
        self.metadata = {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode.DISABLED, "seeds_each": True}
        self._shown = Positions(rules) if rules_state else rules
        self.single_observation_space = deepcopy(self._shown.observation_space)
        self.single_action_space = Discrete(rules.actions)
        for space in (self.single_observation_space, self.single_action_space):
            space.seed(0)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeds = np.random.SeedSequence().generate_state(num_envs, np.uint64)
        self._state = rules.initial(self._seeds)
        self._played = np.zeros(num_envs, np.int64)  # moves of the opponent
        self._agent = np.zeros(num_envs, np.int64)  # its player
        self._forbidden = np.zeros(num_envs, np.bool_)  # games lost by a forbidden move
        self._opponent: Opponent | None = None
        self._memory: Tree = None  # the opponent's state in each game; `_fresh`: at the start of a game
        self._fresh: Tree = None
        if opponent is not None:
            try:
                self.face(opponent)
            except ConfigError as error:
                raise ConfigError(f"env.kwargs.opponent: {error}") from error

    def face(self, opponent: Any) -> None:
        """Set the opponent of later games.

        Raises:
            ConfigError: the name is unknown, the opponent cannot play this game, or the game is for one player.
        """
        if self.rules.players == 1:
            raise ConfigError(f"{type(self.rules).__name__} is for one player")
        self._opponent = opponent_of(opponent)
        self._fresh = self._opponent.begin(self.rules, self.num_envs)
        self._memory = None if self._fresh is None else map_tree(np.array, self._fresh)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        rows = np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if isinstance(seed, int):
            seed = range(seed, seed + self.num_envs)
        given: Sequence[Any] = [None] * self.num_envs if seed is None else seed
        self._seeds[rows] = mixed(self._seeds[rows], 0)  # for envs that get no seed
        for row in rows.tolist():
            if given[row] is not None:
                self._seeds[row] = np.uint64(int(given[row]) % 2**64)
        put_rows(self._state, rows, self.rules.initial(self._seeds[rows]))
        self._played[rows], self._forbidden[rows] = 0, False
        odd = (self._seeds[rows] & np.uint64(1)).astype(np.int64)
        self._agent[rows] = odd if self.side == "both" else SIDES.index(self.side)
        if self._memory is not None:
            put_rows(self._memory, rows, take_rows(self._fresh, rows))
        for number in range(self.opening):
            self._open(rows, number)
        self._reply(rows)
        return self._observed(), self._info()

    def _open(self, rows: Array, number: int) -> None:
        """Make a random move of the opening in some games, unless it would end them."""
        state = take_rows(self._state, rows)
        stream = mixed(self._seeds[rows] >> np.uint64(1), OPENING)
        after, _ = self.rules.step(state, drawn(self.rules.legal(state), uniform(stream, number)))
        goes_on = self.rules.turn(after) >= 0
        put_rows(self._state, rows[goes_on], take_rows(after, goes_on))

    def step(self, actions: Array) -> tuple[Tree, Array, Array, Array, dict[str, Any]]:
        rows = np.flatnonzero(~self._over())  # others wait for their reset
        reward = np.zeros(self.num_envs, np.float32)
        reward[rows] = self._move(rows, np.asarray(actions)[rows])
        reward[rows] -= self._reply(rows)
        return self._observed(), reward, self._over(), np.zeros(self.num_envs, np.bool_), self._info()

    def _over(self) -> Array:
        over: Array = self._forbidden | (self.rules.turn(self._state) < 0)
        return over

    def _move(self, rows: Array, action: Array) -> Array:
        """Move in some games [n]; return the rewards [n] of the players who moved."""
        state = take_rows(self._state, rows)
        reward = np.full(len(rows), -1.0)
        allowed = self.rules.legal(state)[np.arange(len(rows)), action]
        self._forbidden[rows[~allowed]] = True
        after, reward[allowed] = self.rules.step(take_rows(state, allowed), action[allowed])
        put_rows(self._state, rows[allowed], after)
        return reward

    def _reply(self, rows: Array) -> Array:
        """Let the opponent move in some games [n] until it is the agent's turn; return its rewards [n]."""
        total = np.zeros(len(rows))
        while self._opponent is not None:
            turn = self.rules.turn(take_rows(self._state, rows))
            chosen = np.flatnonzero((turn == 1 - self._agent[rows]) & ~self._forbidden[rows])
            if not len(chosen):
                break
            at = rows[chosen]
            draws = uniform(mixed(self._seeds[at], REPLY), self._played[at])
            memory = None if self._memory is None else take_rows(self._memory, at)
            move = self._opponent(self.rules, take_rows(self._state, at), draws, memory)
            if self._memory is not None:
                put_rows(self._memory, at, move.memory)
            total[chosen] += self._move(at, move.action)
            self._played[at] += 1
        return total

    def _observed(self) -> Tree:
        player = self._agent if self._opponent is not None else np.maximum(self.rules.turn(self._state), 0)
        return self._shown.observe(self._state, player)

    def _info(self) -> dict[str, Any]:
        return {} if self._opponent is None else {"side": np.array(SIDES)[self._agent]}

    @property
    def plays_both(self) -> bool:
        """Whether the agent plays both sides."""
        return self._opponent is None and self.rules.players == 2

    def open_state(self) -> dict[str, Any]:
        """Return the state of the open games."""
        state = {
            "state": map_tree(np.array, self._state),
            "seeds": self._seeds.view(np.int64).copy(),
            "played": self._played.copy(),
            "agent": self._agent.copy(),
        }
        return state if self._memory is None else {**state, "memory": map_tree(np.array, self._memory)}

    def load_open_state(self, state: dict[str, Any]) -> Tree:
        """Continue open games; return their observations."""
        put_rows(self._state, slice(None), state["state"])
        self._seeds[:], self._played[:] = state["seeds"].view(np.uint64), state["played"]
        self._agent[:], self._forbidden[:] = state["agent"], False
        if self._memory is not None:
            put_rows(self._memory, slice(None), state["memory"])
        return self._observed()

    def text(self) -> str:
        """Return the position of the first game, if the rules have `text(state, row)`.

        Raises:
            RlrunError: the rules have no such method.
        """
        if not hasattr(self.rules, "text"):
            raise RlrunError(f"{type(self.rules).__name__} has no text(state, row) that shows a position")
        text: str = self.rules.text(self._state, 0)
        return text


class Match(gymnasium.Env[Any, Any]):
    """The base of game environments; a subclass names its rules. `env.vectorization=native` plays many at once.

    opponent, side, opening, rules_state: as of `Matches`.
    """

    rules: Simulator
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 2}  # type: ignore[misc]

    def __init__(
        self,
        opponent: Any = "random",
        side: Side = "both",
        opening: int = 0,
        rules_state: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.games = Matches(self.rules, 1, opponent=opponent, side=side, opening=opening, rules_state=rules_state)
        self.render_mode = render_mode
        self.observation_space = self.games.single_observation_space
        self.action_space = self.games.single_action_space

    @classmethod
    def vector_entry_point(
        cls,
        num_envs: int,
        opponent: Any = "random",
        side: Side = "both",
        opening: int = 0,
        rules_state: bool = False,
    ) -> Matches:
        """Return `num_envs` games that are played at once."""
        options: dict[str, Any] = {"opponent": opponent, "side": side, "opening": opening}
        return Matches(cls.rules, num_envs, **options, rules_state=rules_state)

    @property
    def plays_both(self) -> bool:
        """Whether the agent plays both sides."""
        return self.games.plays_both

    def face(self, opponent: Any) -> None:
        """Set the opponent of later games."""
        self.games.face(opponent)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observation, info = self.games.reset(seed=seed)
        return take_rows(observation, 0), _first(info)

    def step(self, action: Any) -> Row:
        observation, reward, terminated, truncated, info = self.games.step(np.array([action]))
        return take_rows(observation, 0), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(info)

    def render(self) -> Any:
        return self.games.text()


def _first(info: dict[str, Sequence[Any]]) -> dict[str, Any]:
    return {name: str(values[0]) for name, values in info.items()}


def players_of(env: Env | None, players: int | None = None) -> int:
    """Return the number of players whose moves the agent makes: 2 if it plays both sides, else 1.

    players: the user's setting; None = by the environment's attribute `plays_both`.

    Raises:
        ConfigError: the environment contradicts the setting.
    """
    both = bool(getattr(env, "plays_both", False))
    if players not in (None, 1, 2) or isinstance(players, bool):
        raise ConfigError(f"algorithm.players: wanted 1, 2 or null, got {shown(players)}")
    if players == 1 and both:
        raise ConfigError("algorithm.players: wanted 2 or null, got 1: the agent plays both sides, each for itself")
    if players == 2 and not both:
        raise ConfigError(
            "algorithm.players: wanted 1 or null, got 2: the agent does not play both sides; a game does so with "
            "env.kwargs.opponent=null, an environment of yours by an attribute plays_both=True"
        )
    return 2 if both else 1


def rules_of(env: Env) -> Simulator:
    """Return the rules of a game, for a search from the positions in its observations.

    Raises:
        ConfigError: it is not a game, or its observations differ from those of the rules with the position.
    """
    rules = env.rules
    if not isinstance(rules, Simulator):
        raise ConfigError(
            f"env: '{env.name}' has no rules to search by; wanted a game, as env=tictactoe, or a rlrun.env.Match of "
            "yours (docs/games.md)"
        )
    space, wanted = env.spaces.observation, from_gymnasium(Positions(rules).observation_space, "the observation space")
    if RULES_STATE not in dict(leaves(space)):
        raise ConfigError("env.kwargs.rules_state: wanted true: a search goes on from the position in observations")
    if describe(space) != describe(wanted):
        raise ConfigError(
            f"env.wrappers: a search reads {describe(wanted)} from the rules, and the environment gives "
            f"{describe(space)}; leave out wrappers that change observations"
        )
    return rules
