"""Short runs by the `rlrun` command."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

TINY = (
    *("algorithm.hidden=[8,8]", "algorithm.batch_size=4", "algorithm.warmup_steps=20"),
    *("stop.env_steps=40", "evaluation.every=0", "logger=[]"),
)


def refused(outcome: Any, parts: Iterable[str]) -> None:
    """Require that an outcome is a refusal in one line that holds the parts."""
    assert outcome.code == 2, outcome
    assert outcome.out == "", outcome
    assert outcome.err.startswith("rlrun: "), outcome
    assert outcome.err.count("\n") == 1, outcome
    assert "Traceback" not in outcome.err
    assert [part for part in parts if part not in outcome.err] == [], outcome.err


@pytest.fixture
def tiny_run(rlrun: Callable[..., Any]) -> Callable[..., Any]:
    """Train for a moment."""
    return lambda *overrides: rlrun("train", *TINY, *overrides)
