"""What every command that builds parts does first: set up the process, and find what has a state."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlrun.build import Builder
from rlrun.config.targets import explain
from rlrun.errors import RequestError, RlrunError, RunDirError
from rlrun.memory import Table
from rlrun.typing import Stateful


def prepare_process(config: DictConfig) -> str:
    """Set threads and the precision of float32 products of this process; return the device as used.

    What bf16 asks for is no matter of the process, but of updates: `rlrun.nn.MixedPrecision`.

    Raises:
        RequestError: the device is not there.
    """
    torch.set_num_threads(int(config.threads))
    precision = str(config.precision)
    torch.set_float32_matmul_precision("highest" if precision == "bf16" else precision)
    wanted = str(config.device)
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"device={wanted}: {str(error).splitlines()[0]}") from None
    return wanted


def builder_of(config: DictConfig, **used: Any) -> Builder:
    """Return a builder of a config in which `auto` is what this process really uses."""
    live = pickle.loads(pickle.dumps(config))  # a copy, in a fifth of the time
    for key, value in used.items():
        OmegaConf.update(live, key, value)
    return Builder(live)


def stateful(built: dict[str, Any]) -> dict[str, Stateful]:
    """Return every built part that has a state, each once, by its shortest config path.

    A table's sampler and ejector are left out with all that was built beneath them: what they know of
    the table's rows makes no sense without these, so it is in the table's own state.
    """
    found: dict[int, tuple[str, Stateful]] = {}
    inside = _inside_tables(built)
    for path, part in sorted(built.items(), key=lambda item: (item[0].count("."), item[0])):
        if isinstance(part, Stateful) and not isinstance(part, type) and not f"{path}.".startswith(inside):
            found.setdefault(id(part), (path, part))
    return dict(sorted(found.values()))


def take_back(part: Stateful, state: Any, place: str) -> None:
    """Give a part the state that a checkpoint holds of it.

    Raises:
        RunDirError: it does not fit.
    """
    try:
        part.load_state_dict(state)
    except RlrunError as error:
        raise RunDirError(f"{place}: {error}") from error
    except Exception as error:
        raise RunDirError(f"{place} does not fit: {explain(error)}") from error


def _inside_tables(built: dict[str, Any]) -> tuple[str, ...]:
    """Return the config paths of all samplers and ejectors of tables, with a dot at the end."""
    tables = [part for part in built.values() if isinstance(part, Table)]
    owned = {id(part) for table in tables for part in (table.sampler, table.ejector)}
    return tuple(f"{path}." for path, part in built.items() if id(part) in owned)
