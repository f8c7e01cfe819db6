"""Proof that a file acts as its policy."""

import io
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.collect.agents import Agent, initial_state, restarted, to_arrays, to_tensors
from rlrun.collect.by_id import AgentProxy, rounds
from rlrun.collect.collector import restart_by_seeds
from rlrun.collect.evaluate import restored_generators
from rlrun.core.errors import RlrunError
from rlrun.core.seeds import EpisodeSeeds
from rlrun.core.spaces import take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env import Env, EnvById
from rlrun.env.descriptions import containers
from rlrun.env.spaces import action_writer, batch_reader
from rlrun.export import play_onnx
from rlrun.export.graph import Graph, Port, dealing, flat, named, nested
from rlrun.memory.episodes import Stored
from rlrun.memory.sources import table_of
from rlrun.ops import distributions

TOLERANCE = 1e-5  # between numbers of a size up to 1, relative to larger ones
APART = 1e-4  # at most, between a number in an action of the file and of the policy, in an episode
BATCHES = (1, 7, 64)
SINGLES = 10  # rows that are tried one at a time; the larger batches hold all
LARGE = 1e3  # where an observation has no bound
CHANGE = 1e-6  # of an input, up or down, after which an answer is as good
CHANGES = 8  # such answers
Columns = dict[str, Array]  # name of an input or output -> [N, …]
Run = Callable[[Columns], Columns]


class Parity(NamedTuple):
    """Largest difference between a file and its policy.

    Attributes:
        rows: observations that both answered.
        largest: difference of two numbers, relative where they are above 1; choices are the same.
    """

    rows: int
    largest: float


class Reference:
    """The policy as in training and evaluation, with the inputs and outputs of a file.

    It uses the parts of a run, not the exported graph.

    Args:
        agent: of the run.
        graph: gives the names.
    """

    def __init__(self, agent: Any, graph: Graph) -> None:
        self.agent, self.graph, self.outer = agent, graph, graph.outer
        self._read = batch_reader(self.outer.observation)
        self._states = [port.name for port in graph.inputs if port.role == "state"]

    def __call__(self, inputs: Columns) -> Columns:
        """Return the outputs for inputs."""
        envs = len(next(iter(inputs.values())))
        observation = self._read(play_onnx.nested(containers(self.outer.observation), inputs, "observation"))
        state = nested([name.partition(".")[2] for name in self._states], [inputs[name] for name in self._states])
        action, after = self._act(observation, state, inputs)
        convert = action_writer(self.outer.action, envs)
        taken = action if convert is None else convert(action)
        outputs = {name: np.asarray(value) for name, value in play_onnx.parts("action", taken)}
        return outputs | {named("next_state", path): value for path, value in flat(after)}

    def _act(self, observation: Any, state: Any, inputs: Columns) -> tuple[Any, Any]:
        if not self.graph.stochastic:
            response = self.agent(observation, state, explore=False)
            return response["action"], response.get("state")
        noises = {port: torch.from_numpy(inputs[port]) for port in self.graph.widths}
        with torch.no_grad(), distributions.given(dealing(noises)):
            seen, before = to_tensors(observation), None if state is None else to_tensors(state)
            action, after = self.agent.respond(seen, before, True)
        return to_arrays(action), None if after is None else to_arrays(after)


def edges(graph: Graph) -> list[Columns]:
    """Return inputs of one row each: zeros, the bounds or large numbers, and the first and the last choice."""
    taken = [port for port in graph.inputs if port.role in ("observation", "state")]
    return [{port.name: _edge(port, which) for port in taken} for which in ("zero", "low", "high")]


def _edge(port: Port, which: str) -> Array:
    shape, space = (1, *port.shape), port.space
    first = np.asarray(space.get("start", 0))
    if "n" in space:
        value = first + (np.asarray(space["n"]) - 1 if which == "high" else 0)
    elif space.get("kind") == "MultiBinary":
        value = np.asarray(int(which == "high"))
    elif which == "zero":
        value = np.asarray(0.0)
    elif port.role == "state":
        value = np.asarray(-1.0 if which == "low" else 1.0)
    else:
        bound = np.array(space[which], dtype=np.float64)  # null becomes NaN
        value = np.where(np.isnan(bound), -LARGE if which == "low" else LARGE, np.clip(bound, -1e6, 1e6))
    return np.broadcast_to(value, shape).astype(port.dtype)


