"""The config and metrics of a run. No code from its files is executed, and their content is not trusted."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rlrun.config.files import parse_yaml
from rlrun.config.interpolation import dotted, locate, split
from rlrun.core.clock import KINDS
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.runs.directory import RunDir
from rlrun.runs.files import known, read_bytes
from rlrun.runs.progress import LINE_BYTES, last_line, lines_of, number_of, record_of

METRIC_BYTES = 1 << 26  # of a file of metrics; the rest is not read
ENOUGH = 6  # evaluations that make a curve
NAMES = 500  # of metrics
NAME_LENGTH = 200


class Unknown(Exception):
    """A check cannot be made; the message names the missing data."""


class Setting(NamedTuple):
    """A value of the config, and the key that an override changes it by."""

    key: str
    value: Any


class Point(NamedTuple):
    """A value of a metric."""

    env_steps: float
    value: float


@dataclass
class Facts:
    """A run as its files describe it.

    Attributes:
        path: of its folder.
        status: of `RunDir.read_status`.
        config: plain, with unresolved interpolations.
        series: finite values of each metric, in the order of time.
        broken: metrics that were not finite at some time, and the environment step of the first time.
        records: how many there are.
        env_steps, updates: of the newest record.
        seconds: of the newest record that says where time goes.
        spent: seconds of each kind of work until then.
        damage: errors of reading, a line each.
        failure: the last line that a failed run logged.
        preset: whether one chose numbers; None if unknown.
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
        """Return a value of the config, with interpolations resolved, or None where there is none."""
        try:
            place = locate(self.config, split(key))
        except (ConfigError, RecursionError):
            return None
        return None if place.beyond or place.node is None else Setting(dotted(place.path), place.node)

    def figure(self, key: str) -> Setting | None:
        """Return a number of the config, with interpolations resolved, or None where there is none."""
        setting = self.setting(key)
        number = None if setting is None else number_of(setting.value)
        return None if setting is None or number is None else Setting(setting.key, number)

    def number(self, key: str) -> float | None:
        """Return the value of `figure`."""
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

    def late(self, name: str, least: int = 3) -> float:
        """Return the median of the newer half of a metric.

        Raises:
            Unknown: there are fewer than `least` values.
        """
        return median_of_newer_half(self.values(name, least))

    def under(self, family: str) -> list[str]:
        """Return the rest of metric names after `family/`."""
        return [name.removeprefix(f"{family}/") for name in self.series if name.startswith(f"{family}/")]

    @property
    def limit(self) -> int | None:
        """The time limit in steps that the environment of the config's id is registered with."""
        return getattr(self._spec, "max_episode_steps", None)

    @property
    def threshold(self) -> float | None:
        """The return at which the environment of the config's id counts as solved."""
        return getattr(self._spec, "reward_threshold", None)

    @property
    def _spec(self) -> Any:
        setting = self.setting("env.id")
        if setting is None or not isinstance(setting.value, str):
            return None
        import gymnasium

        return gymnasium.registry.get(setting.value)  # looked up by name only: nothing is imported or made

    @property
    def returns(self) -> list[Point]:
        """The mean returns of evaluations, or of training where there are few of these."""
        evaluated = self.series.get("evaluation/mean_return", [])
        return evaluated if len(evaluated) >= ENOUGH else self.series.get("episode/return", [])


def median_of_newer_half(values: list[float]) -> float:
    """Return the median of the newer half of a metric's values, so that one bad record does not count."""
    return median(values[len(values) // 2 :])


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
            elif line.endswith(b"\n") or len(line) == LINE_BYTES:  # a last line without its end is being written
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
        elapsed, facts.seconds = max(seconds - facts.seconds, 0.0), seconds  # since the record before
        for work, share in shares.items():
            facts.spent[work] = facts.spent.get(work, 0.0) + share * elapsed
    for name, value in record.items():
        if len(name) > NAME_LENGTH or (name not in facts.series and len(facts.series) >= NAMES):
            continue
        number = number_of(value)
        if number is not None:
            facts.series.setdefault(name, []).append(Point(env_steps, number))
        elif value is None:
            facts.broken.setdefault(name, env_steps)
