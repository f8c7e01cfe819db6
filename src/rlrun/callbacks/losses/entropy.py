"""Entropy targets: an adaptive weight of the entropy in a policy's loss keeps the entropy near a target.

Both forms provide `entropy_weight` [parts], one for the continuous and one for the discrete part of an action, or one
for each leaf (`rlrun.nn.ActionCodec.names`). They read the resulting entropy from `policy_entropy` [..., parts]. The
losses of A2C, PPO, IQL and cloning add -weight · entropy; SAC and its variants use the weight as temperature.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, WiringError, did_you_mean
from rlrun.core.schedules import Schedule, as_schedule
from rlrun.core.spaces import Spaces, flat
from rlrun.nn import ActionCodec
from rlrun.training.callback import Callback

KINDS = ("continuous", "discrete")
Given = float | Schedule | Mapping[str, float | Schedule | None] | None
COUNT, INITIAL, FREE, BELOW, ABOVE = -3, -2, -1, 0, 1  # stages; those before INITIAL count the window
LOWEST = -100.0  # of log α without a bound


class EntropyWeight(nn.Module):
    """α of each part of an action, learned on a log scale.

    Args:
        spaces: of the environment.
        initial: α to start from.
        leaves: one for each leaf of the action.
    """

    def __init__(self, spaces: Spaces, *, initial: float = 0.1, leaves: bool = False) -> None:
        super().__init__()
        self.leaves = leaves
        self.kinds = ActionCodec(spaces).names(leaves=leaves)
        self.log = nn.Parameter(torch.full((len(self.kinds),), math.log(initial)))  # [parts]


class EntropyTarget(Callback):
    """Hold the entropy of each part at its target, in stages (ALF's `EntropyTarget`).

    stage -2 - window … -3: the largest entropy is estimated from the first means, unless it is given.
    stage -2: α falls very slowly, or rises by half as much while the entropy falls, until that is below its largest.
    stage -1: α is constant, until the entropy is below the target.
    stages 0 and 1, below and above the target: α rises while the entropy falls and falls while it rises, at half the
    rate where the entropy moves towards the target. The rate shrinks by a tenth at each crossing; it is fast again once
    the entropy of an update is below half its target (below twice a negative one).

    Args:
        spaces: of the environment.
        target: see `Targets`; None = from `min_prob`.
        min_prob: see `Targets`.
        largest: entropy of an untrained policy in nats, for every part or by part; None = a fifth below the first
            means.
        initial: α to start from.
        smallest: lower bound of α; 0 = none.
        free: begin with the stages below 0.
        rates: of log α: very slow, slow, fast.
        window: number of updates in the mean entropy.
        leaves: the parts are the leaves of the action, each with a weight and a target of its own.
        data_group: of the updates that are counted.

    Raises:
        ConfigError: the target is above the largest entropy.
    """

    data_group: str | None = "default"
    provides = ("entropy_weight",)
    inherited = ("log", "stage", "rate", "largest", "average")

    def __init__(
        self,
        spaces: Spaces,
        *,
        target: Given = None,
        min_prob: float = 0.1,
        largest: float | Mapping[str, float | None] | None = None,
        initial: float = 0.1,
        smallest: float = 1e-4,
        free: bool = True,
        rates: Sequence[float] = (0.001, 0.01, math.log(2.0)),
        window: int = 2,
        leaves: bool = False,
        data_group: str = "default",
    ) -> None:
        self.targets = Targets(spaces, target, min_prob=min_prob, leaves=leaves)
        self.kinds = self.targets.kinds
        self.floor = math.log(smallest) if smallest > 0.0 else LOWEST
        self.rates = tuple(rates)
        self.data_group = data_group
        self.average = Average(window, len(self.kinds))
        bounds = by_part(largest, self.kinds, "largest")
        first = [INITIAL - window * (bound is None) if free else ABOVE for bound in bounds]
        self.stage = torch.tensor(first)  # all [parts]
        self.largest = torch.tensor([math.inf if bound is None else float(bound) for bound in bounds])
        self.log = torch.full((len(self.kinds),), math.log(initial))
        self.rate = torch.full((len(self.kinds),), self.rates[2])
        if bool((self.targets.value > self.largest).any()):
            raise ConfigError(
                f"target: {_list(self.targets.value)} is above the largest entropy, {_list(self.largest)}"
            )

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        require_reader(self, callbacks)

    def begin_batch(self, update: int, step: int | None = None) -> dict[str, Tensor]:
        self.targets.at(update if step is None else step)
        return {"entropy_weight": self.log.exp()}

    @torch.no_grad()
    def end_batch(self, policy_entropy: Tensor, valid: Tensor | None = None) -> None:
        entropy = batch_mean(policy_entropy, valid)
        if entropy is not None:
            self._advance(entropy, *self.average.update(entropy))

    def _advance(self, entropy: Tensor, before: Tensor, now: Tensor) -> None:
        very_slow, slow, fast = self.rates
        target, stage = self.targets.value, self.stage
        adjusting, falling, above = stage >= BELOW, now < before, now > target
        self.largest = torch.where(stage <= COUNT, torch.minimum(0.8 * now, now / 0.8), self.largest)
        crossed = adjusting & (above != (stage == ABOVE))
        self.rate = torch.where(crossed, (0.9 * self.rate).clamp(min=slow), self.rate)
        far = entropy < torch.where(target > 0.0, 0.5 * target, 2.0 * target)
        self.rate = torch.where(adjusting & far, fast, self.rate)
        rising = torch.where(above, -1.0, -0.5)
        change = torch.where(falling, rising + 1.5, rising) * self.rate
        change = torch.where(stage == INITIAL, torch.where(falling, 0.5, -1.0) * very_slow, change * adjusting)
        self.log = (self.log + change).clamp(min=self.floor)
        onward = torch.where(stage == INITIAL, now < self.largest, torch.where(stage == FREE, now < target, True))
        self.stage = torch.where(adjusting, above.long(), stage + onward.long())

    @property
    def metrics(self) -> Mapping[str, Any]:
        weights = {f"entropy_weight/{kind}": self.log[index].exp() for index, kind in enumerate(self.kinds)}
        return weights | {f"entropy_stage/{kind}": self.stage[index] for index, kind in enumerate(self.kinds)}

    def note(self, path_of: Callable[[object], str]) -> str:
        return "holds the entropy at its target, in stages"

    def state_dict(self) -> dict[str, Any]:
        tensors = {"log": self.log, "stage": self.stage, "rate": self.rate, "largest": self.largest}
        return {**tensors, "average": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("log", "stage", "rate", "largest"):
            getattr(self, name).copy_(state[name])
        self.average.load_state_dict(state["average"])


class SGDEntropyTarget(LossCallback):
    """Hold the entropy of each part at its target by gradient steps on log α, as soft actor-critic does.

    The entropy is the mean over all valid rows of a batch, without the weights of their losses.

    Args:
        network: α.
        spaces: of the environment.
        target: see `Targets`; None = from `min_prob`.
        min_prob: see `Targets`.
        window: number of updates in the mean entropy.
    """

    provides = ("entropy_weight", "entropy_target")
    inherited = ("optimizer", "names", "average")

    def __init__(
        self,
        network: EntropyWeight,
        optimizer: Optimizer,
        *,
        spaces: Spaces,
        target: Given = None,
        min_prob: float = 0.1,
        window: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.weight = network
        self.kinds = network.kinds
        self.targets = Targets(spaces, target, min_prob=min_prob, leaves=network.leaves)
        self.average = Average(window, len(self.kinds))

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        require_reader(self, callbacks)

    def begin_batch(self, update: int, step: int | None = None) -> dict[str, Tensor]:
        self.targets.at(update if step is None else step)
        return {"entropy_weight": self.weight.log.detach().exp(), "entropy_target": self.targets.value}

    def loss(
        self,
        policy_entropy: Tensor,
        entropy_target: Tensor,
        valid: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> LossResult:
        metrics = {f"entropy_weight/{kind}": self.weight.log[index].exp() for index, kind in enumerate(self.kinds)}
        entropy = batch_mean(policy_entropy, valid)
        if entropy is None:
            return (0.0 * self.weight.log).sum(), {}, metrics
        recent, updates = self.average.after(entropy)
        loss = (self.weight.log * (self.average.mean(recent, updates) - entropy_target)).sum()
        return loss, {"updates": {"average.recent": recent, "average.updates": updates}}, metrics

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "average": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.average.load_state_dict(state["average"])


def _list(values: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values.tolist())


class Targets:
    """The target entropy of each part in nats, as a function of time.

    Args:
        spaces: of the environment.
        target: one for every part, or by part; a number or a schedule over environment steps; None = the entropy of a
            policy that spreads a share `min_prob` over the other choices, or is uniform on that share of the range.
        min_prob: share for the default target.
        leaves: the parts are the leaves of the action.
    """

    def __init__(self, spaces: Spaces, target: Given, *, min_prob: float = 0.1, leaves: bool = False) -> None:
        codec = ActionCodec(spaces)
        self.space, self.kinds = spaces.action, codec.names(leaves=leaves)
        default = ops.target_entropy(spaces.action, min_prob=min_prob, masked=codec.masked)._asdict()
        if leaves:
            default |= {
                path: sum(ops.target_entropy(leaf, min_prob=min_prob, masked=codec.masked))
                for path, leaf in codec.named
            }
        self._functions = [
            as_schedule(default[kind] if value is None else value)
            for kind, value in zip(self.kinds, by_part(target, self.kinds, "target"), strict=True)
        ]
        self._newest = [function(0) for function in self._functions]
        self.value = torch.tensor(self._newest)  # [parts]

    def at(self, step: int) -> None:
        """Set the targets to those of an environment step."""
        now = [function(step) for function in self._functions]
        if now != self._newest:
            self._newest, self.value = now, torch.tensor(now, device=self.value.device)


class Average(nn.Module):
    """The mean of the newest entropies [parts].

    Args:
        window: number of entropies in the mean.
        parts: of an action.
    """

    recent: Tensor  # [window, parts]
    updates: Tensor  # number of entropies so far

    def __init__(self, window: int, parts: int) -> None:
        if window < 1:
            raise ConfigError(f"window must be at least 1, not {window}")
        super().__init__()
        self.register_buffer("recent", torch.zeros(window, parts))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def value(self) -> Tensor:
        """The mean [parts]; 0 before the first update."""
        return self.mean(self.recent, self.updates)

    def mean(self, recent: Tensor, updates: Tensor) -> Tensor:
        """Return the mean [parts] of the rows of `recent` that these updates have filled."""
        known = torch.arange(len(recent)) < updates.clamp(min=1)
        return (recent * known.unsqueeze(-1)).sum(0) / known.sum()

    def after(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of `recent` and `updates` with entropies [parts] added."""
        newest = torch.arange(len(self.recent)) == self.updates % len(self.recent)
        return torch.where(newest.unsqueeze(-1), entropy.to(self.recent), self.recent), self.updates + 1

    def update(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        """Add entropies [parts]; return the earlier and the new mean, which are equal at the first update."""
        before, first = self.value, not self.updates
        self.recent, self.updates = self.after(entropy)
        now = self.value
        return (now if first else before), now

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"recent": self.recent, "updates": int(self.updates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # type: ignore[override]
        self.recent.copy_(state["recent"])
        self.updates.fill_(state["updates"])


def by_part(value: Any, kinds: Sequence[str], place: str) -> list[Any]:
    """Return the value of each part: one value for all, or by name.

    Raises:
        ConfigError: the action has no part of some name.
    """
    if not isinstance(value, Mapping):
        return [value for _ in kinds]
    value = flat(value)
    allowed = KINDS if set(kinds) <= {*KINDS} else kinds
    for name in value:
        if name not in allowed:
            raise ConfigError(f"{place}.{name}: wanted {' or '.join(allowed)}{did_you_mean(name, allowed)}")
    return [value.get(kind) for kind in kinds]


def batch_mean(policy_entropy: Tensor, valid: Tensor | None) -> Tensor | None:
    """Return the mean [parts] of entropies [..., parts] over valid rows of all ranks; None without valid rows."""
    flat = policy_entropy.detach()
    flat = flat.reshape(-1, flat.shape[-1]) if valid is None else flat[valid]
    total = flat.sum(0)
    count = distributed.pooled_(total, len(flat))
    return total / count if count else None


def require_reader(provider: Callback, callbacks: Mapping[str, Callback]) -> None:
    """Refuse to adapt a weight that no loss asks for.

    Raises:
        WiringError: no loss does.
    """
    hooks = [(peer, peer.hook("backward")) for peer in callbacks.values() if peer.data_group == provider.data_group]
    arguments = {peer.inputs.get(name, name) for peer, hook in hooks if hook is not None for name in hook.arguments}
    if "entropy_weight" not in arguments:
        raise WiringError(
            f"callbacks.{provider.name}: no loss of data group '{provider.data_group}' asks for 'entropy_weight', so "
            "it has no effect; it is for A2C, PPO, PPG, TRAC, SAC, QRSAC, DSAC, OAC, DOAC, sarsa, IQL and cloning"
        )
