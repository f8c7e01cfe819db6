"""Observations that a policy meets, as its environment gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlrun.collect.agents import Agent, begun_anew, initial_state
from rlrun.collect.evaluate import undisturbed
from rlrun.env import Env
from rlrun.export.checking import Columns
from rlrun.export.graph import Graph, flat
from rlrun.export.ports import Port, named
from rlrun.typing import Tree


def recorded(env: Env, agent: Agent, graph: Graph, *, count: int, seed: int) -> list[Columns]:
    """Return observations of `count` steps, each with the state before it where there is one.

    The policy explores, so that they are not all of one way through the environment.
    """
    rows: list[Columns] = []
    with undisturbed():
        env.renew()
        observation = env.reset(seed)
        state = initial = initial_state(agent, env.num_envs)
        while len(rows) < count:
            rows += _rows(graph, observation, state)
            response = agent(observation, state, explore=True)
            step = env.step(response["action"])
            ended = step.terminated | step.truncated
            observation = env.restart(ended) if ended.any() else step.observation
            state = None if initial is None else begun_anew(response["state"], initial, ended)
    return rows[:count]


def columns(inputs: Sequence[Port], observation: Tree) -> Columns:
    """Return a tree of ours [N, …] as what the environment gave, by the names of inputs."""
    starts = {port.name: port.space.get("start", 0) for port in inputs}
    values = {named("observation", path): value for path, value in flat(observation)}
    return {name: value + np.asarray(starts[name]) if np.any(starts[name]) else value for name, value in values.items()}


def _rows(graph: Graph, observation: Tree, state: Tree) -> list[Columns]:
    """Return the lanes of a tree of ours as rows of what the environment gave."""
    taken = [port for port in graph.inputs if port.role == "observation"]
    states = {named("state", path): value for path, value in flat(state)}
    whole = states | columns(taken, observation)
    lanes = range(len(next(iter(whole.values()))))
    typed = {port.name: whole[port.name].astype(port.dtype) for port in graph.inputs if port.name in whole}
    return [{name: value[[lane]] for name, value in typed.items()} for lane in lanes]
