"""Collection from environments whose agents have ids."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rlrun.collect.agents import Agent, Response, random_agent
from rlrun.collect.collector import Budgeted
from rlrun.collect.statistics import Tally, saved_numbers
from rlrun.core.clock import Spent
from rlrun.core.errors import ConfigError, RequestError, RlrunError, SpaceError, require_counts
from rlrun.core.seeds import EpisodeSeeds
from rlrun.core.spaces import Composite, Space, Spaces, map_tree, take_rows
from rlrun.core.typing import Tree
from rlrun.env.by_id import (
    AgentId,
    DictObservation,
    DictResponse,
    EnvById,
    EpisodeState,
    MetaData,
    Observations,
    Responses,
)
from rlrun.memory import MemoryProxy, Table

IDLE = 10_000  # rounds without any agent after which an environment counts as empty


class AgentProxy:
    """Lets one agent act for all ids at once.

    Args:
        agent: called with observations [n, …].
        spaces: of one id.
    """

    def __init__(self, agent: Agent, spaces: Spaces) -> None:
        if agent.initial_state(1) is not None:
            raise RequestError("agents by id: the state of a recurrent agent is not kept by id; take one without")
        self.agent = agent
        self.space = spaces.observation

    def __call__(self, observations: Observations, *, explore: bool = True) -> Responses:
        """Return a response for every id with an open episode."""
        return self.respond(self.agent, observations, explore=explore)

    def respond(self, act: Callable[..., Response], observations: Observations, **options: Any) -> Responses:
        """Return a response for every id with an open episode, by any function of observations [n, …]."""
        active = [agent for agent, entry in observations.items() if not entry.episode_state.over]
        if not active:
            return {}
        response = act(self.seen(observations), **options)
        return {agent: DictResponse(take_rows(response, index)) for index, agent in enumerate(active)}

    def seen(self, observations: Observations) -> Tree:
        """Return the observations [n, …] of the ids with an open episode."""
        entries = [entry for entry in observations.values() if not entry.episode_state.over]
        return stacked(self.space, [entry.array_data for entry in entries])


def rounds(env: EnvById, agent: Agent, *, seed: int, explore: bool) -> Iterator[Observations]:
    """Yield the observations of each round after a reset; the agent acts between two of them."""
    proxy, observations, idle = AgentProxy(agent, env.spaces), env.dict_reset(seed), 0
    while idle < IDLE:
        yield observations
        responses = proxy(observations, explore=explore)
        idle = 0 if responses else idle + 1
        observations = env.dict_step(responses)
    raise RlrunError(f"the environment has had no agent for {IDLE:,} rounds")


def stacked(space: Space, trees: list[Tree], place: str = "observation") -> Tree:
    """Return the observations of several ids as one tree [n, …] of the space's types.

    Raises:
        SpaceError: a part is missing, or its shape differs from the space's.
    """
    if isinstance(space, Composite):
        for name in space.parts:
            if not all(name in tree for tree in trees):
                raise SpaceError(f"an agent's {place} lacks the part '{name}'; it has {', '.join(trees[0])}")
        return {
            name: stacked(part, [tree[name] for tree in trees], f"{place}.{name}") for name, part in space.parts.items()
        }
    if isinstance(trees[0], dict):  # an observation without parts, under a name
        if len(trees[0]) != 1:
            raise SpaceError(f"an observation has the parts {', '.join(trees[0])}; the space is a single one")
        trees = [next(iter(tree.values())) for tree in trees]
    for leaf in trees:
        if np.shape(leaf) != tuple(space.shape):
            raise SpaceError(f"an agent's {place} has shape {list(np.shape(leaf))}; the space has {list(space.shape)}")
    return np.stack(trees).astype(space.dtype, copy=False)


class ByIdCollector(Budgeted):
    """Steps an environment whose agents have ids, and stores the episode of each.

    It replaces `Collector`, and provides `step`, in which each response of an agent counts. In a resumed run an
    environment without a state of its own is reset, and `approximate` has the reason.

    Args:
        env: the environment.
        agent: acts for all ids at once.
        table: stores transitions; a tag of it is the newest number of that name in the `metadata` of an agent.
        seed, first_env: each reset gets a seed made of these and of its own number.
        warm_up_seed: of the uniformly random actions before learning starts.
        window: number of the newest episodes in the logged mean return and length.
    """

    def __init__(
        self,
        env: EnvById,
        agent: Agent,
        table: Table,
        *,
        seed: int = 0,
        first_env: int = 0,
        warm_up_seed: int = 0,
        window: int = 20,
    ) -> None:
        if not isinstance(env, EnvById):
            raise ConfigError(f"+with=by_id: agents of {env.name} have no ids; env.target=… names an rlrun.env.ByIdEnv")
        if not isinstance(table, Table):
            raise ConfigError(
                "+with=by_id: a rollout takes no agents that come and go; use replay: algorithm=dqn or sac"
            )
        self.env = env
        self.agent = AgentProxy(agent, env.spaces)
        self.memory = MemoryProxy(table, tags=table.tags)
        self.seeds = EpisodeSeeds(seed, 1, first_env)
        self.random = random_agent(agent, env.spaces.action, seed=warm_up_seed)
        self.steps = 0
        self.tally = Tally(0, 0, window=window)
        self.observations: Observations | None = None
        self.approximate: str | None = None
        self._running: dict[AgentId, tuple[float, int]] = {}  # return and length so far

    def begin_training(self, callbacks: Mapping[str, Any] | None = None, spent: Spent | None = None) -> dict[str, int]:
        self._connect(callbacks, spent)
        if self.observations is None or not self.env.resumed:
            if self.observations is not None:
                self.seeds.episode += 1
                self.approximate = "agents by id: the environment is reset, and open episodes end"
            self.memory.interrupt()  # open episodes of a checkpoint cannot continue
            self._running = {}
            self.observations = self.env.dict_reset(*self.seeds.every())
        return {"step": self.steps}

    def end_training(self, error: BaseException | None) -> None:
        self.env.end()

    def collect(self, steps: int, random: bool = False) -> int:
        """Make at least `steps` steps of agents, in whole rounds of all present agents.

        Args:
            steps: wanted, all agents together.
            random: act uniformly at random in place of the agent.

        Returns:
            The number of steps made.

        Raises:
            Stop: a signal came; earlier steps are stored.
        """
        if self.observations is None:
            raise RequestError("callbacks.collector is missing: the loader's collector must be among the callbacks")
        act: Callable[..., Response] = self.random if random else self.agent.agent
        before, idle = self.steps, 0
        while self.steps - before < steps:
            if self._signals.requested is not None:
                self._signals.check()
            idle = 0 if self._round(act) else idle + 1
            if idle == IDLE:
                raise RlrunError(f"the environment has had no agent for {IDLE:,} rounds")
        return self.steps - before

    def _round(self, act: Callable[..., Response]) -> int:
        assert self.observations is not None
        with self._spent.during("act"):
            responses = self.agent.respond(act, self.observations)
        self.memory.add(self.observations, responses)
        self._record(self.observations)
        with self._spent.during("env"):
            self.observations = self.env.dict_step(responses)
        self._count(len(responses))
        return len(responses)

    def _record(self, observations: Observations) -> None:
        for agent, entry in observations.items():
            if entry.episode_state is EpisodeState.INITIAL:
                self._running[agent] = (0.0, 0)
            elif agent in self._running:
                total, length = self._running[agent]
                self._running[agent] = (total + float(entry.rewards.get("reward", 0.0)), length + 1)
                if entry.episode_state.over:
                    total, length = self._running.pop(agent)
                    self.tally.count([total], [length])

    @property
    def metrics(self) -> Mapping[str, Any]:
        agent, table = self.agent.agent, self.memory.table
        return {**getattr(agent, "metrics", {}), **table.metrics, **self.memory.metrics, **self.tally.metrics}

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"agents by id -> {path_of(self.memory.table)}, acting by {path_of(self.agent.agent)}"

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "episode": self.seeds.episode,
            **self.tally.state_dict(),
            "random": self.random.state_dict(),
            "memory": self.memory.state_dict(),
            "running": {agent: list(numbers) for agent, numbers in self._running.items()},
            "observations": {agent: packed(entry) for agent, entry in (self.observations or {}).items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_counts({"steps": state["steps"]})
        self.steps = state["steps"]
        self.seeds.episode = state["episode"].copy()
        self.tally.load_state_dict({"return": (), "length": (), **state})  # older runs lacked these two
        self.random.load_state_dict(state["random"])
        self.memory.load_state_dict(state["memory"])
        running = {agent: saved_numbers(numbers, 2) for agent, numbers in state["running"].items()}
        self._running = {agent: (total, length) for agent, (total, length) in running.items()}
        self.observations = {agent: unpacked(entry) for agent, entry in state["observations"].items()}


def packed(entry: DictObservation) -> dict[str, Any]:
    """Return an observation as plain values for a checkpoint."""
    metadata = None if entry.metadata is None else vars(entry.metadata)
    return {**vars(entry), "episode_state": entry.episode_state.value, "metadata": metadata}


def unpacked(state: Mapping[str, Any]) -> DictObservation:
    """Return the observation that `packed` described."""
    about = state["metadata"]
    saved_numbers(state["rewards"].values())
    map_tree(np.isfinite, state["array_data"])  # raises a TypeError for text
    metadata = None if about is None else MetaData(**about)
    changed = {"episode_state": EpisodeState(state["episode_state"]), "metadata": metadata}
    return DictObservation(**{**state, **changed})