def running(data: bytes, graph: Graph, format: str) -> Run:
    """Return a function from inputs to the outputs of a file."""
    names = [port.name for port in graph.outputs]
    if format == "pt2":
        module = torch.export.load(io.BytesIO(data)).module()

        def run(inputs: Columns) -> Columns:
            with torch.no_grad():
                outputs = module(*[torch.from_numpy(inputs[port.name]) for port in graph.inputs])
            return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

        return run
    session = play_onnx.session(data)
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def compare(run: Run, reference: Reference, rows: Sequence[Columns], *, seed: int = 0, lenient: bool = False) -> Parity:
    """Compare a file and its policy on the same inputs, in batches of several sizes.

    Args:
        run: the file.
        reference: the policy.
        rows: observations and states, one row each; the noise is drawn here.
        seed: of the noise.
        lenient: allow the change of the policy's own outputs for inputs a millionth larger or smaller. For large
            inputs, single precision can exceed the tolerance.

    Raises:
        RlrunError: they differ; the message names the output and by how much.
    """
    generator = np.random.default_rng(seed)
    largest = 0.0
    for size in BATCHES:
        for begin in range(0, SINGLES if size == 1 else len(rows), size):
            chosen = [rows[(begin + index) % len(rows)] for index in range(size)]
            inputs = {name: np.concatenate([row[name] for row in chosen]) for name in chosen[0]}
            for name, width in reference.graph.widths.items():
                draw = generator.standard_normal if name == "epsilon" else generator.gumbel
                inputs[name] = draw(size=(size, width)).astype(np.float32)
            try:
                outputs = run(inputs)
            except Exception as error:
                first = next(iter(str(error).strip().splitlines()), type(error).__name__)
                raise RlrunError(f"the exported policy fails on {size} observations: {first}") from error
            near = [reference(_changed(inputs, generator)) for _ in range(CHANGES if lenient else 0)]
            largest = max(largest, differing(outputs, reference(inputs), near))
    return Parity(len(rows), largest)


def _changed(inputs: Columns, generator: np.random.Generator, least: float = 0.0) -> Columns:
    """Return inputs with each real number a millionth larger or smaller, at least by one of `least`."""
    return {
        name: (value + CHANGE * np.maximum(np.abs(value), least) * generator.choice((-1.0, 1.0), value.shape)).astype(
            value.dtype
        )
        if value.dtype.kind == "f"
        else value
        for name, value in inputs.items()
    }


def differing(outputs: Columns, wanted: Columns, near: Sequence[Columns] = ()) -> float:
    """Return the largest difference between outputs [N, …].

    near: outputs for slightly changed inputs, which are as good. The tolerance is then relative to the largest number
        of a row, as numbers round as the terms do whose sums they are.

    Raises:
        RlrunError: choices are not the same, or numbers differ by more than the tolerance.
    """
    largest = 0.0
    for name, value in wanted.items():
        got = outputs[name]
        if got.shape != value.shape:
            raise RlrunError(f"the exported policy disagrees: '{name}' is {list(got.shape)}, not {list(value.shape)}")
        own = np.max([_apart(answer[name], value) for answer in near], axis=0) if near else np.zeros(value.shape)
        apart = _apart(got, value)
        if np.issubdtype(value.dtype, np.integer):
            wrong = ((apart > 0.0) & (own == 0.0)).reshape(len(value), -1).any(-1)
            if wrong.any():
                raise RlrunError(
                    f"the exported policy disagrees: '{name}' is another in {wrong.sum()} of {len(wrong)} rows"
                )
            continue
        size = np.maximum(1.0, np.abs(value.astype(np.float64)))
        largest_of_row = size.max(tuple(range(1, size.ndim)), keepdims=True, initial=1.0) if near else size
        allowed = np.maximum(TOLERANCE * largest_of_row / size, own)
        if not (apart <= allowed).all():
            raise RlrunError(
                f"the exported policy disagrees: '{name}' is off by {np.nanmax(apart):.1e} ({TOLERANCE:g} is allowed)"
            )
        largest = max(largest, float(apart.max(initial=0.0)))
    return largest


def _apart(value: Array, reference: Array) -> Array:
    """Return the difference of numbers, as a share of those whose size is above 1."""
    distance: Array = np.abs(value.astype(np.float64) - reference) / np.maximum(1.0, np.abs(reference))
    return distance


def recorded(env: Env, agent: Agent, graph: Graph, *, count: int, seed: int) -> list[Columns]:
    """Return observations of `count` steps, each with the state before it where there is one.

    The policy explores, so that the observations vary.
    """
    rows: list[Columns] = []
    with restored_generators():
        if isinstance(env, EnvById):
            for observations in rounds(env, agent, seed=seed, explore=True):
                if len(rows) >= count:
                    return rows[:count]
                if any(not entry.episode_state.over for entry in observations.values()):
                    rows += rows_of(graph, AgentProxy(agent, env.spaces).seen(observations), None)
        env.renew()
        observation, seeds = env.reset(seed), EpisodeSeeds(seed, env.num_envs)
        state = initial = initial_state(agent, env.num_envs)
        while len(rows) < count:
            rows += rows_of(graph, observation, state)
            response = agent(observation, state, explore=True)
            step = env.step(response["action"])
            episode_end = step.terminated | step.truncated
            seeds.episode[episode_end] += 1
            observation = restart_by_seeds(env, episode_end, seeds) if episode_end.any() else step.observation
            state = None if initial is None else restarted(response["state"], initial, episode_end)
    return rows[:count]


