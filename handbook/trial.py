"""What a command does in a run of some updates: how its data flow, and what it writes down."""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf
from tests.short import SMALL, shrink

from rlrun.commands import train as experiment
from rlrun.config import compose

BRIEF = {**SMALL, "evaluation.every": 40, "evaluation.max_steps": 10, "stop.updates": 20, "log.every": 10}


@dataclass(frozen=True)
class Trial:
    """A run that was tried.

    Attributes:
        overrides: of its command.
        flow: what `rlrun explain` draws.
        metrics: names of all that it wrote down.
        config: as YAML.
    """

    words: tuple[str, ...]
    flow: str
    metrics: tuple[str, ...]
    config: str


@cache
def trial(*words: str) -> Trial:
    """Run these overrides for some updates, on demonstrations where they learn from data.

    Raises:
        RlrunError: they do not fit together.
    """
    with tempfile.TemporaryDirectory(prefix="rlrun-") as folder:
        given = [word for word in words if word != "dataset=demonstrations.zip"]
        composed = compose(given, check=False)
        if OmegaConf.is_missing(composed.config, "dataset"):
            env = next(word for word in words if word.startswith("env="))
            composed = compose([*given, f"dataset={_demonstrations(env, Path(folder))}"])
        if "???" in OmegaConf.to_container(composed.config.init).values():
            composed = compose([*words, "init.networks.vae=null"])
        config = OmegaConf.to_yaml(composed.config)
        flow = experiment.explain(composed).replace(f"{folder}/", "")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers that no run would have
            experiment.train(shrink(composed, BRIEF), run_dir=Path(folder) / "run")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    names = dict.fromkeys(name for line in lines for name in json.loads(line))
    return Trial(words, flow, tuple(name for name in names if "/" in name), config)


def _demonstrations(env: str, folder: Path) -> Path:
    path = folder / "demonstrations.zip"
    words = ["algorithm=handcrafted", env, "stop.env_steps=64", "evaluation.every=0", "checkpoint.every=0", "logger=[]"]
    experiment.train([*words, f"memory.export.path={path}"], run_dir=folder / "demonstrations")
    return path
