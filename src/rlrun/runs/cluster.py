"""Ray, where it is installed: whether it is, and being connected to it."""

import importlib
import importlib.util
import os
import signal
from typing import Any

from rlrun.core.errors import MissingExtra
from rlrun.runs.processes import handled


def require(place: str) -> None:
    """Raise an error without Ray.

    Raises:
        MissingExtra: it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra(place, "ray", "ray")


def connect(address: str | None = None) -> tuple[Any, bool]:
    """Return Ray, connected, and whether it was this call that connected it, and has to end it.

    address: of a cluster, `host:port` or `auto`; None = one of this machine that ends with this process.
    """
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without an address Ray takes that of RAY_ADDRESS. Its own ports are open to whoever reaches the machine, unless it
    # keeps to itself.
    where = {"address": address} if address is not None else {"address": "local", "_node_ip_address": "127.0.0.1"}
    kept = [handled(signal.getsignal(number), number) for number in (signal.SIGINT, signal.SIGTERM)]
    with kept[0], kept[1]:  # Ray puts a handler of its own for SIGTERM
        ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray, True
