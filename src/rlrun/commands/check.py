"""Build a run without stepping, and report faults and memory; the Python equivalent of `rlrun check`."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from rlrun.callbacks import Checkpointer
from rlrun.collect.replay import MOST
from rlrun.collect.replay import replay as replayed
from rlrun.commands.train import Experiment, composed_of
from rlrun.config import Composed
from rlrun.core.errors import RequestError
from rlrun.core.files import sized
from rlrun.core.machine import main_memory
from rlrun.core.spaces import Box, Spaces, leaves
from rlrun.loading.assembly import process_restored, stateful

IMAGE = 96  # pixels; `check` reports images with a longer side
LAYER = 5_000_000  # parameters; it reports larger layers


@process_restored()
def check(
    overrides: Iterable[str] | Composed = (), *, replay: bool = False, config_dir: Path | None = None
) -> list[str]:
    """Build everything without stepping; return the results, one line each.

    replay: play an episode twice, to test whether a resume would be exact.

    Raises:
        RequestError: the first fault that prevents the run from starting.
    """
    experiment = Experiment(composed_of(overrides, config_dir))
    experiment.load_sources()
    parts = stateful(experiment.builder.built)
    parameters = sum(
        p.numel() for part in parts.values() if isinstance(part, torch.nn.Module) for p in part.parameters()
    )
    needed = sum(getattr(part, "nbytes", 0) for part in parts.values())
    free, checkpointer = shutil.disk_usage(Path.cwd()).free, experiment.part(Checkpointer)
    weights = 4 * 3 * parameters  # also Adam's two moments
    checkpoint_size = weights + (needed if checkpointer is not None and checkpointer.memory else 0)
    if needed > (memory := main_memory()):
        raise RequestError(f"memory.length: the memory would grow to {sized(needed)}; this machine has {sized(memory)}")
    return [
        f"config    ok: algorithm={experiment.composed.choices['algorithm']}, environment {experiment.env_name}",
        f"wiring    ok: {len(experiment.trainer.callbacks)} callbacks",
        f"networks  {parameters:,} parameters on {experiment.device}",
        f"memory    up to {sized(needed)}",
        f"disk      {sized(free)} free; a checkpoint takes up to {sized(checkpoint_size)}",
        *(f"layout    {line}" for line in experiment.layouts()),
        *_large(getattr(experiment.builder.get("env"), "spaces", None), parts),
        *([f"replay    {_replay(experiment)}"] if replay else []),
        *(f"untrained {path}: no loss steps its parameters" for path in experiment.untrained()),
        *(f"budget    {line}" for line in experiment.budget_notes()),
        *(f"unused    {line}" for line in experiment.unused_notes()),
        *(f"own       {line}" for line in experiment.own_notes()),
        *(f"wrappers  {line}" for line in experiment.wrapper_notes()),
    ]


def _replay(experiment: Experiment) -> str:
    env = experiment.builder.get("env")
    if env is None:
        raise RequestError("--replay: env=none: there is no environment whose episode could be played")
    limit = experiment.config.evaluation.max_steps
    return replayed(env, seed=experiment.builder.get("seeds").envs, max_steps=min(limit or MOST, MOST))


def _large(spaces: Spaces | None, parts: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each image and layer that is unusually large."""
    for path, leaf in leaves(spaces.observation) if spaces is not None else ():
        if isinstance(leaf, Box) and leaf.image and max(leaf.shape) > IMAGE:
            shape = " × ".join(map(str, leaf.shape))
            yield f"images    {path or 'observations'} of {shape}: env=atari or ResizeGray in env.wrappers shrinks them"
    modules = {path: part for path, part in parts.items() if isinstance(part, torch.nn.Module)}
    for path, name, weights in ((path, *named) for path, part in modules.items() for named in part.named_parameters()):
        if weights.numel() > LAYER:
            yield f"layers    {path}.{name} has {weights.numel():,} parameters"
