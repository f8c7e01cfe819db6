"""The whole state of a run at its end, by path, in a form that can be compared.

An object's attributes, entries and items are followed, and also the contents of closures, partials, bound methods and
running generators. The leaves are numbers, text, digests of arrays and tensors, and states of random generators. A type
whose content cannot be read is an error unless `OPAQUE` lists it.

A class lists attributes that need not survive a resume: `momentary = ("_last",)`.
"""

import functools
import hashlib
import io
import logging
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.callbacks.logging.logger import System
from rlrun.core.clock import Spent, is_clock
from rlrun.core.generators import Generators
from rlrun.env.recorded import ActionLog, StepBlock
from rlrun.env.sync import SyncEnv
from rlrun.memory import Recent, ReplayLoader, Table
from rlrun.memory.table.index import EpisodeIndex
from rlrun.memory.table.rollout_table import Rollout
from rlrun.training.metrics import MetricStore, as_numbers

Leaves = dict[str, Any]
Parts = list[tuple[str, Any]]  # what a value holds, by the end of the path

OPAQUE = (  # types without state that training changes
    *(type, types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType, staticmethod, classmethod, property),
    *(np.dtype, np.ufunc, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(logging.Logger, weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
    *(type(threading.Lock()), type(threading.RLock()), threading.Thread, ThreadPoolExecutor, Future),
    *(io.IOBase, Path),  # paths and open files differ between processes
    *(Spent, System),  # clocks
)
PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, slice, range, type(...), type(NotImplemented))
NO_ATTRIBUTES = (types.FunctionType, types.MethodType, np.random.Generator, np.random.RandomState)

ONLY_HERE = "only within a process: compared with itself to see a change"
LOOKS_AGAIN = "looked up again when it is asked for"
LEFT_OUT = {  # (class, attribute): why it may differ
    ("Budget", "_start"): "clock",
    ("Logger", "_start"): "clock",
    ("Budgeted", "_budget"): "a callback of the run, which is compared as such",
    ("MemoryExport", "_earliest"): "clock",
    ("Callback", "_before"): "seconds, or metrics, from before this process",
    ("Table", "_times"): "clock",
    ("Jsonl", "_path"): "the place of files",
    ("Checkpointer", "_deadline"): "clock",
    ("Checkpointer", "_first"): "where this process began",
    ("Evaluator", "_envs"): "reset with the same seeds by every evaluation",
    ("Evaluator", "_screen"): "reset with the same seed by every video",
    ("StepBlock", "steps"): "filled before they are handed out",
    ("StepBlock", "views"): "the same memory",
    ("StepBlock", "_blocks"): "the same memory",
    ("StepBlock", "newest"): "which of them was written last",
    ("StepBlock", "_hashed"): "counted in these steps; VIEWS has the sums of all steps",
    ("StepBlock", "_sums"): "VIEWS has those of all steps",
    ("SyncEnv", "_steps"): "counted from where this process began",
    ("SyncEnv", "_step_functions"): "the first step of a process is checked more closely",
    ("Outputs", "begun"): "the first observation of a process is",
    ("SyncEnv", "_begun"): "counted from there; VIEWS has lengths",
    ("SyncEnv", "_restarted"): "filled before they are handed out",
    ("SyncEnv", "_flat_views"): "the memory of StepBlock",
    ("Recorded", "_remembered"): "what a resume began with",
    ("ActionLog", "begun"): "counted from where the log begins; VIEWS has lengths",
    ("ActionLog", "steps"): "counted from where the log begins; the log is compared",
    ("EpisodeIndex", "version"): ONLY_HERE,
    ("EpisodeIndex", "era"): ONLY_HERE,
    ("Rows", "era"): ONLY_HERE,
    ("Rows", "version"): ONLY_HERE,
    ("Uniform", "ahead"): LOOKS_AGAIN,
    ("Table", "_ahead_for"): ONLY_HERE,
    ("_Drawn", "versions"): ONLY_HERE,
    ("EpisodeIndex", "_counted"): LOOKS_AGAIN,
    ("EpisodeIndex", "_left"): LOOKS_AGAIN,
    ("RingIndex", "_room"): LOOKS_AGAIN,
    ("EpisodeIndex", "complete"): "VIEWS has it, without its last entry, that no row has",
    ("Storage", "blocks"): "slots that hold nothing may hold anything; VIEWS has the others",
    ("Storage", "_staging"): "filled again for each write",
    ("Storage", "arrays"): "the same memory",
    ("Storage", "_records"): "the same memory",
    ("Storage", "_pairs"): "the same memory",
    ("Rollout", "_arrays"): "steps that are not filled may hold anything; VIEWS has the others",
    ("Stepper", "_state"): "the state of the optimizer",
    ("Stepper", "_lists"): "the tensors of the optimizer",
    ("Stepper", "_counter"): "the tensors of the optimizer",
    ("Epochs", "_whole"): "taken again when it is served",
    ("TableRows", "_version"): LOOKS_AGAIN,
    ("TableRows", "starts"): LOOKS_AGAIN,
    ("DatasetLoader", "_expected"): "of a load, until the next epoch",
    ("ReplayLoader", "_newest"): "VIEWS has its metrics",
    ("ReplayLoader", "_known"): "VIEWS has them",
    ("MetricStore", "newest"): "VIEWS has the numbers",
    ("MetricStore", "fresh"): "whether they are of this process",
    ("Update", "_functions"): "written when they are first called",
    ("Recent", "number"): "numbers that the log has passed mean nothing; VIEWS has the others",
}
VIEWS = {
    Table: lambda table: {
        f"rows.{name}": np.array(block[table.index.used()]) for name, block in table.storage.blocks.items()
    },
    EpisodeIndex: lambda index: {"completed": index.complete[:-1].copy()},
    Rollout: lambda rollout: {"rows": rollout.state_dict()["rows"]},
    ActionLog: lambda action_log: {"lengths": [action_log.steps - begun for begun in action_log.begun]},
    SyncEnv: lambda env: {"lengths": [env._steps - begun for begun in env._begun]},
    StepBlock: lambda block: {"hashes": block.hashes()},
    ReplayLoader: lambda loader: {"metrics": dict(loader.metrics)},
    MetricStore: lambda store: {"numbers": as_numbers(store.read())},
    Recent: lambda sampler: {"numbers": sampler.number * (sampler.number >= sampler.clock - sampler.newest)},
}


def _engines() -> tuple[dict[type, Callable[[Any], Leaves]], tuple[type, ...]]:
    """Return readers of simulators that are not written in Python, by type, and opaque types; only those in use."""
    views: dict[type, Callable[[Any], Leaves]] = {}
    opaque: list[type] = []
    if "mujoco" in sys.modules:
        import mujoco
        from gymnasium.envs.mujoco.mujoco_env import MujocoEnv

        whole = mujoco.mjtState.mjSTATE_INTEGRATION

        def simulation(env: Any) -> Leaves:
            state = np.empty(mujoco.mj_stateSize(env.model, whole))
            mujoco.mj_getState(env.model, env.data, state, whole)
            return {"simulation": state}

        views[MujocoEnv] = simulation
        opaque += [mujoco.MjData, mujoco.MjModel]
    if "ale_py" in sys.modules:
        import ale_py
        from ale_py.env import AtariEnv

        views[AtariEnv] = lambda env: {
            "ram": env.ale.getRAM(),
            "whole": env.ale.cloneState(include_rng=True).serialize(),
        }
        opaque += [ale_py.ALEInterface]
    if "Box2D" in sys.modules:
        import Box2D

        views[Box2D.b2World] = lambda world: {
            f"bodies[{number}]": [*body.position, body.angle, *body.linearVelocity, body.angularVelocity]
            for number, body in enumerate(world.bodies)
        }
        opaque += [type(Box2D.b2World().this)]  # SWIG's pointer to a C++ object
    return views, tuple(opaque)


def walk(trainer: Any, unknown: list[str] | None = None) -> Leaves:
    """Return everything that can be reached from a trainer, and the generators of the process.

    unknown: gets the paths of values of unknown types.

    Raises:
        TypeError: a value has an unknown type, and `unknown` is None.
    """
    views, opaque = _engines()
    views, opaque = {**VIEWS, **views}, (*OPAQUE, *opaque)
    is_plain, is_opaque = (functools.cache(functools.partial(_is_any, kinds)) for kinds in (PLAIN, opaque))
    views_of = functools.cache(lambda kind: [view for base, view in views.items() if issubclass(kind, base)])
    leaves: Leaves = {}
    visited: dict[int, Any] = {}  # they stay alive, so that no number is used again
    pending: list[tuple[Any, str]] = [({"trainer": trainer, "process": Generators().state_dict()}, "")]
    while pending:
        value, path = pending.pop()
        if is_plain(type(value)):  # two NaN are the same
            leaves[path] = value if isinstance(value, str | bytes) else f"{type(value).__name__} {value!r}"
            continue
        if is_opaque(type(value)) or id(value) in visited:
            continue
        if not isinstance(value, tuple):  # Python may keep equal tuples as one object or as several
            visited[id(value)] = value
        leaf, inner, attributes = _leaf(value), _inside(value), _attributes(value)
        parts = [part for view in views_of(type(value)) for part in _named(view(value))]
        parts += [*(inner or ()), *_named(attributes)]
        if leaf is not None:
            leaves[path] = leaf
        elif not parts and inner is None and not (hasattr(value, "__dict__") or type(value).__dict__.get("__slots__")):
            message = f"{path}: nothing is known of what a {type(value)} holds"
            if unknown is None:
                raise TypeError(message)
            unknown.append(message)
        pending.extend((part, f"{path}{name}") for name, part in reversed(parts))
    return leaves


def _is_any(kinds: tuple[type, ...], kind: type) -> bool:
    return issubclass(kind, kinds)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the paths at which two walks differ, with both values."""
    return [
        f"{path}: {str(first.get(path, 'missing'))[:80]} -> {str(second.get(path, 'missing'))[:80]}"
        for path in sorted(first.keys() | second.keys())
        if path not in first or path not in second or first[path] != second[path]
    ]


def _leaf(value: Any) -> str | None:
    """Return a leaf's text; None for a value that has parts to follow."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"{value.dtype} {list(value.shape)} {_digest(raw)}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {list(value.shape)} {_digest(value)}"
    if isinstance(value, torch.Generator):
        return f"generator {_digest(value.get_state().numpy())}"
    return repr(value.getstate()) if isinstance(value, random.Random) else None


def _digest(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def _named(attributes: Mapping[str, Any]) -> Parts:
    return [(f".{name}", part) for name, part in attributes.items()]


def _numbered(values: Iterable[Any], form: str = "[{}]") -> Parts:
    return [(form.format(number), part) for number, part in enumerate(values)]


def _inside(value: Any) -> Parts | None:
    """Return the contents of a container, a callable or a generator; None for any other type."""
    if isinstance(value, torch.optim.Optimizer):
        parameters = [parameter for group in value.param_groups for parameter in group["params"]]
        return _numbered((value.state.get(parameter, {}) for parameter in parameters), ".state[{}]")
    if isinstance(value, Mapping | types.MappingProxyType):
        items = ((f"[{key!r}]", item) for key, item in value.items() if not isinstance(key, torch.Tensor))
        return [(name, item) for name, item in items if not is_clock(name[2:-2])]
    if isinstance(value, list | tuple | deque):
        return [] if hasattr(value, "_fields") else _numbered(value)  # the names of a named tuple are attributes
    if isinstance(value, set | frozenset):
        return _numbered(sorted(value, key=repr), "{{{}}}")
    if isinstance(value, np.ndarray):
        return _numbered(value.flat) if value.dtype.hasobject else []
    if isinstance(value, np.random.Generator):
        return [(".state", value.bit_generator.state)]
    if isinstance(value, np.random.RandomState):
        return [(".state", value.get_state(legacy=False))]
    if isinstance(value, np.random.BitGenerator | np.random.SeedSequence):
        return [(".state", value.state)]
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType | types.MethodWrapperType):
        function = [(".function", value.__func__)] if isinstance(value, types.MethodType) else []
        return [(".self", value.__self__), *function]
    if isinstance(value, types.FunctionType):
        cells = _numbered(map(_content, value.__closure__ or ()), ".cell[{}]")
        return [*cells, (".defaults", value.__defaults__), (".keywords", value.__kwdefaults__)]
    if isinstance(value, types.GeneratorType):
        return [(".locals", dict(value.gi_frame.f_locals) if value.gi_frame is not None else "episode_end")]
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _attributes(value: Any) -> Leaves:
    """Return the object's own attributes that a resume must restore, by name."""
    if isinstance(value, torch.Tensor):
        return {"grad": value.grad} if value.is_leaf and value.grad is not None else {}
    if isinstance(value, NO_ATTRIBUTES):
        return {}
    state: Any = object.__getstate__(value)  # __dict__, or that and the values of __slots__
    own, slots = state if isinstance(state, tuple) else (state, {})
    attributes = {**(own or {}), **slots} | {name: getattr(value, name) for name in getattr(value, "_fields", ())}
    if isinstance(value, torch.optim.Optimizer):
        attributes.pop("state")
    return {name: attributes[name] for name in sorted(attributes.keys() - _left_out(type(value)))}


@functools.cache
def _left_out(kind: type) -> set[str]:
    """Return the attributes of a class that a resume need not restore."""
    names = {name for above in kind.__mro__ for name in vars(above).get("momentary", ())}
    above = {above.__name__ for above in kind.__mro__}
    return names | {name for owner, name in LEFT_OUT if owner in above}
