"""Soft actor-critic over latent actions, which a trained variational autoencoder decodes.

The autoencoder was trained on an expert's actions a, also given observations s (`algorithm=vae`). Its networks are
frozen. Policy and critics see latent actions c in [-1, 1]^L in place of actions:

    a = clip(E[a | z = m c, s], -1, 1),  c ~ π(· | s)           what the environment does
    c = clip(E[z | a, s] / m, -1, 1)                            of stored actions that another policy chose

The losses are those of `sac` beside this file with c in place of a. c = ±1 is m standard deviations of the prior
N(0, 1). Memory stores both the environment's actions and the latent ones, which updates read.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.collect.agents import PolicyAgent, RandomAgent, Response, to_arrays, to_tensors
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Space, Spaces, map_tree, require_continuous, row_count
from rlrun.core.typing import Batch, Tree
from rlrun.memory.table.samplers import Rows
from rlrun.nn import ActionCodec, flatten


class Latents:
    """Latent actions in place of an environment's.

    Args:
        vae: an `rlrun.algorithms.density.vae.VAE` of the column `action`; its parameters are never trained.
        spaces: of the environment.
        multiplier: m, the latent number of c = 1.

    Attributes:
        policy_spaces: with latent actions.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: the multiplier is not above 0.
    """

    def __init__(self, vae: Any, spaces: Spaces, *, multiplier: float = 3.0) -> None:
        require_continuous(spaces.action, "algorithm=genrl")
        if not multiplier > 0.0:
            raise ConfigError(f"algorithm.latent_multiplier: wanted a number above 0, got {multiplier}")
        self.vae = vae.requires_grad_(False).eval()
        self.codec, self.multiplier = ActionCodec(spaces), multiplier
        bound = np.ones(vae.variables, np.float32)
        self.policy_spaces = Spaces(spaces.observation, Box((vae.variables,), -bound, bound), spaces.rewards)

    def decode(self, latent: Tensor, observation: Tree) -> Tree:
        """Return the action tree of latent actions [N, L] at observations."""
        numbers = self.vae.mean(self.vae.decode(self.multiplier * latent, observation))
        return self.codec.join(numbers.clamp(-1.0, 1.0), None)

    @torch.no_grad()
    def encode(self, action: Tree, observation: Tree) -> Tensor:
        """Return the most likely latent actions [..., L] of an action tree at observations, on the action's device."""
        device = self.vae.log_deviation.device
        inputs = map_tree(lambda leaf: leaf.to(device), self.vae.joined(action, observation))
        latent: Tensor = self.vae.posterior(inputs)[0] / self.multiplier
        return latent.clamp(-1.0, 1.0).to(flatten(self.vae.space, action).device)


class LatentAgent(PolicyAgent):
    """An agent whose policy chooses latent actions, and which decodes them.

    Args:
        policy: the network, over latent actions.
        latents: decodes them.
        options: of `PolicyAgent`.

    Raises:
        ConfigError: the policy has a prior that reads the previous action, which memory stores decoded.
    """

    def __init__(self, policy: Any, *, latents: Latents, **options: Any) -> None:
        super().__init__(policy, **options)
        if getattr(getattr(policy, "prior", None), "reads_previous", False):
            raise ConfigError(
                "networks.policy.prior: memory stores decoded actions, and the policy's are latent; remove "
                "+with=same_action_prior"
            )
        self.latents = latents
        self.outputs = (*self.outputs, "latent")

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree | None]:
        latent, after = super().respond(observation, state, explore)
        return self.latents.decode(latent, observation), after

    def _response(self, observation: Tree, state: Tree | None, explore: bool) -> Response:
        inputs = to_tensors(observation, self.device)
        before = to_tensors(state, self.device) if self.recurrent else None
        latent, after = super().respond(inputs, before, explore)
        action = self.latents.decode(latent, inputs)
        response = {"action": to_arrays(action), "latent": to_arrays(latent)}
        return {**response, "state": to_arrays(after)} if self.recurrent else response

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        return RandomLatents(self, seed=seed)


class RandomLatents(RandomAgent):
    """An agent that decodes uniformly random latent actions."""

    outputs = ("action", "latent")

    def __init__(self, agent: LatentAgent, *, seed: int) -> None:
        super().__init__(agent.latents.policy_spaces.action, seed=seed)
        self.latents, self.device = agent.latents, agent.device

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        inputs = to_tensors(observation, self.device)
        latent = self.draw(row_count(observation))["action"]
        action = self.latents.decode(to_tensors(latent, self.device), inputs)
        return {"action": to_arrays(action), "latent": latent}


class LatentActions:
    """An adaptor that replaces actions by latent actions.

    Args:
        latents: has the encoder.
        encode: encode stored actions; otherwise use the column `latent`, which the agent chose.
    """

    replaces = removes = ()
    provides = ("action",)
    rowwise = True

    def __init__(self, latents: Latents, *, encode: bool = False) -> None:
        self.latents, self.encode = latents, encode
        self.requires = ("observation", "action") if encode else ("latent",)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if self.encode:
            return {**batch, "action": self.latents.encode(batch["action"], batch["observation"])}
        return {**batch, "action": batch["latent"]}
