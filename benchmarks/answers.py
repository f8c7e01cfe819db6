"""Train a toy and compare with its known answer: python -m benchmarks.answers CHECK RUN-DIR OVERRIDE…

Prints one JSON object with `value`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rlrun
from rlrun.collect.agents import to_tensors
from rlrun.core.typing import Array
from rlrun.env.toys import Chain, PointMass
from rlrun.memory import Table

SEED = 1_000  # of fresh episodes
SAFE = 0.55  # action on a cliff of 0.5
GAIN, STAYS, STEPS = 0.12, 0.9, 40_000  # of an expert whose noise fades slowly: what it does, and what of its noise
SCALE = 0.1  # of all numbers, so that actions stay within their bounds


def last_reward(run_dir: str, overrides: list[str]) -> float:
    """Return the mean reward of the last batch that was learned from."""
    probe = "+callbacks.last_batch={_target_:benchmarks.probe.LastBatch}"
    result = rlrun.train([*overrides, probe, "evaluation.every=0", "logger=[]"], run_dir=run_dir)
    return float(result.trainer.callbacks["last_batch"].reward.mean())  # type: ignore[attr-defined]


def chain_error(run_dir: str, overrides: list[str]) -> float:
    """Return the largest relative error of the learned values of all states and actions of a chain."""
    result = rlrun.train([*overrides, "evaluation.every=0", "logger=[]"], run_dir=run_dir)
    chain = Chain(**result.config.env.kwargs)
    network = result.trainer.callbacks["q_loss"].network  # type: ignore[attr-defined]
    with torch.no_grad():
        values = network(torch.eye(chain.length)).amin(0)  # [M, states, actions] -> [states, actions]
    discount = result.config.algorithm.discount
    true = torch.tensor([[chain.value(state, discount)] for state in range(chain.length)])
    return float(((values - true) / true).abs().max())


def skills_identified(run_dir: str, overrides: list[str]) -> float:
    """Return the share of steps of fresh episodes, of every skill alike, whose skill the run's network identifies."""
    result = rlrun.train([*overrides, "evaluation.every=0", "logger=[]"], run_dir=run_dir)
    callbacks: Any = result.trainer.callbacks
    network, agent = callbacks["diayn"].network, callbacks["collector"].agent
    normalize = result.trainer.loader.table.adaptors[0].bonuses["diayn"].observation  # type: ignore[attr-defined]
    env = callbacks["collector"].env.copy(200)
    observation, right = env.reset(SEED), []
    for _ in range(PointMass.steps):
        step = env.step(agent(observation, explore=True)["action"])
        observation = step.observation
        with torch.no_grad():
            predicted = network.log_prob(network.rest(normalize(to_tensors(observation)))).argmax(-1).numpy()
        skill = observation["goal"]
        right.append([(predicted == skill)[skill == index].mean() for index in range(network.skills)])
    return float(np.mean(right))


def proposed(run_dir: str, overrides: list[str]) -> float:
    """Return the action that a safety editor's policy proposes at best, or 0 where what it does of it is not safe."""
    result = rlrun.train([*overrides, "evaluation.every=0", "logger=[]"], run_dir=run_dir)
    policy: Any = result.trainer.callbacks["collector"].agent.policy  # type: ignore[attr-defined]
    with torch.no_grad():
        observation = torch.ones(1, 1)
        edited = float(policy.act(observation, explore=False))
        action = float(policy.utility.mode(observation))
    return action if abs(edited) <= SAFE else 0.0


def noisy_expert(path: Path, seed: int) -> Array:
    """Store what an expert did whose noise fades slowly, and moves the next state; return what it saw [STEPS, 1]."""
    generator = np.random.default_rng(seed)
    fresh, drift = generator.standard_normal((2, STEPS))
    noise, state = np.zeros(STEPS), np.zeros(STEPS)
    for step in range(1, STEPS):
        noise[step] = STAYS * noise[step - 1] + (1.0 - STAYS**2) ** 0.5 * fresh[step]
        state[step] = 0.98 * state[step - 1] + 0.4 * noise[step - 1] + drift[step]
    seen, done = ((SCALE * value).astype(np.float32)[:, None] for value in (state, GAIN * state + noise))
    columns = {"observation": {"shape": [1]}, "action": {"shape": [1]}, "reward": {}}
    columns |= {name: {"dtype": "bool"} for name in ("terminated", "truncated")}
    table = Table(length=STEPS, columns=columns)
    never, nothing = np.zeros(STEPS, np.bool_), np.zeros(STEPS, np.float32)
    row = {"observation": seen, "action": done, "reward": nothing, "terminated": never, "truncated": never}
    table.add_episode(row, seen[-1])
    table.store(path)
    return seen


