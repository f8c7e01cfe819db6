"""Claims about what runs learn: a run, the number that is measured of it, and its bar.

A return is that of the best checkpoint by the run's own evaluations, or of the last one, over 20 fresh
episodes with another seed; the run's own best and last evaluation are saved with the first. Toys with known answers are
trained by `rlrun.train`, in separate processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import information
from benchmarks.latents import behind_loop, held_out, off_ppca, over_kmeans
from benchmarks.process import run, run_for_json
from benchmarks.stored import CLONE, above_clone, behind_behavior, lost_online
from rlrun.env.goals import BitFlip
from rlrun.env.toys import MixedAction

EPISODES, SEED = 20, 1_000  # of the fresh episodes
ALLOWED = 0.25  # mean cost a step
Measured = Callable[[list[str], Path], float]


def fresh(overrides: list[str], folder: Path, *, episodes: int = EPISODES, checkpoint: str = "best") -> dict[str, Any]:
    """Train, then play fresh episodes by a checkpoint; return what `rlrun eval` says of them."""
    run_dir = folder / "run"
    run(["-m", "rlrun", "train", *overrides, "logger=[]", "--run-dir", str(run_dir)], folder=folder)
    options = ["--checkpoint", checkpoint, "--episodes", str(episodes), "--seed", str(SEED), "--json"]
    return run_for_json(["-m", "rlrun", "eval", str(run_dir), *options], folder=folder)


def fresh_return(overrides: list[str], folder: Path) -> float:
    """Return the mean return of fresh episodes."""
    return float(fresh(overrides, folder)["mean_return"])


def last_return(overrides: list[str], folder: Path) -> float:
    """Return the mean return of fresh episodes by the last policy."""
    return float(fresh([*overrides, "evaluation.every=0"], folder, checkpoint="latest")["mean_return"])


def bits_flipped(overrides: list[str], folder: Path) -> float:
    """Return the share of fresh episodes in which all bits came to equal the goal: those that paid 0 at their end."""
    returns = fresh(overrides, folder, episodes=100)["returns"]
    return sum(value > -BitFlip().n for value in returns) / len(returns)


def succeeded(overrides: list[str], folder: Path) -> float:
    """Return the share of fresh episodes that succeed, where success pays 1 and failure 0."""
    return float(fresh(overrides, folder, episodes=100)["mean_return"])


def constraint_distance(overrides: list[str], folder: Path) -> float:
    """Return how far the mean cost of the last policy, as it acts, is from what is allowed, as a share of that."""
    run_dir = folder / "run"
    run(["-m", "rlrun", "train", *overrides, "logger=[]", "--run-dir", str(run_dir)], folder=folder)
    options = ["--episodes", "2000", "--seed", str(SEED), "--stochastic", "--json"]
    totals = run_for_json(["-m", "rlrun", "eval", str(run_dir), *options], folder=folder)["totals"]
    cost = -sum(total[1] for total in totals) / len(totals)  # episodes of one step
    return abs(cost - ALLOWED) / ALLOWED


def cloned(expert: list[str]) -> Measured:
    """Return a measurement that clones an expert; the clone's mean return."""
    return lambda overrides, folder: _expert_and_clone(expert, overrides, folder)[1]


def behind(expert: list[str]) -> Measured:
    """Return a measurement that clones an expert; the share of its return that the clone lacks on the same episodes."""

    def measured(overrides: list[str], folder: Path) -> float:
        shown, reached = _expert_and_clone(expert, overrides, folder)
        return (shown - reached) / abs(shown)

    return measured


def _expert_and_clone(expert: list[str], overrides: list[str], folder: Path) -> tuple[float, float]:
    """Return the mean returns of an expert and of who learns from its memory."""
    place, data = folder / "expert", folder / "demonstrations.zip"
    place.mkdir()
    seed = [override for override in overrides if override.startswith("seed=")]
    shown = fresh_return([*expert, *seed, f"memory.export.path={data}"], place)
    return shown, fresh_return([*overrides, f"dataset={data}"], folder)


