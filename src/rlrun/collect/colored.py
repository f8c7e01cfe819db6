"""Exploring with noise whose steps are correlated in time."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rlrun.collect.agents import Agent, Response, initial_state
from rlrun.errors import ConfigError, SpaceError
from rlrun.generators import put_back
from rlrun.ops.noise import Kind, drawn, given
from rlrun.spaces import Box, Spaces, describe, leaves
from rlrun.typing import Array, Tree


class ColoredNoise:
    """Replace the normal noise of an agent's exploration by colored noise (Eberhard et al. 2023, "Pink noise is all
    you need"): each environment has a sequence an episode, for each number of an action. Single steps stay normal.

    Args:
        agent: what acts: SAC's draw, or the noise around a deterministic action with its damping, is replaced.
        spaces: of the environment.
        id: its registered id, by which its time limit is known.
        beta: a frequency f has the power f^-beta.
        length: steps of a sequence; None = the time limit of an episode, else 1,000.
        seed: of the sequences.

    Raises:
        SpaceError: no part of the action is a number.
        ConfigError: the agent keeps a state, or draws no normal noise, or a number makes no sense.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        spaces: Spaces,
        id: str | None = None,
        beta: float = 1.0,
        length: int | None = None,
        seed: int,
    ) -> None:
        if not any(isinstance(leaf, Box) for _, leaf in leaves(spaces.action)):
            raise SpaceError(f"colored_noise is for actions that are numbers; here they are {describe(spaces.action)}")
        if initial_state(agent, 1) is not None:
            raise ConfigError(f"colored_noise: a {type(agent).__name__} that keeps a state cannot explore with it")
        spec = gymnasium.registry.get((id or "").rpartition(":")[2])
        self.length = length or getattr(spec, "max_episode_steps", None) or 1_000
        if beta < 0.0 or self.length < 2:
            raise ConfigError(f"colored_noise: wanted beta >= 0 and length >= 2, got {beta} and {self.length}")
        self.agent: Any = agent
        self.beta = beta
        self.rng = np.random.default_rng(seed)
        self.outputs = (*agent.outputs, "state")
        self._sequences: list[Array] = []  # [N, length, …] for each draw that the agent makes in a step

    def __getattr__(self, name: str) -> Any:
        if name == "agent":  # not there yet, as while it is copied
            raise AttributeError(name)
        return getattr(self.agent, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self.agent if name == "device" else self, name, value)

    def __call__(self, observation: Tree, state: Array, *, explore: bool = True) -> Response:
        """Act; `state` [N] counts the steps of each episode."""
        if not explore:
            return {**self.agent(observation, explore=False), "state": state}
        step, draws, thread = state % self.length, iter(range(1_000)), threading.get_ident()

        def source(kind: Kind, like: Tensor) -> Tensor:
            if kind != "normal" or threading.get_ident() != thread:  # another thread may learn meanwhile
                return drawn(kind, like)
            return torch.from_numpy(self._noise(next(draws), tuple(like.shape), step)).to(like)

        with given(source):
            response: Response = self.agent(observation, explore=True)
        if next(draws) == 0:
            raise ConfigError(f"colored_noise: a {type(self.agent).__name__} draws no normal noise to be replaced")
        return {**response, "state": state + 1}

    def _noise(self, number: int, shape: tuple[int, ...], step: Array) -> Array:
        """Return the noise of a draw at each environment's step [N]; where a sequence begins, draw it."""
        fresh = np.flatnonzero(step == 0)
        if number == len(self._sequences):
            self._sequences.append(np.zeros((shape[0], self.length, *shape[1:]), np.float32))
            fresh = np.arange(shape[0])
        sequences = self._sequences[number]
        if sequences.shape[:2] != (shape[0], self.length):  # of a run with other numbers
            sequences = self._sequences[number] = np.zeros((shape[0], self.length, *shape[1:]), np.float32)
            fresh = np.arange(shape[0])
        if len(fresh):
            sequences[fresh] = colored(self.rng, (len(fresh), *shape[1:]), length=self.length, beta=self.beta)
        noise: Array = sequences[np.arange(shape[0]), step]
        return noise

    def initial_state(self, count: int) -> Array:
        return np.zeros(count, np.int64)

    def state_dict(self) -> dict[str, Any]:
        sequences = [torch.from_numpy(part.copy()) for part in self._sequences]
        return {"rng": self.rng.bit_generator.state, "sequences": sequences}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        put_back(self.rng, state["rng"])
        self._sequences = [part.numpy().copy() for part in state["sequences"]]


def colored(rng: np.random.Generator, size: tuple[int, ...], *, length: int, beta: float) -> Array:
    """Draw sequences [n, length, …] of mean 0 and variance 1 for a size [n, …] (after Timmer and König 1995)."""
    frequency = np.fft.rfftfreq(length)
    frequency[0] = frequency[1]  # what has no period counts as the longest one
    scale = frequency ** (-beta / 2.0)
    real, imaginary = rng.standard_normal((2, *size, len(scale))) * scale
    ends = [0, -1] if length % 2 == 0 else [0]  # these have no phase, so one number each
    real[..., ends] *= np.sqrt(2.0)
    imaginary[..., ends] = 0.0
    power = 4.0 * scale**2
    power[ends] /= 2.0
    noise = np.fft.irfft(real + 1j * imaginary, n=length) * (length / np.sqrt(power.sum()))
    sequences: Array = np.moveaxis(noise, -1, 1).astype(np.float32)
    return sequences
