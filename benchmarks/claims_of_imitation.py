"""Claims about imitation: returns of learners from ten episodes of an expert, and how near a style comes to motion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.claims import Claim, Measured, cloned, fresh
from benchmarks.process import run
from rlrun.core.typing import Array
from rlrun.memory.episodes import Stored
from rlrun.memory.sources import table_of

PROJECTIONS, SEED = 256, 0
STORED = 5_000  # transitions of each policy that are compared
SPEED, FORWARD = 2.0, 8  # of an expert of HalfCheetah, and where its observations have it
NEARNESS = "sliced Wasserstein distance of transitions to the expert's, as a share of that without a style"
RETURN = "share of the gain of return over a random policy that is kept"


def sliced_wasserstein(first: Array, second: Array, *, projections: int = PROJECTIONS, seed: int = SEED) -> float:
    """Return the sliced Wasserstein distance of two samples [N, D] and [M, D].

    It is the mean over random directions of the Wasserstein-1 distance of the projections on them (Bonneel et al. 2015,
    doi 10.1007/s10851-014-0506-3): that of their quantiles.
    """
    directions = np.random.default_rng(seed).normal(size=(first.shape[1], projections))
    directions /= np.linalg.norm(directions, axis=0)
    levels = (np.arange(1_000) + 0.5) / 1_000
    quantiles = [np.quantile(sample @ directions, levels, axis=0) for sample in (first, second)]
    return float(np.abs(quantiles[0] - quantiles[1]).mean())


def transitions(path: Path) -> Array:
    """Return the transitions of a stored memory, observation and next observation side by side: [N, 2 O]."""
    table = table_of(str(path))
    stored = Stored.of(table)
    slots = stored.row_slots()
    before = table.storage.gather("observation", slots).numpy()
    after = table.storage.gather("observation", table.index.after(slots, 1)).numpy()
    return np.concatenate((before, after), 1)


def at_speed(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    """Return minus the distance of a cheetah's speed to that of the expert, and a small cost of actions."""
    return 1.0 - (next_observation[..., FORWARD] - SPEED).abs() - 0.1 * action.square().mean(-1)


def played(run_dir: Path, folder: Path, env: str) -> Path:
    """Store transitions of a run's best checkpoint; return the file."""
    path = folder / f"{run_dir.name}.zip"
    acts = ["algorithm=handcrafted", env, "+with=expert", f"expert={run_dir}@best", "evaluation.every=0", "logger=[]"]
    lasting = [f"stop.env_steps={STORED}", f"memory.export.path={path}", "seed=1000"]
    run(["-m", "rlrun", "train", *acts, *lasting, "--run-dir", str(folder / f"{run_dir.name}-plays")], folder=folder)
    return path


def styled(expert: tuple[str, ...], *, of_return: bool = False) -> Measured:
    """Return a measurement that trains an expert, the task alone, and the task in the expert's style.

    of_return: the share of the task's gain of return that is kept, in place of how near transitions come.
    """

    def measured(overrides: list[str], folder: Path) -> float:
        env = next(override for override in overrides if override.startswith("env="))
        seed = [override for override in overrides if override.startswith("seed=")]
        run(
            ["-m", "rlrun", "train", *expert, env, *seed, "logger=[]", "--run-dir", str(folder / "expert")],
            folder=folder,
        )
        motion = played(folder / "expert", folder, env)
        places = {name: folder / name for name in ("alone", "style")}
        for place in places.values():
            place.mkdir()
        task = [o for o in overrides if not o.startswith(("+with=", "intrinsic.", "reference."))]
        returns = {"alone": fresh(task, places["alone"])["mean_return"]}
        returns["style"] = fresh([*overrides, f"dataset={motion}"], places["style"])["mean_return"]
        if of_return:
            idle = fresh([*task, "stop.env_steps=1"], folder, checkpoint="latest")["mean_return"]
            return float((returns["style"] - idle) / (returns["alone"] - idle))
        shown = transitions(motion)
        scale = shown.std(0) + 1e-6
        near = {}
        for name, place in places.items():
            (place / "run").rename(place / name)
            near[name] = sliced_wasserstein(transitions(played(place / name, place, env)) / scale, shown / scale)
        return near["style"] / near["alone"]

    return measured


def ten(env: str, steps: int) -> Measured:
    """Return a measurement of a learner from ten episodes of a handwritten expert."""
    return cloned(["algorithm=handcrafted", env, f"stop.env_steps={steps}", "evaluation.every=1_000"])


CAREFUL = ("algorithm=sac", "+with=step_reward", "intrinsic.step_reward.weight=0.036", "stop.env_steps=200_000")
AT_SPEED = (
    *("algorithm=sac", "+with=step_reward", "step_reward._target_=benchmarks.claims_of_imitation.at_speed"),
    *("intrinsic.extrinsic_weight=0.0", "stop.env_steps=200_000"),
)
AMP = ("algorithm=sac", "+with=amp", "stop.env_steps=100_000")

CLAIMS = {
    **{
        f"{name}-cartpole": Claim(
            (f"algorithm={name}", "env=cartpole"), 475.0, measured=ten("env=cartpole", 5_000), enough=4
        )
        for name in ("gail", "airl")
    },
    **{
        f"{name}-pendulum": Claim(
            (f"algorithm={name}", "env=pendulum"), -250.0, measured=ten("env=pendulum", 2_000), enough=4
        )
        for name in ("gail", "airl")
    },
    "amp-pendulum": Claim((*AMP, "env=pendulum"), 0.5, NEARNESS, styled(CAREFUL), 3, at_most=True),
    "amp-pendulum-return": Claim((*AMP, "env=pendulum"), 0.9, RETURN, styled(CAREFUL, of_return=True), 3),
    "amp-halfcheetah": Claim((*AMP, "env=halfcheetah"), 0.5, NEARNESS, styled(AT_SPEED), 3, at_most=True),
    "amp-halfcheetah-return": Claim((*AMP, "env=halfcheetah"), 0.9, RETURN, styled(AT_SPEED, of_return=True), 3),
}
