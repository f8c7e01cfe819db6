"""The config and metrics of a run, read without executing code from its files or trusting their content."""

import operator
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rlrun.config.files import parse_yaml
from rlrun.config.interpolation import dotted, locate, split
from rlrun.core.clock import KINDS
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.files import known, read_bytes
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import LINE_BYTES, last_line, lines_of, number_of, record_of

METRIC_BYTES = 1 << 26  # most bytes of a metrics file that are read
RAW = "episode/raw_return"  # the environment's own return, if wrappers change rewards
ENOUGH = 6  # evaluations that suffice for a curve


class Unknown(Exception):
    """A check cannot be made; the message names the missing data."""


class NotApplicable(Exception):
    """A check does not apply to runs of this kind."""


class Number(float):
    """A number that is shown with three significant digits and separated thousands."""

    def __format__(self, form: str) -> str:
        """Return the number in a given format, or in the default one."""
        if form:
            return format(float(self), form)
        if self.is_integer() and abs(self) < 1e9:
            return f"{int(self):,}"
        return f"{float(self):,.0f}" if 1e3 <= abs(self) < 1e9 else f"{float(self):.3g}"


def override(key: str, value: float | None) -> str:
    """Return an override that sets a key to a number or null, in YAML's form; unusual keys are quoted."""
    text = "null" if value is None else f"{value:.2g}"
    if value is not None and value == int(value) and 1 <= abs(value) < 1e12:
        text = f"{int(value):_}"
    mantissa, _, exponent = text.partition("e")
    if exponent:
        text = f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(exponent)}"
    return shlex.quote(f"{key}={text}")


class Setting(NamedTuple):
    """A value of the config, and the key by which an override changes it."""

    key: str
    value: Any


class Point(NamedTuple):
    """A value of a metric."""

    env_steps: float
    value: float


