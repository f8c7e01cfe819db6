"""Episodes of a frozen agent, on environments of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlrun.collect.agents import Agent, begun_anew, initial_state
from rlrun.env import Env
from rlrun.typing import Array

LANES = 16  # episodes side by side; enough to make acting cheap


@dataclass
class Evaluation:
    """What some episodes came to; episode i was started by `reset(seed=seeds[i])`.

    Where rewards have several numbers, `totals` [episodes][R] has the sums of all of them, and `returns` those of the
    first ones.
    """

    returns: list[float]
    lengths: list[int]
    seeds: list[int]
    totals: list[list[float]] = field(default_factory=list)
    frames: list[list[Any]] = field(default_factory=list, repr=False)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))


def stage(env: Env, episodes: int) -> Env:
    """Return lanes like a run's, separate from it, for so many episodes side by side."""
    lanes = env.copy(num_envs=min(episodes, LANES))
    if lanes.lanes or lanes.num_envs == 1:
        return lanes
    lanes.close()
    return env.copy(num_envs=1)  # an engine of its own that cannot seed one lane alone


def evaluate(
    env: Env,
    agent: Agent,
    *,
    episodes: int,
    seed: int,
    max_steps: int | None = None,
    explore: bool = False,
    watch: Callable[[int, int], None] | None = None,
    abandon: Callable[[], None] | None = None,
) -> Evaluation:
    """Play exactly `episodes` episodes, each counted whichever ends first.

    The lanes begin as they were before the first evaluation on them: wrappers that gather statistics, and
    environments that grow harder, carry nothing over from one to the next.

    Args:
        env: separate from training; its lanes play episodes side by side.
        agent: what acts.
        episodes: how many; episode i starts with `reset(seed=seed + i)`, whatever the number of lanes.
        seed: of the first episode.
        max_steps: end an episode after so many steps.
        explore: act as in training rather than at best.
        watch: called with (lane, episode) at each new frame, for videos.
        abandon: called at each step; may raise to give up.

    Returns:
        Returns and lengths in the order of the episodes.
    """
    lanes = env.num_envs
    playing = np.arange(lanes)  # lane -> episode
    pending = lanes
    numbers = env.spaces.rewards
    totals = np.zeros((episodes, numbers) if numbers else episodes)
    lengths = np.zeros(episodes, dtype=np.int64)
    active = playing < episodes
    env.renew()
    observation = env.reset([seed + int(episode) for episode in playing])
    state = initial = initial_state(agent, lanes)
    with still(agent):
        while active.any():
            if abandon is not None:
                abandon()
            _watch(watch, playing, active)
            response = agent(observation, state, explore=explore)
            step = env.step(response["action"])
            totals[playing[active]] += step.reward[active]
            lengths[playing[active]] += 1
            ended = step.terminated | step.truncated
            if max_steps is not None:
                ended |= active & (lengths[np.minimum(playing, episodes - 1)] >= max_steps)
            observation = step.observation
            state = None if initial is None else response["state"]
            if ended.any():
                pending = _advance(playing, ended & active, pending, episodes)
                active = playing < episodes
                seeds = [seed + int(playing[lane]) for lane in np.flatnonzero(ended)]  # idle lanes play on, uncounted
                observation = env.reset_lanes(ended, seeds)
                state = begun_anew(state, initial, ended)
    return _evaluation(totals, lengths, seed)


def _evaluation(totals: Array, lengths: Array, seed: int) -> Evaluation:
    """Return what episodes came to, whose rewards sum to totals [E], or [E, R] where these have several numbers."""
    several = totals.ndim > 1
    returns, seeds = totals[:, 0] if several else totals, [seed + i for i in range(len(totals))]
    return Evaluation(returns.tolist(), lengths.tolist(), seeds, totals.tolist() if several else [])


def _advance(playing: Any, ended: Any, pending: int, episodes: int) -> int:
    """Give each lane whose episode ended the next one; past the last, the lane is idle."""
    for lane in np.flatnonzero(ended):
        playing[lane] = pending
        pending += 1
    return pending


def _watch(watch: Callable[[int, int], None] | None, playing: Any, active: Any) -> None:
    if watch is not None:
        for lane in np.flatnonzero(active):
            watch(int(lane), int(playing[lane]))


@contextmanager
def still(agent: Agent) -> Iterator[None]:
    """Put an agent's policy into evaluation mode (no dropout, no moving statistics), and back."""
    policy = getattr(agent, "policy", None)
    if not isinstance(policy, torch.nn.Module):
        yield
        return
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put the process-wide random generators back as they were, whatever happens inside."""
    python, legacy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch_state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