def lacks_with(override: str) -> Measured:
    """Return a measurement that trains twice; the share of a run's return that it lacks with one more override.

    Both are tried on the same episodes.
    """

    def measured(overrides: list[str], folder: Path) -> float:
        alone, changed = folder / "alone", folder / "changed"
        alone.mkdir()
        changed.mkdir()
        wanted = fresh_return(overrides, alone)
        return (wanted - fresh_return([*overrides, override], changed)) / abs(wanted)

    return measured


def answer(check: str) -> Measured:
    """Return a measurement that trains a toy and compares with its answer (see `benchmarks.answers`)."""

    def measured(overrides: list[str], folder: Path) -> float:
        result = run_for_json(["-m", "benchmarks.answers", check, str(folder / "run"), *overrides], folder=folder)
        return float(result["value"])

    return measured


@dataclass(frozen=True)
class Claim:
    """The bar of an algorithm on an environment.

    overrides: of the run; measured: gives one number a seed; bar: that this number must reach, or stay
    within; of 5 seeds `enough` must.
    """

    overrides: tuple[str, ...]
    bar: float
    unit: str = "mean return"
    measured: Measured = fresh_return
    enough: int = 5
    at_most: bool = False

    def holds(self, value: float) -> bool:
        return value <= self.bar if self.at_most else value >= self.bar


EXPERT = ("algorithm=handcrafted", "stop.env_steps=20_000")
IQL = ("algorithm=iql", "env=pendulum")
GAIN = "error of the slope of a policy, as a share of the expert's"
SLOWLY = ("algorithm.bc_weight=0.01", "algorithm.lr=1.0e-3", "algorithm.residual_lr=1.0e-2")
CHAIN = ("algorithm=dqn", "env=chain", "stop.env_steps=5_000")
SHARE = "largest relative error of a value"
ACCURACY = "accuracy on held-out rows"
VQ_VAE = ("algorithm=vq_vae", "encoder=flat")
LINEAR = (
    *("algorithm=vae", "data=file", "algorithm.latent=3", "algorithm.hidden=[]", "algorithm.likelihood=gaussian"),
    *("algorithm.lr=3.0e-3", "algorithm.batch_size=256", "stop.updates=5_000", "evaluation.every=1_000"),
)
FLIPPED = "share of episodes that succeed"
GUESSED = 0.65  # half of the episodes, and what luck adds in a hundred of them
RECALL = ("algorithm=ppo", "env=recall", "stop.env_steps=20_000")
TMAZE = ("algorithm=ppo", "env=tmaze", "stop.env_steps=100_000")
ENTROPY = (
    *(
        "num_envs=8",
        "algorithm.lr=1.0e-3",
        "algorithm.horizon=64",
        "algorithm.epochs=4",
        "algorithm.batch_size=256",
        "optimizer=adam",
    ),
    *("algorithm.spread=observation", "callbacks.entropy_target.target=-0.5"),
)
CONSTRAINED = ("env=constrainedbandit", "+with=lagrangian", "lagrangian.lr=0.1")
ALONE = "algorithm.recurrent=null"


def noise(algorithm: str, *settings: str) -> tuple[str, ...]:
    """Return the overrides of a run that clones a straight line, the policy of an expert whose noise fades slowly."""
    return f"algorithm={algorithm}", "+with=offline_alone", "algorithm.hidden=[]", *settings, "stop.updates=4_000"


def corridor(algorithm: str, *bonuses: str, steps: str, weight: str) -> dict[str, Claim]:
    """Return that a corridor is walked to its end with each bonus, and never at equal steps without."""
    overrides = (f"algorithm={algorithm}", "env=corridor", f"stop.env_steps={steps}")
    claims = {
        f"{algorithm}-corridor-{name}": Claim((*overrides, f"+with={name}", f"intrinsic.{name}.weight={weight}"), 1.0)
        for name in bonuses
    }
    return claims | {f"{algorithm}-corridor-alone": Claim(overrides, 0.0, at_most=True)}


