"""Claims about policies of latent actions: demonstrations, the autoencoder made from them, and the policy over it.

Each step is a command that a user could type.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.claims import EPISODES, SEED, Claim
from benchmarks.process import run, run_for_json
from rlrun.collect import RandomAgent, evaluate
from rlrun.env import make

EXPERT = ("algorithm=handcrafted", "env=thrusters")
VAE = (
    *("algorithm=vae", "data=file", "algorithm.column=action", "algorithm.latent=2"),
    *(
        "algorithm.likelihood=gaussian",
        "algorithm.deviation=0.1",
    ),  # a deviation that is learned may leave one latent out
)
PLAYED = ("--episodes", str(5 * EPISODES), "--seed", str(SEED), "--json")


def share_of_expert(overrides: list[str], folder: Path) -> float:
    """Return how far a policy of latent actions gets from random actions to the expert, on the same fresh episodes."""
    seed = [override for override in overrides if override.startswith("seed=")]
    expert, vae, run_dir = (folder / name for name in ("expert", "vae", "run"))
    data = [f"data.dataset={expert / 'exports' / 'memory.zip'}"]
    steps = ((expert, [*EXPERT, *seed]), (vae, [*VAE, *data, *seed]), (run_dir, [*overrides, _loaded(vae)]))
    for path, step in steps:
        run(["-m", "rlrun", "train", *step, "logger=[]", "--run-dir", str(path)], folder=folder)
    reached, demonstrated = (
        float(run_for_json(["-m", "rlrun", "eval", str(path), *options, *PLAYED], folder=folder)["mean_return"])
        for path, options in ((run_dir, ("--checkpoint", "best")), (expert, ()))
    )
    random = random_return()
    return (reached - random) / (demonstrated - random)


def _loaded(vae: Path) -> str:
    return f"init.networks.vae='{vae}'"


def random_return() -> float:
    """Return the mean return of uniformly random thrusts on the same episodes."""
    env = make(target="rlrun.env.toys.Thrusters", num_envs=16)
    agent = RandomAgent(env.spaces.action, seed=0)
    return evaluate(env, agent, episodes=5 * EPISODES, seed=SEED).mean_return


CLAIMS = {
    "genrl-thrusters": Claim(
        ("algorithm=genrl", "env=thrusters"),
        0.95,
        unit="return, as a share of the way from random actions to the expert",
        measured=share_of_expert,
    ),
}
