"""Export the policy of a run; equivalent to `rlrun export-onnx`."""

import importlib.resources
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.collect.evaluate import evaluation_mode
from rlrun.config.expansion import identity
from rlrun.core.errors import RequestError, did_you_mean
from rlrun.env import Env
from rlrun.export import writing
from rlrun.export.checking import TOLERANCE, Reference, compare, edges, played, recorded, running
from rlrun.export.graph import Graph, Outer
from rlrun.export.writing import environment, interface
from rlrun.loading.policy import Frozen, frozen, require_own_folder
from rlrun.runs.directory import RunDir
from rlrun.runs.files import counted, replace, sized, write_json

FORMATS = ("onnx", "pt2")
EPISODES = 10
RECORDED = 72  # observations of the policy that both answer


@dataclass
class Export:
    """A policy's file.

    Attributes:
        path: of the file; `path` + `.json` says what it is.
        about: what that says.
        size: bytes.
    """

    path: Path
    about: dict[str, Any]
    size: int

    def describe(self) -> str:
        """Return in a few lines what was written and what was found."""
        parity = self.about["parity"]
        lines = [f"{self.path} ({sized(self.size)}; checkpoint {self.about['checkpoint']})"]
        lines.append(
            f"{counted(parity['rows'], 'observation')}: largest difference {parity['largest']:.1e}, "
            f"{parity['largest_at_edges']:.1e} at {counted(parity['edges'], 'edge')}"
        )
        episodes = self.about["episodes"]
        if episodes is not None and episodes["returns"]:
            lines.append(
                f"{counted(len(episodes['returns']), 'episode')} through onnxruntime alone: mean return "
                f"{np.mean(episodes['returns']):.2f}, actions at most {episodes['largest']:.1e} apart"
            )
        return "\n".join(lines)


def export_onnx(
    run: Path | str,
    output: Path | str | None = None,
    *,
    checkpoint: str = "latest",
    stochastic: bool = False,
    format: str = "onnx",
    episodes: int = EPISODES,
    seed: int = 0,
    trust: Iterable[str] = (),
) -> Export:
    """Write the policy of a run as a file that needs no `rlrun`, and prove that it acts the same.

    Args:
        run: a run directory.
        output: the file; by default `exports/policy.onnx` of the run. Beside it lie `FILE.json` and, of ONNX,
            `play_onnx.py`.
        checkpoint: `latest`, `best`, or a number of environment steps.
        stochastic: draw actions, by noise that is an input, in place of the best ones.
        format: `onnx`, or `pt2` for `torch.export.load`.
        episodes: played through onnxruntime alone before the file gets its name; 0 = none.
        seed: of the first episode; episode i starts with `reset(seed=seed + i)`.
        trust: packages that the run's config may import, beyond those of any run and of the user's project.

    Raises:
        RequestError: no such run, checkpoint or format, a package is missing, or the policy cannot be exported.
        RlrunError: file and policy do not act the same; nothing was written.
    """
    if format not in FORMATS:
        raise RequestError(f"--format {format}: there are {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")
    writing.require("export-onnx")
    where = RunDir.open(run).checkpoint(checkpoint)
    with frozen(run, trust, device="cpu") as policy:
        path = policy.directory.exports / f"policy.{format}" if output is None else Path(output).absolute()
        if output is None:
            require_own_folder(policy.directory.exports)
        _require_place(path, create=output is None)
        policy.take_only(where)
        agent, env = policy.agent, policy.env.copy(num_envs=1)
        try:
            with evaluation_mode(agent):
                graph = Graph(agent, Outer(*env.outer), stochastic=stochastic)
                about = _described(policy, where, graph) | {"file": path.name, "format": format, "seed": seed}
                data = _file_bytes(graph, about)
                about |= _proven(data, Reference(agent, graph), env, about, episodes)
        finally:
            env.close()
    _write(path, data, about)
    return Export(path, about, len(data))


def _require_place(path: Path, *, create: bool) -> None:
    if path.is_dir():
        raise RequestError(f"{path} is a folder; --output names the file")
    if create:
        path.parent.mkdir(exist_ok=True)
    elif not path.parent.is_dir():
        raise RequestError(f"{path.parent} is no folder; make it, or name another --output")


def _described(policy: Frozen, where: Path, graph: Graph) -> dict[str, Any]:
    """Return what is known of a policy before it acts."""
    from rlrun import __version__

    env_steps, updates = (int(number) for number in where.name.split("-")[:2])
    git = policy.about.get("git")
    git = git if isinstance(git, dict) else {}
    return {
        "rlrun": __version__,
        "run": policy.directory.path.name,
        "words": policy.directory.read_overrides(),
        "checkpoint": where.name,
        "env_steps": env_steps,
        "updates": updates,
        "training_seed": int(policy.config.seed),
        "config_hash": identity(policy.config),
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        **interface(graph),
        "env": environment(policy.config),
    }


def _file_bytes(graph: Graph, about: Mapping[str, Any]) -> bytes:
    program = writing.traced(graph)
    if about["format"] == "pt2":
        return writing.program_bytes(program, about=about)
    return writing.onnx_bytes(graph, program, about=about, version=about["updates"])


def _proven(data: bytes, reference: Reference, env: Env, about: Mapping[str, Any], episodes: int) -> dict[str, Any]:
    """Return what a file and its policy came to, side by side.

    Raises:
        RlrunError: they are not the same.
    """
    graph, seed = reference.graph, about["seed"]
    run = running(data, graph, about["format"])
    met = recorded(env, reference.agent, graph, count=RECORDED, seed=seed)
    parity = compare(run, reference, met, seed=seed)
    edge = compare(run, reference, edges(graph), seed=seed, lenient=True)
    results: dict[str, Any] = {
        "parity": {
            "rows": parity.rows,
            "largest": parity.largest,
            "tolerance": TOLERANCE,
            "edges": edge.rows,
            "largest_at_edges": edge.largest,
        }
    }
    if about["format"] == "onnx" and env.envs:
        results["episodes"] = played(data, reference, env, about, episodes)
    return {"episodes": None, **results}


def _write(path: Path, data: bytes, about: Mapping[str, Any]) -> None:
    """Write all files, that of the policy last."""
    write_json(path.with_name(f"{path.name}.json"), about)
    if about["format"] == "onnx":
        client = importlib.resources.files("rlrun.export").joinpath("play_onnx.py").read_bytes()
        replace(path.with_name("play_onnx.py"), client)
    replace(path, data)
