"""Export the policy of a run as an ONNX file with FILE.json; equivalent to `rlrun export-onnx`."""

import importlib.resources
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlrun.collect.agents import Agent, alone, to_arrays
from rlrun.collect.modes import evaluation_mode
from rlrun.collect.normalized import Unwrapper
from rlrun.collect.video import Stage
from rlrun.config.build import find_target
from rlrun.config.expansion import identity
from rlrun.core.errors import MissingExtra, RequestError
from rlrun.core.files import counted, finite, reason, replace, require_writable, sized, write_json
from rlrun.core.typing import Tree
from rlrun.core.version import VERSION
from rlrun.env import Env
from rlrun.env.descriptions import containers
from rlrun.env.make import NORMALIZE, merged
from rlrun.export.checking import (
    TOLERANCE,
    Columns,
    Recorder,
    Reference,
    Run,
    compare,
    data_rows,
    edges,
    rows_of,
    running,
)
from rlrun.export.graph import Graph, Outer
from rlrun.export.network import NetworkAgent, outer_of
from rlrun.loading.policy import Frozen, Judged, Restored, frozen, has_agent, judged
from rlrun.nn import Decoder
from rlrun.runs.directory import RunDir
from rlrun.runs.trust import remember, require_trusted

DRAWN = 72  # random inputs on which a file and its network are compared
TRACED = 3  # envs in the example inputs for tracing; the file takes any number
ENVS = "envs"  # name of the batch dimension
DOMAIN = "rlrun"
OPSET = 18


@dataclass
class Export:
    """An exported policy.

    Attributes:
        path: of the file; `path` + `.json` describes it.
        about: the content of that .json.
        size: of the file in bytes.
    """

    path: Path
    about: dict[str, Any]
    size: int

    def describe(self) -> str:
        """Return a few lines about the file and its parity with the policy."""
        parity = self.about["parity"]
        lines = [f"{self.path} ({sized(self.size)}; checkpoint {self.about['checkpoint']})"]
        lines.append(
            f"{counted(parity['rows'], 'observation')}: largest difference {parity['largest']:.1e}, "
            f"{parity['largest_at_edges']:.1e} at {counted(parity['edges'], 'edge')}"
        )
        if (episode := self.about.get("episode")) is not None:
            steps = counted(episode["length"], "step")
            lines.append(f"the episode of seed {episode['seed']}: return {episode['return']:.2f}, {steps}")
        return "\n".join(lines)


def export_onnx(
    run: Path | str,
    output: Path | str | None = None,
    *,
    checkpoint: str = "latest",
    stochastic: bool = False,
    seed: int = 0,
    network: str | None = None,
    trust: bool = False,
) -> Export:
    """Write the policy of a run as an ONNX file that runs without `rlrun`, and verify that it acts the same.

    The file and the policy are compared on the observations of an episode, or of the data if the policy learned from
    data alone. A run without an agent exports a network, which is compared on held-out data.

    Args:
        run: a run directory.
        output: the file; by default `exports/policy.onnx` of the run. `FILE.json` and `play_onnx.py` lie beside it.
        checkpoint: `latest`, `best`, or a number of environment steps.
        stochastic: sample actions, by noise that is an input, instead of the best ones.
        seed: of the episode on which file and policy are compared.
        network: config path of a network to export instead; None = the policy, or the only network.
        trust: build the run even if it was made elsewhere, and remember that it is trusted.

    Raises:
        RequestError: no such run or checkpoint, a package is missing, or the policy cannot be exported.
        RlrunError: file and policy act differently; nothing was written.
    """
    where = RunDir.open(run).checkpoint(checkpoint)
    require("export-onnx")
    require_trusted(run, trust)
    if network is not None or not has_agent(run):
        if stochastic:
            raise RequestError("--stochastic goes with a policy; a network draws nothing")
        with judged(run, network, device="cpu") as parts:
            path = _place(parts, output, f"{parts.path.rpartition('.')[2]}.onnx")
            parts.take_only(where)
            data, about = _network(parts, where, {"file": path.name, "seed": seed})
        _write(path, data, about)
        return Export(path, about, len(data))
    with frozen(run, device="cpu") as policy:
        path = _place(policy, output, "policy.onnx")
        policy.take_only(where)
        agent, env = alone(policy.agent), policy.env
        with ExitStack() as stack:
            if isinstance(env, Env):
                agent, env = stack.enter_context(closing(Unwrapper(env)))(agent, policy.wrappers)
            stack.enter_context(evaluation_mode(getattr(agent, "policy", None)))
            graph = Graph(agent, Outer.of(env.outer), stochastic=stochastic)
            about = {**_described(policy, where, graph), "env": environment(policy.config)}
            about |= {"file": path.name, "seed": seed}
            data = onnx_bytes(graph, about, version=about["updates"])
            run_file, reference = running(data, graph), Reference(agent, graph)
            rows, about["episode"] = _recorded(policy, agent, env, graph, seed)
            about["parity"] = _parity(run_file, reference, rows, seed)
    _write(path, data, about)
    return Export(path, about, len(data))


