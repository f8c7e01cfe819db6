"""Environments whose agents come and go, known by an id: dicts of ids in place of steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NoReturn, Protocol, TypeAlias

import gymnasium
import numpy as np

from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import Spaces, leaves, map_tree
from rlrun.core.typing import Tree
from rlrun.env.spaces import action_writer, from_gymnasium, row_splitter
from rlrun.env.vector import Env, close_softly

AgentId: TypeAlias = int | str


class EpisodeState(Enum):
    """Phase of an agent's episode."""

    INITIAL = "initial"  # the first observation; there is no reward yet
    RUNNING = "running"
    TERMINAL = "terminal"  # the last observation: the episode ended by itself
    INTERRUPTED = "interrupted"  # the last observation: the episode was cut off from outside

    @property
    def over(self) -> bool:
        return self in (EpisodeState.TERMINAL, EpisodeState.INTERRUPTED)


@dataclass
class MetaData:
    """Information about an agent that no network reads."""

    info: dict[str, float] = field(default_factory=dict)
    info_lists: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class DictObservation:
    """The observation of one agent after a round."""

    episode_state: EpisodeState
    array_data: dict[str, Tree]  # the parts of a Dict observation, or one array under any name
    rewards: dict[str, float] = field(default_factory=dict)  # for the response before; "reward" is the column
    metadata: MetaData | None = None


@dataclass
class DictResponse:
    """The response of one agent in a round: `action`, and any other column of the memory."""

    array_data: dict[str, Tree]
    scalar_data: dict[str, float] = field(default_factory=dict)


Observations = dict[AgentId, DictObservation]
Responses = dict[AgentId, DictResponse]


class ByIdEnv(Protocol):
    """An environment with a changing number of agents.

    An id stands for one episode of one agent. The next episode has a new id, or the old one once its episode is over.
    With `state_dict()` and `load_state_dict(state)` a resumed run continues its open episodes.
    """

    observation_space: gymnasium.Space[Any]  # of one agent
    action_space: gymnasium.Space[Any]

    def dict_reset(self, seed: int | None = None) -> Observations:
        """Reset; return every agent, as INITIAL."""

    def dict_step(self, responses: Responses) -> Observations:
        """Step every agent; return the present ones, and the last observation of those that ended."""

    def close(self) -> None:
        """Release the environment's resources."""


class EnvById(Env):
    """One environment of agents known by an id; it converts policy actions to the environment's.

    Raises:
        ConfigError: the environment lacks a method of `ByIdEnv`.
        SpaceError: a space is of an unsupported kind.
    """

    num_envs = 1
    vectorization = "by_id"

    def __init__(self, world: Any, place: str = "environment") -> None:
        for name in ("dict_reset", "dict_step", "observation_space", "action_space"):
            if not hasattr(world, name):
                raise ConfigError(f"{place} has no {name}; env.vectorization=by_id wants an rlrun.env.ByIdEnv")
        self.world: ByIdEnv = world
        self.outer = world.observation_space, world.action_space
        self.spaces = Spaces(
            from_gymnasium(self.outer[0], f"{place}: the observation space"),
            from_gymnasium(self.outer[1], f"{place}: the action space", action=True),
        )
        if any(np.any(getattr(leaf, "start", 0)) for _, leaf in leaves(self.spaces.observation)):
            raise ConfigError(f"{place}: observed choices begin at another number than 0; by id they begin at 0")
        self.resumed = False  # True from `load_state_dict` to the next step
        self._place = place
        self._write = action_writer(self.outer[1], 1)
        self._rows = row_splitter(self.outer[1]) or iter

    def dict_reset(self, seed: int | None = None) -> Observations:
        """Reset; return every agent, as INITIAL."""
        return self.world.dict_reset(seed)

    def dict_step(self, responses: Responses) -> Observations:
        """Step every agent by its policy action (Box in [-1, 1], Discrete from 0)."""
        self.resumed = False
        if self._write is None:
            return self.world.dict_step(responses)
        converted = {}
        for agent, response in responses.items():
            policy_action = map_tree(lambda leaf: np.asarray(leaf)[None], response.array_data["action"])
            action = next(iter(self._rows(self._write(policy_action))))
            converted[agent] = replace(response, array_data={**response.array_data, "action": action})
        return self.world.dict_step(converted)

    def state_dict(self) -> dict[str, Any]:
        """Return the world's own state; empty if it has none."""
        return dict(getattr(self.world, "state_dict", dict)())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of the world; set `resumed` if it is not empty."""
        self.resumed = bool(state)
        if state:
            self.world.load_state_dict(state)  # type: ignore[attr-defined]

    def _refuse(self, *_: Any, **options: Any) -> NoReturn:
        raise RequestError(f"{self._place}: its agents are known by an id, so N envs cannot step together; +with=by_id")

    reset = step = restart = render = _refuse

    def close(self) -> None:
        close_softly(self._place, self.world.close)


class Crowd:
    """A toy with none to five agents: each sees a sign, and is rewarded for the choice that names it.

    An agent stays for 2 to 6 rounds; even ids terminate, odd ones are interrupted.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, arrivals: float = 0.6) -> None:
        self.arrivals = arrivals
        self.dict_reset()

    def dict_reset(self, seed: int | None = None) -> Observations:
        self.rng = np.random.default_rng(seed)
        self.ids, self.left, self.signs = 0, dict[Any, int](), dict[Any, float]()
        return self._arrive({})

    def dict_step(self, responses: Mapping[Any, DictResponse]) -> Observations:
        observations: Observations = {}
        for agent, response in responses.items():
            reward = float(response.array_data["action"] == (self.signs[agent] > 0))
            self.left[agent] -= 1
            over = EpisodeState.INTERRUPTED if agent % 2 else EpisodeState.TERMINAL
            observations[agent] = self._look(agent, EpisodeState.RUNNING if self.left[agent] else over, reward=reward)
        self.left = {agent: rounds for agent, rounds in self.left.items() if rounds}
        self.signs = {agent: self.signs[agent] for agent in self.left}
        return self._arrive(observations)

    def _arrive(self, observations: Observations) -> Observations:
        while len(self.left) < 5 and self.rng.random() < self.arrivals:
            self.left[self.ids] = int(self.rng.integers(2, 7))
            observations[self.ids] = self._look(self.ids, EpisodeState.INITIAL)
            self.ids += 1
        return observations

    def _look(self, agent: int, state: EpisodeState, **rewards: float) -> DictObservation:
        self.signs[agent] = float(self.rng.choice([-1.0, 1.0]))
        return DictObservation(state, {"view": np.array([self.signs[agent], 0.5], np.float32)}, rewards)

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state, "ids": self.ids, "left": self.left, "signs": self.signs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.ids, self.left, self.signs = state["ids"], dict(state["left"]), dict(state["signs"])

    def close(self) -> None:
        """Do nothing."""
