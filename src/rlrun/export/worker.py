"""A process that writes policies as files while another one trains."""

import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rlrun.collect.unroll import freeze, thaw
from rlrun.export import writing
from rlrun.export.checking import Reference, compare, edges, running
from rlrun.export.graph import Graph, Outer
from rlrun.export.writing import interface
from rlrun.runs.exits import describe_error
from rlrun.runs.files import replace, write_json

END = b""  # in place of a request: there are no more


def request(agent: Any, outer: Outer, *, stochastic: bool, path: Path, about: Mapping[str, Any]) -> bytes:
    """Return a request for a worker, with a copy of the agent; the graph is built by the worker."""
    return pickle.dumps((outer, stochastic, path, about, freeze(agent)))


def carry_out(request: bytes) -> None:
    """Write the file of a request.

    Raises:
        RlrunError: the policy cannot be exported, or the file would act otherwise.
    """
    outer, stochastic, path, metadata, frozen = pickle.loads(request)
    agent = thaw(frozen)
    graph = Graph(agent, outer, stochastic=stochastic)
    about = {**metadata, **interface(graph)}
    data = writing.onnx_bytes(graph, writing.traced(graph), about=metadata, version=about["model_version"])
    parity = compare(running(data, graph, "onnx"), Reference(agent, graph), edges(graph), lenient=True)
    about["parity"] = {"edges": parity.rows, "largest_at_edges": parity.largest}
    write_json(path.with_name(f"{path.name}.json"), about)
    replace(path, data)


def serve(handle: int, parent: int) -> None:
    """Carry out requests from a connection; the answer is an empty text, or the error."""
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(10)  # training comes first
    writing.keep_operators()
    connection = Connection(handle)
    with open(os.devnull, "w") as sys.stdout, suppress(EOFError, OSError):  # what exporters print is for nobody
        sys.stderr = sys.stdout
        while (request := connection.recv_bytes()) != END:
            try:
                carry_out(request)
                answer = ""
            except Exception as error:
                answer = describe_error(error)
            connection.send(answer)
