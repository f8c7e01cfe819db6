"""A second collector in one run, with its own environment and agent; and a second table for one collector."""

from collections.abc import Callable, Mapping
from typing import Any

from rlrun.collect.agents import Agent
from rlrun.collect.collector import Collector, forget_returns
from rlrun.core.errors import ConfigError
from rlrun.core.schedules import positive
from rlrun.core.spaces import take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env import Env
from rlrun.memory import Table
from rlrun.training.callback import Callback


class SecondCollector(Collector):
    """Steps environments of its own whenever another collector steps.

    `step`, the budget and the loader count only the steps of the first one. Names of metrics begin with this callback's
    name. During the first one's warm-up it acts at random, too.

    Args:
        first: the collector to follow.
        env, agent, table: as of `Collector`; all differ from the first one's.
        steps_per_step: its environment steps for each step of the first.
        options: of `Collector`.

    Raises:
        ConfigError: `first` is of another kind, or has the same environment, agent or table.
    """

    provides = ()
    one_rank = "its environments are not shared among ranks"

    def __init__(
        self, first: Collector, env: Env, agent: Agent, table: Table, *, steps_per_step: float = 1.0, **options: Any
    ) -> None:
        super().__init__(env, agent, table, **options)
        if getattr(type(first), "collect", None) is not Collector.collect:
            raise ConfigError(f"first: a {type(first).__name__} steps by itself; wanted a rlrun.collect.Collector")
        for name in ("env", "agent", "table"):
            if getattr(first, name) is getattr(self, name):
                raise ConfigError(f"{name}: it is that of `first`, and has a state; give this collector its own")
        self.first = first
        self.rate = positive("steps_per_step", steps_per_step)

    def follow(self, random: bool) -> None:
        """Make the steps that are due after a round of the first collector.

        Raises:
            RequestError: random actions lack a column that the memory stores.
        """
        self._require_stored(random)
        while self.steps + self.env.num_envs <= self.first.steps * self.rate:
            self._step(self.random if random else self.agent)

    def _clock(self) -> dict[str, int]:
        return {}

    def _count(self, steps: int) -> None:
        self.steps += steps  # outside the budget, which counts the first collector's steps

    @property
    def metrics(self) -> Mapping[str, Any]:
        own = {"env_steps": self.steps, **super().metrics}
        return {f"{self.name}/{name}": value for name, value in own.items()}


class SecondTable(Callback):
    """Stores each step of a collector in a second table, with its own length, sampler and adaptors.

    Args:
        collector: its steps are stored.
        table: of as many environments; its columns are those of the environment, or of the collector's table.

    Raises:
        ConfigError: the collector is of another kind, or the table does not fit.
    """

    def __init__(self, collector: Collector | None, table: Table) -> None:
        if not isinstance(collector, Collector):
            there = "nothing is collected" if collector is None else f"a {type(collector).__name__} collects"
            wanted = "wanted a rlrun.collect.Collector, whose steps are stored"
            raise ConfigError(f"collector: {wanted}; {there}: leave out what learns from this table")
        if not isinstance(table, Table) or table is collector.table:
            kind = "that of the collector" if table is collector.table else f"a {type(table).__name__}"
            raise ConfigError(f"table: wanted a rlrun.memory.Table of its own, got {kind}")
        if table.num_envs != collector.env.num_envs:
            raise ConfigError(
                f"table.num_envs: wanted the {collector.env.num_envs} envs of the collector, got {table.num_envs}"
            )
        if missing := sorted({*table.wanted} - {*collector.stored}):
            raise ConfigError(f"table.columns.{missing[0]}: wanted a column of the collector's own table, too")
        self.of, self.table = collector, table

    def break_off(self, envs: Array, observation: Tree) -> None:
        """End the open episodes of envs [n], if they have rows, at observations [N, …]."""
        index = self.table.index
        stored = envs[index.newest()[index.open[envs]] >= 0]
        if len(stored):
            self.table.close(stored, take_rows(observation, stored))
        forget_returns(self.table, envs)

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"steps of {path_of(self.of)} -> {path_of(self.table)}, too"
