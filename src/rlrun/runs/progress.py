"""The progress of a run, read from its files."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.core.clock import KINDS
from rlrun.core.errors import RlrunError, RunDirError, printable
from rlrun.core.files import counted, duration, open_regular, reason
from rlrun.runs.directory import SILENT, RunDir

TAIL = 16_384  # bytes
LINE_BYTES = 1 << 18
LONGEST = 1 << 20  # bytes of a record
SHOWN_LOSSES = 4
BAR = 12  # cells
SHOWN_WORK = 2  # kinds that take the most time
RETURN, VALIDATION = "evaluation/mean_return", "validation/"  # metrics that judge runs: a name, and the family of names
HUGE = 1e100  # larger numbers are ignored, as means of them would overflow


def last_line(path: Path) -> str | None:
    """Return the last line of a log that is not empty."""
    lines = [line.strip() for line in _tail(path).splitlines()]
    text = next((line.removeprefix("rlrun: ") for line in reversed(lines) if line), None)
    return None if text is None else printable(text)


def progress(metrics: Path) -> dict[str, float]:
    """Return the newest values of a run's metrics, from the end of the file."""
    values: dict[str, float] = {}
    for line in _tail(metrics).splitlines():
        record = record_of(line) or {}  # the first line may be cut off, and the last one is being written
        values |= {name: value for name, value in record.items() if isinstance(value, int | float)}
    return values


def lines_of(path: Path, most: int) -> Iterator[bytes]:
    """Yield the lines of a file, very long ones in pieces, up to `most` bytes.

    Raises:
        RunDirError: it cannot be read.
    """
    try:
        with open(open_regular(path), "rb") as file:
            while most > 0 and (line := file.readline(LINE_BYTES)):
                most -= len(line)
                yield line
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error


def record_of(line: str | bytes) -> dict[str, Any] | None:
    """Return the record in a line of metrics; None if it is invalid."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None


def judged(record: Mapping[str, Any]) -> str | None:
    """Return the name of the metric that judges a run: the mean return, or the first metric of a validation."""
    return RETURN if RETURN in record else next((name for name in record if name.startswith(VALIDATION)), None)


def score_of(record: Mapping[str, Any]) -> Any:
    """Return the value of the metric that judges a run, or else the return of training's episodes; None without."""
    return record.get(judged(record) or "episode/return")


def values_of(path: Path, name: str) -> list[float]:
    """Return the values of a metric in a run's `metrics.jsonl`, which may be missing; NaN for invalid numbers."""
    values, quoted = [], json.dumps(name).encode()
    with suppress(RlrunError), os.fdopen(open_regular(path), "rb") as file:
        while (line := file.readline(LONGEST)).endswith(b"\n"):  # else it is being written, or not a record
            record = (record_of(line) or {}) if quoted in line else {}
            if name in record:
                number = number_of(record[name])
                values.append(math.nan if number is None else number)
    return values


def number_of(value: Any) -> float | None:
    """Return a value of a record as a number; None for NaN, huge numbers and other types."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -HUGE < value < HUGE else None  # NaN is not


def quiet_for(run: RunDir, log: Path, *, since: float, stall: float | None) -> str | None:
    """Return a message if a running job has been silent for too long, else None.

    since: start time of its process, seconds since 1970.
    stall: allowed seconds without a new line of metrics, checkpoint or message; None = unlimited.
    """
    now = time.time()
    silent = now - max(since, changed(run.status))
    if silent > SILENT:
        return f"no sign of life for {silent:.0f} s"
    if stall is not None:
        idle = now - max(since, *map(changed, (run.metrics, run.checkpoints, log)))
        if idle > stall:
            return f"no progress for {idle:.0f} s"
    return None


def changed(path: Path) -> float:
    """Return the time of a file's or folder's last change, seconds since 1970; 0 if it is missing."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _tail(path: Path) -> str:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode(errors="replace")
    except (OSError, RunDirError):
        return ""


