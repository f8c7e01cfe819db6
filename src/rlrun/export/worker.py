"""A process that writes policies as files while another one trains: `python -m rlrun.export.worker`.

Each line of its input is the path of a request, and each line of its output the answer: empty, or an error. It ends
with its input.
"""

import json
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


def request(agent: Any, outer: Outer, *, stochastic: bool, path: Path, about: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return a request for a worker, in parts, with a copy of the agent; the graph is built by the worker."""
    header = {"stochastic": stochastic, "path": str(path), "about": json.dumps(about), "paths": sys.path}
    return pickle.dumps(header), pickle.dumps(tuple(outer)), freeze(agent)


def carry_out(place: Path) -> None:
    """Write the file of a request, which is removed.

    Raises:
        RlrunError: the policy cannot be exported, or the file would act otherwise.
    """
    try:
        with place.open("rb") as file:  # of our own process, by which this one was started
            header = pickle.load(file)
            sys.path[:] = header["paths"]  # where the classes of the rest are
            outer, frozen = pickle.load(file), file.read()
    finally:
        place.unlink(missing_ok=True)
    agent, path, metadata = thaw(frozen), Path(header["path"]), json.loads(header["about"])
    graph = Graph(agent, Outer(*outer), stochastic=header["stochastic"])
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
    for line in sys.stdin:
        try:
            carry_out(Path(json.loads(line)))
            answer = ""
        except RlrunError as error:
            answer = str(error)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(" ".join(answer.split()), file=answers, flush=True)


if __name__ == "__main__":
    main()