def gain_error(run_dir: str, overrides: list[str]) -> float:
    """Return how far the slope of a cloned policy is from that of an expert whose noise fades slowly, as a share."""
    data = Path(run_dir).with_suffix(".zip")
    seed = next((int(override.partition("=")[2]) for override in overrides if override.startswith("seed=")), 0)
    seen = torch.from_numpy(noisy_expert(data, seed))
    result = rlrun.train([*overrides, f"dataset={data}", "logger=[]"], run_dir=run_dir)
    callbacks: Any = result.trainer.callbacks
    with torch.no_grad():
        done = callbacks["bc" if "bc" in callbacks else "policy"].policy.act(seen, False)
    return abs(float((done * seen).sum() / seen.square().sum()) / GAIN - 1.0)


def drawn(trainer: Any) -> torch.Tensor:
    """Return the particles of a run, [N, D]; 20,000 of a generator."""
    source: Any = trainer.callbacks["particles"].network.eval()
    torch.manual_seed(SEED)
    with torch.no_grad():
        particles: torch.Tensor = source.predict(source.noise(20_000))
    return particles.detach()


def covariance_error(run_dir: str, overrides: list[str]) -> float:
    """Return how far the covariance of particles is from that of their density, as a share of its Frobenius norm."""
    result = rlrun.train([*overrides, "logger=[]"], run_dir=run_dir)
    true = torch.tensor(result.config.energy.covariance)
    return float((torch.cov(drawn(result.trainer).T) - true).norm() / true.norm())


def posterior_error(run_dir: str, overrides: list[str]) -> float:
    """Return the error of the posterior of a linear regression with 3 weights, relative to what is allowed.

    It is the larger of the mean's over 1 % and the covariance's over 5 %, each as a share of its norm.
    """
    seed = next((int(override.partition("=")[2]) for override in overrides if override.startswith("seed=")), 0)
    generator = np.random.default_rng(seed)
    seen = generator.standard_normal((100, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.3, 0.7]])
    label = seen @ np.array([1.0, -2.0, 0.5]) + generator.standard_normal(100)
    data = Path(run_dir).with_suffix(".npz")
    np.savez(data, observation=seen.astype(np.float32), label=label.astype(np.float32)[:, None])
    result = rlrun.train([*overrides, f"data.dataset={data}", "logger=[]"], run_dir=run_dir)
    trainer: Any = result.trainer
    rows = torch.tensor([*range(len(trainer.loader))]).numpy()
    batch = trainer.loader.source.batch(rows)
    inputs, labels = batch["observation"].double(), batch["label"].double()
    covariance = torch.linalg.inv(inputs.T @ inputs)
    mean = (covariance @ inputs.T @ labels).squeeze(-1)
    particles = drawn(trainer).double()
    errors = ((particles.mean(0) - mean).norm() / mean.norm(), (torch.cov(particles.T) - covariance).norm())
    return max(float(errors[0]) / 0.01, float(errors[1] / covariance.norm()) / 0.05)


def model_error(run_dir: str, overrides: list[str]) -> float:
    """Return the error of a model's means in 20 fresh episodes of 199 random steps, relative to what is allowed.

    It is the larger of that of one step over 0.05 and that of ten steps by its own predictions over 0.3, as root mean
    squares in deviations of the observation.
    """
    result = rlrun.train([*overrides, "evaluation.every=0", "logger=[]"], run_dir=run_dir)
    callbacks: Any = result.trainer.callbacks
    env, model = callbacks["collector"].env.copy(20), callbacks["model"].network
    draw, seen, done = np.random.default_rng(SEED), [env.reset(SEED).copy()], []
    for _ in range(199):
        done.append(draw.uniform(-1.0, 1.0, (20, 1)).astype(np.float32))
        seen.append(env.step(done[-1]).observation.copy())  # of a buffer that is used again
    states, actions = torch.from_numpy(np.stack(seen)), torch.from_numpy(np.stack(done))  # [200, 20, D], [199, 20, A]
    deviation = states.flatten(0, 1).std(0)

    def error(steps: int) -> float:
        at = states[: len(states) - steps]
        for step in range(steps):
            action = actions[step : len(actions) - steps + 1 + step]
            at = model.step(at.expand(model.elites, *at.shape), action.expand(model.elites, *action.shape), predictor)
            at = at.state.mean(0)
        return float(((at - states[steps:]) / deviation).square().mean().sqrt())

    with torch.no_grad():
        predictor = model.predictor()
        return max(error(1) / 0.05, error(10) / 0.3)


CHECKS = {
    "model_error": model_error,
    "covariance_error": covariance_error,
    "posterior_error": posterior_error,
    "last_reward": last_reward,
    "chain_error": chain_error,
    "skills_identified": skills_identified,
    "gain_error": gain_error,
    "proposed": proposed,
}


if __name__ == "__main__":
    print(json.dumps({"value": CHECKS[sys.argv[1]](sys.argv[2], sys.argv[3:])}))