def position(record: Mapping[str, Any]) -> int:
    """Return the environment step, or the update if there are no steps."""
    return int(record["env_steps"] or record["updates"])


def line(
    record: Mapping[str, Any],
    *,
    total: int | None = None,
    offline: int = 0,
    with_bar: bool = False,
    to_go: bool = True,
) -> str:
    """Return the `parts` of a record in one line, with a bar before them if wanted."""
    texts = parts(record, total=total, offline=offline, to_go=to_go)
    if with_bar and total:
        share = position(record) / (total if record["env_steps"] or not offline else offline)
        full = min(BAR, int(share * BAR))
        texts.insert(0, "━" * full + "─" * (BAR - full))
    return printable("  ".join(texts))


def parts(record: Mapping[str, Any], *, total: int | None = None, offline: int = 0, to_go: bool = True) -> list[str]:
    """Return texts for progress, returns, losses, speed, remaining time (with `to_go`) and shares of time.

    Before the first environment step of a run with `offline` updates, progress counts these updates.
    """
    unit = "steps" if record["env_steps"] else "offline updates" if offline else "updates"
    total = offline if offline and not record["env_steps"] else total
    at = position(record)
    rate = record.get("time/env_steps_per_second" if record["env_steps"] else "time/updates_per_second", 0.0)
    texts = [f"{at:,}/{total:,} {unit} {min(at / total, 1.0):.0%}" if total else f"{at:,} {unit}"]
    for label, name in (("return", "episode/return"), ("evaluation", RETURN)):
        if name in record:
            texts.append(f"{label} {record[name]:.1f}")
    validated = {name: value for name, value in record.items() if name.startswith(VALIDATION)}
    if validated:
        texts.append(" ".join(f"{name.removeprefix(VALIDATION)} {value:.4g}" for name, value in validated.items()))
    losses = {name.removeprefix("loss/"): value for name, value in record.items() if name.startswith("loss/")}
    if losses:
        texts.append("loss " + " ".join(f"{name}={value:.3g}" for name, value in list(losses.items())[:SHOWN_LOSSES]))
    if rate > 1e-6:
        texts.append(f"{rate:,.0f} {unit}/s")
        if to_go and total and total > at:
            texts.append(f"{duration((total - at) / rate)} to go")
    shares = where_time_goes(record)
    if shares:
        texts.append(", ".join(f"{share:.0%} {work}" for work, share in list(shares.items())[:SHOWN_WORK]))
    return texts


def where_time_goes(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the kinds of work with their shares of the time, the largest first, without those below a percent."""
    shares = {work: record.get(f"time/{work}") or 0.0 for work in KINDS}
    return {work: share for work, share in sorted(shares.items(), key=lambda item: -item[1]) if share >= 0.01}


def outcome(summary: Mapping[str, Any], metrics: Path, config: Mapping[str, Any]) -> str:
    """Return the outcome of a run as one line, from its summary, or from the newest metrics of its own callbacks."""
    steps = f"{summary['updates']:,} updates, {summary['seconds']:.0f} s"
    steps = steps if config.get("env") is None else f"{summary['env_steps']:,} env steps, {steps}"
    text, stats, validated = "", summary["evaluation"], summary.get("validation")
    if validated:
        text = f"{_listed(validated)} on held-out data"
    elif stats is not None:
        mean, over = f"{stats['mean_return']:.2f} ± {stats['std_return']:.2f}", counted(stats["episodes"], "episode")
        text = f"mean return {mean} over {over}"
    elif config.get("env") is None:
        own = tuple(f"{name}/" for name in config.get("callbacks") or {})
        text = _listed({name: value for name, value in progress(metrics).items() if name.startswith(own)})
    return f"{summary['status']}: {f'{text} ({steps})' if text else steps}"


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def counted_updates(summary: Mapping[str, Any]) -> Any:
    """Return the updates that `stop.updates` counts: with several data groups those of the group `default`."""
    groups = summary.get("group_updates")
    count = groups.get("default") if isinstance(groups, dict) else None
    return count if isinstance(count, int) else summary.get("updates")
