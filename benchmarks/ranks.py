"""Runs of two ranks under torchrun, on one node and on two, that are killed many times and end as if they were not.

In turn a rank is killed, the other one, and a torchrun, by SIGKILL, and one rank is sent SIGTERM. All processes must
end then, and `torchrun -m rlrun resume` continues. At the end the checkpoints of both ranks are those of a run that was
not stopped, and their networks are the same bits. The two nodes are two torchruns on this machine that meet by c10d.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.processes import below

from benchmarks.process import ROOT, THREADS, Failed
from rlrun import checkpointing as storage
from rlrun.runs.directory import RunDir, checkpoint_key, rank_folder

RANKS, UPDATES = 2, 1_000
PATIENCE = 900.0  # seconds in which processes come on, or end
OVERRIDES = (
    *("algorithm=sac", "env=pendulum", "num_envs=2", "preset=null", "algorithm.hidden=[8]", "algorithm.batch_size=8"),
    *("algorithm.warmup_steps=50", "algorithm.updates_per_step=1", "memory.length=2_000", "logger=[]"),
    *(f"stop.updates={UPDATES}", "checkpoint.every=50", "log.every=200", "evaluation.every=0", "threads=1"),
)
VICTIMS = ("rank 0", "rank 1", "torchrun", "SIGTERM")


def one_cell(*, kills: int, nodes: int) -> dict[str, Any]:
    """Train with a number of torchruns without a stop, and with many; an error is in the result."""
    result: dict[str, Any] = {"words": list(OVERRIDES), "wanted": kills, "passed": False}
    begun, dice = time.perf_counter(), random.Random(nodes)
    goals = sorted(dice.uniform(0.0, 0.85 * UPDATES) for _ in range(kills))
    result |= {"kills": 0, "resumes": 0, "left_behind": 0, "statuses": []}
    with TemporaryDirectory() as place:
        folder = Path(place)
        whole, killed = RunDir(folder / "whole"), RunDir(folder / "killed")
        try:
            _end(_start(["train", *OVERRIDES, "--run-dir", "whole"], folder, 1), folder)
            agents = _start(["train", *OVERRIDES, "--run-dir", "killed"], folder, nodes)
            for number, goal in enumerate(goals):
                saved = _newest(killed)
                _wait(agents, lambda goal=goal, saved=saved: saved < _newest(killed) >= goal)
                time.sleep(dice.uniform(0.0, 0.5))
                everybody = [pid for agent in agents for pid in below(agent.pid)]
                _hit(VICTIMS[number % len(VICTIMS)], agents)
                result["kills"] += 1
                _wait(agents, lambda agents=agents: all(agent.poll() is not None for agent in agents), over=True)
                time.sleep(1.0)  # those whose torchrun was killed end by a signal of the system
                result["left_behind"] += sum(map(_is_there, everybody))
                result["statuses"].append(killed.read_status()["status"])
                agents = _start(["resume", "killed"], folder, nodes)
                result["resumes"] += 1
            _end(agents, folder)
            ranks = [[_digests(run, rank) for rank in range(RANKS)] for run in (whole, killed)]
            networks = {name for name in ranks[0][0] if name.startswith("networks.")}
            result["identical"] = {
                "parameters": all(ranks[1][0][name] == ranks[1][1][name] for name in networks),  # of the ranks
                "the rest": ranks[0] == ranks[1],
            }
            result["resume"] = json.loads(killed.manifest.read_text()).get("resume")
            clean = not result["left_behind"] and result["kills"] == kills
            result["passed"] = clean and all(result["identical"].values()) and result["resume"] in ("exact", None)
        except Failed as error:
            result["error"] = str(error).strip().splitlines()[-1]
    result["wall_seconds"] = round(time.perf_counter() - begun, 1)
    print(f"ranks, nodes {nodes}: {'identical' if result['passed'] else result}", flush=True)
    return result


def _start(arguments: list[str], folder: Path, nodes: int) -> list[subprocess.Popen[bytes]]:
    """Start a torchrun on each node, with the variables of this process."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        meet = f"localhost:{free.getsockname()[1]}"
    options = [f"--nnodes={nodes}", f"--nproc-per-node={RANKS // nodes}"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint={meet}"]
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    with open(folder / "log.txt", "ab") as log:
        return [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *options, "-m", "rlrun", *arguments],
                cwd=folder,
                env={**os.environ, **THREADS, "PYTHONPATH": paths},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for _ in range(nodes)
        ]


def _hit(victim: str, agents: list[subprocess.Popen[bytes]]) -> None:
    """Kill a rank or a torchrun, or ask one rank to stop."""
    if victim == "torchrun":
        agents[-1].send_signal(signal.SIGKILL)
        return
    for pid in (pid for agent in agents for pid in below(agent.pid)):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={victim[-1] if victim.startswith('rank') else RANKS - 1}".encode() in variables:
                os.kill(pid, signal.SIGTERM if victim == "SIGTERM" else signal.SIGKILL)
                return
    raise Failed(f"there is no process of {victim}")


def _is_there(pid: int) -> bool:
    """Return True if a process has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _newest(run: RunDir) -> int:
    """Return the updates of the newest checkpoint that shows; -1 for none."""
    with contextlib.suppress(OSError):
        return max((checkpoint_key(path)[1] for path in run.checkpoint_dirs()), default=-1)
    return -1


def _digests(run: RunDir, rank: int) -> dict[str, str]:
    """Return a digest of each part of a rank's last checkpoint, times aside."""
    where = run.checkpoint()
    states = storage.load(rank_folder(where.parent, rank) / where.name)
    return {part: storage.digest(state) for part, state in states.items()}


def _wait(agents: list[subprocess.Popen[bytes]], ready: Callable[[], bool], *, over: bool = False) -> None:
    until = time.monotonic() + PATIENCE
    while not ready():
        ended = not over and any(agent.poll() is not None for agent in agents)
        if ended or time.monotonic() > until:
            _kill(agents)
            raise Failed(f"a run of ranks ended, or came no further: {[agent.returncode for agent in agents]}")
        time.sleep(0.05)


def _end(agents: list[subprocess.Popen[bytes]], folder: Path) -> None:
    _wait(agents, lambda: all(agent.poll() is not None for agent in agents), over=True)
    if any(agent.returncode for agent in agents):
        raise Failed(f"a run of ranks failed: {(folder / 'log.txt').read_text()[-2_000:]}")


def _kill(agents: list[subprocess.Popen[bytes]]) -> None:
    for pid in [pid for agent in agents for pid in below(agent.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for agent in agents:
        agent.wait()
