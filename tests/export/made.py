"""Policies to export, as configs build them."""

from contextlib import suppress
from typing import NamedTuple

import torch

from rlrun import config as configuration
from rlrun.collect.agents import alone
from rlrun.collect.evaluate import evaluate
from rlrun.env import Env
from rlrun.export import making
from rlrun.export.checking import Parity, Recorder, Reference, Run, compare, edges, running
from rlrun.export.graph import Graph, Outer
from rlrun.loading.assembly import builder_of, prepare_process
from rlrun.training.callback import Stop

SMALL = ("algorithm.hidden=[8]", "~preset")
SPACES = {
    "box": "env=pendulum",
    "discrete": "env=cartpole",
    "multi-discrete": "env.target=rlrun.env.toys.MultiDiscreteAction",
    "mixed": "env.target=rlrun.env.toys.MixedAction",
    "dict": "env.target=rlrun.env.toys.DictObservation",
    "image": "env.target=rlrun.env.toys.ImageObservation",
    "tuple": "env.target=rlrun.env.toys.TupleSpaces",
    "start": "env.target=rlrun.env.toys.DiscreteStart",
}


class Made(NamedTuple):
    """What a config builds."""

    agent: object
    env: Env
    parts: dict[str, object]

    def graph(self, *, stochastic: bool = False) -> Graph:
        return Graph(self.agent, Outer.of(self.env.outer), stochastic=stochastic)


def make(*overrides: str) -> Made:
    """Build the agent and one env of the environment, and let normalizers learn something first."""
    composed = configuration.compose([*overrides])
    device = prepare_process(composed.config)
    builder = builder_of(composed.config, device=device, num_envs=1)
    torch.manual_seed(3)
    return Made(alone(builder.get("agent")), builder.get("env"), builder.built)


def file_of(graph: Graph) -> bytes:
    """Return the file of a graph."""
    return making.onnx_bytes(graph, {"env_steps": 0}, version=1)


def proven(made: Made, graph: Graph, run: Run | None = None, *, count: int = 64):
    """Compare a file, by default that of the graph, with the policy."""
    run, reference = run or running(file_of(graph), graph), Reference(made.agent, graph)
    recorder = Recorder(made.agent, graph)

    def stop_at_count() -> None:
        if len(recorder.rows) >= count:
            raise Stop

    with suppress(Stop):
        evaluate(made.env, recorder, episodes=count, seed=5, explore=True, abandon=stop_at_count)
    parity = compare(run, reference, recorder.rows)
    edge = compare(run, reference, edges(graph), lenient=True)
    return Parity(parity.rows + edge.rows, max(parity.largest, edge.largest))
