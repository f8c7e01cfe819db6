"""A worker as an actor of Ray, on this machine or on another one of its cluster."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from contextlib import suppress
from typing import Any

from rlrun.cluster import connect
from rlrun.collect.workers.inbox import Inbox
from rlrun.collect.workers.links import GRACE, ThreadLink
from rlrun.collect.workers.unroll import Leave, Recipe
from rlrun.errors import ConfigError


class Host:
    """The actor: a thread that unrolls, what is asked of it, and what it made."""

    def __init__(self, paths: list[str], recipe: bytes) -> None:
        sys.path += [path for path in paths if path not in sys.path]  # where the user's modules lie
        self.link = ThreadLink(pickle.loads(recipe))

    def post(self, job: Any) -> None:
        """Take a job."""
        self.link.send(job)

    def fetch(self, seconds: float) -> list[Any] | None:
        """Return what was made since the last call, at the latest after so many seconds; None: that was all."""
        rows = self.link.rows
        messages = [first] if (first := rows.get(seconds)) is not None else []
        if not messages and rows.closed:
            return None
        while (more := rows.get(0.0)) is not None:
            messages.append(more)
        return messages


class RayLink:
    """The main side of the actor; Ray is started, and stopped again, where it does not run."""

    def __init__(self, recipe: Recipe) -> None:
        self._ray, self._started = connect()
        self.rows = Inbox()
        self._why = "it ended"
        try:
            begun = pickle.dumps(recipe, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"env cannot be sent to an actor: {str(error).splitlines()[0]}") from error
        remote = self._ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"jobs": 1, "rows": 1})(Host)
        self._actor = remote.remote([path or os.getcwd() for path in sys.path], begun)
        self._post = self._actor.post.options(concurrency_group="jobs")
        self._fetch = self._actor.fetch.options(concurrency_group="rows")
        self._thread = threading.Thread(target=self._read, name="ray rows", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while (messages := self._ray.get(self._fetch.remote(0.5))) is not None:
                for message in messages:
                    self.rows.put(message)
        except Exception as error:
            self._why = f"Ray lost it: {type(error).__name__}"
        finally:
            self.rows.close()

    def send(self, job: Any) -> None:
        self._post.remote(job)

    def alive(self) -> bool:
        return not self.rows.closed

    def cause(self) -> str:
        return self._why

    def close(self) -> bool:
        with suppress(Exception):  # the cluster may be gone
            self._post.remote(Leave())
        self._thread.join(GRACE)
        with suppress(Exception):
            self._ray.kill(self._actor)
        if self._started:
            with suppress(Exception):
                self._ray.shutdown()
        return True
