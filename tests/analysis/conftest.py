"""Runs that were never trained, with the files of such that were."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlrun.core.files import write_json
from rlrun.runs.directory import RunDir

ABOUT = {
    "created": "2026-11-22T09:00:00+00:00",
    "python": "3.11.7",
    "platform": "Linux",
    "host": "node1",
    "cpu": "A processor, 2 cores",
    "device": "cpu",
    "threads": 1,
    "packages": {"rlrun": "0.1.0", "torch": "2.13.0"},
}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., RunDir]:
    """Write the files of a run whose evaluations gave these values, one every 1,000 steps."""

    def write(
        name: str,
        values: Sequence[Any] = (),
        *,
        seed: int = 0,
        overrides: Sequence[str] = ("algorithm=ppo",),
        task: str = "CartPole-v1",
        status: str = "completed",
        settings: str = "algorithm:\n  lr: 0.001\n",
        metric: str = "evaluation/mean_return",
        created: str = ABOUT["created"],
    ) -> RunDir:
        run = RunDir.claim(tmp_path / name)
        config = f"seed: {seed}\n{settings}env:\n  id: {json.dumps(task)}\n"
        run.start(
            config=config, overrides=[*overrides, f"seed={seed}"], manifest={**ABOUT, "seed": seed, "created": created}
        )
        run.write_status(status)
        steps = [1_000 * (place + 1) for place in range(len(values))]
        records = [
            {"env_steps": at, "updates": at // 10, "seconds": at / 500, metric: value}
            for at, value in zip(steps, values, strict=True)
        ]
        run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
        if steps and status in ("completed", "failed", "stopped"):
            write_json(run.summary, {"status": status, "env_steps": steps[-1], "seconds": steps[-1] / 500})
        return run

    return write


@pytest.fixture(autouse=True)
def here(project: Path) -> None:
    """Stand in an empty folder: pages go there."""
