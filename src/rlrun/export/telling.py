"""What FILE.json says of a policy and of where it acts."""

from __future__ import annotations

from typing import Any

import gymnasium
from omegaconf import OmegaConf

from rlrun.export.graph import Graph


def interface(graph: Graph) -> dict[str, Any]:
    """Return what goes into a file and what comes out."""
    return {
        "stochastic": graph.stochastic,
        "inputs": [port.to_json() for port in graph.inputs],
        "outputs": [port.to_json() for port in graph.outputs],
        "action": containers(graph.outer.action),
    }


def containers(space: gymnasium.Space[Any]) -> Any:
    """Return what an action is put into: a dict by name, a list for a tuple, None for an array."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: containers(part) for name, part in space.spaces.items()}
    return [containers(part) for part in space.spaces] if isinstance(space, gymnasium.spaces.Tuple) else None


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
