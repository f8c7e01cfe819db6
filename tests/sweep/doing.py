"""What children of tests do."""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path


def describe(path):
    """Write what a child is into a file; runs there."""
    parent = os.getppid()
    about = {
        "parent's threads": len(os.listdir(f"/proc/{parent}/task")),
        "parent": parent,
        "leads": os.getpgid(0) == os.getpid(),
        "torch": "torch" in sys.modules,
        "variable": os.environ.get("TOLD"),
        "safe path": os.environ.get("PYTHONSAFEPATH"),
        "path": sys.path,
    }
    Path(path).write_text(json.dumps(about))
    print("said", flush=True)
    print("warned", file=sys.stderr, flush=True)
    return 7


def wait():
    time.sleep(60)
    return 0


def leave(path):
    """Take a moment to leave when it is asked to; return how often it was."""
    signals = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    Path(path).touch()
    while not signals:
        time.sleep(0.01)
    time.sleep(0.3)
    return len(signals)


def fork(path):
    """Hang, and so does a child that holds a lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    if os.fork() == 0:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, b"held")
    time.sleep(60)
