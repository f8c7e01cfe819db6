"""A memory for agents known by an id, which come and go; each fills an episode of its own.

Some environments (a game whose characters appear and leave) name their agents by id. In every round each present agent
gets a `DictObservation`, and each that continues answers with a `DictResponse`. A `MemoryProxy` assembles the rounds
into episodes and adds these to a table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.core.errors import DataError, RlrunError, did_you_mean
from rlrun.core.spaces import flat, map_tree, stack, take_rows
from rlrun.core.typing import Tree
from rlrun.env.by_id import AgentId, DictObservation, DictResponse, EpisodeState
from rlrun.memory.table.table import Table


@dataclass
class _Open:
    """An episode under construction: as many responses as observations, and one reward fewer."""

    observations: list[Tree] = field(default_factory=list)
    responses: list[dict[str, Tree]] = field(default_factory=list)
    rewards: list[dict[str, float]] = field(default_factory=list)
    info: dict[str, float] = field(default_factory=dict)  # the newest of each


class MemoryProxy:
    """Assemble the episodes of agents, and add each to a table when it is over.

    An episode that ends as TERMINAL has `terminated` in its last row, one that ends as INTERRUPTED
    `truncated`. Until then it is neither sampled nor exported; a checkpoint holds it. The table drops those that are
    shorter than its `min_length`.

    Args:
        table: where episodes go.
        tags: columns with one value an episode, taken from `metadata.info` (the newest value).
    """

    def __init__(self, table: Table, *, tags: Iterable[str] = ()) -> None:
        self.table = table
        self.tags = tuple(tags)
        self.unknown = 0  # ends of agents that never began
        self._open: dict[AgentId, _Open] = {}

    def add(self, observations: Mapping[AgentId, DictObservation], responses: Mapping[AgentId, DictResponse]) -> None:
        """Add one round: the observation of each agent, and the response of each whose episode continues.

        Raises:
            RlrunError: an agent has the wrong state, or no response; nothing was added.
            DataError: an observation or a reward is NaN or infinite; nothing was added.
        """
        for agent, seen in observations.items():
            self._check(agent, seen, agent in responses)
        for agent in responses:
            if agent not in observations:
                raise RlrunError(f"agent {agent} responds, but has no observation in this round")
        for agent, seen in observations.items():
            if seen.episode_state.over and agent not in self._open:
                self.unknown += 1
            else:
                self._go_on(agent, seen, responses.get(agent))

    def _check(self, agent: AgentId, seen: DictObservation, responds: bool) -> None:
        state, known = seen.episode_state, agent in self._open
        if state.over:
            if responds:
                raise RlrunError(f"agent {agent} responds, but its episode is over ({state.value})")
        elif not responds:
            raise RlrunError(f"agent {agent} is {state.value} and has no response; only ended agents need none")
        elif state is EpisodeState.INITIAL and known:
            raise RlrunError(f"agent {agent} is initial, but its last episode is not over; each episode begins once")
        elif state is EpisodeState.RUNNING and not known:
            raise RlrunError(f"agent {agent} is running, but its episode never began; the first state is initial")
        for name, leaf in flat({"observation": seen.array_data, "reward": seen.rewards}).items():
            if not np.isfinite(leaf).all():
                raise DataError(f"the environment gave agent {agent} {name} = {leaf}")

    def _go_on(self, agent: AgentId, seen: DictObservation, response: DictResponse | None) -> None:
        if seen.episode_state is EpisodeState.INITIAL:
            episode = self._open[agent] = _Open()
        else:
            episode = self._open[agent]
            episode.rewards.append(self._stored_columns(seen.rewards))
        # an environment may fill the same arrays again in the next round
        episode.observations.append(map_tree(np.array, seen.array_data))
        if seen.metadata is not None:
            episode.info |= seen.metadata.info
        if response is None:
            self._hand_over(agent, self._open.pop(agent), seen.episode_state)
        else:
            values = {**response.scalar_data, **response.array_data}
            episode.responses.append(map_tree(np.array, self._stored_columns(values)))

    def _stored_columns(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in self.table.storage}

    def _hand_over(self, agent: AgentId, episode: _Open, state: EpisodeState) -> None:
        """Add an episode with as many responses as rewards, and one observation more."""
        length = len(episode.responses)
        if not length:
            return
        try:
            columns = {**stack(episode.rewards), **stack(episode.responses)}
        except KeyError as missing:
            raise RlrunError(f"agent {agent}: {missing} is missing in some rounds of its episode") from None
        last = np.arange(length) == length - 1
        columns["terminated"] = last & (state is EpisodeState.TERMINAL)
        columns["truncated"] = last & (state is EpisodeState.INTERRUPTED)
        observations = stack(episode.observations)
        if "observation" in self.table.storage.columns:  # a single array in place of a dict
            if len(observations) != 1:
                raise RlrunError(
                    f"agent {agent} observes {', '.join(observations)}; the memory's observation is one array, so one "
                    "is wanted"
                )
            (observations,) = observations.values()
        columns["observation"] = take_rows(observations, slice(length))
        row = {name: _named(columns, name, agent) for name in self.table.storage}
        tags = {name: _named(episode.info, name, agent) for name in self.tags}
        self.table.add_episode(row, take_rows(observations, length), tags=tags)

    def interrupt(self) -> None:
        """End every open episode as interrupted, because the environment was reset.

        The last response of each has no outcome, and is left out.
        """
        for agent, episode in list(self._open.items()):
            del self._open[agent]
            episode.responses.pop()
            self._hand_over(agent, episode, EpisodeState.INTERRUPTED)

    @property
    def metrics(self) -> dict[str, float]:
        """Number of agents with open episodes, and of those whose episode ended without a beginning."""
        return {"agents/open": len(self._open), "agents/unknown": self.unknown}

    def state_dict(self) -> dict[str, Any]:
        """Return the counter and the open episodes."""
        episodes = {
            agent: {  # few arrays, for the files of a checkpoint
                "length": len(episode.responses),
                "observations": stack(episode.observations),
                "responses": stack(episode.responses),
                "rewards": stack(episode.rewards) if episode.rewards else {},
                "info": dict(episode.info),
            }
            for agent, episode in self._open.items()
        }
        return {"unknown": self.unknown, "open": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.unknown = state["unknown"]
        self._open = {}
        for agent, packed in state["open"].items():
            arrays = [*flat({"observation": packed["observations"], "response": packed["responses"]}).values()]
            if packed["length"] < 1 or any(len(array) != packed["length"] for array in arrays):
                raise RlrunError(f"the open episode of agent {agent} has not {packed['length']} rows of each column")
            self._require_fit(
                agent, {**packed["responses"], **packed["rewards"], "observation": packed["observations"]}
            )
            rows = {name: packed["length"] - (name == "rewards") for name in ("observations", "responses", "rewards")}
            lists = {name: [take_rows(packed[name], index) for index in range(rows[name])] for name in rows}
            self._open[agent] = _Open(**lists, info=dict(packed["info"]))

    def _require_fit(self, agent: AgentId, rows: Tree) -> None:
        """Refuse rows [n, …] of a saved episode that the columns of the same names cannot hold."""
        columns = self.table.storage.columns
        for name, values in flat(rows).items():
            single = name.startswith("observation.") and "observation" in columns
            column = columns.get("observation" if single else name)
            if column is None or (self.table.frames is not None and column.keys[0] == "observation"):
                continue
            if values.dtype.kind not in "fiub" or values.shape[1:] != column.shape:
                shape = f"{values.dtype} {[*values.shape]}"
                raise RlrunError(f"the open episode of agent {agent} has {name} of shape {shape}")
            column.require_choices(values, f"the open episode of agent {agent}")


def _named(values: Mapping[str, Any], name: str, agent: AgentId) -> Any:
    if name not in values:
        raise RlrunError(
            f"agent {agent}: nothing gives the memory's column '{name}'; there is {', '.join(values)}"
            f"{did_you_mean(name, values)}"
        )
    return values[name]
