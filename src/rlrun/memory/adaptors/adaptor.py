"""Adaptors change a sample before it becomes a batch.

The table sorts adaptors by their `tier`, and within a tier by the order of the config. So rewards are always clipped
before they are summed over steps:

    COPIES     copies of stored columns and of the steps after them
    RELABEL    other goals, with their rewards: hindsight
    WEIGHTS    one reward of several rewards a step
    REPRESENTATIONS  features in place of observations
    REWARDS    each step's reward
    RETURNS    rewards by the size of their returns
    AHEAD      several steps joined: n-step returns
    VIEWS      further observations: changed at random, or of later steps
    MIRRORS    mirror images of observations, or of all rows
    VALUES     other changes of single steps: cast, scale, normalize; also adaptors without a tier
    EVALUATES_ACTIONS  outputs of networks for whole windows: advantages
    SHAPE      selection of parts
    PAST       windows and states for recurrent networks
    NAMES      other names
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, did_you_mean
from rlrun.core.spaces import nest
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.table.samplers import Rows
from rlrun.memory.table.storage import leaf_of

COPIES, RELABEL, WEIGHTS, REPRESENTATIONS, REWARDS, RETURNS, AHEAD, VIEWS, MIRRORS = range(9)
VALUES, EVALUATES_ACTIONS, SHAPE, PAST, NAMES = range(9, 14)
FURTHER = (
    "anchor",
    "positive",
    "origin",
    "later",
    "mirrored",
)  # observations that views add; adaptors change them as they change `observation`
SINGLE = (RELABEL, WEIGHTS, REPRESENTATIONS, RETURNS, AHEAD)  # tiers of which a second adaptor would undo the first


class Adaptor(Protocol):
    """A function that returns a changed batch, without modifying tensors.

    `rows` finds the rows around the sample; it is None for batches without a table. `rows.through` applies the change
    to columns that later adaptors look up by `rows.gather`.

    Optional members:

    * `tier`, and `requires`: names that it reads, "observation.goal" for a leaf
    * `idle`: True if it changes nothing, and is left out
    * `keeps`: names that batches of rollouts have in addition to the loader's columns
    * `learns`: True if the result depends on the last update, so batches cannot be drawn ahead
    * `rowwise`: True if each row changes independently of the others, so several samples are adapted at once
    * `copies`: number of rows that each row becomes; 1 without it
    * `rollout(batch)`: called with a whole rollout [N, T, …] in place of the adaptor
    * `evaluate(batch, rows)`: called in place of the adaptor for held-out batches; it must not learn or draw
    * `observe(row)`: called with every row [n, …] that enters a table, or None. `row["env"]` [n] has the numbers of
      their environments; they are equal for an episode that enters as a whole.
    * `break_off(env)`: called if episodes of environments [n] end without another row
    """

    @property
    def provides(self) -> tuple[str, ...]:
        """Names that it adds to the batch or rewrites."""

    @property
    def replaces(self) -> tuple[str, ...]:
        """Names that it provides without reading them, so the table need not fetch them."""

    @property
    def removes(self) -> tuple[str, ...]:
        """Names that it removes from the batch."""

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch: ...


def arrange(
    adaptors: Mapping[str, Any] | Sequence[Any], *, rewards: int = 0, on_policy: bool = False
) -> tuple[Any, ...]:
    """Return adaptors in the order of their calls, without entries that are None.

    rewards: numbers in the environment's reward, which an adaptor must combine; 0 = a scalar.
    on_policy: adaptors get whole rollouts that earlier adaptors have changed, not rows.

    Raises:
        ConfigError: two adaptors exclude each other, or several rewards are not combined.
    """
    named = adaptors.items() if isinstance(adaptors, Mapping) else enumerate(adaptors)
    present = ((name, value) for name, value in named if value is not None and not getattr(value, "idle", False))
    entries = sorted(present, key=lambda entry: _tier(entry[1]))
    for (name, first), (later, second) in pairwise(entries):
        if _tier(first) == _tier(second) and _tier(first) in SINGLE:
            raise ConfigError(
                f"memory.adaptors.{later}: {type(second).__name__} would undo {name}, there can be one of its kind"
            )
        if on_policy and _tier(second) == RETURNS and getattr(first, "rescales", False):
            way_out = f"memory.adaptors.{later}=null keeps rewards as it leaves them"
            message = "memory.adaptors.%s is undone by %s, which divides by the size of what it gives; %s"
            logging.getLogger("rlrun").warning(message, name, later, way_out)
    arranged = tuple(adaptor for _, adaptor in entries)
    if on_policy and any(_tier(adaptor) == AHEAD and getattr(adaptor, "steps", 1) > 1 for adaptor in arranged):
        raise ConfigError("algorithm.n_step: later actions of a rollout are not the policy's any more; give 1 here")
    if on_policy and any(_tier(adaptor) == PAST for adaptor in arranged):
        way_out = "remove algorithm.recurrent, encoder=recurrent or +with=on_policy"
        raise ConfigError(f"memory.adaptors: recurrent networks of this algorithm learn from replay alone; {way_out}")
    relabels = any(_tier(adaptor) == RELABEL for adaptor in arranged)
    if relabels and any(getattr(adaptor, "of_searches", False) for adaptor in arranged):
        raise ConfigError(
            "memory.adaptors: stored searches were for the goal of their step, and another goal takes its place; leave "
            "+with=hindsight out, or learn by algorithm=dqn, algorithm=sac"
        )
    weighing = [adaptor for adaptor in arranged if _tier(adaptor) == WEIGHTS]
    if rewards and not weighing:
        raise ConfigError(
            f"memory.adaptors: the environment's reward has {rewards} numbers a step, and learning wants one; "
            "+with=reward_weights or +with=lagrangian weighs them"
        )
    for adaptor in weighing:
        adaptor.require(rewards)
    apart: Any = next((adaptor for adaptor in weighing if adaptor.apart), None)
    for adaptor in arranged if apart is not None else ():
        if getattr(adaptor, "sums", False):
            raise ConfigError(
                f"memory.adaptors: {type(adaptor).__name__} adds to one reward a step, and they stay {rewards} here; "
                "remove +with=reward_critics or reward_values"
            )
        if _tier(adaptor) == RETURNS:
            adaptor.weigh = apart.change
    for adaptor in arranged if rewards and not on_policy else ():
        if getattr(adaptor, "observe", None) is not None and "reward" in adaptor.provides:
            raise ConfigError(
                f"memory.adaptors: {type(adaptor).__name__} would learn from rows, whose rewards are {rewards} numbers "
                "a step; +with=reward_norm and update=replay take those that were weighed"
            )
    return arranged


def adapt(adaptors: Iterable[Any], batch: Batch, rows: Rows | None, *, evaluation: bool = False) -> Batch:
    """Return a batch changed by adaptors; evaluation: it is held out, so adaptors neither learn nor draw."""
    for adaptor in adaptors:
        batch = (getattr(adaptor, "evaluate", adaptor) if evaluation else adaptor)(batch, rows)
    return batch


def _tier(adaptor: Any) -> int:
    return int(getattr(adaptor, "tier", VALUES))


def check(adaptors: Iterable[Any], names: Iterable[str]) -> None:
    """Refuse adaptors that read missing names or exclude a present one; names: before them, with leaves of columns.

    Raises:
        ConfigError: with the nearest name, or the reason for the exclusion.
    """
    known = dict.fromkeys(names)
    for adaptor in adaptors:
        place = f"memory.adaptors: {type(adaptor).__name__}"
        require_read(place, adaptor, known)
        for name, why in getattr(adaptor, "excludes", {}).items():
            if name in known:
                raise ConfigError(f"{place} does not go with the column '{name}': {why}")
        gone = getattr(adaptor, "removes", ())
        known = {name: None for name in known if name.partition(".")[0] not in gone}
        known |= dict.fromkeys(adaptor.provides)


def require_read(place: str, part: Any, known: Collection[str]) -> None:
    """Refuse an adaptor or a virtual column that reads a missing name.

    Raises:
        ConfigError: with the nearest name.
    """
    for name in getattr(part, "requires", ()):
        if name not in known:
            raise ConfigError(f"{place} reads '{name}'; there are {', '.join(known)}{did_you_mean(name, known)}")


def adapted(names: Iterable[str], adaptors: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of a batch after the adaptors."""
    columns = list(names)
    for adaptor in adaptors:
        columns = [name for name in columns if name not in adaptor.removes]
        columns += [name for name in adaptor.provides if name not in columns]
    return tuple(columns)


