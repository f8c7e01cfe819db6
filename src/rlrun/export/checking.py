"""Verify that an exported file acts as its policy."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.collect.agents import Agent, Response, initial_state, to_arrays, to_tensors
from rlrun.collect.evaluate import restored_generators
from rlrun.core.errors import RlrunError
from rlrun.core.spaces import take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.descriptions import containers
from rlrun.env.spaces import action_writer, batch_reader
from rlrun.export import play_onnx
from rlrun.export.graph import Graph, Port, dealing, flat, named, nested
from rlrun.memory.formats.sources import table_of
from rlrun.memory.table.episodes import Stored
from rlrun.ops import distributions

TOLERANCE = 1e-5  # absolute for numbers up to 1, relative above
BATCHES = (1, 7, 64)
SINGLES = 10  # rows that are compared one at a time; larger batches cover all rows
LARGE = 1e3  # extreme value of an observation without bounds
CHANGE = 1e-6  # relative change of inputs, of the size of rounding errors
CHANGES = 16  # random changes of inputs that are tried
PLANNED = 1e-5  # the same for outputs that jump, such as plans: larger than rounding, so it reverses close choices
JUMP = 1e-3  # an output that changes by more than this jumps
RECORDED = 1_000  # most steps of an episode that are compared
Columns = dict[str, Array]  # name of an input or output -> [N, …]
Run = Callable[[Columns], Columns]


class Parity(NamedTuple):
    """Largest difference between a file and its policy.

    Attributes:
        rows: number of compared observations.
        largest: difference of two numbers, relative if they are above 1; choices are equal.
    """

    rows: int
    largest: float


class Reference:
    """The policy as in training and evaluation, behind the inputs and outputs of a file.

    It calls the parts of the run instead of the exported graph.

    Args:
        agent: of the run.
        graph: for the names of inputs and outputs.
    """

    def __init__(self, agent: Any, graph: Graph) -> None:
        self.agent, self.graph, self.outer = agent, graph, graph.outer
        self._read = batch_reader(self.outer.observation)
        self._states = [port.name for port in graph.inputs if port.role == "state"]

    def __call__(self, inputs: Columns) -> Columns:
        """Return the outputs [N, …] for inputs [N, …], both by name."""
        envs = len(next(iter(inputs.values())))
        observation = self._read(play_onnx.nested(containers(self.outer.observation), inputs, "observation"))
        state = nested([name.partition(".")[2] for name in self._states], [inputs[name] for name in self._states])
        if self.graph.stochastic:
            noise = torch.from_numpy(inputs["epsilon"]) if self.graph.width else None
            with distributions.given(dealing(noise)):
                response = responded(self.agent, observation, state, explore=True)
        else:
            response = self.agent(observation, state, explore=False)
        action, after = response["action"], response.get("state")
        convert = action_writer(self.outer.action, envs)
        taken = action if convert is None else convert(action)
        outputs = {name: np.asarray(value) for name, value in play_onnx.parts("action", taken)}
        return outputs | {named("next_state", path): value for path, value in flat(after)}


@torch.no_grad()
def responded(agent: Any, observation: Tree, state: Tree | None, *, explore: bool) -> Response:
    """Return an agent's response to arrays [N, …] without changing its counters."""
    seen, before = to_tensors(observation), None if state is None else to_tensors(state)
    action, after = agent.respond(seen, before, explore)
    response: Response = {"action": to_arrays(action)}
    return response if after is None else {**response, "state": to_arrays(after)}


def edges(graph: Graph) -> list[Columns]:
    """Return extreme inputs, one row each: zeros, low and high bounds (or large numbers), first and last choices."""
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


def running(data: bytes, graph: Graph) -> Run:
    """Return a function that runs an ONNX file: inputs by name -> outputs by name."""
    session, names = play_onnx.session(data), [port.name for port in graph.outputs]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def compare(run: Run, reference: Reference, rows: Sequence[Columns], *, seed: int = 0, lenient: bool = False) -> Parity:
    """Compare a file and its policy on the same inputs, in batches of several sizes.

    Args:
        run: the file.
        reference: the policy.
        rows: observations and states, one row each; the noise is added here.
        seed: of the noise.
        lenient: as in `differing`.

    Raises:
        RlrunError: they differ; the message names the output and the difference.
    """
    generator = np.random.default_rng(seed)
    largest = 0.0
    for size in BATCHES:
        for begin in range(0, SINGLES if size == 1 else len(rows), size):
            chosen = [rows[(begin + index) % len(rows)] for index in range(size)]
            inputs = {name: np.concatenate([row[name] for row in chosen]) for name in chosen[0]}
            if width := reference.graph.width:
                inputs["epsilon"] = generator.standard_normal((size, width), dtype=np.float32)
            try:
                outputs = run(inputs)
            except Exception as error:
                first = next(iter(str(error).strip().splitlines()), type(error).__name__)
                raise RlrunError(f"the exported policy fails on {size} observations: {first}") from error
            largest = max(largest, differing(outputs, inputs, reference, lenient=lenient))
    return Parity(len(rows), largest)


