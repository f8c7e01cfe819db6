"""Claims about models of the world: planning by them, and learning from what they imagine."""

from __future__ import annotations

from benchmarks.claims import Claim

SHOOTING = "networks.planner._target_=rlrun.algorithms.model_based.planning.RandomShooting"

CLAIMS = {
    "mbrl-pendulum": Claim(("algorithm=mbrl", "env=pendulum"), -230.0, enough=4),
    "mbrl-pendulum-shooting": Claim(
        ("algorithm=mbrl", "env=pendulum", SHOOTING, "stop.env_steps=5_000", "evaluation.every=5_000"), -300.0, enough=4
    ),
    "pets-cartpole-continuous": Claim(("algorithm=pets", "env=cartpole_continuous"), 195.0, enough=4),
    "mbpo-pendulum": Claim(("algorithm=mbpo", "env=pendulum"), -200.0),
}
