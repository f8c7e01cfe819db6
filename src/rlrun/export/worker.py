"""A process that writes policies as files while another one trains: `python -m rlrun.export.worker`.

Its input are pickled requests, and each line of its output is the answer: empty, or an error. It ends with its input.
"""

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlrun.collect.unroll import freeze, thaw
from rlrun.core.errors import RlrunError
from rlrun.export import writing
from rlrun.export.checking import Reference, compare, edges, running
from rlrun.export.graph import Graph, Outer
from rlrun.export.writing import interface
from rlrun.runs.files import replace, write_json

Request = tuple[tuple[str, ...], bytes, bytes]  # paths of classes; pickled: what is wanted, the agent


def request(agent: Any, outer: Outer, *, stochastic: bool, path: Path, about: Mapping[str, Any]) -> Request:
    """Return a request for a worker, with a copy of the agent; the graph is built by the worker."""
    return tuple(sys.path), pickle.dumps((outer, stochastic, path, about)), freeze(agent)


def carry_out(request: Request) -> None:
    """Write the file of a request.

    Raises:
        RlrunError: the policy cannot be exported, or the file would act otherwise.
    """
    sys.path[:], wanted, frozen = request
    outer, stochastic, path, metadata = pickle.loads(wanted)
    agent = thaw(frozen)
    graph = Graph(agent, outer, stochastic=stochastic)
    about = {**metadata, **interface(graph)}
    data = writing.onnx_bytes(graph, writing.traced(graph), about=metadata, version=about["model_version"])
    parity = compare(running(data, graph, "onnx"), Reference(agent, graph), edges(graph), lenient=True)
    about["parity"] = {"edges": parity.rows, "largest_at_edges": parity.largest}
    write_json(path.with_name(f"{path.name}.json"), about)
    replace(path, data)


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(10)  # training comes first
    writing.keep_operators()
    answers = sys.stdout
    sys.stdout = sys.stderr  # what exporters print is no answer
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)  # of the process that has started this one
        except EOFError:
            return
        try:
            carry_out(request)
            answer = ""
        except RlrunError as error:
            answer = str(error)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(" ".join(answer.split()), file=answers, flush=True)


if __name__ == "__main__":
    main()
