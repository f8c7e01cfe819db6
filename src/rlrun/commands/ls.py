"""List runs and their results; the Python equivalent of `rlrun ls`. No code of the runs is executed."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rlrun.core.errors import MissingExtra, RequestError, RlrunError, RunDirError, did_you_mean
from rlrun.core.files import known, place_of
from rlrun.runs.directory import RunDir, runs_beneath
from rlrun.runs.progress import judged, progress

NUMBER = re.compile(r"(?<==)[-+]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
STATUSES = ("running", "completed", "failed", "stopped", "pruned", "interrupted")
FIGURES = ("env_steps", "updates", "seconds", "objective")


@dataclass(frozen=True)
class RunRow:
    """A run in a list.

    Attributes:
        path: its folder.
        status: one of `STATUSES`.
        created: time in its manifest (ISO 8601), or None.
        overrides: from the start of the run.
        env_steps, updates, seconds, objective: numbers, or None if unknown.
        summary: the content of `summary.json`; without one, these numbers from its newest metrics.
    """

    path: str
    status: str
    created: str | None = None
    overrides: list[str] = field(default_factory=list)
    env_steps: int | float | None = None
    updates: int | float | None = None
    seconds: int | float | None = None
    objective: int | float | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return its object in the list that `rlrun ls --json` prints: the summary with these values."""
        figures = {name: getattr(self, name) for name in FIGURES}
        about = {"path": self.path, "status": self.status, "created": self.created, "overrides": self.overrides}
        return {**self.summary, **figures, **about}


COLUMNS = tuple(column.name for column in fields(RunRow) if column.name != "summary")


class RunRows(list[RunRow]):
    """The rows of a list of runs."""

    def to_pandas(self) -> Any:
        """Return a pandas data frame with a row for each run; nested values have columns `evaluation.mean_return`.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return frame_of([row.to_json() for row in self])


def frame_of(records: list[dict[str, Any]], columns: Sequence[str] = COLUMNS) -> Any:
    """Return objects as a pandas data frame; the columns come first, then those of nested objects by dotted names.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise MissingExtra("to_pandas", "pandas", "query") from None
    frame = pandas.json_normalize(records)
    return frame.reindex(columns=[*columns, *(name for name in frame.columns if name not in columns)])


SORTS: dict[str, Callable[[RunRow], Any]] = {
    "path": lambda run: run.path,
    "created": lambda run: run.created or "",
    "status": lambda run: STATUSES.index(run.status),
    "steps": lambda run: _last(run.env_steps),
    "return": lambda run: _last(run.objective),
    "seconds": lambda run: _last(run.seconds),
}


def ls(
    folder: Path | str = ".", *, status: str | None = None, match: Iterable[str] = (), sort: str = "path"
) -> RunRows:
    """Return a row for each run in a folder and its subfolders.

    Args:
        folder: of a run, of a sweep, or one that contains runs.
        status: only runs with this status.
        match: only runs whose path or overrides contain each of these texts; numbers after `=` are compared as numbers.
        sort: one of `SORTS`; steps, returns and seconds in descending order.

    Raises:
        RequestError: there is no such folder, status or order.
    """
    place = place_of(folder)
    if not place.is_dir():
        raise RunDirError(f"{place} does not exist" if not place.exists() else f"{place} is a file, not a run folder")
    if status is not None and status not in STATUSES:
        raise RequestError(f"--status {status}: wanted one of {', '.join(STATUSES)}{did_you_mean(status, STATUSES)}")
    if sort not in SORTS:
        raise RequestError(f"--sort {sort}: wanted one of {', '.join(SORTS)}{did_you_mean(sort, SORTS)}")
    runs = [about(run) for run in runs_beneath(place)]
    wanted = [text for text in match if text]
    matching = [
        run
        for run in runs
        if status in (None, run.status) and all(_holds(" ".join([run.path, *run.overrides]), text) for text in wanted)
    ]
    return RunRows(sorted(matching, key=SORTS[sort]))


def about(run: RunDir) -> RunRow:
    """Return the row of a run; values from missing or damaged files are None."""
    summary, manifest = known(run.summary), known(run.manifest)
    if not summary:
        newest = progress(run.metrics)
        summary = {name: newest.get(name) for name in FIGURES} | {"objective": newest.get(judged(newest) or "")}
    created = manifest.get("created")
    return RunRow(
        path=str(run.path),
        status=run.read_status()["status"],
        created=created if isinstance(created, str) else None,
        overrides=_overrides(run),
        **{name: _number(summary.get(name)) for name in FIGURES},
        summary=summary,
    )


def _holds(content: str, text: str) -> bool:
    """Return True if `content` contains a text; numbers after `=` are compared as numbers."""
    spelled = [NUMBER.sub(lambda number: repr(float(number[0])), part) for part in (text, content)]
    return text in content or spelled[0] in spelled[1]


def _overrides(run: RunDir) -> list[str]:
    try:
        return run.read_overrides()
    except RlrunError:
        return []


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _last(value: int | float | None) -> tuple[bool, float]:
    """Return a sort key: largest numbers first, unknown ones last."""
    return value is None, -float(value or 0.0)
