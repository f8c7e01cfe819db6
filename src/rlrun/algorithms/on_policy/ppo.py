"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347).

Each rollout is used for several epochs of minibatches, with clipped probability ratios. Two options limit the
divergence from the policy that acted: a KL penalty (section 4), and early stopping of the epochs. Advantages are
normalized in each minibatch.

    ρ = π(a | s) / π_old(a | s)
    L = -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) + w_V (V(s) - R)² - w_H H(π(· | s)) + w_KL (ρ - 1 - log ρ)
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.loss import LossResult, Optimizer, StepResult, Steps, require_bound
from rlrun.callbacks.losses.policy import ActorCriticLoss
from rlrun.core import distributed
from rlrun.core.errors import require_number
from rlrun.core.typing import Tree
from rlrun.memory import RolloutLoader
from rlrun.nn import ActorCritic
from rlrun.training.callback import Callback, Hook
from rlrun.training.metrics import Metric, reduced

Move = tuple[Metric, ...]  # divergence and share of clipped ratios of an update
MOVES = ("policy/approx_kl", "policy/clipped")

NEWEST = 32  # metrics of a rollout are means over at most so many of its last updates


class PPOLoss(ActorCriticLoss):
    """The clipped surrogate objective with value loss and entropy bonus (eq. 9).

    Another callback, such as a schedule, may provide `clip` and `kl_weight`, which replace the constants. `veto`, if
    set, reads the outputs before each step, and returns True to skip it.

    Args:
        clip: ε, of the probability ratio.
        value_clip: limit of a value's change since the rollout; the larger of the losses with and without it counts;
            None = no limit.
        kl_weight: of the divergence from the policy that acted.
        log_prob_clip: clamp the policy's log-probabilities in the ratio to ± this; None = never.
    """

    provides = ("policy_entropy", "approx_kl")
    watches = ("end_batch",)
    momentary = ("_over", "_running")  # `state_dict` has numbers computed from these

    def __init__(
        self,
        network: ActorCritic,
        optimizer: Optimizer | None,
        *,
        clip: float = 0.2,
        value_clip: float | None = None,
        kl_weight: float = 0.0,
        log_prob_clip: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        for name, bound in {"clip": clip, "value_clip": value_clip, "log_prob_clip": log_prob_clip}.items():
            require_bound(name, bound)
        require_number("kl_weight", kl_weight, 0)
        self.log_prob_clip = log_prob_clip
        self.clip = clip
        self.value_clip = value_clip
        self.kl_weight = kl_weight
        self.veto: Callable[[Mapping[str, Tensor]], bool] | None = None
        self._collected: int | None = None  # environment step at the end of the current rollout
        self._running: deque[Move | Tensor] = deque(maxlen=NEWEST)  # of its updates
        self._over: deque[Move | Tensor] = deque()  # of the updates of the rollout before

    def loss(
        self,
        observation: Tree,
        action: Tree,
        log_prob: Tensor,
        value: Tensor,
        advantage: Tensor,
        return_: Tensor,
        clip: float | None = None,
        kl_weight: float | None = None,
        entropy_weight: float | Tensor | None = None,
        state: Tensor | None = None,
        episode_end: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> LossResult:
        evaluated = self.evaluate_actions(observation, action, state, episode_end)
        log_ratio = evaluated.log_prob - log_prob
        if valid is not None:  # the ratio of padding may be infinite, and inf * 0 is NaN
            log_ratio = log_ratio * valid
        clip = self.clip if clip is None else clip
        bound, clamped = self.log_prob_clip, log_ratio
        if bound is not None:
            clamped = evaluated.log_prob.clamp(-bound, bound) - log_prob
            clamped = clamped if valid is None else clamped * valid
        objective = ops.surrogate(clamped, self.prepared(advantage, valid), clip=clip)
        weight = self.kl_weight if kl_weight is None else kl_weight
        if isinstance(weight, Tensor) or weight != 0.0:
            objective = objective - weight * _divergence(log_ratio)
        distance = self._distance(evaluated.value, value, return_)
        loss, outputs, metrics = self.total(evaluated, objective, distance, return_, entropy_weight, valid)
        metrics["policy/approx_kl"] = Metric((log_ratio,), _mean_divergence, valid)
        metrics["policy/clipped"] = Metric((log_ratio,), partial(_clipped, clip), valid)
        if self.asked_for("approx_kl"):
            divergence = _divergence(log_ratio.detach())
            divergence = divergence if valid is None else ops.over_valid(divergence, valid)
            outputs["approx_kl"] = distributed.mean_(divergence.mean())
        return loss, outputs, metrics

    def phases(
        self,
        elements: Tensor,
        outputs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        weight: Tensor | None,
        stepper: Steps | None,
    ) -> StepResult:
        if stepper is None or self.veto is None or not self.veto(outputs):
            return super().phases(elements, outputs, metrics, weight, stepper)
        kept = {name: value for name, value in outputs.items() if name != "updates"}  # buffers do not change, either
        return super().phases(elements, kept, metrics, weight, None)._replace(stepped=False)

    def _distance(self, value: Tensor, before: Tensor, return_: Tensor) -> Tensor:
        distance = self.distance(value, return_)
        if self.value_clip is None:
            return distance
        clipped = before + (value - before).clamp(-self.value_clip, self.value_clip)
        return distance.maximum(self.distance(clipped, return_))

    def end_batch(self, step: int | None = None) -> None:
        if step != self._collected:  # the first update of a new rollout
            self._collected, self._over, self._running = step, self._running, deque(maxlen=NEWEST)
        newest = self.store.newest
        if all(isinstance(newest.get(name), Metric) for name in MOVES):
            self._running.append(tuple(newest[name] for name in MOVES))

    @property
    def metrics(self) -> Mapping[str, Any]:
        metrics = dict(super().metrics)
        moves = _moves(self._over or self._running)
        if len(moves):
            metrics.update(zip(MOVES, moves.mean(0), strict=True))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        moves = {"step": self._collected, "over": _moves(self._over), "running": _moves(self._running)}
        return {**super().state_dict(), "moves": moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        moves = state.get("moves")  # runs of older versions have none
        if moves is not None:
            self._collected = moves["step"]
            self._over, self._running = (deque(moves[name], NEWEST) for name in ("over", "running"))


@torch.no_grad()
def _moves(updates: Iterable[Move | Tensor]) -> Tensor:
    """Return the divergence and the share of clipped ratios of each update, [updates, 2].

    updates: metrics, or rows of such a tensor, as a checkpoint has them.
    """
    moves = [
        update if isinstance(update, Tensor) else torch.stack([reduced(metric).float() for metric in update])
        for update in updates
    ]
    return torch.stack([move.to(moves[-1].device) for move in moves]) if moves else torch.empty(0, 2)


def _mean_divergence(log_ratio: Tensor) -> Tensor:
    return _divergence(log_ratio).mean()


def _clipped(clip: float, log_ratio: Tensor) -> Tensor:
    return (log_ratio.expm1().abs() > clip).float().mean()


def _divergence(log_ratio: Tensor) -> Tensor:
    """Estimate KL(π_old ‖ π) by each action, [...]; never negative."""
    return log_ratio.expm1() - log_ratio


class KLStop(Callback):
    """Skip the rest of a rollout once a minibatch's divergence is above a limit, including that minibatch's step.

    Args:
        loader: of rollouts.
        loss: whose steps are skipped; None = every `PPOLoss` of the data group, as in runs of older versions.
        limit: largest divergence of a minibatch, in nats; None = no limit.
        data_group: of the minibatches.
    """

    data_group = "default"

    def __init__(
        self, loader: RolloutLoader, loss: PPOLoss | None = None, *, limit: float | None, data_group: str = "default"
    ) -> None:
        self.loader = loader
        self.limit = limit
        self.data_group = data_group
        self.stops = 0
        self._loss = loss
        self._too_far = False

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        ppo = [callback for callback in callbacks.values() if isinstance(callback, PPOLoss)]
        in_group = [loss for loss in ppo if loss.data_group == self.data_group]
        for loss in in_group if self._loss is None else [self._loss]:
            loss.veto = self._veto

    def _veto(self, named: Mapping[str, Tensor]) -> bool:
        too_far = float(named["approx_kl"]) > (self.limit or 0.0)
        self._too_far |= too_far  # one of several losses is enough
        return too_far

    def end_batch(self, approx_kl: Tensor) -> None:  # this argument makes the loss compute the divergence
        if self._too_far:
            self._too_far = False
            self.loader.renew()
            self.stops += 1

    def hook(self, event: str) -> Hook | None:
        return None if self.limit is None else super().hook(event)  # without a limit the loss need not compute it

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {} if self.limit is None else {"policy/early_stops": self.stops}

    def state_dict(self) -> dict[str, Any]:
        return {"stops": self.stops}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stops = state["stops"]


class KLPenalty(Callback):
    """Provide `kl_weight`, and adapt it after each rollout so that the divergence comes near a target (section 4).

    Args:
        loader: of rollouts.
        target: wanted mean divergence in the last epoch of a rollout, in nats.
        weight: initial weight.
        data_group: of the minibatches.
    """

    data_group = "default"
    provides = ("kl_weight",)
    inherited = ("weight",)

    def __init__(
        self, loader: RolloutLoader, *, target: float, weight: float = 1.0, data_group: str = "default"
    ) -> None:
        self.loader = loader
        self.target = target
        self.weight = weight
        self.data_group = data_group
        self._epoch = 0  # the current one
        self._seen: list[Tensor | float] = []  # divergences of its minibatches

    def begin_batch(self) -> dict[str, float]:
        return {"kl_weight": self.weight}

    def end_batch(self, approx_kl: Tensor) -> None:
        self._seen.append(approx_kl)
        epoch = self.loader.epoch
        if epoch == self._epoch:
            return
        divergence = sum(map(float, self._seen)) / len(self._seen)
        self._seen, self._epoch = [], epoch % self.loader.epochs
        if epoch < self.loader.epochs:
            return
        if divergence > 1.5 * self.target:
            self.weight *= 2.0
        elif divergence < self.target / 1.5:
            self.weight *= 0.5

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {"policy/kl_weight": self.weight}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "epoch": self._epoch, "seen": [float(divergence) for divergence in self._seen]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight, self._epoch = state["weight"], state.get("epoch", 0)  # runs of older versions have no more
        self._seen = [*state.get("seen", ())]
