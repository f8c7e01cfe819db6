"""The job of a side, which travels as one line of JSON and needs no rlrun."""

from __future__ import annotations

from typing import Any, NamedTuple


class Work(NamedTuple):
    """A run and the window in which it is measured."""

    algorithm: str
    env: str  # a registered id
    overrides: list[str]  # that rlrun composes
    numbers: dict[str, Any]  # what they compose to: the block `algorithm`, length of the memory, envs
    first: int  # environment steps, between which is measured
    last: int
    compiled: bool  # by torch's compiler
    begun: float  # when the process was started, seconds since the epoch
