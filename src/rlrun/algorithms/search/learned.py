"""Learned networks as the model of a search."""

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.search.agent import SearchModel
from rlrun.algorithms.search.tree import Node
from rlrun.collect.agents import prepared, to_arrays, to_tensors
from rlrun.compile.calls import NoGrad
from rlrun.core.errors import require_number, require_whole
from rlrun.core.typing import Array, Tree
from rlrun.nn.muzero import MuZeroNetwork


class LearnedModel(SearchModel):
    """What MuZero's networks say of observations and of the actions that follow, in arrays.

    Args:
        network: that predicts.
        discount: γ of a step.
        players: 2 = two take turns, each with minus the rewards of the other.
        end_logit: a predicted end counts from this logit on.
        period: rewards are predicted as sums that begin again after so many steps; 0 = never; None = one by one.
        device: of the network.
    """

    def __init__(
        self,
        network: MuZeroNetwork,
        *,
        discount: float = 0.997,
        players: int = 1,
        end_logit: float = 1.0,
        period: int | None = None,
        device: str = "cpu",
    ) -> None:
        require_number("algorithm.end_logit", end_logit)
        if period is not None:
            require_whole("algorithm.reward_sums", period, 0)
        self.network, self.end_logit, self.period = network, end_logit, period
        self.factor = discount if players == 1 else -discount
        self.device, self._choices = device, torch.eye(network.actions)

    def root(self, observation: Tree) -> Node:
        """Return the nodes of observations [N, …], trees of arrays; logits of forbidden actions are -inf."""
        return self.node(prepared(to_tensors(observation, self.device), self.preprocess))

    def node(self, observation: Tree) -> Node:
        """Return the nodes of observations [N, …], trees of tensors, as networks read them."""
        codec = self.network.codec
        with NoGrad():
            node = self._node(self.network.represent(observation))
            allowed = codec.allowed(observation).cpu().numpy() if codec.masked else True
        never = np.full(len(node.value), self.factor)  # a root is not over, even where that is predicted
        node = node._replace(logits=np.where(allowed, node.logits, -np.inf), discount=never)
        if self.period is None:
            return node
        begun = {"sum": np.zeros(len(never)), "step": np.zeros(len(never), np.int64)}
        return node._replace(state={"latent": node.state, **begun})

    def __call__(self, state: Tree, action: Array) -> Node:
        """Return the nodes that follow actions [n] in states [n, Z]; those of running sums are a dict."""
        latent = state if self.period is None else state["latent"]
        with NoGrad():
            choice = self._choices[torch.from_numpy(action)].to(self.device)
            node = self._node(self.network.step(torch.from_numpy(latent).to(self.device), choice))
        if self.period is None:
            return node
        step = state["step"] + 1
        again = step % self.period == 0 if self.period else np.zeros(len(step), np.bool_)
        reward = node.reward - np.where(again, 0.0, state["sum"])
        return node._replace(reward=reward, state={"latent": node.state, "sum": node.reward, "step": step})

    def _node(self, latent: Tensor) -> Node:
        predicted = self.network.decoded(latent)
        value = to_arrays(predicted.value)
        discount = np.full(len(latent), self.factor)
        paid = np.zeros(len(latent)) if predicted.reward is None else to_arrays(predicted.reward)
        if predicted.ended is not None:
            over = to_arrays(predicted.ended) > self.end_logit
            discount[over] = 0.0
            if predicted.reward is None:  # the value of an end is the last reward, for who moves there
                paid[over] = np.sign(self.factor) * value[over]
        return Node(to_arrays(latent), to_arrays(predicted.policy), value, paid, discount)