def spared(adaptors: Iterable[Any]) -> set[str]:
    """Return the names that a table need not fetch, as an adaptor replaces them before any reads them."""
    replaced: set[str] = set()
    read: set[str] = set()
    for adaptor in adaptors:
        replaced |= {name for name in adaptor.replaces if name not in read}
        if not hasattr(adaptor, "requires"):  # it may read anything
            break
        read |= {name.partition(".")[0] for name in adaptor.requires}
    return replaced


class PerStep(ABC):
    """The base of adaptors that change a column step by step.

    "observation" includes next_observation. Rewards are changed before they are summed over steps, other columns after.

    Args:
        column: a name, or a leaf of it: "observation.camera".
        leaves: only these leaves of the column; null = all.
    """

    removes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    def __init__(self, column: str, leaves: Sequence[str] | None = None) -> None:
        self.column, _, leaf = column.partition(".")
        self.tier = REWARDS if self.column == "reward" else VALUES
        self.leaves = [leaf] if leaf else None if leaves is None else list(leaves)
        self.requires = (column,) if self.leaves is None else tuple(f"{self.column}.{path}" for path in self.leaves)
        self.provides = ("observation", "next_observation") if self.column == "observation" else (self.column,)

    @abstractmethod
    def change(self, value: Tensor) -> Tensor:
        """Return the changed values of a leaf [..., *shape]; the given tensor stays as it is."""

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is not None and self.tier < AHEAD:
            rows.through(self.column, self._read)
        names = (*self.provides, *FURTHER) if self.column == "observation" else self.provides
        return batch | {name: self.apply(batch[name]) for name in names if name in batch}

    def preprocess(self, observation: Tree) -> Tree:
        """Return an agent's observation, changed like samples; for `agent.preprocess`."""
        return self.apply(observation)

    def apply(self, tree: Tree, path: str = "") -> Tree:
        """Return a tree, or its part at `path`, with changed leaves."""
        if isinstance(tree, dict):
            return {name: self.apply(part, f"{path}.{name}" if path else name) for name, part in tree.items()}
        chosen = self.leaves is None or any(f"{path}.".startswith(f"{leaf}.") for leaf in self.leaves)
        return self.change(tree) if chosen else tree

    def _read(self, name: str, tree: Tree, slots: Array) -> Tree:
        return self.apply(tree, name.partition(".")[2])


