"""Claims about models of the world: planning by them, and learning from what they imagine; by the last policies."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.claims import Claim, answer, fresh, last_return
from benchmarks.games import BESIDE

SHOOTING = "networks.planner._target_=rlrun.algorithms.model_based.planning.RandomShooting"

RISKY = (
    *("algorithm=muzero", "env=riskybranch", "algorithm.search.simulations=20"),
    *("stop.env_steps=16_000", "evaluation.every=0"),  # 2,000 steps of 8 envs
)
LANDER = ("env=lunarlander", "stop.env_steps=200_000")
RANDOM_LANDER = -185.0  # mean return of random actions over 200 episodes

CHEETAH = (
    *("algorithm=mbpo", "env=halfcheetah", "algorithm.updates_per_step=5", "algorithm.warmup_steps=2_000"),
    *("imagination.model.every=1_000", "imagination.model.min_updates=500"),
)


def over_sac(overrides: list[str], folder: Path) -> float:
    """Return how far the last policy is above SAC's, of the same seed after as many steps."""
    ours, theirs = folder / "mbpo", folder / "sac"
    ours.mkdir()
    theirs.mkdir()
    shared = [word for word in overrides if word.startswith(("env=", "stop.", "seed="))]
    returns = {"mbpo": last_return(overrides, ours), "sac": last_return(["algorithm=sac", *shared], theirs)}
    (folder / BESIDE).write_text(json.dumps(returns))
    return returns["mbpo"] - returns["sac"]


def risky_return(overrides: list[str], folder: Path) -> float:
    """Return the mean return of 200 fresh episodes by the last policy; one that trusts to luck has 1.5."""
    return float(fresh(overrides, folder, episodes=200, checkpoint="latest")["mean_return"])


def claim(*overrides: str, bar: float, enough: int = 4) -> Claim:
    return Claim(overrides, bar, unit="mean return of the last policy", measured=last_return, enough=enough)


CLAIMS = {
    "mbrl-pendulum-model": Claim(
        (
            "algorithm=mbrl",
            "env=pendulum",
            "algorithm.warmup_steps=2_000",
            "algorithm.min_updates=2_000",
            "stop.env_steps=2_050",
        ),
        1.0,
        unit="error of one and of ten steps, the larger share of 0.05 and 0.3 deviations",
        measured=answer("model_error"),
        at_most=True,
    ),
    "mbrl-pendulum": claim("algorithm=mbrl", "env=pendulum", bar=-230.0),
    "mbrl-pendulum-shooting": claim("algorithm=mbrl", "env=pendulum", SHOOTING, "stop.env_steps=5_000", bar=-300.0),
    "latent_mbrl-pendulum": claim("algorithm=latent_mbrl", "env=pendulum", bar=-350.0),
    "pets-cartpole-continuous": claim("algorithm=pets", "env=cartpole_continuous", bar=195.0),
    "mbpo-pendulum": claim("algorithm=mbpo", "env=pendulum", bar=-200.0, enough=5),
    "mbpo-inverted-pendulum": claim("algorithm=mbpo", "env=inverted_pendulum", "stop.env_steps=5_000", bar=1_000.0),
    **{
        f"mbpo-halfcheetah-{steps}": Claim(
            (*CHEETAH, f"stop.env_steps={steps}"),
            0.0,
            unit="mean return of the last policy, less SAC's",
            measured=over_sac,
            enough=enough,
        )
        for steps, enough in (("30_000", 5), ("45_000", 4))
    },
    "muzero-cartpole": Claim(("algorithm=muzero", "env=cartpole"), 475.0, enough=4),
    "muzero-riskybranch": Claim(RISKY, 1.7, unit="greedy mean return of 200 episodes", measured=risky_return, enough=3),
    "muzero-lunarlander": claim("algorithm=muzero", *LANDER, bar=RANDOM_LANDER + 150.0),
    "dqn-lunarlander": claim("algorithm=dqn", *LANDER, bar=RANDOM_LANDER + 150.0),
    "muzero-pendulum": claim("algorithm=muzero", "env=pendulum", bar=-300.0),
}
