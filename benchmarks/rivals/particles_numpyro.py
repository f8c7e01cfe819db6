"""SVGD by numpyro of a network with one hidden layer: python -m benchmarks.rivals.particles_numpyro WORKS.

WORKS: a JSON file, a list of works that differ in `lr`, `seed` and `rows` only. `rows` is an .npz with `observation`
[B, 1] and `label` [B, 1] to learn from, and `places` [P, 1]. Prints a JSON object with the results: the outputs of all
particles at the places, and the processor seconds of training. The first work compiles for all.

Weights start as torch starts those of a layer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.einstein import SVGD, RBFKernel
from numpyro.optim import Adam

PACKAGES = ("numpyro", "jax", "jaxlib", "numpy")


def outputs_of(weights: Any, observation: Any) -> Any:
    """Return what a network computes, [B, 1] -> [B]."""
    return jnp.tanh(observation @ weights["w1"] + weights["b1"]) @ weights["w2"] + weights["b2"]


def compiled(work: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of key, learning rate and rows, which returns particles: arrays by name."""
    hidden = work["hidden"]
    shapes = {"w1": (1, hidden), "b1": (hidden,), "w2": (hidden,), "b2": ()}
    bounds = {"w1": 1.0, "b1": 1.0, "w2": hidden**-0.5, "b2": hidden**-0.5}  # 1 / √inputs of the layer

    def model(observation: Any, label: Any) -> None:
        prior = {name: dist.Normal(0.0, work["prior"]).expand(shape).to_event() for name, shape in shapes.items()}
        weights = {name: numpyro.sample(name, density) for name, density in prior.items()}
        with numpyro.plate("rows", len(observation)):
            mean = outputs_of(weights, observation)
            numpyro.sample("label", dist.Normal(mean, work["deviation"]), obs=label)

    def initial(site: Any = None) -> Any:
        if site is None:
            return partial(initial)  # its function is asked for
        if site["type"] != "sample" or site["is_observed"]:
            return None
        bound = bounds[site["name"]]
        return jax.random.uniform(site["kwargs"]["rng_key"], shapes[site["name"]], minval=-bound, maxval=bound)

    @jax.jit
    def train(key: Any, lr: Any, observation: Any, label: Any) -> Any:
        options = {"num_stein_particles": work["particles"], "guide_kwargs": {"init_loc_fn": initial}}
        svgd = SVGD(model, Adam(lr), RBFKernel(), **options)
        state = svgd.init(key, observation, label)
        state = jax.lax.fori_loop(0, work["updates"], lambda _, old: svgd.update(old, observation, label)[0], state)
        params = svgd.get_params(state)
        return {name: params[f"{name}_auto_loc"] for name in shapes}

    return train


def main(path: str) -> None:
    """Train for all works, and print the outputs [N, P] of each."""
    works = json.loads(Path(path).read_text())
    train, results = compiled(works[0]), []
    versions = {name: metadata.version(name) for name in PACKAGES}
    for work in works:
        rows = np.load(work["rows"])
        observation, label = jnp.asarray(rows["observation"]), jnp.asarray(rows["label"][:, 0])
        started = time.process_time()
        particles = jax.block_until_ready(train(jax.random.key(work["seed"]), work["lr"], observation, label))
        seconds = time.process_time() - started
        outputs = jax.vmap(outputs_of, in_axes=(0, None))(particles, jnp.asarray(rows["places"]))
        results.append({"outputs": outputs.tolist(), "seconds": seconds, "versions": versions})
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main(sys.argv[1])
