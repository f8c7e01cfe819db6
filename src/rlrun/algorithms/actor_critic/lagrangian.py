"""Weights of several rewards, learned so that the mean of each reward per step stays above a threshold.

A constrained task, "the largest mean of reward 0 with a mean of reward 1 of at least c", is a game: the policy makes
the weighted sum of rewards large, the weight of a constraint rises while it is violated and falls while there is
room (Lagrange multipliers; Tessler et al. 2018, arXiv 1805.11074, whose single critic of the penalized reward is used).

    r = Σ_i w_i r_i,  w = softplus(λ), divided by its sum
    L = Σ_i softplus(λ_i) (mean r_i - c_i)

Differences from the paper: weights are a softplus and sum to 1, so that a strict constraint takes weight from the task
and rewards stay bounded; and constraints are on means per step, not on returns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from rlrun.callbacks.evaluator import Evaluator
from rlrun.callbacks.losses.diagnostics import learning_rates
from rlrun.callbacks.losses.loss import Optimizer
from rlrun.collect.statistics import Tally
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, SpaceError, require_one_of
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Array
from rlrun.nn.optimizers import load_optimizer, optimizer_state
from rlrun.nn.parameter_groups import optimizer_of
from rlrun.training.callback import Callback

Map = Callable[[Tensor], Tensor]


class RewardWeights(nn.Module):
    """w = softplus(λ), or exp(λ), one weight for each of an environment's rewards.

    Args:
        spaces: of the environment.
        initial: weights to begin with, one for all or one each.
        normalize: give weights that sum to 1.
        largest: upper bound of each, before they are normalized; None = no bound.
        transform: of λ: softplus, or exp, which changes weights by factors.

    Raises:
        SpaceError: the environment's reward is a plain number.
        ConfigError: a weight is not above 0, or the transform is unknown.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        initial: float | Sequence[float] = 1.0,
        normalize: bool = True,
        largest: float | None = None,
        transform: str = "softplus",
    ) -> None:
        super().__init__()
        if not spaces.rewards:
            raise SpaceError(
                "networks.reward_weights: the environment's reward is one plain number a step; there is nothing to "
                "weigh (+with=costs adds what it reports as costs)"
            )
        first = torch.full((spaces.rewards,), 1.0) * torch.as_tensor(_numbers(initial, spaces.rewards, "initial"))
        if not bool((first > 0).all()):
            raise ConfigError(f"lagrangian.initial: weights are above 0, not {initial}")
        self.normalize = normalize
        maps: dict[str, tuple[Map, Map]] = {"softplus": (softplus, _inverse), "exp": (torch.exp, torch.log)}
        require_one_of("lagrangian.transform", transform, maps)
        self.transform, inverse = maps[transform]
        self.bound = None if largest is None else float(inverse(torch.tensor(float(largest))))
        self.raw = nn.Parameter(inverse(first))  # [R], λ

    def positive(self) -> Tensor:
        """Return w [R], with gradients."""
        return self.transform(self.raw)

    def forward(self) -> Tensor:
        """Return the weights [R] by which rewards are summed."""
        weights = self.positive()
        return weights / weights.sum() if self.normalize else weights

    @torch.no_grad()
    def limit(self) -> None:
        """Clamp λ to its upper bound."""
        if self.bound is not None:
            self.raw.clamp_(max=self.bound)