def data_rows(sources: Sequence[str], agent: Agent, graph: Graph, count: int) -> list[Columns]:
    """Return the first `count` observations of stored episodes, each with the state before it where there is one.

    Raises:
        RequestError: a source is missing or damaged.
    """
    rows: list[Columns] = []
    initial = initial_state(agent, 1)
    with restored_generators():
        for source in sources:
            for episode in Stored.of(table_of(source)):
                state, seen = initial, episode.row["observation"]
                for index in range(len(episode) if len(rows) < count else 0):
                    observation = take_rows(seen, slice(index, index + 1))
                    rows += rows_of(graph, observation, state)
                    state = None if initial is None else agent(observation, state, explore=True)["state"]
    return rows[:count]


def columns(inputs: Sequence[Port], observation: Tree) -> Columns:
    """Return an observation tree [N, …] in the environment's own numbers, by the names of inputs."""
    starts = {port.name: port.space.get("start", 0) for port in inputs}
    values = {named("observation", path): value for path, value in flat(observation)}
    return {name: value + np.asarray(starts[name]) if np.any(starts[name]) else value for name, value in values.items()}


def rows_of(graph: Graph, observation: Tree, state: Tree = None) -> list[Columns]:
    """Return the envs of an observation tree as rows in the environment's own numbers."""
    taken = [port for port in graph.inputs if port.role == "observation"]
    states = {named("state", path): value for path, value in flat(state)}
    whole = states | columns(taken, observation)
    envs = range(len(next(iter(whole.values()))))
    typed = {port.name: whole[port.name].astype(port.dtype) for port in graph.inputs if port.name in whole}
    return [{name: value[[env_index]] for name, value in typed.items()} for env_index in envs]


def played(data: bytes, reference: Reference, env: Env, about: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the results of episodes that the file plays, as `play_onnx.py` does.

    Args:
        data: the file.
        reference: its policy; its action at each step is compared and not taken.
        env: a single environment.
        about: the content of FILE.json.
        count: how many; episode i begins with `reset(seed=seed + i)`.

    Raises:
        RlrunError: an action of the policy differs, and is no tie.
    """
    seed, limits = about["seed"], about["env"]
    generator = np.random.default_rng(seed)
    policy = play_onnx.Policy(data, about, seed)
    run, differences = policy.session.run, [0.0]

    def compared(names: list[str], inputs: Columns) -> list[Any]:
        outputs = run(names, inputs)
        actions = {name: value for name, value in zip(names, outputs, strict=True) if name.startswith("action")}
        differences.append(action_difference(actions, inputs, reference, generator))
        return list(outputs)

    policy.session = SimpleNamespace(run=compared)
    with restored_generators():
        env.renew()
        results = [
            play_onnx.episode(policy, env.envs[0], seed + index, limits["max_steps"], limits["reset_options"])
            for index in range(count)
        ]
    return {
        "seeds": [seed + index for index in range(count)],
        "returns": [total for total, _ in results],
        "lengths": [steps for _, steps in results],
        "largest": max(differences),
    }


def action_difference(
    actions: Columns, inputs: Columns, reference: Callable[[Columns], Columns], generator: np.random.Generator
) -> float:
    """Return by how much the actions of a file differ from its policy's.

    Choices may differ in a tie: where the policy makes that choice for inputs that are changed by a millionth of their
    size, or of 1.

    Raises:
        RlrunError: they differ otherwise, or by too much.
    """
    largest, answer = 0.0, reference(inputs)
    for name, value in actions.items():
        wanted = answer[name]
        is_choice = np.issubdtype(wanted.dtype, np.integer)
        if is_choice and not np.array_equal(value, wanted):
            near = [reference(_changed(inputs, generator, 1.0))[name] for _ in range(CHANGES)]
            wanted = np.where(np.any([choice == value for choice in near], axis=0), value, wanted)
        apart = _apart(value, wanted)
        if (is_choice and apart.any()) or not (apart < APART).all():
            difference = f"'{name}' is {value[0].tolist()}, not {wanted[0].tolist()}"
            raise RlrunError(f"the exported policy disagrees in an episode: {difference}")
        largest = max(largest, float(apart.max(initial=0.0)))
    return largest
