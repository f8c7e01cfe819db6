"""From a graph to the bytes of a file, and to what FILE.json says of it."""

import functools
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

import torch
from omegaconf import OmegaConf

from rlrun.core.errors import MissingExtra, RequestError
from rlrun.env.descriptions import containers
from rlrun.export.graph import Graph

TRACED = 3  # envs of the inputs that are traced; any number is taken in the end
ENVS = "lanes"  # what the number of them is called
DOMAIN = "rlrun"
OPSET = 18


def require(place: str, *packages: str) -> None:
    """Refuse early where packages are not installed; without any named, what it takes to write ONNX files.

    Raises:
        MissingExtra: a package is not installed.
    """
    for package in packages or ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ModuleNotFoundError:
            raise MissingExtra(place, package, "export") from None


def keep_operators() -> None:
    """Let this process keep the exporter's table of operators, which takes longer to read than a file to write.

    To be called where nobody else exports, who might add to that table. A torch that keeps it elsewhere is just slower.
    """
    with suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        read: Any = ONNXRegistry.from_torchlib
        if not hasattr(read, "cache_info"):
            setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(read)))  # noqa: B010


def traced(graph: Graph) -> torch.export.ExportedProgram:
    """Return a graph as a program of tensors for any number of environments.

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


def onnx_bytes(graph: Graph, program: torch.export.ExportedProgram, *, about: Mapping[str, Any], version: int) -> bytes:
    """Return an ONNX file.

    Args:
        graph: whose inputs and outputs give theirs the names.
        program: it, traced.
        about: the metadata, `env_steps` among them; only numbers and texts are written, as texts.
        version: of the model: a number that grows from one file to the next.
    """
    from rlrun import __version__

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
    proto.producer_name, proto.producer_version, proto.domain = DOMAIN, __version__, DOMAIN
    proto.model_version, proto.doc_string = version, f"a policy after {about['env_steps']:,} environment steps"
    ports = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    symbol = ports[0].type.tensor_type.shape.dim[0].dim_param  # the number of envs; its name does not survive
    for dim in (dim for port in ports for dim in port.type.tensor_type.shape.dim):
        if dim.dim_param == symbol != "":
            dim.dim_param = ENVS
    del proto.metadata_props[:]
    for key, text in _texts(about).items():
        proto.metadata_props.add(key=key, value=text)
    serialized: bytes = proto.SerializeToString()
    return serialized


def program_bytes(program: torch.export.ExportedProgram, *, about: Mapping[str, Any]) -> bytes:
    """Return a file of `torch.export`, for `torch.export.load`."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer, extra_files=_texts(about))
    return buffer.getvalue()


def _texts(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers and texts of metadata, as texts."""
    return {key: str(value) for key, value in about.items() if not isinstance(value, dict | list | None)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what exporters say of packages that they could use, too."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def interface(graph: Graph) -> dict[str, Any]:
    """Return what goes into a file and what comes out."""
    return {
        "stochastic": graph.stochastic,
        "inputs": [port.to_json() for port in graph.inputs],
        "outputs": [port.to_json() for port in graph.outputs],
        "observation": containers(graph.outer.observation),
        "action": containers(graph.outer.action),
    }


def environment(config: Any) -> dict[str, Any]:
    """Return what `play_onnx.py` makes the environment of, from the config of a run, unresolved."""
    whole = OmegaConf.create(config)
    node: Any = OmegaConf.to_container(whole.env, resolve=True)
    around = [wrapper for wrapper in (node.get("around") or {}).values() if wrapper is not None]
    return {
        "id": node.get("id"),
        "target": node.get("target"),
        "kwargs": node.get("kwargs") or {},
        "wrappers": [*(node.get("wrappers") or []), *around],
        "vectorization": node.get("vectorization"),
        "reset_options": node.get("reset_options") or None,
        "max_steps": OmegaConf.select(whole, "evaluation.max_steps"),
    }