def remembered(algorithm: str) -> dict[str, Claim]:
    """Return that a recurrent algorithm remembers a sign over 20 steps; without a recurrent layer it guesses."""
    tasks = {
        "recall": (f"algorithm={algorithm}", "env=recall", "env.kwargs.gap=20", "stop.env_steps=30_000"),
        "tmaze": (f"algorithm={algorithm}", "env=tmaze", "env.kwargs.length=20", "stop.env_steps=60_000"),
    }
    claims: dict[str, Claim] = {}
    for task, overrides in tasks.items():
        options: dict[str, Any] = {"unit": FLIPPED, "measured": succeeded}
        claims[f"{algorithm}-{task}"] = Claim(overrides, 0.95, **options)
        claims[f"{algorithm}-{task}-alone"] = Claim((*overrides, ALONE), GUESSED, at_most=True, **options)
    return claims


WIDE = ("algorithm=sac", "env=pendulum", "algorithm.hidden=[256,256]", "stop.env_steps=15_000")
BF16 = {  # networks that are wide enough for it, and the share that one seed may lack by chance
    "sac-pendulum": (WIDE, 0.25),
    "sac-halfcheetah": (("algorithm=sac", "env=halfcheetah", "stop.env_steps=50_000"), 0.3),
    "dqn-cartpole": (("algorithm=dqn", "env=cartpole", "algorithm.hidden=[256,256]", "stop.env_steps=50_000"), 0.05),
}
GRAPH = {  # likewise, as one seed is two runs once their last digits differ
    "sac-pendulum": (WIDE, 0.25),
    "dqn-cartpole": (("algorithm=dqn", "env=cartpole"), 0.05),
    "ppo-cartpole": (("algorithm=ppo", "env=cartpole"), 0.05),
}
SWITCHES = {
    "bf16": ("precision=bf16", "share of the return in float32 that bf16 lacks", BF16),
    "compiled": ("compile=true", "share of the return uncompiled that the compiled run lacks", GRAPH),
}


