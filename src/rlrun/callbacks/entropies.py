"""What both entropy targets are made of: targets in nats by part of an action, means of entropies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlrun import learners, ops
from rlrun.callback import Callback
from rlrun.errors import ConfigError, WiringError, did_you_mean
from rlrun.nn import ActionCodec
from rlrun.schedules import Schedule, as_schedule
from rlrun.spaces import Spaces

KINDS = ("continuous", "discrete")
Given = float | Schedule | Mapping[str, float | Schedule | None] | None


class Targets:
    """The target of each part in nats, at any time.

    Args:
        spaces: of the environment.
        target: one for every part, or by part; a number or a schedule over environment steps; None = a policy that
            spreads a share `min_prob` of its probability over the other choices, or lies on that share of the range.
    """

    def __init__(self, spaces: Spaces, target: Given, *, min_prob: float = 0.1) -> None:
        kinds = ActionCodec(spaces).kinds
        default = ops.target_entropy(spaces.action, min_prob=min_prob)
        wanted = by_part(target, kinds, "target")
        self._functions = [
            as_schedule(getattr(default, kind) if value is None else value)
            for kind, value in zip(kinds, wanted, strict=True)
        ]
        self._newest = [function(0) for function in self._functions]
        self.value = torch.tensor(self._newest)  # [parts]

    def at(self, step: int) -> None:
        """Go to a time."""
        now = [function(step) for function in self._functions]
        if now != self._newest:
            self._newest, self.value = now, torch.tensor(now, device=self.value.device)


class Average:
    """The mean of the newest entropies [parts], and the one before it.

    Args:
        window: how many.
        parts: of an action.
    """

    def __init__(self, window: int, parts: int) -> None:
        if window < 1:
            raise ConfigError(f"window must be at least 1, not {window}")
        self.recent = torch.zeros(window, parts)
        self.updates = 0

    @property
    def value(self) -> Tensor:
        """The mean [parts]; 0 before the first update."""
        return self.recent[: max(self.updates, 1)].mean(0)

    def update(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        """Take in entropies [parts]; return the mean before (the first time the same as now) and now."""
        before = self.value
        self.recent[self.updates % len(self.recent)] = entropy
        self.updates += 1
        now = self.value
        return (now if self.updates == 1 else before), now

    def state_dict(self) -> dict[str, Any]:
        return {"recent": self.recent, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent.copy_(state["recent"])
        self.updates = state["updates"]


def by_part(value: Any, kinds: Sequence[str], place: str) -> list[Any]:
    """Return the value of each part: one value for all, or by name.

    Raises:
        ConfigError: no action has a part of some name.
    """
    if not isinstance(value, Mapping):
        return [value for _ in kinds]
    for name in value:
        if name not in KINDS:
            raise ConfigError(f"{place}.{name}: wanted {' or '.join(KINDS)}{did_you_mean(name, KINDS)}")
    return [value.get(kind) for kind in kinds]


def batch_mean(policy_entropy: Tensor, valid: Tensor | None) -> Tensor | None:
    """Return the mean [parts] of entropies [..., parts] over the rows that are valid, of all learners; None of none."""
    flat = policy_entropy.detach()
    flat = flat.reshape(-1, flat.shape[-1]) if valid is None else flat[valid]
    total = flat.sum(0)
    count = learners.pooled_(total, len(flat))
    return total / count if count else None


def require_reader(provider: Callback, callbacks: Mapping[str, Callback]) -> None:
    """Refuse to adapt a weight that no loss asks for.

    Raises:
        WiringError: nobody does.
    """
    hooks = [callback.hook("backward") for callback in callbacks.values() if callback.data_group == provider.data_group]
    if not any(hook is not None and "entropy_weight" in hook.arguments for hook in hooks):
        raise WiringError(
            f"callbacks.{provider.name}: no loss of data group '{provider.data_group}' asks for 'entropy_weight', so "
            "no entropy can be held; leave it out where an algorithm has a temperature of its own"
        )
