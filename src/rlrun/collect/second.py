"""A second collector in one run: another environment, or another agent, into a table of its own."""

from collections.abc import Mapping
from typing import Any

from rlrun.collect.agents import Agent
from rlrun.collect.collector import Collector
from rlrun.core.errors import ConfigError
from rlrun.env import Env
from rlrun.memory import Table
from rlrun.memory.loaders import positive


class SecondCollector(Collector):
    """Step environments whenever another collector steps its own.

    `step`, the budget and the loader count the steps of the other one alone. Metrics have this callback's name in
    front. During the other one's warm-up it acts at random, too.

    Args:
        first: the collector that it follows.
        env, agent, table: as of `Collector`; none of them is the other one's.
        steps_per_step: its environment steps for each one of the other's.
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
        self.steps += steps  # the budget counts those of the first

    @property
    def metrics(self) -> Mapping[str, Any]:
        own = {"env_steps": self.steps, **super().metrics}
        return {f"{self.name}/{name}": value for name, value in own.items()}
