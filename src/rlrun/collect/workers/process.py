"""The other end of a `ProcessLink`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from rlrun.collect.workers.inbox import Inbox
from rlrun.collect.workers.links import GRACE
from rlrun.collect.workers.unroll import failure, unroll


def serve(handle: int, parent: int) -> None:
    """Unroll what comes over a connection; end with the process that started this one, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, jobs = Connection(handle), Inbox()
    code = 1
    with suppress(OSError, EOFError):  # the parent is gone
        begun = connection.recv_bytes()
        threading.Thread(target=_listen, args=(connection, jobs, parent), daemon=True).start()
        _unroll(begun, connection, jobs)
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # there is nothing to tidy up that is worth the wait


def _unroll(begun: bytes, connection: Connection, jobs: Inbox) -> None:
    try:
        recipe = pickle.loads(begun)
    except Exception as error:
        _give(connection, failure(error))
        return
    unroll(recipe, jobs, partial(_give, connection))


def _give(connection: Connection, message: Any) -> None:
    """Send a message whole; by itself a connection would leave tensors behind in memory that both would have to share.

    They are part of what some agents count by.
    """
    connection.send_bytes(pickle.dumps(message, protocol=5))


def _listen(connection: Any, jobs: Inbox, parent: int) -> None:
    """Take jobs from the connection whatever the worker does; without a parent, see to it that this process ends."""
    with suppress(OSError, EOFError):
        while os.getppid() == parent:
            if connection.poll(1.0):
                jobs.put(connection.recv())
    jobs.close()
    time.sleep(GRACE)
    os._exit(1)