def differing(outputs: Columns, inputs: Columns, reference: Run, *, lenient: bool = False) -> float:
    """Return the largest difference between the outputs [N, …] of a file and those of its policy.

    A choice may differ in a tie: if the policy itself chooses differently once inputs change by 1e-6 (relative).
    Numbers, such as those of a plan, may differ if the policy's own jump as far once inputs change by 1e-5.

    lenient: add the change of the policy's own numbers, when inputs change by 1e-6, to the tolerance. The
        tolerance is then relative to the largest number of a row, as sums round like their largest terms.

    Raises:
        RlrunError: other choices differ, or numbers differ by more than the tolerance.
    """
    largest, near = 0.0, dict[float, list[Columns]]()
    for name, value in (wanted := reference(inputs)).items():
        got = outputs[name]
        if got.shape != value.shape:
            raise RlrunError(f"the exported policy disagrees: '{name}' is {list(got.shape)}, not {list(value.shape)}")
        apart, is_choice = _apart(got, value), value.dtype.kind != "f"
        tolerance = 0.0 if is_choice else max(TOLERANCE, float(np.finfo(value.dtype).eps))  # float16 rounds more
        allowed = np.full(apart.shape, tolerance)
        for change in [CHANGE] if is_choice else [CHANGE, PLANNED] if lenient else [PLANNED]:
            if (apart <= allowed).all():
                break
            if change not in near:
                near[change] = _near(inputs, reference, wanted, change)
            own = np.max([_apart(answer[name], value) for answer in near[change]], axis=0)
            if is_choice:
                apart = np.where(own > 0.0, 0.0, apart)
            elif change == PLANNED:
                apart = np.where((own > JUMP) & (apart <= JUMP + own), 0.0, apart)
            else:
                size = np.maximum(1.0, np.abs(value.astype(np.float64)))
                largest_of_row = size.max(tuple(range(1, size.ndim)), keepdims=True, initial=1.0)
                allowed = own + tolerance * largest_of_row / size
        rows = (apart <= allowed).reshape(len(value), -1).all(axis=1)
        if not rows.all():
            off = "another" if is_choice else f"off by {np.nanmax(apart):.1e} ({tolerance:g} is allowed)"
            wrong = f"in {len(value) - rows.sum()} of {len(value)} rows"
            raise RlrunError(f"the exported policy disagrees: '{name}' is {off} {wrong}")
        largest = max(largest, float(apart.max(initial=0.0)))
    return largest


def _near(inputs: Columns, reference: Run, wanted: Columns, change: float) -> list[Columns]:
    """Return the policy's outputs for randomly changed inputs, each number by `change` times its size or 1.

    Raises:
        RlrunError: the same inputs give different outputs.
    """
    if any(not np.array_equal(value, wanted[name], equal_nan=True) for name, value in reference(inputs).items()):
        raise RlrunError("the exported policy disagrees: the policy itself gives other actions for the same inputs")
    generator = np.random.default_rng(round(1.0 / change))  # a different seed for each size of change

    def changed(value: Array) -> Array:
        if value.dtype.kind != "f":
            return value
        moved = change * np.maximum(np.abs(value), 1.0) * generator.choice((-1.0, 1.0), value.shape)
        nearby: Array = (value + moved).astype(value.dtype)
        return nearby

    return [reference({name: changed(value) for name, value in inputs.items()}) for _ in range(CHANGES)]


def _apart(value: Array, reference: Array) -> Array:
    """Return the absolute difference of numbers, relative to the reference where that is above 1."""
    distance: Array = np.abs(value.astype(np.float64) - reference) / np.maximum(1.0, np.abs(reference))
    return distance


class Recorder(Agent):
    """An agent that records its first `RECORDED` observations, with the states before them.

    Attributes:
        rows: the records, one env each.
    """

    def __init__(self, agent: Any, graph: Graph) -> None:
        self.agent, self.graph, self.outputs = agent, graph, agent.outputs
        self.policy = getattr(agent, "policy", None)  # read by `evaluation_mode`
        self.rows: list[Columns] = []

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if len(self.rows) < RECORDED:
            self.rows += rows_of(self.graph, observation, state)
        return responded(self.agent, observation, state, explore=explore)

    def initial_state(self, count: int) -> Tree | None:
        return initial_state(self.agent, count)


def data_rows(sources: Sequence[str], agent: Agent, graph: Graph) -> list[Columns]:
    """Return the first observations of stored episodes, each with the recurrent state before it, if any.

    Raises:
        RequestError: a source is missing or damaged.
    """
    rows: list[Columns] = []
    initial = initial_state(agent, 1)
    with restored_generators():
        for source in sources:
            for episode in Stored.of(table_of(source)):
                state, seen = initial, episode.row["observation"]
                for index in range(len(episode) if len(rows) < RECORDED else 0):
                    observation = take_rows(seen, slice(index, index + 1))
                    rows += rows_of(graph, observation, state)
                    state = None if initial is None else agent(observation, state, explore=True)["state"]
    return rows


def columns(inputs: Sequence[Port], observation: Tree) -> Columns:
    """Return the columns of an observation tree [N, …] by names of inputs, in the environment's own numbers."""
    starts = {port.name: port.space.get("start", 0) for port in inputs}
    values = {named("observation", path): value for path, value in flat(observation)}
    return {
        name: value + np.asarray(starts[name]) if np.any(starts[name]) else value
        for name, value in values.items()
        if name in starts
    }


def rows_of(graph: Graph, observation: Tree, state: Tree = None) -> list[Columns]:
    """Split an observation tree [N, …] into one row per env, in the environment's own numbers."""
    taken = [port for port in graph.inputs if port.role == "observation"]
    states = {named("state", path): value for path, value in flat(state)}
    whole = states | columns(taken, observation)
    envs = range(len(next(iter(whole.values()))))
    typed = {port.name: whole[port.name].astype(port.dtype) for port in graph.inputs if port.name in whole}
    return [{name: value[[env_index]] for name, value in typed.items()} for env_index in envs]