class LagrangianWeights(Callback):
    """Step the weights by the gradient of Σ (mean reward - threshold) · w after new environment steps.

    Args:
        network: the weights.
        optimizer: a partial, completed with λ.
        thresholds: least mean of each reward per step [R]; None = its weight is not learned.
        paid: source of the rewards: a collector, whose policy explores, or an evaluator, whose policy does not.
        rate: of an exponential mean over steps; None = the mean over the steps since the last update.

    Raises:
        ConfigError: there is not one threshold for each reward, or all are None.
    """

    inherited = ("optimizer", "mean")

    def trained(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def __init__(
        self,
        network: RewardWeights,
        optimizer: Optimizer,
        *,
        thresholds: Sequence[float | None],
        paid: Any,
        rate: float | None = None,
    ) -> None:
        count = len(network.raw)
        if thresholds is None or isinstance(thresholds, float | int) or len(thresholds) != count:
            raise ConfigError(
                f"lagrangian.thresholds: wanted {count}, one for each reward, null for a reward without a constraint; "
                f"got {thresholds}"
            )
        if all(threshold is None for threshold in thresholds):
            raise ConfigError("lagrangian.thresholds: none is given; +with=reward_weights has fixed weights")
        if rate is not None and not 0.0 < rate <= 1.0:
            raise ConfigError(f"lagrangian.rate: wanted a share above 0 and up to 1, got {rate}")
        if getattr(paid, "every", None) == 0:
            raise ConfigError("lagrangian: weights follow evaluations, and evaluation.every=0 makes none")
        if getattr(paid, "asynchronous", False):
            raise ConfigError("lagrangian: weights follow evaluations at their updates; evaluation.async=false")
        self.network = network
        self.optimizer = optimizer_of(network, optimizer)
        self.thresholds = np.array([np.nan if threshold is None else float(threshold) for threshold in thresholds])
        self.paid: Tally | Evaluator = getattr(paid, "tally", paid)
        self.shared = hasattr(paid, "tally")  # each rank collects its own rewards; all ranks get the evaluations
        self.rate = rate
        self.mean = np.zeros((2, count))  # of rewards, and the weight of data in it, which corrects its start at 0
        self._read: tuple[Array, int] = (np.zeros(count), 0)  # sum and number of the rewards in the mean
        self._updated_at = -1  # environment steps at the newest update
        self._newest: Array | None = None

    def end_batch(self, step: int | None = None) -> None:
        if step is not None and step == self._updated_at:
            return
        self._updated_at = 0 if step is None else step
        means = self._observe()
        if means is not None:
            self._update(means)

    def _observe(self) -> Array | None:
        """Return the current mean rewards per step [R]; None without new rewards."""
        total, steps = self.paid.reward_sum, self.paid.reward_steps
        if self.shared:
            summed = torch.from_numpy(total.copy())
            steps = distributed.pooled_(summed, steps)
            total = summed.numpy()
        new = steps - self._read[1]
        if new:
            mean = (total - self._read[0]) / new
            self._read = (total.copy(), steps)
            decay = 0.0 if self.rate is None else (1.0 - self.rate) ** new
            self.mean = decay * self.mean + (1.0 - decay) * np.stack((mean, np.ones_like(mean)))
        elif self.rate is None:
            return None
        return self.mean[0] / self.mean[1] if self.mean[1, 0] else None

    def _update(self, mean: Array) -> None:
        self._newest = mean
        room = torch.from_numpy(np.nan_to_num(mean - self.thresholds)).to(self.network.raw)  # NaN: not constrained
        loss = (room * self.network.positive()).sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.network.limit()

    @property
    def metrics(self) -> Mapping[str, Any]:
        weights = self.network().detach()
        metrics: dict[str, Any] = {f"reward_weight/{index}": weight for index, weight in enumerate(weights)}
        metrics |= learning_rates(self.optimizer, self.name)
        if self._newest is not None:
            metrics |= {f"reward_mean/{index}": float(mean) for index, mean in enumerate(self._newest)}
        return metrics

    def note(self, path_of: Any) -> str:
        limits = [f"reward {index} >= {limit:g}" for index, limit in enumerate(self.thresholds) if not np.isnan(limit)]
        return f"keeps the mean of {', '.join(limits)} a step by {path_of(self.network)}"

    def state_dict(self) -> dict[str, Any]:
        newest = None if self._newest is None else self._newest.tolist()
        return {
            "optimizer": optimizer_state(self.optimizer),
            "mean": self.mean,
            "read": {"sum": self._read[0], "steps": self._read[1]},
            "made": self._updated_at,
            "newest": newest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_optimizer(self.optimizer, state["optimizer"])
        self.mean, self._updated_at = np.array(state["mean"]), state["made"]
        self._read = (np.array(state["read"]["sum"]), state["read"]["steps"])
        self._newest = None if state["newest"] is None else np.array(state["newest"])


def _numbers(value: float | Sequence[float], count: int, name: str) -> list[float]:
    numbers = [float(value)] * count if isinstance(value, float | int) else [float(number) for number in value]
    if len(numbers) != count:
        raise ConfigError(f"lagrangian.{name}: wanted one number, or one for each of {count} rewards, got {value}")
    return numbers


def _inverse(weights: Tensor) -> Tensor:
    """Return λ with softplus(λ) = weights; beyond 20 they are the same."""
    return torch.where(weights > 20.0, weights, weights.clamp(max=20.0).expm1().log())
