"""Learning from data alone, and what it is compared with: a plain loop of torch, k-means, probabilistic PCA.

python -m benchmarks.latents loop SEED         a VAE of digits by torch alone; ELBO of the rows that are held out
python -m benchmarks.latents kmeans SEED       k-means of digits with 64 centers; squared error of a held-out pixel
python -m benchmarks.latents ppca FILE         writes rows; the mean log-likelihood of held-out ones by PPCA
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.process import run, run_for_json
from rlrun.memory import Split, digits

LATENT, HIDDEN, BATCH, UPDATES, RATE = 8, 256, 64, 2_000, 1e-3  # as in conf/algorithm/vae.yaml
CENTERS = 64
ROWS, NUMBERS, SIGNALS, NOISE = 5_000, 10, 3, 0.5  # of a Gaussian with three directions of more than noise


def pixels() -> tuple[Tensor, Tensor]:
    """Return the digits that are learned from and those that are held out, [N, 64] from 0 to 1."""
    split = Split(digits(), fraction=0.2, stratify="label", seed=0)
    parts = [part.batch(np.arange(len(part)))["observation"] for part in (split.train, split.held_out)]
    train, test = (part.flatten(1).float() / 255.0 for part in parts)
    return train, test


def loop(seed: int) -> float:
    """Train a variational autoencoder as a tutorial would; return the mean ELBO of held-out rows."""
    torch.manual_seed(seed)
    train, test = pixels()
    encoder = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
    decoder = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 64))

    def elbo(x: Tensor) -> Tensor:
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        likelihood = -F.binary_cross_entropy_with_logits(decoder(z), x, reduction="none").sum(-1)
        return likelihood - 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(-1)

    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    batches = (rows for _ in range(UPDATES) for rows in torch.randperm(len(train)).split(BATCH))
    for _, rows in zip(range(UPDATES), batches, strict=False):
        optimizer.zero_grad()
        (-elbo(train[rows]).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        return float(elbo(test).mean())


def kmeans(seed: int) -> float:
    """Return the squared error of a held-out pixel by the nearest of the centers."""
    from sklearn.cluster import KMeans

    train, test = (part.numpy() for part in pixels())
    fit = KMeans(CENTERS, n_init=10, random_state=seed).fit(train)
    return float(((test - fit.cluster_centers_[fit.predict(test)]) ** 2).mean())


def ppca(path: str) -> float:
    """Write Gaussian rows; return the mean log-likelihood of held-out ones under the PPCA of the others.

    Tipping and Bishop 1999, doi 10.1111/1467-9868.00196, equations 7 and 8.
    """
    draw = np.random.default_rng(0)
    signals = draw.normal(size=(ROWS, SIGNALS)) @ draw.normal(size=(SIGNALS, NUMBERS))
    rows = (signals + NOISE * draw.normal(size=(ROWS, NUMBERS)) + 1.0).astype(np.float32)
    np.savez(path, observation=rows)
    split = Split(path, fraction=0.2, seed=0)
    train, test = (part.batch(np.arange(len(part)))["observation"].double() for part in (split.train, split.held_out))
    values, vectors = torch.linalg.eigh(torch.cov(train.T, correction=0))  # the smallest first
    noise = values[:-SIGNALS].mean()
    factors = vectors[:, -SIGNALS:] * (values[-SIGNALS:] - noise).sqrt()
    covariance = factors @ factors.T + noise * torch.eye(NUMBERS, dtype=torch.float64)
    return float(torch.distributions.MultivariateNormal(train.mean(0), covariance).log_prob(test).mean())


def judged(overrides: list[str], folder: Path, *options: str, checkpoint: str = "best") -> dict[str, float]:
    """Train without an environment; return the metrics of a checkpoint on the rows that are held out."""
    run_dir = folder / "run"
    run(["-m", "rlrun", "train", *overrides, "logger=[]", "--run-dir", str(run_dir)], folder=folder)
    command = ["-m", "rlrun", "eval", str(run_dir), "--checkpoint", checkpoint, *options, "--json"]
    metrics: dict[str, float] = run_for_json(command, folder=folder)["metrics"]
    return metrics


def held_out(metric: str, checkpoint: str = "best", *options: str) -> Callable[[list[str], Path], float]:
    """Return a measurement that trains without an environment; a metric of the rows that are held out.

    options: of `rlrun eval`.
    """

    def measured(overrides: list[str], folder: Path) -> float:
        return float(judged(overrides, folder, *options, checkpoint=checkpoint)[metric])

    return measured


def behind_loop(overrides: list[str], folder: Path) -> float:
    """Return the share by which the ELBO after training is below that of the plain loop with the same seed."""
    plain = _compared("loop", _seed(overrides), folder)
    return (plain - held_out("elbo", "latest")(overrides, folder)) / abs(plain)


def over_kmeans(overrides: list[str], folder: Path) -> float:
    """Return the squared error of a pixel after training, over that of k-means with the same seed."""
    return held_out("squared_error", "latest")(overrides, folder) / _compared("kmeans", _seed(overrides), folder)


def off_ppca(overrides: list[str], folder: Path) -> float:
    """Return how far the ELBO after training is from the log-likelihood of PPCA, as a share of it."""
    path = folder / "rows.npz"
    exact = _compared("ppca", str(path), folder)
    elbo = held_out("elbo", "latest")([*overrides, f"data.dataset={path}"], folder)
    return abs(elbo / exact - 1.0)


def _compared(kind: str, argument: str, folder: Path) -> float:
    return float(run_for_json(["-m", "benchmarks.latents", kind, argument], folder=folder)["value"])


def _seed(overrides: list[str]) -> str:
    return next(override for override in overrides if override.startswith("seed=")).removeprefix("seed=")


def main(kind: str, argument: str) -> None:
    """Print one comparison as JSON."""
    torch.set_num_threads(1)
    measures: dict[str, Any] = {"loop": lambda: loop(int(argument)), "kmeans": lambda: kmeans(int(argument))}
    measures["ppca"] = lambda: ppca(argument)
    value = measures[kind]()
    assert math.isfinite(value)
    print(json.dumps({"value": value}))


if __name__ == "__main__":
    main(*sys.argv[1:])
