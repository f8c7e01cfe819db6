"""Write `mctx.npz`: random models, and what mctx answers to them. Run it where mctx 0.0.71 is installed."""

from functools import partial
from pathlib import Path

import jax
import mctx
import numpy as np

TABLES, STATES, ACTIONS = 4, 60, 4
GUMBEL = {"all": (32, 4), "half": (20, 2)}  # simulations, considered actions
PLACE = Path(__file__).with_name("mctx.npz")


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Return a model whose states are numbers; odd seeds have two players."""
    rng = np.random.default_rng(seed)
    turn = rng.integers(1 + seed % 2, size=STATES)
    after = rng.integers(STATES, size=(STATES, ACTIONS))
    allowed = rng.random(after.shape) > 0.25
    allowed[:, 2] = True
    return {
        "after": after,
        "reward": rng.normal(size=after.shape),
        "discount": np.where(turn[after] == turn[:, None], 0.9, -0.9) * (rng.random(after.shape) > 0.15),
        "logits": rng.normal(size=after.shape),
        "value": rng.normal(size=STATES),
        "allowed": allowed,
    }


def answers(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return visits of the root's actions for each state as a root, and the policies of Gumbel MuZero."""
    model = {name: jax.numpy.asarray(values) for name, values in table.items()}

    def follow(params, key, action, state):
        after, discount = model["after"][state, action], model["discount"][state, action]
        value = jax.numpy.where(discount == 0, 0.0, model["value"][after])
        reward = model["reward"][state, action]
        output = mctx.RecurrentFnOutput(
            reward=reward, discount=discount, prior_logits=model["logits"][after], value=value
        )
        return output, after

    states = jax.numpy.arange(STATES)
    root = mctx.RootFnOutput(prior_logits=model["logits"], value=model["value"], embedding=states)
    common = ((), jax.random.PRNGKey(0), root, follow)
    scaled = partial(mctx.qtransform_by_min_max, min_value=-12.0, max_value=12.0)
    options = {"invalid_actions": ~model["allowed"]}
    searched = mctx.muzero_policy(*common, num_simulations=32, dirichlet_fraction=0.0, qtransform=scaled, **options)
    answer = {"puct": searched.search_tree.summary().visit_counts}
    for name, (simulations, considered) in GUMBEL.items():
        options |= {"num_simulations": simulations, "max_num_considered_actions": considered, "gumbel_scale": 0.0}
        searched = mctx.gumbel_muzero_policy(*common, **options)
        answer |= {name: searched.search_tree.summary().visit_counts, f"{name}_policy": searched.action_weights}
    return {name: np.asarray(values) for name, values in answer.items()}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    models = [drawn(seed) for seed in range(TABLES)]
    rows = [{**model, **answers(model)} for model in models]
    np.savez_compressed(PLACE, **{name: np.stack([row[name] for row in rows]) for name in rows[0]})
