"""Promised results in a config, and the check that a finished run keeps them: `rlrun train --expect`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.collect.video import Stage
from rlrun.commands.opponents import opponents_of
from rlrun.core.errors import ConfigError, RequestError, did_you_mean
from rlrun.loading.policy import frozen
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import number_of, progress, values_of

EPISODES = 20  # new episodes for the return
LAST = 10  # only the last tenth of a metric's records counts
BOUNDS = ("at_least", "at_most")
KEYS = ("return", "metrics", "env_steps", "seeds")  # a preset promises its return for these env_steps and seeds


def promises(config: Any) -> dict[str, dict[str, float]]:
    """Return the bounds of each number that a config promises, such as `return`.

    Raises:
        ConfigError: it promises nothing, or a key or a bound is unknown.
    """
    expect = _block("expect", config.get("expect"))
    for key in expect:
        if key not in KEYS:
            raise ConfigError(f"expect.{key}: no such key{did_you_mean(str(key), KEYS, 'expect.')}")
    bounds: dict[str, dict[str, float]] = {}
    if expect.get("return") is not None:
        bounds["return"] = {"at_least": _number("expect.return", expect["return"])}
    for name, wanted in _block("expect.metrics", expect.get("metrics")).items():
        place = f"expect.metrics.{name}"
        if not isinstance(wanted, Mapping) or not wanted:
            raise ConfigError(f"{place}: wanted {{at_most: 0.1}} or {{at_least: 0.1}}, got {wanted}")
        for key in wanted:
            if key not in BOUNDS:
                raise ConfigError(
                    f"{place}.{key}: no such bound{did_you_mean(str(key), BOUNDS)}; there are at_least, at_most"
                )
        bounds[str(name)] = limits = {str(key): _number(f"{place}.{key}", value) for key, value in wanted.items()}
        if limits.get("at_least", -math.inf) > limits.get("at_most", math.inf):
            raise ConfigError(f"{place}: at_least {limits['at_least']:g} is above at_most {limits['at_most']:g}")
    if not bounds:
        raise ConfigError(
            "--expect: the config promises nothing; +expect.return=475 promises the return of the best checkpoint, "
            "'+expect.metrics={loss/q_loss: {at_most: 0.1}}' a metric"
        )
    return bounds


def _block(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"{place}: wanted keys with values, got {value!r}")
    return value or {}


def _number(place: str, value: Any) -> float:
    number = number_of(value)
    if number is None or not math.isfinite(number):
        raise ConfigError(f"{place}: wanted a number, got {value!r}")
    return number


def check(run: Path, bounds: Mapping[str, Mapping[str, float]], config: Any = None) -> list[tuple[bool, str]]:
    """Return, for each promise, whether a run keeps it, and a line of text.

    The return is the mean of 20 new episodes of the best checkpoint, in games against each of the run's opponents. A
    metric is the mean of the last tenth of its records. NaN and infinity break a promise.

    Args:
        run: directory of a finished run.
        bounds: as `promises` returns them.
        config: from which the user trained the run; names in it are trusted.

    Raises:
        RequestError: the run never logged a promised metric.
    """
    return [_checked(run, name, wanted, config) for name, wanted in bounds.items()]


def _checked(run: Path, name: str, wanted: Mapping[str, float], config: Any) -> tuple[bool, str]:
    if name == "return":
        best = "best" if RunDir(run).pointed("best") else "latest"
        with frozen(run) as policy:
            policy.take(RunDir(run).checkpoint(best))
            options: dict[str, Any] = {"epsilon": policy.epsilon, "opponents": opponents_of(policy.opponents)}
            with Stage(policy.env, episodes=EPISODES, max_steps=policy.max_steps, **options) as stage:
                value = stage.play(policy.agent)[0].mean_return
        source = f"mean of {EPISODES} episodes of the {best} checkpoint"
    else:
        metrics = RunDir(run).metrics
        values = values_of(metrics, name)
        if not values:
            hint = did_you_mean(name, progress(metrics), "expect.metrics.")
            raise RequestError(f"expect.metrics.{name}: {run} never logged it{hint}")
        last = values[-max(len(values) // LAST, 1) :]
        value = math.fsum(last) / len(last)
        source = f"mean of the last {len(last)} of {len(values)} records"
    kept = all(value >= limit if bound == "at_least" else value <= limit for bound, limit in wanted.items())
    limits = " and ".join(f"{bound.replace('_', ' ')} {limit:g}" for bound, limit in wanted.items())
    return kept, f"{'kept' if kept else 'broken'}: {name} {value:.6g}, promised {limits} ({source})"
