"""Learning a model of an environment, by maximum likelihood (Chua et al. 2018, arXiv 1805.12114, section 4).

    L = Σ_members mean_k ½ [(Δ_k - μ_k)² / σ²_k + log σ²_k + log 2π]        Gaussian members
    L = Σ_members mean_k ½ (Δ_k - μ_k)²                                     deterministic members

Δ are the normalized change of the observation and reward. Terminations add a cross-entropy. Some rows are held out: the
members with the least error on them predict. Recurrent members learn from windows, by backpropagation through time from
the state stored at their beginning, also from steps that end an episode.
"""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.collect.modes import evaluating, modal_parts
from rlrun.core.errors import DataError, RequestError, require_at_least
from rlrun.core.typing import Batch, Tree
from rlrun.nn.dynamics import Dynamics
from rlrun.nn.recurrent import STATE, STATELESS, has_state, present
from rlrun.ops.distributions import HALF_LOG_TWO_PI
from rlrun.training.callback import Callback

STORED = ("observation", "action", "reward", "terminated", "next_observation")
STATISTICS = ("shift", "scale", "target_shift", "target_scale")
BOUNDS = 0.01  # weight of the distance between learned bounds of log-variances
AGO = 4  # tenths of a run between the two compared means
RUNNING = 0.2  # share of the newest batch in the running errors on held-out rows
STILL = 1e-10  # numbers up to this variance count as constant: members read, and predict, their mean


class DynamicsLoss(LossCallback):
    """Minus the log-likelihood of transitions, summed over members, and the cross-entropy of terminations.

    Without an optimizer it measures the members' errors on held-out rows, by which the network chooses its elite.
    """

    network: Dynamics
    one_rank = "its statistics are of the rows of its own batches"

    def __init__(self, network: Dynamics, optimizer: Optimizer | None, **options: Any) -> None:
        super().__init__(network, optimizer, **options)
        self.judged = modal_parts(network) if optimizer is None else []  # held-out rows do not change batch statistics

    def loss(
        self,
        observation: Tree,
        action: Tree,
        reward: Tensor,
        terminated: Tensor,
        next_observation: Tree,
        untransformed: Batch | None = None,
        valid: Tensor | None = None,
    ) -> LossResult:
        """Return the loss of rows [B], or of windows [B, T] for recurrent members.

        valid: rows of windows to learn from, [B, T].

        Raises:
            RequestError: recurrent members get rows without a state.
        """
        network = self.network
        past = None
        if network.cores:
            if not has_state(observation):
                raise RequestError(STATELESS)
            past, observation, next_observation = observation[STATE], present(observation), present(next_observation)
        if untransformed and untransformed.keys() >= {*STORED}:  # before adaptors of another algorithm
            observation, action, reward, terminated, next_observation = (untransformed[name] for name in STORED)
        elif network.several and untransformed and "reward" in untransformed:
            reward = untransformed["reward"]  # before their weighted sum
        state, after = network.numbers(observation), network.numbers(next_observation)
        inputs = network.inputs(state, network.coded.numbers(action))
        targets, end = network.targets(state, after, reward), terminated.to(state)
        updates: dict[str, Tensor] = {}
        if self.optimizer is not None:
            rows = inputs.detach(), targets
            updates = {**self._statistics("", rows[0], valid), **self._statistics("target_", rows[1], valid)}
            updates["network.seen"] = network.seen + 1.0
            updates["network.ending"] = network.ending.maximum(end.max() if valid is None else (end * valid).max())
        shift, scale, target_shift, target_scale = (
            updates.get(f"network.{name}", getattr(network, name)) for name in STATISTICS
        )
        targets = (targets - target_shift) * _reciprocal(target_scale)
        with evaluating(self.judged) if self.judged else nullcontext():
            outputs = network(((inputs - shift) * scale).expand(network.members, *inputs.shape), past)
        error = (targets - outputs.mean).square()  # [M, B, K], or [M, B, T, K]
        errors = _mean(error.mean(-1).flatten(1), None if valid is None else valid.flatten(), 1)
        if outputs.log_variance is None:
            loss = 0.5 * error.mean(-1)
        else:
            terms = error * (-outputs.log_variance).exp() + outputs.log_variance
            loss = (0.5 * terms + HALF_LOG_TWO_PI).mean(-1)
        if outputs.end is not None:
            loss = loss + F.binary_cross_entropy_with_logits(outputs.end, end.expand_as(loss), reduction="none")
        if self.optimizer is None:
            share = torch.where(network.held_out.any(), RUNNING, 1.0)
            relative = errors / errors.mean().clamp(min=STILL)  # otherwise large early errors dominate for long
            updates["network.held_out"] = network.held_out.lerp(relative, share)
        loss = loss.sum(0)
        if network.bounds.requires_grad:
            loss = loss + BOUNDS * (network.bounds[1] - network.bounds[0]).sum()
        return loss, {"updates": updates}, {f"model/error_{self.name}": errors.mean().sqrt()}

    def _statistics(self, prefix: str, rows: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """Return the network's buffers of mean and deviation, updated by rows [B, K]."""
        network: Any = self.network
        shift, scale = getattr(network, f"{prefix}shift"), getattr(network, f"{prefix}scale")
        share = (1.0 / (network.seen + 1.0)).clamp(min=network.rate)
        variance = scale.square() if prefix else _reciprocal(scale.square())
        if valid is None:
            mean, variance = ops.moved_moments(shift, variance, rows.mean(0), rows.var(0, unbiased=False), share)
        else:
            rows, valid = rows.flatten(0, 1), valid.flatten().unsqueeze(-1)
            mean = _mean(rows, valid, 0)
            mean, variance = ops.moved_moments(shift, variance, mean, _mean((rows - mean).square(), valid, 0), share)
        deviation = torch.where(variance > STILL, variance, 0.0).sqrt()
        scale = deviation if prefix else _reciprocal(deviation)
        return {f"network.{prefix}shift": mean, f"network.{prefix}scale": scale}


class LossProgressCheck(Callback):
    """Stop a run with an error if a loss does not fall.

    The mean loss of each tenth of the updates is compared with that four tenths before.

    Args:
        loss: to watch.
        updates: number of its updates in the run.

    Raises:
        DataError: at the end of a tenth whose mean is not below that of four tenths before.
    """

    data_group: str | None = "default"

    def __init__(self, loss: LossCallback, *, updates: int) -> None:
        require_at_least("updates", updates, 10)
        self.loss, self.tenth, self.data_group = loss, updates // 10, loss.data_group
        self.sums: list[float] = []
        self.count = 0

    def end_batch(self) -> None:
        if not self.count:
            self.sums.append(0.0)
        self.sums[-1] += float(self.loss.store.newest[f"loss/{self.loss.name}"])
        self.count = (self.count + 1) % self.tenth
        if not self.count and len(self.sums) > AGO and self.sums[-1] >= self.sums[-1 - AGO]:
            before, now = (self.sums[place] / self.tenth for place in (-1 - AGO, -1))
            raise DataError(f"callbacks.{self.name}: loss/{self.loss.name} does not fall: {before:.4g}, then {now:.4g}")

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.count = [*state["sums"]], state["count"]


def _mean(values: Tensor, valid: Tensor | None, dim: int) -> Tensor:
    """Return the mean of valid numbers over a dimension."""
    return values.mean(dim) if valid is None else (values * valid).sum(dim) / valid.sum().clamp(min=1)


def _reciprocal(value: Tensor) -> Tensor:
    """Return 1 / value, and 0 where that is 0."""
    return torch.where(value > 0.0, 1.0 / value, 0.0)
