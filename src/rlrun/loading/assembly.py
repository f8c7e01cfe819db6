"""First steps of every command that builds parts: set up the process, check the parts, and find those with a state."""

import functools
import inspect
import os
import pickle
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import gymnasium
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from threadpoolctl import ThreadpoolController

from rlrun.collect import Collector, SecondTable
from rlrun.collect.collector import Budgeted
from rlrun.config.build import Builder, explain, find_target
from rlrun.config.interpolation import dotted, leaves, plain, split
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RequestError, RlrunError, RunDirError
from rlrun.core.machine import gpu
from rlrun.core.typing import Stateful
from rlrun.env.descriptions import RecordedSpaces
from rlrun.memory import DatasetLoader, Intrinsic, JointLoader, PhasicLoader, ReplayLoader, RolloutLoader, Table
from rlrun.memory.loaders.replay import tables_of
from rlrun.training.trainer import Trainer

SHARED = ("num_envs", "env.num_envs", "loader.batch", "loader.minibatch", "loader.phase_minibatch", "memory.length")
LOADERS = (ReplayLoader, RolloutLoader, PhasicLoader, JointLoader)
IN_BATCHES = ("rlrun.memory.ReplayLoader", "rlrun.memory.DatasetLoader")  # loaders inside a JointLoader


def shares(config: DictConfig) -> dict[str, Any]:
    """Return the config values of this rank that differ from those of all ranks together, such as its share of envs.

    Raises:
        ConfigError: a number cannot be shared evenly, or a key wants one rank.
    """
    count, rank = distributed.world_size(), distributed.rank()
    if count == 1:
        return {}
    key = next((key for key, run in (config.get("init") or {}).items() if isinstance(run, str)), None)
    if key is not None:
        raise ConfigError(f"{count} ranks: a run from another (init.{key}) has one; start it without torchrun")
    if OmegaConf.select(config, "compile", default=False):
        raise ConfigError(f"{count} ranks: communication between ranks is not compiled; compile=false")
    values: dict[str, Any] = {"seeds.rank": rank}
    parts = [path[:-1] for path, value in leaves(plain(config)) if path[-1:] == ("_target_",) and value in IN_BATCHES]
    for key in dict.fromkeys((*SHARED, *(dotted((*part, "batch")) for part in parts))):
        number = OmegaConf.select(config, key, default=None)
        if isinstance(number, int):
            if number % count:
                better = max(number // count, 1) * count
                raise ConfigError(f"{count} ranks: {key}={number} cannot be shared evenly; {key}={better} can")
            values[key] = number // count
    if OmegaConf.select(config, "memory.length", default=0) is None:
        values["memory.ranks"] = count
    values["seeds.first_env"] = rank * values.get("env.num_envs", 0)
    return values


def require_shareable(trainer: Trainer, built: Mapping[str, Any]) -> None:
    """Refuse parts that compute something for the whole run from one rank's share of the data.

    Raises:
        ConfigError: naming the first such part.
    """
    count = distributed.world_size()
    if count == 1:
        return
    collector = getattr(trainer.loader, "collector", None)
    own = (getattr(collector, "table", None),)
    loaders = [trainer.loader, *getattr(trainer.loader, "parts", {}).values()]
    loaders = [part for part in loaders if not (isinstance(part, DatasetLoader) and part.tables == own)]
    for kind, part, known in (*(("loader", part, LOADERS) for part in loaders), ("collector", collector, (Collector,))):
        if type(part) not in known:
            names = ", ".join(cls.__name__ for cls in known)
            what = f"a {type(part).__name__}" if part is not None else "none"
            raise ConfigError(f"{count} ranks: the {kind} is {what}; ranks share that of {names} only")
    if collector is not None and collector.env.resets_itself:
        raise ConfigError(
            f"{count} ranks: envs of {collector.env.name} that reset by themselves "
            f"(env.vectorization={collector.env.vectorization}) fall out of step; env.vectorization=sync"
        )
    for path, part in built.items():
        if reason := getattr(part, "one_rank", ""):
            raise ConfigError(f"{count} ranks: {path} ({type(part).__name__}) wants one rank: {reason}")


def require_paid(trainer: Trainer, built: Mapping[str, Any]) -> None:
    """Refuse intrinsic bonuses without effect: no hook and no other adaptor reads rewards.

    Raises:
        ConfigError: naming the adaptor.
    """
    others = [part for part in built.values() if not isinstance(part, Intrinsic)]
    asked = {name for steps in trainer.plan.steps.values() for step in steps for name in step.asks}
    read = asked.union(*(getattr(part, "requires", ()) for part in others))
    for path, part in built.items():
        if isinstance(part, Intrinsic) and "reward" not in read:
            names = ", ".join(part.bonuses)
            raise ConfigError(f"{path}: nothing here learns from rewards, so leave bonuses out ({names})")


def require_rows(builder: Builder, trainer: Trainer, name: str) -> None:
    """Refuse an imported memory that gives no batches, if it is the only source of rows for its table.

    name: of the callback that imported it.

    Raises:
        ConfigError: it has no rows, or no episode is as long as the loader's windows.
    """
    table: Any = trainer.callbacks[name].table  # type: ignore[attr-defined]
    here = [part for part in builder.built.values() if getattr(part, "table", None) is table]
    filled = any(isinstance(part, Budgeted | SecondTable) or getattr(part, "collector", None) for part in here)
    if filled or not any(table is known for known in tables_of(trainer.loader)):
        return
    source = builder.key(("callbacks", name), "path")
    longest = int(table.index.windows(1).max())
    if not longest:
        raise ConfigError(
            f"{source}: there are no rows to learn from; a file of memory.export or minari:DATASET has some"
        )
    for path, part in builder.built.items():
        if isinstance(part, ReplayLoader) and part.table is table and not table.windows(part.length):
            key = builder.key(split(path), "length")
            raise ConfigError(f"{key}: wanted at most {longest}, the steps of the longest episode, got {part.length}")


_locks = [threading.Lock()]  # the last one is used; after a fork the thread that held the first may be missing
os.register_at_fork(after_in_child=lambda: _locks.append(threading.Lock()))
_inside: ContextVar[bool] = ContextVar("inside", default=False)  # also in threads of the run, such as one that acts


def prepare_process(config: DictConfig) -> str:
    """Set the threads and the precision of this process; return the device, with `auto` resolved.

    bf16 is applied later, in each update: `rlrun.nn.MixedPrecision`.

    Args:
        config: of a run.

    Raises:
        RequestError: the device is not available.
    """
    torch.set_num_threads(int(config.threads))
    _pools().limit(limits=int(config.threads), user_api="blas")  # numpy in environments
    set_precision(str(config.precision))
    wanted = str(config.device)
    if (own := distributed.local_rank()) and wanted in ("auto", "cuda") and torch.cuda.device_count() > own:
        torch.cuda.set_device(own)
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"device={wanted}: {str(error).splitlines()[0]}") from None
    return wanted


