"""Advantages and returns of whole windows, by the values that a network gives."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun import ops
from rlrun.memory.adaptors import JUDGES
from rlrun.memory.episodes import map_tree
from rlrun.memory.samplers import Rows
from rlrun.typing import Batch, Tree


class Judge(Protocol):
    """A network that acts and judges, such as `rlrun.nn.ActorCritic`."""

    def value(self, observation: Tree) -> Tensor:
        """Return V(s) [B]."""

    def judge(self, observation: Tree, action: Tree) -> Any:
        """Return log_prob [B] and value [B], among others."""

    def parameters(self) -> Any: ...


class Advantages:
    """Add value, advantage, return_ and, of the network as it is, log_prob to windows [B, T].

    A loader of rollouts calls it once a rollout, before anything is learned from it, so one pass over all rows gives
    what acting would have had to store at each step. A column log_prob that the memory holds stays as it is: then
    the actions may be those of an older network.

    Args:
        network: whose values and probabilities they are.
        discount: γ.
        lambda_: of generalised advantages (arXiv 1506.02438); 1 = returns as far as the window goes, minus values.
        return_lambda: of the returns that values learn; None = the same.
        log_prob: whether anybody asks for it.
        chunk: rows a pass, so that images fit into memory.
    """

    tier = JUDGES
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    requires = ("observation", "action", "reward", "terminated", "truncated", "next_observation")

    def __init__(
        self,
        network: Judge,
        *,
        discount: float,
        lambda_: float,
        return_lambda: float | None = None,
        log_prob: bool = True,
        chunk: int = 4096,
    ) -> None:
        self.network = network
        self.discount = discount
        self.lambda_ = lambda_
        self.return_lambda = return_lambda
        self.log_prob = log_prob
        self.chunk = chunk
        self.provides = ("value", "advantage", "return_", *(("log_prob",) if log_prob else ()))

    @torch.no_grad()
    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        reward, terminated = batch["reward"], batch["terminated"]
        ended = terminated | batch["truncated"]
        if self.log_prob and "log_prob" not in batch:
            value, log_prob = self._over(self._both, reward, batch["observation"], batch["action"])
            found = {"value": value, "log_prob": log_prob}
        else:
            found = {"value": self._over(self._value, reward, batch["observation"])[0]}
        value = found["value"]
        following = self._following(value, ended, batch["next_observation"])
        options = {"terminated": terminated, "ended": ended, "discount": self.discount}
        found["advantage"] = ops.gae(reward, value, following, lambda_=self.lambda_, **options)
        if self.return_lambda is None:
            found["return_"] = found["advantage"] + value
        else:
            found["return_"] = ops.lambda_return(reward, value, following, lambda_=self.return_lambda, **options)
        return batch | found

    def _following(self, value: Tensor, ended: Tensor, next_observation: Tree) -> Tensor:
        """Return the value of each next observation: a step later's, but at ends, where nothing stands a step later."""
        last = ended.clone()
        last[:, -1] = True
        following = torch.cat((value[:, 1:], value[:, :1]), 1)
        seen = map_tree(lambda tensor: tensor[last].unsqueeze(1), next_observation)
        following[last] = self._over(self._value, following[last].unsqueeze(1), seen)[0].squeeze(1)
        return following

    def _value(self, observation: Tree) -> tuple[Tensor]:
        return (self.network.value(observation),)

    def _both(self, observation: Tree, action: Tree) -> tuple[Tensor, Tensor]:
        judged = self.network.judge(observation, action)
        return judged.value, judged.log_prob

    def _over(self, function: Callable[..., tuple[Tensor, ...]], like: Tensor, *trees: Tree) -> list[Tensor]:
        """Call a function of rows [n, …] for trees [B, T, …]; return what it gives as [B, T], where `like` is."""
        device = next(iter(self.network.parameters())).device
        windows, steps = like.shape[:2]
        flat = [map_tree(lambda tensor: tensor.transpose(0, 1).flatten(0, 1).to(device), tree) for tree in trees]
        pieces = [slice(first, first + self.chunk) for first in range(0, windows * steps, self.chunk)]
        parts = [function(*(map_tree(itemgetter(piece), tree) for tree in flat)) for piece in pieces]
        joined = [torch.cat(found) for found in zip(*parts, strict=True)]
        return [found.view(steps, windows).transpose(0, 1).to(like.device) for found in joined]
