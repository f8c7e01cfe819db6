"""Claims about imitation: returns of learners from ten episodes of an expert, and how near a style comes to motion.

python -m benchmarks.claims_of_imitation pendulum FILE      trains an expert, and stores transitions of it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from benchmarks.claims import Claim, Measured, cloned
from benchmarks.games import BESIDE
from benchmarks.process import run
from rlrun.core.typing import Array
from rlrun.memory.formats.sources import table_of
from rlrun.memory.table.episodes import Stored

PROJECTIONS, SEED = 256, 0
STORED = 5_000  # transitions of each policy that are compared
SPEED, FORWARD = 2.0, 8  # that a cheetah is to have, and where its observations have it
EXPERTS = Path(__file__).parent / "results" / "experts"
NEAR, KEPT, KNOWN = 0.5, 0.9, (0.55, 0.9)  # bounds of distance, of gain, and of the discriminator's accuracy
OF_STYLE = ("+with=amp", "intrinsic.amp.")


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


def transitions(path: Path) -> dict[str, Tensor]:
    """Return the transitions of a stored memory: observation, action, reward, next_observation, each [N, …]."""
    table = table_of(str(path))
    slots = Stored.of(table).row_slots()
    rows = {name: table.storage.gather(name, slots) for name in ("observation", "action", "reward")}
    return rows | {"next_observation": table.storage.gather("observation", table.index.after(slots, 1))}


def motion(rows: dict[str, Tensor]) -> Array:
    """Return observation and next observation side by side: [N, 2 O]."""
    return torch.cat((rows["observation"], rows["next_observation"]), 1).numpy()


def at_speed(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    """Return minus the distance of a cheetah's speed to the wanted one, and a small cost of actions."""
    return 1.0 - (next_observation[..., FORWARD] - SPEED).abs() - 0.1 * action.square().mean(-1)


def task_reward(env: str, rows: dict[str, Tensor]) -> float:
    """Return the mean reward a step of the task on whose account a policy moves."""
    if env == "pendulum":
        return float(rows["reward"].mean())
    return float(at_speed(rows["observation"], rows["action"], rows["next_observation"]).mean())


def trained(folder: Path, *overrides: str) -> Path:
    """Train without evaluations; return the folder of the run."""
    run(["-m", "rlrun", "train", *overrides, "evaluation.every=0", "--run-dir", str(folder)], folder=folder.parent)
    return folder


def stored_by(run_dir: Path, env: str) -> Path:
    """Store transitions of a run's last policy; return the file."""
    path = run_dir.with_suffix(".zip")
    acts = ["algorithm=handcrafted", f"env={env}", "+with=expert", f"expert={run_dir}", f"stop.env_steps={STORED}"]
    trained(run_dir.with_name(f"{run_dir.name}-plays"), *acts, f"memory.export.path={path}", "seed=1000")
    return path


def styled(env: str) -> Measured:
    """Return a measurement of the task alone, of the task in an expert's style, and of random actions.

    It is the largest of three figures over their bounds: the distance of transitions to the expert's, as a share of
    that of the task alone; the gain over random actions, likewise; the accuracy of the discriminator at the end.
    """

    def measured(overrides: list[str], folder: Path) -> float:
        expert, seed = EXPERTS / f"{env}.zip", next(word for word in overrides if word.startswith("seed="))
        idle = folder / "idle.zip"
        randomly = ("algorithm.warmup_steps=5_000", "stop.env_steps=5_000", f"memory.export.path={idle}")
        trained(folder / "idle", "algorithm=sac", f"env={env}", *randomly, seed)
        alone = trained(folder / "alone", *[word for word in overrides if not word.startswith(OF_STYLE)])
        style = trained(folder / "style", *overrides, f"dataset={expert}")
        shown, random, plain, like = (
            transitions(path) for path in (expert, idle, stored_by(alone, env), stored_by(style, env))
        )
        scale = motion(shown).std(0) + 1e-6
        to_expert = [sliced_wasserstein(motion(rows) / scale, motion(shown) / scale) for rows in (like, plain)]
        rewards = [task_reward(env, rows) for rows in (like, plain, random)]
        record = json.loads((style / "metrics.jsonl").read_text().splitlines()[-1])
        accuracy = sum(record[f"discriminator/accuracy_{whose}"] for whose in ("reference", "own")) / 2
        near, kept = to_expert[0] / to_expert[1], (rewards[0] - rewards[2]) / (rewards[1] - rewards[2])
        figures = {"distance_share": near, "gain_share": kept, "discriminator_accuracy": accuracy}
        (folder / BESIDE).write_text(json.dumps(figures))
        return max(near / NEAR, KEPT / max(kept, 1e-6), KNOWN[0] / accuracy, accuracy / KNOWN[1])

    return measured


def ten(env: str, steps: int) -> Measured:
    """Return a measurement of a learner from ten episodes of a handwritten expert."""
    return cloned(["algorithm=handcrafted", env, f"stop.env_steps={steps}", "evaluation.every=1_000"])


CAREFUL = ("+with=step_reward", "intrinsic.step_reward.weight=0.036")  # ten times Pendulum's cost of actions
AT_SPEED = (
    "+with=step_reward",
    "step_reward._target_=benchmarks.claims_of_imitation.at_speed",
    "intrinsic.extrinsic_weight=0.0",
)
LEARNER = ("algorithm=sac", "compile=true")


def style(env: str, *task: str) -> Claim:
    unit = "the largest of distance, gain and accuracy, each over its bound"
    words = (*LEARNER, f"env={env}", *task, "stop.env_steps=100_000", "+with=amp")
    return Claim(words, 1.0, unit, styled(env), 5, at_most=True)


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
    "amp-pendulum": style("pendulum"),
    "amp-halfcheetah": style("halfcheetah", *AT_SPEED),
}

if __name__ == "__main__":
    env, target = sys.argv[1], Path(sys.argv[2])
    words = {"pendulum": CAREFUL, "halfcheetah": AT_SPEED}[env]
    with TemporaryDirectory() as folder:
        expert = trained(Path(folder) / "expert", *LEARNER, f"env={env}", *words, "stop.env_steps=200_000", "seed=100")
        target.write_bytes(stored_by(expert, env).read_bytes())
