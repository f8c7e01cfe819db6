"""Exploration by noise: around actions, colored in time, or around a mean shifted by critics."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.collect.agents import (
    Acting,
    Agent,
    PolicyAgent,
    Preprocess,
    RandomAgent,
    RecurrentPolicy,
    Response,
    initial_state,
    prepared,
    to_arrays,
    to_tensors,
    where,
)
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, SpaceError, require_number
from rlrun.core.schedules import Schedule, as_schedule
from rlrun.core.spaces import Box, Space, Spaces, describe, flat, leaves, map_tree, row_count
from rlrun.core.typing import Array, Tree
from rlrun.nn import Critics, ImplicitCritics, SquashedGaussian, value_head_of
from rlrun.nn.remembering import Remembering
from rlrun.ops.distributions import GAUSSIANS, Kind, drawn, given, gumbel_argmax, is_given, normal_like, squashed_action

TINY = 1e-12  # added to the length of a gradient, which may be 0


class Noisy(PolicyAgent):
    """Adds noise to a policy's actions, and clips them to the bounds.

    This is Ornstein-Uhlenbeck noise, as in arXiv 1509.02971: `1 - damping` times the noise of the env's previous step,
    plus a normal draw. With damping 1 steps are independent. Noise continues over the ends of episodes. It is added to
    random actions of a warm-up, too.

    Args:
        policy: the network.
        critics: trained with it; the agent of a recurrent policy keeps their state, too.
        deviation: of the normal draws, for actions from -1 to 1; a number or a schedule over environment steps, all
            envs together.
        damping: share of the noise that is lost from step to step, above 0.
        spaces: of the environment.
        seed: of the noise.
        random: probability of a uniformly random action in place of the policy's.
        device: of the policy.
        preprocess: functions of observations that the memory applies, too: one, or several by name.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: `damping` is outside (0, 1], or `random` outside [0, 1].
    """

    def __init__(
        self,
        policy: Acting | RecurrentPolicy,
        *,
        critics: nn.Module | None = None,
        deviation: float | Schedule,
        damping: float = 1.0,
        spaces: Spaces,
        seed: int,
        random: float = 0.0,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        if not all(isinstance(leaf, Box) for _, leaf in leaves(spaces.action)):
            raise SpaceError(f"agent: noise is for actions that are numbers; here they are {describe(spaces.action)}")
        if not callable(deviation):
            require_number("agent.deviation", deviation, 0)
        if not 0.0 < damping <= 1.0:
            raise ConfigError(f"agent.damping: wanted a share above 0 and at most 1, got {damping}")
        if not 0.0 <= random <= 1.0:
            raise ConfigError(f"agent.random: wanted a probability from 0 to 1, got {random}")
        super().__init__(policy, critics=critics, device=device, preprocess=preprocess)
        self.deviation = as_schedule(deviation)
        self.damping = damping
        self.steps = 0  # environment steps acted in while exploring
        self.rng = np.random.default_rng(seed)
        self.random = random
        self._uniform = RandomAgent(spaces.action, seed=seed)
        self._uniform.rng = self.rng  # one generator to save
        self._noise: list[Array] = []  # [N, …] of each leaf, if it is correlated in time

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        response = super().__call__(observation, state, explore=False)
        if explore:
            response["action"] = self.with_noise(response["action"])
            if self.random:
                count = row_count(observation)
                chosen = self.rng.random(count) < self.random
                response["action"] = where(chosen, self._uniform.draw(count)["action"], response["action"])
            self.steps += row_count(response["action"]) * distributed.world_size()
        return response

    def with_noise(self, action: Tree) -> Tree:
        """Return actions [N, …] plus the noise of a step, clipped to the bounds."""
        leaf = iter(self._draw(list(flat(action).values())))
        return map_tree(lambda part: np.clip(part + next(leaf), -1.0, 1.0), action)

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return a uniformly random agent with this noise.

        Some of its actions are at a bound, like many of a good policy.
        """
        return _NoisyRandom(space, seed=seed, noisy=self)

    def _draw(self, action: list[Array]) -> list[Array]:
        """Return the noise of this step, in the shapes of an action's leaves [N, …]."""
        deviation = self.deviation(self.steps)
        if is_given():  # another source of noise replaces the draws
            return [normal_like(torch.from_numpy(part)).numpy() * np.float32(deviation) for part in action]
        noise = [self._normal(part.shape, deviation) for part in action]
        if self.damping == 1.0:
            return noise
        if [part.shape for part in self._noise] == [part.shape for part in action]:
            decay = np.float32(1.0 - self.damping)
            noise = [decay * before + new for before, new in zip(self._noise, noise, strict=True)]
        self._noise = noise
        return noise

    def _normal(self, shape: tuple[int, ...], deviation: float) -> Array:
        return self.rng.standard_normal(shape, np.float32) * np.float32(deviation)

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree | None]:
        """Return an action and the state after it, all trees of tensors; exports contain this method.

        With `explore`, noise is independent at each step, with the stationary deviation of the correlated noise.
        """
        action, after = super().respond(observation, state, False)
        if not explore:
            return action, after
        size = self.deviation(self.steps) / math.sqrt(1.0 - (1.0 - self.damping) ** 2)
        noisy = map_tree(lambda part: (part + size * normal_like(part)).clamp(-1.0, 1.0), action)
        if not self.random:
            return noisy, after
        odds = torch.tensor([1.0 - self.random, self.random], device=self.device).log().expand(row_count(action), 2)
        uniform = map_tree(lambda part: torch.erf(normal_like(part) * math.sqrt(0.5)), action)
        return where(gumbel_argmax(odds) == 1, uniform, noisy), after

    @property
    def metrics(self) -> dict[str, float]:
        return {"explore/deviation": self.deviation(self.steps)}

    def state_dict(self) -> dict[str, Any]:
        noise = [torch.from_numpy(part.copy()) for part in self._noise]
        return {"steps": self.steps, "rng": self.rng.bit_generator.state, "noise": noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.rng.bit_generator.state = state["rng"]
        self._noise = [part.numpy().copy() for part in state["noise"]]


class _NoisyRandom(RandomAgent):
    """Acts uniformly at random, with an agent's noise; a copy gets its agent by `act_for`."""

    def __init__(self, space: Space, *, seed: int, noisy: Noisy) -> None:
        super().__init__(space, seed=seed)
        self._noisy = noisy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noisy": None}

    def act_for(self, agent: Any) -> None:
        self._noisy = agent

    def draw(self, count: int) -> Response:
        return {"action": self._noisy.with_noise(super().draw(count)["action"])}


class ColoredNoise:
    """Replaces an agent's normal noise by colored noise (Eberhard et al. 2023, "Pink noise is all you need").

    Each episode has one sequence for each number of an action. The noise of a single step stays normal.

    Args:
        agent: its normal draws are replaced: SAC's, or those around a deterministic action, with their damping.
        spaces: of the environment.
        id: registered id of the environment, for its time limit.
        beta: exponent: a frequency f has the power f^-beta.
        length: steps of a sequence; None = the time limit of an episode, else 1,000.
        seed: of the sequences.

    Raises:
        SpaceError: no part of the action is a number.
        ConfigError: the agent keeps a state, or does not draw normal noise, or a number is out of range.
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
        self.length = (getattr(spec, "max_episode_steps", None) or 1_000) if length is None else length
        if beta < 0.0 or self.length < 2:
            raise ConfigError(f"colored_noise: wanted beta >= 0 and length >= 2, got {beta} and {self.length}")
        self.agent: Any = agent
        self.beta = beta
        self.rng = np.random.default_rng(seed)
        self.outputs = (*agent.outputs, "state")
        self._sequences: list[Array] = []  # [N, length, …] for each draw of the agent in a step

    def __getattr__(self, name: str) -> Any:
        if name == "agent":  # not set yet, as during a copy
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
        """Return the noise of a draw at each environment's step [N]; draw a new sequence at its first step."""
        fresh = np.flatnonzero(step == 0)
        if number == len(self._sequences):
            self._sequences.append(np.zeros((0, 0), np.float32))
        sequences = self._sequences[number]
        if sequences.shape[:2] != (shape[0], self.length):  # new, or of a run with other numbers
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
        self.rng.bit_generator.state = state["rng"]
        self._sequences = [part.numpy().copy() for part in state["sequences"]]


def colored(rng: np.random.Generator, size: tuple[int, ...], *, length: int, beta: float) -> Array:
    """Draw sequences [n, length, …] of mean 0 and variance 1 for a size [n, …] (after Timmer and König 1995)."""
    frequency = np.fft.rfftfreq(length)
    frequency[0] = frequency[1]  # the constant part counts as the lowest frequency
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


class Optimistic(PolicyAgent, ABC):
    """Moves the mean of a policy along the gradient of an upper bound of its value; a subclass defines `upper`.

    Without exploration it acts like the policy. An export also draws from the policy itself: the shift needs gradients,
    which an exported file lacks.

    Args:
        policy: the network that learns.
        gaussian: its distribution.
        critics: their upper bound is increased.
        shift: δ, shift of the mean in standard deviations.
        optimism: β, number of the critics' deviations added to their mean.
        device: of the networks.
        preprocess: functions of observations that the memory applies, too: one, or several by name.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: the distribution is truncated, or that of another policy.
    """

    def __init__(
        self,
        policy: Acting,
        *,
        gaussian: SquashedGaussian | None,
        critics: Critics | ImplicitCritics,
        shift: float = 6.86,
        optimism: float = 4.66,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        if gaussian is None or critics.codec.discrete:
            space = describe(critics.codec.space)
            raise SpaceError(f"agent: optimism moves actions that are numbers; here they are {space}")
        require_number("agent.shift", shift, 0)
        if getattr(gaussian, "distribution", None) is GAUSSIANS["truncated"]:
            raise ConfigError("networks.policy.distribution: optimism moves a squashed normal; remove it here")
        if getattr(policy, "gaussian", gaussian) is not gaussian:
            raise ConfigError("agent: optimism moves the policy that learns; remove +with=smoothed_policy here")
        super().__init__(policy, device=device, preprocess=preprocess)
        self.gaussian = gaussian
        self.critics = critics
        _, self.value_head = value_head_of(critics)
        self.shift = shift
        self.optimism = optimism

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if not explore:
            return super().__call__(observation, state, explore=False)
        inputs = prepared(to_tensors(observation, self.device), self.preprocess)
        after: Response = {}
        if self.recurrent:
            with self.acting():
                inputs, state_after = cast(Remembering, self.policy).stepped(inputs, to_tensors(state, self.device))
            after = {"state": to_arrays(state_after)}
        with self.acting():
            mean, log_std = self.exploring(inputs)
        action = squashed_action(mean, log_std, normal_like(mean))
        return {"action": to_arrays(self.critics.codec.join(action, None)), **after}

    def exploring(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return mean μ_E and log_std [B, A] of the exploring normal, before the tanh."""
        mean, log_std = self.gaussian.normal(observation)
        slope = self._slope(observation, mean)
        variance = (2.0 * log_std).exp()
        length = (variance * slope.square()).sum(-1, keepdim=True).sqrt()
        return mean + self.shift * variance * slope / (length + TINY), log_std

    @abstractmethod
    def upper(self, values: Tensor) -> Tensor:
        """Return the upper bound [B] from the critics' values [M, B]."""

    def _slope(self, observation: Tree, mean: Tensor) -> Tensor:
        """Return the gradient [B, A] of the upper bound at the means; parameters get no gradients."""
        training = self.critics.training
        self.critics.eval()  # no dropout
        with torch.enable_grad():
            point = mean.detach().requires_grad_()
            upper = self.upper(self.value_head.weighed(self.critics(observation, point.tanh())))
            slope = torch.autograd.grad(upper.sum(), point)[0]  # rows do not depend on each other
        self.critics.train(training)
        return slope
