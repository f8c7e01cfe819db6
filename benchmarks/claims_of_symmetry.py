"""Claims about symmetric policies: a lopsided task for two oars, with a policy trained as it is, and three mirrors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.claims import Claim
from benchmarks.process import run, run_for_json

OARS = (
    *("algorithm=sac", "env.target=rlrun.env.toys.Oars", "stop.env_steps=3_000", "evaluation.every=0"),
    *(
        "algorithm.hidden=[32,32]",
        "algorithm.batch_size=64",
        "algorithm.lr=1.0e-3",
        "algorithm.temperature.initial=0.1",
    ),
)
MIRROR = ("symmetry.observation={sign: [1,-1]}", "symmetry.action={order: [1,0]}")
OF_MIRRORS = ("+with=symmetry", "symmetry.", "intrinsic.")
# Policy and discriminator follow one another around their balance, unless the steps of the policy become small.
ADVERSARY = ("intrinsic.sides.weight=5", "intrinsic.sides.lr=1.0e-3", "+with=anneal", "stop.env_steps=8_000")


def over_plain(overrides: list[str], folder: Path) -> float:
    """Return the asymmetry of a policy, over that of one that was trained without a mirror and with the same seed."""
    plain = [override for override in overrides if not override.startswith(OF_MIRRORS)]
    values = []
    for name, words in {"plain": plain, "mirrored": overrides}.items():
        run(["-m", "rlrun", "train", *words, "logger=[]", "--run-dir", str(folder / name)], folder=folder)
        command = ["-m", "benchmarks.claims_of_symmetry", str(folder / name)]
        values.append(float(run_for_json(command, folder=folder)["asymmetry"]))
    return values[1] / values[0]


def asymmetry(run_dir: str) -> float:
    """Return the mean of |π(s) - M π(M s)| / 2 over tasks of `rlrun.env.toys.Oars`: its oars are exchanged."""
    import rlrun

    policy = rlrun.load(run_dir)
    tasks = np.random.default_rng(0).uniform([0.2, -0.2], [0.5, 0.2], (1_000, 2)).astype(np.float32)
    own = np.asarray(policy.predict(tasks)[0])
    image = np.asarray(policy.predict(tasks * np.array([1.0, -1.0], np.float32))[0])[:, ::-1]
    return float(np.abs(own - image).mean() / 2.0)


def _claim(*words: str) -> Claim:
    unit = "asymmetry of the policy, over that without a mirror"
    return Claim((*OARS, *words, *MIRROR), 0.2, unit=unit, measured=over_plain, at_most=True)


CLAIMS = {
    "symmetry-loss": _claim("+with=symmetry", "symmetry.weight=10"),
    "symmetry-data": _claim("+with=symmetry_data"),
    "symmetry-adversarial": _claim("+with=symmetry_adversarial", *ADVERSARY),
}


if __name__ == "__main__":
    print(json.dumps({"asymmetry": asymmetry(sys.argv[1])}))
