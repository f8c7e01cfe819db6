"""MuZero's networks as the model of a search."""

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.search.agent import SearchModel
from rlrun.algorithms.search.candidates import Candidates, chosen_candidates, is_single
from rlrun.algorithms.search.tree import Node
from rlrun.collect.agents import prepared, to_arrays, to_tensors
from rlrun.compile.calls import NoGrad
from rlrun.core.errors import SpaceError, require_number, require_whole
from rlrun.core.spaces import describe
from rlrun.core.typing import Array, Tree
from rlrun.env.simulator import mixed
from rlrun.nn.muzero import MuZeroNetwork


class LearnedModel(SearchModel):
    """A model for searches: MuZero's predictions for observations and the actions after them, as arrays.

    A state is an array of latents [n, Z], or a dict: {"latent"; "candidates" [n, K, W] and "seed" [n] of searches over
    candidates; "sum" and "step" [n] of rewards that are predicted as sums}.

    Args:
        network: predicts.
        candidates: actions of a node; None = all of a single choice.
        discount: γ of a step.
        players: 2 = two players take turns in a zero-sum game.
        end_logit: an episode ends where the predicted logit of its end is above this.
        period: rewards are predicted as running sums, reset after so many steps; 0 = never; None = one by one.
        device: of the network.
    """

    def __init__(
        self,
        network: MuZeroNetwork,
        *,
        candidates: Candidates | None = None,
        discount: float = 0.997,
        players: int = 1,
        end_logit: float = 1.0,
        period: int | None = None,
        device: str = "cpu",
    ) -> None:
        require_number("end_logit", end_logit)
        if period is not None:
            require_whole("period", period, 0)
        self.network, self.end_logit, self.period = network, end_logit, period
        self.factor = discount if players == 1 else -discount
        self.device = device
        if candidates is None or not candidates.drawn:
            if not is_single(network.codec):
                space = describe(network.codec.space)
                wanted = "wanted candidates: ${candidates}, as actions are more than one choice"
                raise SpaceError(f"agent.model: {wanted}; the action space is {space}")
            self._choices = torch.eye(network.codec.width)
        else:
            self.candidates = candidates

    def root(self, observation: Tree, rng: np.random.Generator | None = None) -> Node:
        return self.node(prepared(to_tensors(observation, self.device), self.preprocess), rng)

    def node(self, observation: Tree, rng: np.random.Generator | None = None) -> Node:
        """Return the nodes of preprocessed observations [N, …], trees of tensors.

        rng: draws the seeds of candidates; None = candidates of roots are quantiles, and all seeds are 0.
        """
        codec = self.network.codec
        with NoGrad():
            latent = self.network.represent(observation)
            count = len(latent)
            if self.candidates is None:
                node = self._node(latent)
                allowed = codec.allowed(observation).cpu().numpy() if codec.masked else True
                node = node._replace(logits=np.where(allowed, node.logits, -np.inf))
            else:
                seeds = None if rng is None else rng.integers(1 << 63, size=count, dtype=np.uint64)
                node = self._node(latent, seeds, observation)
        node = node._replace(discount=np.full(count, self.factor))  # a root has not ended, even if that is predicted
        if self.period is None:
            return node
        return node._replace(state=_with(node.state, sum=np.zeros(count), step=np.zeros(count, np.int64)))

    def __call__(self, state: Tree, action: Array) -> Node:
        """Return the nodes that follow actions [n], or candidates at these indices, in states [n, …]."""
        latent = torch.from_numpy(state["latent"] if isinstance(state, dict) else state).to(self.device)
        with NoGrad():
            if self.candidates is None:
                choice = self._choices[torch.from_numpy(action)].to(self.device)
                node = self._node(self.network.step(latent, choice))
            else:
                rows = torch.from_numpy(chosen_candidates(state["candidates"], action)).to(self.device)
                taken = self.network.codec.coded(self.network.codec.from_rows(rows))
                node = self._node(self.network.step(latent, taken), mixed(state["seed"], action))
        if self.period is None:
            return node
        step = state["step"] + 1
        again = step % self.period == 0 if self.period else np.zeros(len(step), np.bool_)
        reward = node.reward - np.where(again, 0.0, state["sum"])
        return node._replace(reward=reward, state=_with(node.state, sum=node.reward, step=step))

    def _node(self, latent: Tensor, seeds: Array | None = None, observation: Tree = None) -> Node:
        predicted = self.network.decoded(latent)
        value = to_arrays(predicted.value)
        discount = np.full(len(latent), self.factor)
        paid = np.zeros(len(latent)) if predicted.reward is None else to_arrays(predicted.reward)
        if predicted.ended is not None:
            over = to_arrays(predicted.ended) > self.end_logit
            discount[over] = 0.0
            if predicted.reward is None:  # the value of an end is the last reward, for the player to move
                paid[over] = np.sign(self.factor) * value[over]
        if self.candidates is None:
            return Node(to_arrays(latent), to_arrays(predicted.policy), value, paid, discount)
        heads = self.network.head(predicted.policy, observation)
        rows, logits = self.candidates(self.network.head, heads, seeds)
        state = {
            "latent": to_arrays(latent),
            "candidates": rows,
            "seed": np.zeros(len(latent), np.uint64) if seeds is None else seeds,
        }
        return Node(state, logits, value, paid, discount)


def _with(state: Tree, **parts: Array) -> Tree:
    return {**(state if isinstance(state, dict) else {"latent": state}), **parts}
