"""Advantages and returns of whole windows, from the values of a network."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.core.errors import require_number
from rlrun.core.spaces import map_tree, row_count
from rlrun.core.typing import Batch, Tree
from rlrun.memory.adaptors.adaptor import EVALUATES_ACTIONS
from rlrun.memory.table.rollout_table import END_STATE
from rlrun.memory.table.samplers import Rows
from rlrun.nn.value_heads import Rewards, require_discounts


class Advantages:
    """Adds value, advantage, return_ and the network's log_prob to windows [B, T].

    Several rewards have a value and a return each, [B, T, R]. Advantages are then weighed by the current weights.

    A loader of rollouts calls it once a rollout, before learning from it. So one pass over all rows replaces storing
    values during acting. A stored column log_prob stays, as the actions may be of an older network. A recurrent network
    processes each env once, from the stored state of its first row.

    Args:
        network: an on-policy network of `rlrun.nn`, or one with the same methods.
        discount: γ, or one for each reward.
        lambda_: of generalized advantages (arXiv 1506.02438); 1 = returns within the window, minus values.
        return_lambda: λ of the returns that values learn; None = the same.
        log_prob: False = log-probabilities are not computed.
        v_trace: weigh by the probability ratio of the network to an older one, whose log_prob is in the memory (arXiv
            1802.01561). `lambda_` is then that of its traces and returns.
        around: context of passes through the network; the context of updates makes their first ratios exactly 1.
    """

    tier = EVALUATES_ACTIONS
    chunk = 4096  # rows in one pass through the network
    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    def __init__(
        self,
        network: Any,
        *,
        discount: float | Sequence[float],
        lambda_: float,
        return_lambda: float | None = None,
        log_prob: bool = True,
        v_trace: bool = False,
        around: AbstractContextManager[object] = nullcontext(),  # noqa: B008, as it holds nothing
    ) -> None:
        self.network = network
        self.rewards: Rewards | None = getattr(network, "rewards", None)
        require_discounts(discount, self.rewards)
        for name, share in {
            "lambda": lambda_,
            "return_lambda": lambda_ if return_lambda is None else return_lambda,
        }.items():
            require_number(name, share, 0, 1)
        self.discount = discount
        self.lambda_ = lambda_
        self.return_lambda = return_lambda
        self.log_prob = log_prob
        self.v_trace = v_trace
        self.around = around
        self.recurrent = bool(getattr(network, "state_size", 0))
        self.follows_actions = self.recurrent and getattr(network, "follows_actions", False)
        needed = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
        self.requires = (*needed, "state") if self.recurrent else needed
        self.provides = ("value", "advantage", "return_", *(("log_prob",) if log_prob else ()))

    @torch.no_grad()
    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        reward, terminated = batch["reward"], batch["terminated"]
        episode_end = terminated | batch["truncated"]
        stored = batch.get("log_prob")
        seen = (batch["observation"], batch["action"])
        before: tuple[Tree, ...] = ()
        if self.recurrent:
            void = ~batch["valid"] if "valid" in batch else torch.zeros_like(episode_end)
            before = (map_tree(lambda tensor: tensor[:, 0], batch["state"]), episode_end | void)
        compares = self.v_trace or (self.log_prob and stored is None)
        if compares or self.follows_actions:
            value, log_prob = self._over(self._both, reward, *seen, *before)
            entries = {"value": value, **({"log_prob": log_prob} if compares else {})}
        else:
            value = self._over(self._value, reward, seen[0], *before)[0]
            entries = {"value": value}
        following = self._following(value, episode_end, batch)
        discount = ops.discounts(self.discount, like=reward)
        options: dict[str, Any] = {"terminated": terminated, "episode_end": episode_end, "discount": discount}
        if self.v_trace:
            log_ratio = torch.zeros_like(entries["log_prob"]) if stored is None else entries["log_prob"] - stored
            targets = ops.v_trace(reward, value, following, log_ratio, lambda_=self.lambda_, **options)
            entries["return_"], entries["advantage"] = targets
            entries |= {} if stored is None else {"log_prob": stored}
        else:
            entries["advantage"] = ops.gae(reward, value, following, lambda_=self.lambda_, **options)
            if self.return_lambda is None:
                entries["return_"] = entries["advantage"] + value
            else:
                entries["return_"] = ops.lambda_return(reward, value, following, lambda_=self.return_lambda, **options)
        if self.rewards is not None:
            entries["advantage"] = self.rewards.weighed(entries["advantage"], axis=-1)
        return batch | entries

    def _following(self, value: Tensor, episode_end: Tensor, batch: Batch) -> Tensor:
        """Return the value of each next observation: the next step's value, computed separately at ends."""
        last, following = episode_end.clone(), value.roll(-1, 1)
        last[:, -1] = True
        names = ("next_observation", "observation") if self.recurrent else ("next_observation",)
        names = (*names, "action") if self.follows_actions else names
        seen = [map_tree(lambda tensor: tensor[last], batch[name]) for name in names]
        if self.recurrent:
            ends = batch[END_STATE]
            seen.insert(2, map_tree(lambda tensor: tensor[ends["place"][last]], ends["state"]))
        function = self._value_after if self.recurrent else self._value
        next_value = self._in_pieces(function, self.chunk, *seen)[0]
        following[last] = next_value.to(following.device)
        return following

    def _value(self, observation: Tree, *before: Tree) -> tuple[Tensor]:
        return (self.network.value(observation, *before),)

    def _value_after(self, next_observation: Tree, observation: Tree, state: Tree, *action: Tree) -> tuple[Tensor]:
        """Return values of next observations, with the state after the row, as an end has no stored one."""
        return (self.network.value(next_observation, self.network.after(observation, state, *action)),)  # type: ignore[attr-defined]

    def _both(self, observation: Tree, action: Tree, *before: Tree) -> tuple[Tensor, Tensor]:
        evaluated = self.network.evaluate_actions(observation, action, *before)
        return evaluated.value, evaluated.log_prob

    def _over(self, function: Callable[..., tuple[Tensor, ...]], like: Tensor, *trees: Tree) -> list[Tensor]:
        """Call a function of rows [n, …], or of windows and states before them; return its results as [B, T]."""
        windows, steps = like.shape[:2]
        if self.recurrent:
            outputs = self._in_pieces(function, max(1, self.chunk // steps), *trees)
        else:
            rows = [map_tree(lambda tensor: tensor.transpose(0, 1).flatten(0, 1), tree) for tree in trees]  # [T * B, …]
            outputs = self._in_pieces(function, self.chunk, *rows)
            outputs = [output.view(steps, windows, *output.shape[1:]).transpose(0, 1) for output in outputs]
        return [output.to(like.device) for output in outputs]

    def _in_pieces(self, function: Callable[..., tuple[Tensor, ...]], size: int, *trees: Tree) -> list[Tensor]:
        """Call a function on the network's device with `size` rows [n, …] at a time; return the joined results."""
        device = next(iter(self.network.parameters())).device
        placed = [map_tree(lambda tensor: tensor.to(device), tree) for tree in trees]
        count = row_count(placed[0])
        if count <= size:
            with self.around:
                return list(function(*placed))
        pieces = [slice(first, first + size) for first in range(0, count, size)]
        with self.around:
            parts = [function(*(map_tree(itemgetter(piece), tree) for tree in placed)) for piece in pieces]
        return [torch.cat(chunks) for chunks in zip(*parts, strict=True)]
