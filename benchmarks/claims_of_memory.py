"""Claims about an external memory: the copy task, and MERLIN on tasks that show once what matters later."""

from __future__ import annotations

from pathlib import Path

from benchmarks.claims import FLIPPED, Claim, succeeded
from benchmarks.process import run_for_json

MERLIN = ("algorithm=merlin", "stop.env_steps=300_000", "stop.mean_return=1.0", "evaluation.every=10_240")
FAR = ("env=recall", "env.kwargs.gap=64", "stop.env_steps=1_000_000", "stop.mean_return=1.0", "evaluation.every=20_480")
LSTM = ("algorithm=ppo", "algorithm.recurrent=lstm", *FAR)
ENOUGH = 0.9  # return of both


def wrong_bits(overrides: list[str], folder: Path) -> float:
    """Return the share of bits that an LSTM with a memory does not copy."""
    seed = next(word.partition("=")[2] for word in overrides if word.startswith("seed="))
    return float(run_for_json(["-m", "benchmarks.copying", seed], folder=folder)["value"])


def over_lstm(overrides: list[str], folder: Path) -> float:
    """Return how far MERLIN is above PPO with an LSTM at equal steps, or above what is enough for both."""
    ours, theirs = folder / "merlin", folder / "ppo"
    ours.mkdir()
    theirs.mkdir()
    seed = [word for word in overrides if word.startswith("seed=")]
    return succeeded(overrides, ours) - min(succeeded([*LSTM, *seed], theirs), ENOUGH)


def recalls(*overrides: str, bar: float = 0.95, enough: int = 4) -> Claim:
    return Claim((*MERLIN, *overrides), bar, unit=FLIPPED, measured=succeeded, enough=enough)


CLAIMS = {
    "memory-copy": Claim((), 0.01, unit="share of wrong bits", measured=wrong_bits, at_most=True),
    "merlin-recall-short": recalls("env=recall", "env.kwargs.gap=10", bar=0.99, enough=5),
    "merlin-recall": recalls("env=recall", "env.kwargs.gap=20"),
    "merlin-tmaze": recalls("env=tmaze", "env.kwargs.length=20"),
    "merlin-recall-far": Claim(("algorithm=merlin", *FAR), ENOUGH, unit=FLIPPED, measured=succeeded, enough=3),
    "merlin-recall-over-lstm": Claim(
        ("algorithm=merlin", *FAR),
        0.0,
        unit="share of episodes that succeed, less PPO's with an LSTM or 0.9",
        measured=over_lstm,
        enough=4,
    ),
}