def _pools() -> ThreadpoolController:
    """Return the libraries with own thread pools; cached until the next import, as the search takes milliseconds."""
    return _pools_among(len(sys.modules))


@functools.lru_cache(1)
def _pools_among(modules: int) -> ThreadpoolController:
    return ThreadpoolController()


def set_precision(precision: str) -> None:
    """Set the precision of float32 matrix products in this process."""
    torch.set_float32_matmul_precision("highest" if precision == "bf16" else precision)


def process_as_set_up(device: str) -> dict[str, Any]:
    """Return the device, GPU and threads of this process, for a manifest."""
    return {"device": device, "gpu": gpu(device), "threads": torch.get_num_threads()}


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lock the settings of the whole process during a `with` block; nested blocks do not wait."""
    if _inside.get():
        yield
        return
    with _locks[-1]:
        token = _inside.set(True)
        try:
            yield
        finally:
            _inside.reset(token)


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore threads, precision and random generators of the process at the end of a `with` block.

    Other threads that enter such a block wait until then.
    """
    with one_at_a_time(), _restored():
        yield


@contextmanager
def _restored() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    states = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with _pools().limit(), torch.random.fork_rng(devices):  # no new limits, but the old ones are restored at the end
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_num_threads(threads)


def builder_of(config: DictConfig, *, recorded: RecordedSpaces | None = None, **used: Any) -> Builder:
    """Return a builder of a config in which some keys have the values that this process uses.

    recorded: spaces that replace the environment, which is then not made.
    used: key -> value, such as the device in place of `auto`.
    """
    live = pickle.loads(pickle.dumps(config))  # a copy, in a fifth of the time
    for key, value in used.items():
        OmegaConf.update(live, key, value, force_add=True)
    if recorded is not None:
        builder = Builder(live)
        if OmegaConf.select(live, "env") is None:  # a run from data: do not read the data again
            builder.built[spaces_path(live)] = recorded.spaces
        else:
            builder.built["env"] = recorded
        return builder
    target = OmegaConf.select(live, "env._target_")
    kind = find_target(target, "env") if isinstance(target, str) and not target.startswith("rlrun.") else None
    if isinstance(kind, type) and issubclass(kind, gymnasium.Env):  # treat it as `env.target`
        env = plain(live.env)
        of_ours = inspect.signature(find_target(env["_replaces_"], "env")).parameters if "_replaces_" in env else ()
        kept = {name: env[name] for name in of_ours if name in env}
        own = {name: part for name, part in env.items() if not name.startswith("_") and name not in kept}
        of_make = {"id": None, "target": target, "kwargs": {**(kept.get("kwargs") or {}), **own}}
        node = {"num_envs": "${num_envs}", **kept, "_target_": "rlrun.env.make", **of_make}
        OmegaConf.update(live, "env", node, merge=False)
    return Builder(live)


def spaces_path(config: DictConfig) -> str:
    """Return the path of the node that defines the spaces: `spaces`, or the node that it links to."""
    node = plain(config).get("spaces")
    return node[2:-1] if isinstance(node, str) and node.startswith("${") else "spaces"


def stateful(built: dict[str, Any]) -> dict[str, Stateful]:
    """Return every built part that has a state, by its shortest config path.

    A table's sampler and ejector, and all parts inside them, are left out: the table's own state includes theirs, as
    it describes the table's rows.
    """
    by_id: dict[int, tuple[str, Stateful]] = {}
    tables = [part for part in built.values() if isinstance(part, Table)]
    owned = {id(part) for table in tables for part in (table.sampler, table.ejector)}
    inside = tuple(f"{path}." for path, part in built.items() if id(part) in owned)
    for path, part in sorted(built.items(), key=lambda item: (item[0].count("."), item[0])):
        if isinstance(part, Stateful) and not isinstance(part, type) and not f"{path}.".startswith(inside):
            by_id.setdefault(id(part), (path, part))
    return dict(sorted(by_id.values()))


def restore_part(part: Stateful, state: Any, place: str) -> None:
    """Load the state of a part from a checkpoint.

    place: of the state, for messages.

    Raises:
        RunDirError: the state does not fit the part.
    """
    try:
        part.load_state_dict(state)
    except RlrunError as error:
        raise RunDirError(f"{place}: {error}") from error
    except Exception as error:
        raise RunDirError(f"{place} does not fit: {explain(error)}") from error