def _network(parts: Judged, where: Path, about: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a network's file, and the content of FILE.json."""
    rows, agent = _inputs(parts, about["seed"]), NetworkAgent(parts.network)
    with evaluation_mode(parts.network):
        graph = Graph(agent, outer_of(parts.network, rows))
        about = {**_described(parts, where, graph), "network": parts.path, **about}
        data = onnx_bytes(graph, about, version=about["updates"])
        run, reference = running(data, graph), Reference(agent, graph)
        about["parity"] = _parity(run, reference, rows_of(graph, to_arrays(rows)), about["seed"])
    return data, about


def _inputs(parts: Judged, seed: int) -> Tree:
    """Return example inputs for a network: noise for a decoder or a generator, else held-out rows.

    Raises:
        RequestError: there are no held-out data, or the network takes several columns as separate arguments.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(parts.network, Decoder):
            return torch.randn(DRAWN, parts.network.latent)
        if hasattr(type(parts.network), "noise") and (drawn := parts.network.noise(DRAWN)) is not None:
            return drawn
    validation = parts.judge()
    batch = next(validation.loader.once())
    if isinstance(validation.input, str) and validation.input not in batch:
        raise RequestError(f"{parts.path}: this network reads the columns {' and '.join(batch)}, and is not exported")
    return validation.rows(batch)


def _place(parts: Restored, output: Path | str | None, name: str) -> Path:
    """Return the path of the file, in an existing folder."""
    path = parts.directory.exports / name if output is None else Path(output).absolute()
    if output is None:
        try:
            parts.directory.exports.mkdir(exist_ok=True)
        except OSError as error:
            place = parts.directory.exports
            raise RequestError(f"{place} cannot be made: {reason(error)}; --output names another file") from error
    elif not path.parent.is_dir():
        raise RequestError(f"{path.parent} is no folder; make it, or name another --output")
    if path.is_dir():
        raise RequestError(f"{path} is a folder; --output names the file")
    require_writable(path.parent, "; --output names another file")
    return path


def _described(policy: Restored, where: Path, graph: Graph) -> dict[str, Any]:
    """Return the entries of FILE.json that are known before the policy acts."""
    env_steps, updates = (int(number) for number in where.name.split("-")[:2])
    git = policy.about.get("git")
    git = git if isinstance(git, dict) else {}
    return {
        "rlrun": VERSION,
        "run": policy.directory.path.name,
        "overrides": policy.directory.read_overrides(),
        "checkpoint": where.name,
        "env_steps": env_steps,
        "updates": updates,
        "training_seed": int(policy.config.seed),
        "config_hash": identity(policy.config),
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        **interface(graph),
    }


def _sources(policy: Restored) -> list[str]:
    """Return the stored memories that a run learned from.

    Raises:
        RequestError: its config names none.
    """
    sources = OmegaConf.select(policy.config, "memory.import", default=None)
    if not sources:
        raise RequestError(f"{policy.directory.path}: neither env nor memory.import names what the file is compared on")
    return [sources] if isinstance(sources, str) else list(sources)


def _recorded(
    policy: Frozen, agent: Agent, env: Any, graph: Graph, seed: int
) -> tuple[list[Columns], dict[str, Any] | None]:
    """Return observations of a policy, and the episode that they come from; None for observations of stored data.

    seed: of the episode.
    """
    if not isinstance(env, Env):
        return data_rows(_sources(policy), agent, graph), None
    recorder = Recorder(agent, graph)
    options: dict[str, Any] = {"max_steps": policy.max_steps, "explore": graph.stochastic}
    if env.plays_both:
        options["opponents"] = {"any": "random"}  # in self-play the return would say nothing
    with Stage(env, episodes=1, seed=seed, **options) as stage:
        played, _ = stage.play(recorder)
    return recorder.rows, {"seed": seed, "return": played.returns[0], "length": played.lengths[0]}


def _parity(run: Run, reference: Reference, rows: Sequence[Columns], seed: int) -> dict[str, Any]:
    """Return the differences between a file and its policy on recorded observations and on extreme inputs."""
    parity = compare(run, reference, rows, seed=seed)
    edge = compare(run, reference, edges(reference.graph), seed=seed, lenient=True)
    return {
        "rows": parity.rows,
        "largest": parity.largest,
        "tolerance": TOLERANCE,
        "edges": edge.rows,
        "largest_at_edges": edge.largest,
    }


def said_of_env(about: Mapping[str, Any]) -> str:
    """Return the environment in FILE.json as text, by which trust is recorded."""
    return json.dumps(finite(about.get("env")), sort_keys=True, default=str)


def write_about(path: Path, about: Mapping[str, Any]) -> None:
    """Write FILE.json beside a policy's file, and trust the environment that it names."""
    remember(said_of_env(about))
    write_json(path.with_name(f"{path.name}.json"), about)


def _write(path: Path, data: bytes, about: Mapping[str, Any]) -> None:
    """Write all files, that of the policy last."""
    write_about(path, about)
    client = importlib.resources.files("rlrun.export").joinpath("play_onnx.py").read_bytes()
    replace(path.with_name("play_onnx.py"), client)
    replace(path, data)


def require(place: str, *packages: str) -> None:
    """Refuse early if packages are not installed; by default those that write ONNX files.

    Raises:
        MissingExtra: a package is not installed.
    """
    for package in packages or ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ModuleNotFoundError:
            raise MissingExtra(place, package, "export") from None


def traced(graph: Graph) -> torch.export.ExportedProgram:
    """Trace a graph with torch.export, for any number of environments.

    Raises:
        RequestError: some part of it cannot be traced.
    """
    envs = torch.export.Dim(ENVS)
    shapes = (tuple({0: envs} for _ in graph.inputs),)
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(graph, tuple(graph.blank(TRACED)), dynamic_shapes=shapes, strict=False)
    except RequestError:
        raise
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        raise RequestError(
            f"the policy cannot be exported: {type(error).__name__}: {first} (an exported policy may not branch on "
            "values of tensors, nor leave torch)"
        ) from error


def onnx_bytes(graph: Graph, about: Mapping[str, Any], *, version: int) -> bytes:
    """Return an ONNX file.

    Args:
        graph: the policy.
        about: the metadata, including `env_steps`; only numbers and texts are written, as texts.
        version: of the model; it increases from one file to the next.

    Raises:
        RequestError: some part of the graph cannot be traced.
    """
    program = traced(graph)
    with _quiet():
        onnx_program = torch.onnx.export(
            program,
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            opset_version=OPSET,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    assert onnx_program is not None
    proto = onnx_program.model_proto
    proto.producer_name, proto.producer_version, proto.domain = DOMAIN, VERSION, DOMAIN
    subject, unit = about.get("network", "a policy"), "updates" if "network" in about else "environment steps"
    proto.model_version, proto.doc_string = version, f"{subject} after {about['env_steps']:,} {unit}"
    ports = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    symbol = ports[0].type.tensor_type.shape.dim[0].dim_param  # the number of envs; its name does not survive
    for dim in (dim for port in ports for dim in port.type.tensor_type.shape.dim):
        if dim.dim_param == symbol != "":
            dim.dim_param = ENVS
    del proto.metadata_props[:]
    for key, value in about.items():
        if not isinstance(value, dict | list | None):
            proto.metadata_props.add(key=key, value=str(value))
    serialized: bytes = proto.SerializeToString()
    return serialized


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' messages about optional packages."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def interface(graph: Graph) -> dict[str, Any]:
    """Return the description of a file's inputs and outputs for FILE.json."""
    return {
        "stochastic": graph.stochastic,
        "inputs": [port.to_json() for port in graph.inputs],
        "outputs": [port.to_json() for port in graph.outputs],
        "observation": containers(graph.outer.observation),
        "action": containers(graph.outer.action),
    }


def environment(config: Any) -> dict[str, Any]:
    """Return the settings from which `play_onnx.py` makes the environment.

    config: of the run, unresolved.
    """
    whole = OmegaConf.create(config)
    node: Any = {} if whole.env is None else OmegaConf.to_container(whole.env, resolve=True)
    around = [wrapper for wrapper in (node.get("around") or {}).values() if wrapper is not None]
    changes = node.get("evaluation") or {}
    options = {name: merged(node.get(name) or {}, changes.get(name) or {}) for name in ("kwargs", "reset_options")}
    listed = [wrapper for wrapper in [*(node.get("wrappers") or []), *around] if not _is_in_file(wrapper)]
    return {
        "id": node.get("id"),
        "target": node.get("target"),
        "kwargs": options["kwargs"],
        "wrappers": listed,
        "vectorization": node.get("vectorization"),
        "reset_options": options["reset_options"] or None,
        "max_steps": OmegaConf.select(whole, "evaluation.max_steps"),
    }


def _is_in_file(wrapper: Any) -> bool:
    """Return True for Gymnasium's Normalize wrappers: the file contains their statistics and ignores rewards."""
    target = wrapper.get("_target_") if isinstance(wrapper, Mapping) else None
    named = isinstance(target, str) and target.rpartition(".")[2] in [kind.__name__ for kind in NORMALIZE]
    return named and find_target(target, "env.wrappers") in NORMALIZE
