"""Adaptors that normalize by running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import require_one_of
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors import RETURNS, PerStep
from rlrun.memory.samplers import Rows
from rlrun.nn.normalizer import Normalizer, ReturnNormalizer

Update = Literal["replay", "rollout", "never"]
UPDATES = ("replay", "rollout", "never")


class Normalize(PerStep):
    """Normalize a column, and say where its statistics come from: from one place only.

    replay: from every sampled batch, before it is normalized. rollout: from every row that enters the
    table. never: they stay as they are. Acting and evaluation only read them: give the agent the same
    normalizer by `agent.preprocess`.

    On-policy, replay and rollout both mean every rollout, once. Observations are normalized as the agent saw them,
    and the statistics move afterwards: the policy that learns first is then the one that acted.

    Args:
        column: observation, reward or another name.
        normalizer: holds the statistics; the run saves it as a part of its own.
        update: replay, rollout or never.
        limit: statistics stay as they are after so many updates; null = they never stop.

    Raises:
        ConfigError: there is no such place.
    """

    def __init__(
        self, column: str, normalizer: Normalizer, *, update: Update = "replay", limit: int | None = None
    ) -> None:
        super().__init__(column)
        require_one_of(f"memory.adaptors: {type(self).__name__}.update", update, UPDATES)
        self.requires = tuple(f"{column}.{path}" if path else column for path in normalizer.leaves)
        self.normalizer = normalizer
        self.update = update
        self.limit = limit
        self.observe: Callable[[Mapping[str, Tree]], None] | None = self._observe if update == "rollout" else None

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if self.update == "replay":
            self._learn(batch[self.column], batch.get("valid"))
        return super().__call__(batch, rows)

    def rollout(self, batch: Batch) -> Batch:
        """Normalize a rollout, and learn from it."""
        acted_on = self.column == "observation"
        if not acted_on:
            self._learn_rollout(batch)
        normalized = super().__call__(batch, None)
        if acted_on:
            self._learn_rollout(batch)
        return normalized

    def _learn_rollout(self, batch: Batch) -> None:
        if self.update != "never":
            self._learn(batch[self.column], batch["valid"], rollout=True)

    def _observe(self, row: Mapping[str, Tree]) -> None:
        self._learn(map_tree(torch.as_tensor, row[self.column]))

    def _learn(self, value: Tree, valid: Tensor | None = None, *, rollout: bool = False) -> None:
        if self.limit is None or self.normalizer.updates < self.limit:
            self.normalizer.update(value, valid, rollout=rollout)

    def apply(self, tree: Tree, path: str = "") -> Tree:
        return self.normalizer(tree, path)

    def change(self, value: Tensor) -> Tensor:
        return self.normalizer(value)  # type: ignore[no-any-return]


class ObservationNormalize(Normalize):
    """Normalize observations and next observations by the statistics of observations."""

    def __init__(self, normalizer: Normalizer, *, update: Update = "replay", limit: int | None = None) -> None:
        super().__init__("observation", normalizer, update=update, limit=limit)


class RewardNormalize(Normalize):
    """Normalize each step's reward, before rewards are summed over steps.

    A normalizer of form rms keeps the sign of rewards, and with it what is worth doing.
    """

    def __init__(self, normalizer: Normalizer, *, update: Update = "replay", limit: int | None = None) -> None:
        super().__init__("reward", normalizer.to("cpu"), update=update, limit=limit)  # rewards are summed there
        self.rescales = normalizer.form in ("rms", "deviation")


class ReturnNormalize(Normalize):
    """Divide each step's reward by the deviation of the running discounted return; see `ReturnNormalizer`.

    Statistics are of rewards as they enter the memory; on-policy, as the adaptors before this one leave them.
    """

    normalizer: ReturnNormalizer

    def __init__(self, normalizer: ReturnNormalizer) -> None:
        super().__init__("reward", normalizer.to("cpu"), update="rollout")
        self.tier = RETURNS
        self.requires = (*self.requires, "terminated", "truncated")

    def _learn_rollout(self, batch: Batch) -> None:
        reward, valid = batch["reward"].numpy(), batch["valid"].numpy()
        episode_end = (batch["terminated"] | batch["truncated"]).numpy()
        self.normalizer.advance(reward, episode_end, valid, np.arange(len(reward)))

    def _observe(self, row: Mapping[str, Tree]) -> None:
        env, reward, episode_end = (
            row["env"],
            np.asarray(row["reward"]),
            np.asarray(row["terminated"] | row["truncated"]),
        )
        episode = len(env) > 1 and env[0] == env[-1]  # that enters as a whole
        shape = (1, -1) if episode else (-1, 1)
        steps = reward.reshape(shape)
        self.normalizer.advance(steps, episode_end.reshape(shape), np.ones(steps.shape, np.bool_), env[: len(steps)])

    def break_off(self, env: Array) -> None:
        """Begin the returns of environments [n] at 0 again."""
        self.normalizer.running[env] = 0.0
