"""What a run holds when it ends, and the same run left at a checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.conformance.reach import Reach, View
from rlrun.env.recorded import Tape
from rlrun.errors import RequestError
from rlrun.generators import Generators
from rlrun.memory import Recent, Table
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.rollout_table import Rollout
from rlrun.rundir import RunDir, checkpoint_key
from rlrun.storage.digests import is_clock

Leaves = dict[str, Any]

ONLY_HERE = "only within a process: compared with itself to see a change"
LOOKS_AGAIN = "looked up again when it is asked for"
LEFT_OUT = {  # (class, attribute): why it may differ
    ("Budget", "_start"): "clock",
    ("Logger", "_start"): "clock",
    ("Budgeted", "_budget"): "a callback of the run, which is compared as such",
    ("MemoryExport", "_earliest"): "clock",
    ("Callback", "_before"): "seconds, or metrics, of before this process",
    ("Reports", "times"): "clock",
    ("Reports", "samples"): "says which samples are timed",
    ("Jsonl", "_path"): "where files lie",
    ("Checkpointer", "_first"): "where this process began",
    ("Evaluator", "_lanes"): "reset with the same seeds by every evaluation",
    ("SyncEnv", "_sets"): "filled before they are handed out",
    ("SyncEnv", "_turn"): "which of them is next",
    ("Recorded", "_remembered"): "what a resume began with",
    ("Tape", "begun"): "counted from where the tape begins; VIEWS has lengths",
    ("_Leaf", "steps"): "counted from where the tape begins; the log is compared",
    ("_Watched", "_opened"): LOOKS_AGAIN,
    ("_Watched", "_left_out"): LOOKS_AGAIN,
    ("_Watched", "_shape"): LOOKS_AGAIN,
    ("_Watched", "_changing"): LOOKS_AGAIN,
    ("EpisodeIndex", "version"): ONLY_HERE,
    ("Rows", "version"): ONLY_HERE,
    ("_Drawn", "versions"): ONLY_HERE,
    ("EpisodeIndex", "_counted"): LOOKS_AGAIN,
    ("EpisodeIndex", "_left"): LOOKS_AGAIN,
    ("RingIndex", "_room"): LOOKS_AGAIN,
    ("EpisodeIndex", "complete"): "VIEWS has it, without its last entry, that no row has",
    ("Storage", "blocks"): "slots that hold nothing may hold anything; VIEWS has the others",
    ("Storage", "_staging"): "filled anew for each write",
    ("Storage", "arrays"): "the same memory",
    ("Storage", "_records"): "the same memory",
    ("Storage", "_pairs"): "the same memory",
    ("Rollout", "_arrays"): "steps that are not filled may hold anything; VIEWS has the others",
    ("Gradients", "_decided"): "at the first update of a process",
    ("Gradients", "_flat"): "cleared before each update",
    ("Gradients", "_parts"): "cleared before each update",
    ("Gradients", "_before"): "counted from there",
    ("Stepper", "_ready"): "the tensors of the optimiser",
    ("Stepper", "_state"): "the state of the optimiser",
    ("Epochs", "_whole"): "taken again when it is served",
    ("Recent", "number"): "numbers that the log has passed mean nothing; VIEWS has the others",
}
VIEWS = {
    Table: lambda table: {
        f"rows.{name}": np.array(block[table.index.used()]) for name, block in table.storage.blocks.items()
    },
    EpisodeIndex: lambda index: {"completed": index.complete[:-1].copy()},
    Rollout: lambda rollout: {"rows": rollout.state_dict()["rows"]},
    Tape: lambda tape: {"lengths": [tape.steps - begun for begun in tape.begun]},
    Recent: lambda sampler: {"numbers": sampler.number * (sampler.number >= sampler.clock - sampler.newest)},
}


def _engines() -> tuple[dict[type, View], tuple[type, ...]]:
    """Return how to look into simulators that are not written in Python, and their types; of those that are in use."""
    views: dict[type, View] = {}
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
        opaque += [type(Box2D.b2World().this)]  # SWIG's pointer to what is not written in Python
    return views, tuple(opaque)


def walk(trainer: Any, unknown: list[str] | None = None) -> Leaves:
    """Return everything that can be reached from a trainer, and the generators of the process.

    unknown: gets what nothing is known of.

    Raises:
        TypeError: there is such a thing, and no list for it.
    """
    engines, opaque = _engines()
    reach = Reach(left_out=LEFT_OUT, views={**VIEWS, **engines}, skipped=is_clock, opaque=opaque, unknown=unknown)
    return reach.walk({"trainer": trainer, "process": Generators().state_dict()}, "").leaves


def leave(run: Path, copy: Path, *, at: int) -> Path:
    """Copy a run as it lies there when it was killed after its first checkpoint at or after some steps."""
    shutil.copytree(run, copy)
    directory = RunDir(copy)
    keys = {path: checkpoint_key(path) for path in directory.checkpoint_dirs()}
    checkpoints = [path for path, (steps, updates) in keys.items() if (steps or updates) >= at]  # updates, offline
    for path in checkpoints[1:]:
        shutil.rmtree(path)
    if len(checkpoints) < 2:
        raise RequestError("the run was over before its second checkpoint: stop.updates=… makes it longer")
    directory.summary.unlink()
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    status = {**json.loads(directory.status.read_text()), "status": "running", "pid": gone.pid}
    directory.status.write_text(json.dumps(status))
    return checkpoints[0]


def records(run: Path) -> list[Leaves]:
    """Return the metrics of a run without those that depend on the clock."""
    lines = RunDir(run).metrics.read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not is_clock(name)} for line in lines]