def dtype_of(place: str, name: str) -> torch.dtype:
    """Return a dtype by its name; place: for the message."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"{place} '{name}' is not a torch dtype")
    return dtype


class Cast(PerStep):
    """Give a column another dtype."""

    rowwise = True

    def __init__(self, column: str, *, dtype: str = "float32") -> None:
        super().__init__(column)
        self.dtype = dtype_of("memory.adaptors: Cast.dtype", dtype)

    def change(self, value: Tensor) -> Tensor:
        return value.to(self.dtype)


class Scale(PerStep):
    """Multiply a column by a factor; integers become float32."""

    rescales = True  # it only rescales
    rowwise = True

    def __init__(self, column: str, *, factor: float) -> None:
        super().__init__(column)
        self.factor = factor

    def change(self, value: Tensor) -> Tensor:
        return value * self.factor if value.is_floating_point() else value.to(torch.float32).mul_(self.factor)


class Rename:
    """Call columns by other names.

    Args:
        names: old name -> new name.
        keep: leave the columns under their old names, too.
    """

    tier = NAMES
    rowwise = True
    replaces = ()

    def __init__(self, names: Mapping[str, str], *, keep: bool = False) -> None:
        self.names = dict(names)
        self.keep = keep
        self.requires = tuple(self.names)
        self.provides = tuple(self.names.values())
        self.removes = () if keep else self.requires

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        renamed = {self.names.get(name, name): value for name, value in batch.items()}
        return batch | renamed if self.keep else renamed


class Untransformed:
    """Adds a dict `untransformed` of stored columns; its next_observation is the one after a single step."""

    tier = COPIES
    rowwise = True
    provides = keeps = ("untransformed",)
    removes = replaces = ()

    def __init__(self, names: Sequence[str]) -> None:
        if not names or isinstance(names, str):
            raise ConfigError(f"memory.adaptors: Untransformed.names: wanted a list of names, got {names!r}")
        self.requires = self.names = tuple(names)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        stored = {name: batch[name] for name in self.names}  # no copies, as adaptors never write into a tensor
        return batch | {"untransformed": batch.get("untransformed", {}) | stored}  # several such adaptors add up


class Select:
    """Choose parts of dict observations, and of next observations.

    Args:
        leaves: "position": this leaf becomes the observation; a list: only these parts remain; a dict of new names:
            `{observation: position, goal: desired_goal}` also adds goal and next_goal.
    """

    tier = SHAPE
    rowwise = True
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
        """Return the chosen parts of an agent's observation, for `agent.preprocess`."""
        return _part(observation, self.leaves["observation"]) if "observation" in self.leaves else observation


def _part(tree: Tree, chosen: str | Sequence[str]) -> Tree:
    """Return the leaf at a path, or the tree of those at several."""
    if isinstance(chosen, str):
        return leaf_of(tree, chosen.split("."))
    return nest({path: leaf_of(tree, path.split(".")) for path in chosen})