CLAIMS = {
    **corridor("ppo", "rnd", "icm", steps="24_000", weight="0.01"),
    **corridor("dqn", "rnd", steps="10_000", weight="0.05"),
    "sac-pointmass-diayn": Claim(
        ("algorithm=sac", "env=pointmass", "+with=diayn", "stop.env_steps=6_000"),
        0.9,
        unit="share of steps whose skill is identified",
        measured=answer("skills_identified"),
    ),
    **{
        f"dqn-{kind}-cartpole": Claim((f"preset=dqn_{kind}_cartpole", "stop.env_steps=50_000"), 475.0, enough=4)
        for kind in ("dueling", "quantile", "hlgauss")
    },
    "dqn-cartpole": Claim(("algorithm=dqn", "env=cartpole", "stop.env_steps=50_000"), 475.0),
    "sac-cartpole": Claim(("algorithm=sac", "env=cartpole", "stop.env_steps=60_000"), 475.0, enough=4),
    "sac-pendulum": Claim(("algorithm=sac", "env=pendulum", "stop.env_steps=15_000"), -200.0),
    "td3-pendulum": Claim(("algorithm=td3", "env=pendulum", "stop.env_steps=20_000"), -200.0),
    "sac-hlgauss-pendulum": Claim(("preset=sac_hlgauss_pendulum", "stop.env_steps=20_000"), -200.0, enough=4),
    **{
        f"{name}-pendulum": Claim((f"algorithm={name}", "env=pendulum", "stop.env_steps=20_000"), -250.0, enough=4)
        for name in ("qrsac", "dsac", "doac")
    },
    "ddpg-pendulum": Claim(("algorithm=ddpg", "env=pendulum", "stop.env_steps=20_000"), -250.0, enough=4),
    "mdq-pendulum": Claim(("algorithm=mdq", "env=pendulum", "stop.env_steps=20_000"), -300.0, enough=4),
    "sarsa-pendulum": Claim(("algorithm=sarsa", "env=pendulum", "stop.env_steps=20_000"), -250.0, enough=4),
    "oac-pendulum": Claim(("algorithm=oac", "env=pendulum", "stop.env_steps=20_000"), -250.0, enough=4),
    "taac-pendulum": Claim(("algorithm=taac", "env=pendulum", "stop.env_steps=20_000"), -250.0, enough=4),
    "action-repeat-pendulum": Claim(
        ("algorithm=action_repeat", "env=pendulum", "stop.env_steps=20_000"), -300.0, enough=4
    ),
    "seditor-constrained": Claim(
        ("algorithm=seditor", "env=constrainedbandit", "stop.env_steps=20_000"),
        0.2,
        unit="distance of the cost from what is allowed, as a share of that",
        measured=constraint_distance,
        enough=4,
        at_most=True,
    ),
    "seditor-cliff": Claim(
        (
            *("algorithm=seditor", "env=constrainedbandit", "+env.kwargs.cliff=0.5", "lagrangian.lr=0.03"),
            *("lagrangian.thresholds=[null,-0.02]", "stop.env_steps=5_000"),
        ),
        0.9,
        unit="action proposed, where what is done stays below 0.55",
        measured=answer("proposed"),
        enough=4,
    ),
    "ppo-cartpole": Claim(("algorithm=ppo", "env=cartpole", "stop.env_steps=50_000"), 475.0),
    "ppo-pendulum": Claim(
        ("algorithm=ppo", "env=pendulum", "+with=[reward_norm,anneal]", "stop.env_steps=200_000"), -250.0, enough=4
    ),
    "ppo-acrobot": Claim(("algorithm=ppo", "env=acrobot", "stop.env_steps=100_000"), -100.0, enough=4),
    "ppg-cartpole": Claim(("algorithm=ppg", "env=cartpole", "stop.env_steps=100_000"), 475.0, enough=4),
    "trac-cartpole": Claim(("algorithm=trac", "env=cartpole", "stop.env_steps=100_000"), 475.0, enough=4),
    "a2c-cartpole": Claim(("algorithm=a2c", "env=cartpole", "stop.env_steps=150_000"), 475.0, enough=4),
    "ppo-maskedchain": Claim(("algorithm=ppo", "env=maskedchain", "stop.env_steps=20_000"), 9.5),
    "dqn-maskedchain": Claim(("algorithm=dqn", "env=maskedchain", "stop.env_steps=20_000"), 9.5),
    **remembered("dqn"),
    **remembered("sac"),
    "dqn-cartpole-novelocity": Claim(("algorithm=dqn", "env=cartpole_novelocity"), 475.0, enough=4),
    "sac-pendulum-novelocity": Claim(("algorithm=sac", "env=pendulum_novelocity"), -250.0, enough=4),
    "dqn-cartpole-pixels": Claim(("algorithm=dqn", "env=cartpole_pixels"), 200.0, enough=4),
    "ppo-recall": Claim(RECALL, 0.95, unit=FLIPPED, measured=succeeded),
    "ppo-recall-alone": Claim((*RECALL, ALONE), GUESSED, unit=FLIPPED, measured=succeeded, at_most=True),
    "ppo-tmaze": Claim(TMAZE, 0.95, unit=FLIPPED, measured=succeeded),
    "ppo-tmaze-alone": Claim((*TMAZE, ALONE), GUESSED, unit=FLIPPED, measured=succeeded, at_most=True),
    "ppo-constrained": Claim(
        (
            *("algorithm=ppo", *CONSTRAINED, f"lagrangian.thresholds=[null,-{ALLOWED}]", "+with=entropy_target"),
            *(*ENTROPY, "+with=anneal", "stop.env_steps=100_000"),
        ),
        0.05,
        unit="distance of the cost from what is allowed, as a share of that",
        measured=constraint_distance,
        at_most=True,
    ),
    "sac-hitthemiddle": Claim(
        ("algorithm=sac", "env=hitthemiddle", "stop.updates=2_000"),
        -5.0,
        unit="mean reward of the last batch",
        measured=answer("last_reward"),
    ),
    "sac-mixedaction": Claim(
        ("algorithm=sac", "env=mixedaction", "stop.env_steps=8_000"),
        0.95 * MixedAction.steps,
    ),
    "dqn-bitflip-hindsight": Claim(
        ("algorithm=dqn", "env=bitflip", "+with=hindsight", "stop.env_steps=10_000"),
        0.95,
        unit=FLIPPED,
        measured=bits_flipped,
    ),
    "dqn-bitflip-alone": Claim(
        ("algorithm=dqn", "env=bitflip", "stop.env_steps=30_000"),
        0.3,
        unit=FLIPPED,
        measured=bits_flipped,
        at_most=True,
    ),
    **{
        f"{name}-{switch}": Claim(
            overrides,
            bar,
            unit=unit,
            measured=lacks_with(override),
            enough=4,
            at_most=True,
        )
        for switch, (override, unit, runs) in SWITCHES.items()
        for name, (overrides, bar) in runs.items()
    },
    "handcrafted-pendulum": Claim((*EXPERT, "env=pendulum"), -250.0),
    "handcrafted-cartpole": Claim((*EXPERT, "env=cartpole"), 500.0),
    "handcrafted-road": Claim(("algorithm=handcrafted", "env=road"), 89.5),
    "handcrafted-thrusters": Claim((*EXPERT, "env=thrusters"), -5.0),
    "bc-pendulum": Claim(
        ("algorithm=bc", "env=pendulum", "stop.updates=3_000"),
        0.05,
        unit="share of the expert's return that the clone lacks",
        measured=behind([*EXPERT, "env=pendulum"]),
        at_most=True,
    ),
    "bc-cartpole": Claim(
        ("algorithm=bc", "env=cartpole", "stop.updates=2_000"),
        475.0,
        measured=cloned([*EXPERT, "env=cartpole"]),
    ),
    "bc-pendulum-half": Claim(
        CLONE,
        0.15,
        unit="share of the return of who wrote the memory, half at random, that the clone lacks",
        measured=behind_behavior(fresh_return),
        at_most=True,
    ),
    "iql-pendulum-half": Claim(
        (*IQL, "+with=offline", "stop.updates=10_000"),
        0.0,
        unit="mean return above that of cloning the same memory",
        measured=above_clone(fresh_return),
        enough=4,
    ),
    "iql-pendulum-then-online": Claim(
        (*IQL, "+with=offline_then_online", "offline.updates=10_000", "stop.env_steps=5_000"),
        0.2,
        unit="share of the offline return that the worst evaluation online lacks",
        measured=lost_online,
        enough=4,
        at_most=True,
    ),
    "bc-noise": Claim(noise("bc", "algorithm.objective=mode"), 0.2, unit=GAIN, measured=answer("gain_error")),
    "causal_bc-noise": Claim(
        noise("causal_bc", "algorithm.window=31", *SLOWLY),
        0.08,
        unit=GAIN,
        measured=answer("gain_error"),
        enough=4,
        at_most=True,
    ),
    "classifier-digits": Claim(
        ("algorithm=classifier", "algorithm.label_smoothing=0.1"), 0.98, unit=ACCURACY, measured=held_out("accuracy")
    ),
    "classifier-digits-mlp": Claim(
        ("algorithm=classifier", "encoder=flat", "algorithm.hidden=[256,256]"),
        0.96,
        unit=ACCURACY,
        measured=held_out("accuracy"),
    ),
    "vae-digits": Claim(
        ("algorithm=vae", "encoder=flat"),
        0.01,
        unit="share by which the ELBO of held-out rows is below that of a plain loop of torch with as many updates",
        measured=behind_loop,
        at_most=True,
    ),
    "vae-gaussian": Claim(
        LINEAR, 0.01, unit="relative distance of the ELBO from the likelihood of PPCA", measured=off_ppca, at_most=True
    ),
    "vq_vae-digits": Claim(
        VQ_VAE, 1.1, unit="squared error of a held-out pixel, over that of k-means", measured=over_kmeans, at_most=True
    ),
    "vq_vae-digits-codes": Claim(
        VQ_VAE, 32.0, unit="perplexity of the codes of held-out rows", measured=held_out("perplexity", "latest")
    ),
    **{
        f"information-{case[0]}-{case[2]}-{case[3]}": Claim(
            information.overrides(case), case[4], unit=information.MISSING, measured=information.missing, at_most=True
        )
        for case in information.CASES
    },
    "dqn-chain-terminated": Claim(
        (*CHAIN, "env.kwargs.ending=terminated"), 0.02, unit=SHARE, measured=answer("chain_error"), at_most=True
    ),
    "dqn-chain-truncated": Claim(
        (*CHAIN, "env.kwargs.ending=truncated"), 0.02, unit=SHARE, measured=answer("chain_error"), at_most=True
    ),
}
