"""Several loaders whose batches come together, as several data groups."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.core.errors import ConfigError, RlrunError, require_at_least, require_counts, require_known
from rlrun.core.typing import Groups
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.memory.loaders.replay import placed, tables_of
from rlrun.memory.table.sample import origins
from rlrun.memory.table.table import Table

_messages = logging.getLogger("rlrun")


@dataclass
class Rate:
    """Rounds of a `JointLoader` in which a part gives batches, and their number."""

    every: int = 1  # in each n-th round
    every_steps: int | None = None  # in place of `every`: in the first round, then each time after these env steps
    times: int = 1  # batches in such a round
    epochs: int | None = None  # in place of `times`: passes over a data set
    min_batches: int = 1  # with `epochs`: least batches of a round, by more passes
    warm_up: int = 0  # environment steps before the first such round
    waits: bool = False  # it is its turn, but its table has no rows yet
    last: int | None = None  # environment steps when a part with `every_steps` gave its newest batches

    @property
    def skips_rounds(self) -> bool:
        """Return True if a part gives nothing in some rounds."""
        return self.every > 1 or self.every_steps is not None or self.warm_up > 0

    def turns(self, number: int, steps: int, loader: Any) -> int:
        """Return the number of batches, or epochs, that a loader gives in round `number`; steps: env steps so far."""
        if self.every_steps is None:
            due = number % self.every == 0
        else:
            due = self.last is None or steps - self.last >= self.every_steps
        due = due and steps >= self.warm_up
        self.waits = due and self.skips_rounds and getattr(loader, "waits", False)
        due = due and not self.waits
        if due and self.every_steps is not None:
            self.last = steps
        if not due or self.epochs is None:
            return self.times if due else 0
        return max(self.epochs, -(-self.min_batches // loader.batches)) if self.min_batches > 1 else self.epochs

    @property
    def most(self) -> int:
        """The largest number that `turns` can return."""
        return self.times if self.epochs is None else max(self.epochs, self.min_batches)

    def __str__(self) -> str:
        count, unit = (self.epochs, "epoch") if self.epochs else (self.times, "batch")
        amount = f"{count:,} {unit}" + ("" if count == 1 else "s" if self.epochs else "es")
        amount += f", at least {self.min_batches:,} batches," if self.min_batches > 1 else ""
        rounds = "each round" if self.every == 1 else f"every {self.every:,} rounds"
        pace = rounds if self.every_steps is None else f"every {self.every_steps:,} environment steps"
        return f"{amount} {pace}" + (f", from step {self.warm_up:,} on" if self.warm_up else "")


class JointLoader:
    """Serves the batches of several loaders together, as several data groups.

    A round is one batch of each loader, and one update of all groups. A part may have a rate: it gives batches in some
    rounds only, or several in a round. The first batches of all parts make one update, the second batches another one
    before the next round, and so on.

    A data group `default` gets the name of its loader; other groups keep their names. The loader ends with the first of
    its loaders. A loader that collects must come before those that draw from the same table.

    Args:
        nested: a single data group in which each loader's batch is an entry under the loader's name.
        loaders: by name, each a loader or `{loader, every, every_steps, times, epochs, min_batches, warm_up}` with the
            settings of a `Rate`.

    Raises:
        ConfigError: two loaders give the same group, there is no loader, or a rate is impossible, such as batches of a
            growing table, whose epochs would not end.
    """

    def __init__(self, *, nested: str | None = None, **loaders: Any) -> None:
        self._rates = {part: _rate(part, entry) for part, entry in loaders.items() if isinstance(entry, Mapping)}
        self.parts = {part: loaders[part].get("loader") if part in self._rates else loaders[part] for part in loaders}
        self.nested = nested
        if not self.parts:
            raise ConfigError("a JointLoader needs loaders by name")
        self._groups: dict[str, dict[str, str]] = {}  # part -> its group -> the group here
        self._names: dict[str, tuple[str, ...]] = {}
        self._given: dict[str, Groups] = {}  # part -> its groups of the next, incomplete batch
        self._round = 1
        self._waiting: set[str] = set()  # parts that have waited for rows
        self._left: dict[str, int] = {}  # part -> batches or epochs still to give in this round
        owners: dict[str, str] = {}
        for part, loader in self.parts.items():
            if not hasattr(loader, "names"):
                raise ConfigError(f"{part}: wanted a loader, got {loader!r}")
            names = loader.names()
            if nested is not None and len(names) > 1:
                raise ConfigError(f"{part}: one data group can be nested, not several: {', '.join(names)}")
            own = {group: part if group == "default" or nested is not None else group for group in names}
            self._groups[part] = own
            for group, here in own.items():
                if here in owners:
                    raise ConfigError(f"{part}: it gives the data group '{here}', as {owners[here]} does")
                owners[here] = part
                self._names[here] = tuple(names[group])
        self.collector = self._check_rates()

    def _check_rates(self) -> Any:
        """Refuse impossible rates; return the collector whose steps are counted, or None."""
        loaders = [getattr(loader, "loader", loader) for loader in self.parts.values()]  # a prefetch wraps one
        collector = next(filter(None, (getattr(loader, "collector", None) for loader in loaders)), None)
        for part, rate in self._rates.items():
            if self.nested is not None:
                raise ConfigError(f"{part}: parts of the one data group '{self.nested}' have no rates")
            if rate.every_steps is not None and collector is None:
                raise ConfigError(f"{part}.every_steps: no loader here collects; every=N counts rounds")
            if rate.warm_up and collector is None:
                raise ConfigError(f"{part}.warm_up: no loader here collects; 0 is without")
            if rate.epochs is not None and not isinstance(self.parts[part], DatasetLoader):
                kind = type(self.parts[part]).__name__
                raise ConfigError(f"{part}.epochs: a {kind} has no epochs; a DatasetLoader has")
        filled = getattr(collector, "table", None)
        for part, loader in zip(self.parts, loaders, strict=True):
            batches = part not in self._rates or self._rates[part].epochs is None
            if batches and isinstance(loader, DatasetLoader) and filled is not None and filled in loader.tables:
                raise ConfigError(f"{part}: its table grows between rounds; give epochs, which end within one")
        if all(part in self._rates and self._rates[part].skips_rounds for part in self.parts):
            raise ConfigError("one part must give batches in every round; it has neither every nor every_steps")
        return collector

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return dict(self._names) if self.nested is None else {self.nested: tuple(self._names)}

    def rates(self) -> dict[str, str]:
        """Return the rates of data groups that have one, in words."""
        return {here: str(rate) for part, rate in self._rates.items() for here in self._groups[part].values()}

    def __iter__(self) -> Iterator[Groups]:
        running = {part: iter(loader) for part, loader in self.parts.items()}
        while True:
            for part, batches in running.items():
                if part in self._given:  # the run stopped while a later loader collected
                    continue
                if self._rates and not self._has_turn(part):
                    continue
                epoch = getattr(self.parts[part], "epoch", 0)
                groups = next(batches, None)
                if groups is None:
                    return
                self._given[part] = {self._groups[part][group]: batch for group, batch in groups.items()}
                if self._rates:
                    in_epochs = part in self._rates and self._rates[part].epochs is not None
                    self._left[part] -= self.parts[part].epoch - epoch if in_epochs else 1
            merged = {group: batch for part in self._given for group, batch in self._given[part].items()}
            self._given = {}
            if not any(self._left.values()):
                self._round, self._left = self._round + 1, {}
            yield merged if self.nested is None else {self.nested: merged}

    def _has_turn(self, part: str) -> bool:
        """Return True if a part gives a batch to the next update; its rate is evaluated once a round."""
        if part not in self._left:
            steps = 0 if self.collector is None else self.collector.steps
            rate = self._rates.get(part, Rate())
            self._left[part] = rate.turns(self._round, steps, self.parts[part])
            if rate.waits and part not in self._waiting:
                self._waiting.add(part)
                _messages.warning("loader.%s: its table has no rows yet, so it gives no batches until then", part)
        return self._left[part] > 0

    def ready(self) -> bool:
        """Return True if no loader makes an environment step before its next batch."""
        return all(loader.ready() for loader in self.parts.values())

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of all loaders; of equal names the first loader's."""
        parts = [getattr(loader, "metrics", {}) for loader in self.parts.values()]
        return {name: value for metrics in reversed(parts) for name, value in metrics.items()}

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables of the batches."""
        return tuple(table for loader in self.parts.values() for table in tables_of(loader))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all loaders by name, the round, and batches for an incomplete joint batch."""
        last = {part: rate.last for part, rate in self._rates.items()}
        rates = {"round": self._round, "left": dict(self._left), "last": last} if self._rates else {}
        parts = {part: loader.state_dict() for part, loader in self.parts.items()}
        rows = {part: origins(groups, tables_of(self.parts[part])) for part, groups in self._given.items()}
        return {"parts": parts, "given": self._given, "origins": rows, **rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the states of all loaders; rates that an earlier config lacked begin at their first round.

        Raises:
            RlrunError: the saved rest of a round exceeds a rate, or belongs to an unknown part.
        """
        left, last = state.get("left", {}), state.get("last", {})
        require_counts({"round": state.get("round", 1), **left})
        require_counts({part: steps for part, steps in last.items() if steps is not None})
        for part, count in left.items():
            rate = self._rates.get(part, Rate())
            if part not in self.parts or count > rate.most:
                raise RlrunError(f"loader.{part}: the saved round has {count:,} batches or epochs left for it")
        for part, loader in self.parts.items():
            loader.load_state_dict(state["parts"][part])
        rows = state["origins"]
        self._given = {part: placed(groups, self.parts[part], rows[part]) for part, groups in state["given"].items()}
        self._round, self._left = state.get("round", 1), dict(left)
        for part, rate in self._rates.items():
            rate.last = last.get(part)


def batches(loader: Any, groups: Mapping[str, Any]) -> Any:
    """Return a loader that adds data groups to those of the algorithm's loader; this loader itself without any.

    groups: loaders or `{loader, every, every_steps, times, epochs, min_batches, warm_up}` by name, as of `JointLoader`.
    """
    added = {name: group for name, group in groups.items() if group is not None}
    try:
        return JointLoader(default=loader, **added) if added else loader
    except ConfigError as error:
        if str(error).startswith(tuple(f"{name}{mark}" for name in added for mark in ".:")):
            error.args = (f"groups.{error}",)
        raise


def _rate(part: str, entry: Mapping[str, Any]) -> Rate:
    """Return the rate of a part `{loader, …}` of a JointLoader."""
    place = part
    require_known(place, entry, ("loader", "every", "every_steps", "times", "epochs", "min_batches", "warm_up"))
    for exclusive in (("every", "every_steps"), ("times", "epochs")):
        if all(entry.get(name) is not None for name in exclusive):
            raise ConfigError(f"{place}: {' and '.join(exclusive)} exclude each other")
    if entry.get("min_batches") is not None and entry.get("epochs") is None:
        raise ConfigError(f"{place}.min_batches: it adds epochs; give epochs, too")
    settings = {name: value for name, value in entry.items() if name != "loader" and value is not None}
    for name, value in settings.items():
        if type(value) is not int:
            raise ConfigError(f"{place}.{name}: wanted a whole number, got {value!r}")
        require_at_least(f"{place}.{name}", value, 0 if name == "warm_up" else 1)
    return Rate(**settings)