@dataclass
class Facts:
    """The facts about a run in its files.

    Attributes:
        path: of its folder.
        status: of `RunDir.read_status`.
        config: plain, with unresolved interpolations.
        series: finite values of each metric, in temporal order.
        broken: metric that was not finite at some time -> environment step of the first time.
        records: number of records.
        env_steps, updates: of the newest record.
        seconds: of the newest record with shares of time.
        spent: seconds of each kind of work until then.
        damage: reading errors, one line each.
        failure: the last line that a failed run logged.
        preset: whether a preset set values; None if unknown.
    """

    path: Path
    status: str = "completed"
    config: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Point]] = field(default_factory=dict)
    broken: dict[str, float] = field(default_factory=dict)
    records: int = 0
    env_steps: float = 0.0
    updates: float = 0.0
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    failure: str = ""
    preset: bool | None = None

    def setting(self, key: str) -> Setting | None:
        """Return a value of the config, with interpolations resolved, or None if it does not exist."""
        try:
            place = locate(self.config, split(key))
        except (ConfigError, RecursionError):
            return None
        return None if place.beyond or place.node is None else Setting(dotted(place.path), place.node)

    def figure(self, key: str) -> Setting | None:
        """Return a number of the config, with interpolations resolved, or None if it is not a number."""
        setting = self.setting(key)
        number = None if setting is None else number_of(setting.value)
        return None if setting is None or number is None else Setting(setting.key, number)

    def number(self, key: str) -> float | None:
        """Return a number of the config without its key, or None."""
        figure = self.figure(key)
        return None if figure is None else figure.value

    def values(self, name: str, least: int = 1) -> list[float]:
        """Return the values of a metric.

        Raises:
            Unknown: there are fewer than `least`.
        """
        points = self.series.get(name, [])
        if len(points) < least:
            raise Unknown(name if not points else f"{least} values of {name}")
        return [point.value for point in points]

    def names(self, number: str) -> list[str]:
        """Return the names that match `*` in `family/*` or `callbacks.*.KEY`; `[""]` for a number without `*`."""
        _, source = windowed(number)
        if "*" not in source:
            return [""] if "/" not in source or source in self.series else []
        if source.endswith("/*"):
            return [name.removeprefix(source[:-1]) for name in self.series if name.startswith(source[:-1])]
        callbacks = self.config.get("callbacks")
        return [str(name) for name in callbacks] if isinstance(callbacks, dict) else []

    def measure(self, number: str) -> float | None:
        """Return a metric's value in a window, a number of the config, or a property; None if the run lacks it.

        Raises:
            Unknown: the metric has too few values.
        """
        window, source = windowed(number)
        if "/" in source:
            least, value_of = WINDOWS[window]
            return value_of(self.values(source, least))
        return self.number(source) if "." in source else getattr(self, source)

    @property
    def rollout_steps(self) -> float | None:
        """Environment steps of a rollout, in all environments together."""
        horizon = self.number("loader.horizon")
        return None if horizon is None else horizon * (self.number("num_envs") or 1.0)

    @property
    def rollout_updates(self) -> float | None:
        """Updates per rollout."""
        epochs, batch = self.number("loader.epochs"), self.number("loader.minibatch")
        steps = self.rollout_steps
        return epochs * steps / batch if epochs is not None and batch and steps else None

    @property
    def rise(self) -> float:
        """Rise of returns over the run, as a share of their range; 0 if all are the same."""
        returns = self.training_returns(4)
        return (median_of_newer_half(returns) - returns[0]) / ((max(returns) - min(returns)) or 1.0)

    @property
    def lowest_return(self) -> float:
        """Lowest mean return during training."""
        return min(self.training_returns())

    def training_returns(self, least: int = 1) -> list[float]:
        """Return the mean returns of training episodes; the environment's own if wrappers change rewards.

        Raises:
            Unknown: there are fewer than `least`.
        """
        return self.values(RAW if RAW in self.series else "episode/return", least)

    @property
    def reward_size(self) -> float:
        """Typical absolute reward in sampled batches."""
        return abs(median_of_newer_half(self.values("batch/reward", 3)))

    @property
    def slowest_tau(self) -> float:
        """Smallest `tau` with which a target network can follow within the updates so far: 1 / updates."""
        return 1.0 / max(self.updates, 1.0)

    @property
    def running(self) -> float:
        """1 if the run is in progress."""
        return float(self.status == "running")

    @property
    def normalized(self) -> float:
        """1 if the agent normalizes observations."""
        return float(self.setting("agent.preprocess.observation_norm") is not None)

    @property
    def stochastic(self) -> float:
        """1 if the policy is a distribution."""
        return float(bool(self.names("entropy/*")))

    @property
    def untuned(self) -> float:
        """1 if no preset chose the numbers, and returns could still rise."""
        return float(self.preset is False and self.ceiling is None)

    @property
    def limit(self) -> int | None:
        """Registered time limit of the config's environment in steps, or None."""
        return getattr(self._spec, "max_episode_steps", None)

    @property
    def ceiling(self) -> str | None:
        """Reason why returns need not rise further, or None."""
        evaluated = [self.series.get(f"evaluation/mean_{name}", []) for name in ("return", "length")]
        if not all(evaluated):
            return None
        late, steps = (median(point.value for point in points[-(len(points) // 3 + 1) :]) for points in evaluated)
        limit, threshold = (getattr(self._spec, name, None) for name in ("max_episode_steps", "reward_threshold"))
        if late == steps == limit:
            return f"the time limit of {Number(steps)} steps, each of which pays 1"
        return (
            None if threshold is None or late < threshold else f"the task counts as solved from {Number(threshold)} on"
        )

    @property
    def _spec(self) -> Any:
        setting = self.setting("env.id")
        if setting is None or not isinstance(setting.value, str):
            return None
        import gymnasium

        return gymnasium.registry.get(setting.value)  # a look-up by name, which imports and makes nothing

    @property
    def returns(self) -> list[Point]:
        """Mean returns of evaluations, or of training if there are few evaluations."""
        evaluated = self.series.get("evaluation/mean_return", [])
        return evaluated if len(evaluated) >= ENOUGH else self.series.get("episode/return", [])


def median_of_newer_half(values: list[float]) -> float:
    """Return the median of the newer half of a metric's values, which one bad record cannot affect."""
    return median(values[len(values) // 2 :])


# window -> least number of a metric's values, and the function that returns one of them
WINDOWS: dict[str, tuple[int, Callable[[list[float]], float]]] = {
    "": (3, median_of_newer_half),
    "first": (1, operator.itemgetter(0)),
    "largest": (1, max),
    "smallest": (1, min),
}


def windowed(number: str) -> tuple[str, str]:
    """Split `largest:METRIC` into window and metric; the window is "" for a metric alone."""
    window, colon, source = number.partition(":")
    return (window, source) if colon and window in WINDOWS else ("", number)


def read(run: RunDir) -> Facts:
    """Return the facts in the files of a run.

    Raises:
        RunDirError: its config cannot be read.
        ConfigError: its config is damaged.
    """
    text = read_bytes(run.config).decode(errors="replace")
    facts = Facts(run.path, str(run.read_status()["status"]), parse_yaml(text, str(run.config)))
    _read_metrics(run.metrics, facts)
    set_by, summary = known(run.manifest).get("set_by"), known(run.summary)
    if isinstance(set_by, dict) and set_by:
        facts.preset = any(re.search("(?:preset|experiment)/", str(label)) for label in set_by.values())
    if facts.status == "failed" and run.log.is_file():
        facts.failure = last_line(run.log) or ""
    facts.env_steps = max(facts.env_steps, number_of(summary.get("env_steps")) or 0.0)
    facts.updates = max(facts.updates, number_of(summary.get("updates")) or 0.0)
    return facts


def _read_metrics(path: Path, facts: Facts) -> None:
    """Add a file of metrics to the facts; lines that are not records are skipped."""
    lost = 0
    try:
        for line in lines_of(path, METRIC_BYTES):
            record = record_of(line)
            if record is not None and number_of(record.get("env_steps")) is not None:
                _add_record(record, facts)
            elif line.endswith(b"\n") or len(line) == LINE_BYTES:  # an incomplete last line is still being written
                lost += 1
    except RlrunError as error:
        facts.damage += (str(error),)
    if lost:
        lines = "1 line is not a record and was" if lost == 1 else f"{lost:,} lines are not records and were"
        facts.damage += (f"{path}: {lines} left out",)
    if path.is_file() and path.stat().st_size > METRIC_BYTES:
        facts.damage += (f"{path}: it is very long; only its first {facts.records:,} records were read",)


def _add_record(record: dict[str, Any], facts: Facts) -> None:
    env_steps = float(record["env_steps"])
    facts.records += 1
    facts.env_steps = max(facts.env_steps, env_steps)
    facts.updates = max(facts.updates, number_of(record.get("updates")) or 0.0)
    shares = {work: share for work in KINDS if (share := number_of(record.get(f"time/{work}"))) is not None}
    seconds = number_of(record.get("seconds"))
    if shares and seconds is not None:
        elapsed, facts.seconds = max(seconds - facts.seconds, 0.0), seconds  # since the previous record
        for work, share in shares.items():
            facts.spent[work] = facts.spent.get(work, 0.0) + share * elapsed
    for name, value in record.items():
        number = number_of(value)
        if number is not None:
            facts.series.setdefault(name, []).append(Point(env_steps, number))
        elif value is None:
            facts.broken.setdefault(name, env_steps)
