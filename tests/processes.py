"""A process and all that descend from it."""

import contextlib
import os
import signal
import subprocess


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that descend from it."""
    for pid in below(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def below(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    pids, pending = [], [pid]
    while pending:
        pids.append(pending.pop())
        pending += [child for child, parent in pairs if parent == pids[-1]]
    return pids
