"""Adaptors that keep, choose and override what a batch holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlrun.errors import ConfigError
from rlrun.memory.adaptors import COPIES, SHAPE
from rlrun.memory.layout import leaf_of
from rlrun.memory.samplers import Rows
from rlrun.typing import Batch, Tree


class Untransformed:
    """Keep columns as they lie in the table under `untransformed`, a dict of their own.

    next_observation there is the one after a single step, whatever is summed later.
    """

    tier = COPIES
    provides = keeps = ("untransformed",)
    removes = replaces = ()

    def __init__(self, names: Sequence[str]) -> None:
        if not names or isinstance(names, str):
            raise ConfigError(f"memory.adaptors: Untransformed.names: wanted a list of names, got {names!r}")
        self.requires = self.names = tuple(names)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        return batch | {"untransformed": {name: batch[name] for name in self.names}}  # nobody writes into a tensor


class Select:
    """Choose from a dict of observations, and from next_observation alike.

    Args:
        leaves: "position": this leaf becomes the observation; a list: only these parts stay in it; a dict of
            new names: `{observation: position, goal: desired_goal}` also gives goal and next_goal.
    """

    tier = SHAPE
    replaces = ()

    def __init__(self, leaves: str | Sequence[str] | Mapping[str, str]) -> None:
        if not leaves:
            raise ConfigError("memory.adaptors: Select.leaves: nothing is chosen")
        renamed = leaves if isinstance(leaves, Mapping) else {"observation": leaves}
        self.leaves: dict[str, Any] = dict(renamed)
        read = [leaf for part in self.leaves.values() for leaf in ([part] if isinstance(part, str) else part)]
        self.requires = tuple(f"observation.{leaf}" for leaf in read)
        self.removes = ("observation", "next_observation") if "observation" in self.leaves else ()
        self.provides = tuple(name for new in self.leaves for name in (new, f"next_{new}"))

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        chosen = {name: value for name, value in batch.items() if name not in self.removes}
        for new, part in self.leaves.items():
            chosen[new] = _part(batch["observation"], part)
            chosen[f"next_{new}"] = _part(batch["next_observation"], part)
        return chosen

    def preprocess(self, observation: Tree) -> Tree:
        """Return what an agent acts on, for `agent.preprocess`."""
        return _part(observation, self.leaves["observation"]) if "observation" in self.leaves else observation


def _part(tree: Tree, chosen: str | Sequence[str]) -> Tree:
    """Return the leaf at a path, or the tree of those at several."""
    if isinstance(chosen, str):
        return leaf_of(tree, chosen.split("."))
    heads: dict[str, list[str]] = {}
    for path in chosen:
        head, _, rest = path.partition(".")
        heads.setdefault(head, []).extend([rest] if rest else [])
    return {head: _part(tree[head], rest) if rest else tree[head] for head, rest in heads.items()}


class TerminalOverride:
    """Let values go on after episodes that were only interrupted.

    For columns that count every end as final, such as a mask `1 - ended`: where the episode's `tag` is 1
    (interrupted), the column becomes 1, elsewhere it stays. Where it is given for each step of a window,
    `only_last` leaves one value a window: 1, or that of its last step.

    Args:
        column: [B] or [B, T], with what follows.
        tag: [B], one value an episode.
    """

    tier = SHAPE
    removes = replaces = ()

    def __init__(self, column: str, *, tag: str, only_last: bool = False) -> None:
        self.column = column
        self.tag = tag
        self.only_last = only_last
        self.requires = (column, tag)
        self.provides = (column,)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        value, tag = batch[self.column], batch[self.tag]
        if self.only_last and value.dim() > tag.dim():
            value = value[:, -1]
        interrupted = tag.reshape(-1, *[1] * (value.dim() - 1)) == 1
        return batch | {self.column: torch.where(interrupted, torch.ones_like(value), value)}
