"""Adaptors that normalise by running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import require_one_of
from rlrun.memory.adaptors import RETURNS, PerStep
from rlrun.memory.samplers import Rows
from rlrun.nn.normaliser import Normaliser, ReturnNormaliser
from rlrun.spaces import map_tree
from rlrun.typing import Array, Batch, Tree

Update = Literal["replay", "rollout", "never"]
UPDATES = ("replay", "rollout", "never")


class Normalise(PerStep):
    """Normalise a column, and say where its statistics come from: from one place only.

    replay: from every sampled batch, before it is normalised. rollout: from every row that enters the
    table. never: they stay as they are. Acting and evaluation only read them: give the agent the same
    normaliser by `agent.preprocess`.

    On-policy, replay and rollout both mean every rollout, once. Observations are normalised as the agent saw them,
    and the statistics move afterwards: the policy that learns first is then the one that acted.

    Args:
        column: observation, reward or another name.
        normaliser: holds the statistics; the run saves it as a part of its own.
        update: replay, rollout or never.
        limit: statistics stay as they are after so many updates; null = they never stop.

    Raises:
        ConfigError: there is no such place.
    """

    def __init__(
        self, column: str, normaliser: Normaliser, *, update: Update = "replay", limit: int | None = None
    ) -> None:
        super().__init__(column)
        require_one_of(f"memory.adaptors: {type(self).__name__}.update", update, UPDATES)
        self.requires = tuple(f"{column}.{path}" if path else column for path in normaliser.leaves)
        self.normaliser = normaliser
        self.update = update
        self.limit = limit
        self.observe: Callable[[Mapping[str, Tree]], None] | None = self._observe if update == "rollout" else None

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if self.update == "replay":
            self._learn(batch[self.column], batch.get("valid"))
        return super().__call__(batch, rows)

    def rollout(self, batch: Batch) -> Batch:
        """Normalise a rollout, and learn from it."""
        acted_on = self.column == "observation"
        if not acted_on:
            self._learn_rollout(batch)
        normalised = super().__call__(batch, None)
        if acted_on:
            self._learn_rollout(batch)
        return normalised

    def _learn_rollout(self, batch: Batch) -> None:
        if self.update != "never":
            self._learn(batch[self.column], batch["valid"], rollout=True)

    def _observe(self, row: Mapping[str, Tree]) -> None:
        self._learn(map_tree(torch.as_tensor, row[self.column]))

    def _learn(self, value: Tree, valid: Tensor | None = None, *, rollout: bool = False) -> None:
        if self.limit is None or self.normaliser.updates < self.limit:
            self.normaliser.update(value, valid, rollout=rollout)

    def apply(self, tree: Tree, path: str = "") -> Tree:
        return self.normaliser(tree, path)

    def change(self, value: Tensor) -> Tensor:
        return self.normaliser(value)  # type: ignore[no-any-return]


class ObservationNormalise(Normalise):
    """Normalise observations and next observations by the statistics of observations."""

    def __init__(self, normaliser: Normaliser, *, update: Update = "replay", limit: int | None = None) -> None:
        super().__init__("observation", normaliser, update=update, limit=limit)


class RewardNormalise(Normalise):
    """Normalise each step's reward, before rewards are summed over steps.

    A normaliser of form rms keeps the sign of rewards, and with it what is worth doing.
    """

    def __init__(self, normaliser: Normaliser, *, update: Update = "replay", limit: int | None = None) -> None:
        super().__init__("reward", normaliser.to("cpu"), update=update, limit=limit)  # rewards are summed there
        self.rescales = normaliser.form in ("rms", "deviation")


class ReturnNormalise(Normalise):
    """Divide each step's reward by the deviation of the running discounted return; see `ReturnNormaliser`.

    Statistics are of rewards as they enter the memory; on-policy, as the adaptors before this one leave them.
    """

    normaliser: ReturnNormaliser

    def __init__(self, normaliser: ReturnNormaliser) -> None:
        super().__init__("reward", normaliser.to("cpu"), update="rollout")
        self.tier = RETURNS
        self.requires = (*self.requires, "terminated", "truncated")

    def _learn_rollout(self, batch: Batch) -> None:
        reward, valid = batch["reward"].numpy(), batch["valid"].numpy()
        ended = (batch["terminated"] | batch["truncated"]).numpy()
        self.normaliser.advance(reward, ended, valid, np.arange(len(reward)))

    def _observe(self, row: Mapping[str, Tree]) -> None:
        env, reward, ended = row["env"], np.asarray(row["reward"]), np.asarray(row["terminated"] | row["truncated"])
        episode = len(env) > 1 and env[0] == env[-1]  # that enters as a whole
        shape = (1, -1) if episode else (-1, 1)
        steps = reward.reshape(shape)
        self.normaliser.advance(steps, ended.reshape(shape), np.ones(steps.shape, np.bool_), env[: len(steps)])

    def break_off(self, env: Array) -> None:
        """Begin the returns of environments [n] at 0 again."""
        self.normaliser.running[env] = 0.0
