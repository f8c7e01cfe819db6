"""Ask runs by SQL; the Python equivalent of `rlrun query`. No code of the runs is executed."""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.commands.ls import about, frame_of
from rlrun.config.interpolation import dotted, leaves, plain
from rlrun.config.saved import load
from rlrun.core.errors import MissingExtra, RequestError, RlrunError, RunDirError
from rlrun.runs.directory import RunDir, runs_beneath
from rlrun.runs.files import finite, place_of
from rlrun.runs.progress import lines_of, number_of, record_of

AXES = ("env_steps", "updates", "seconds")
METRIC_BYTES = 1 << 30  # of a file of metrics; the rest is not read
TABLES = {  # name -> columns, as DuckDB declares them
    "runs": "run VARCHAR, status VARCHAR, created VARCHAR, overrides VARCHAR, env_steps BIGINT, updates BIGINT, "
    "seconds DOUBLE, objective DOUBLE, summary JSON",
    "config": "run VARCHAR, key VARCHAR, value VARCHAR",
    "metrics": "run VARCHAR, env_steps BIGINT, updates BIGINT, seconds DOUBLE, name VARCHAR, value DOUBLE",
}
SAFE: dict[str, Any] = {  # SQL reads no file, no network and no variable of this process, and cannot change that
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}


@dataclass(frozen=True)
class QueryResult:
    """The rows that a query selected.

    Attributes:
        columns: their names; the second of the same name ends in _1, as in DuckDB.
        rows: values in the order of the columns.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the list of objects that `rlrun query --json` prints."""
        return [{name: finite(value) for name, value in zip(self.columns, row, strict=True)} for row in self.rows]

    def to_pandas(self) -> Any:
        """Return a pandas data frame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return frame_of(self.to_json(), self.columns)


def query(sql: str, folder: Path | str = ".") -> QueryResult:
    """Return the rows that a SELECT finds in the tables `runs`, `config` and `metrics` of the runs in a folder.

    Args:
        sql: one SELECT in DuckDB's dialect.
        folder: of one run, of a sweep, or above several.

    Raises:
        RequestError: there is no such folder, DuckDB is not installed, or it refuses the query.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtra("rlrun query", "duckdb", "query") from None
    if os.path.isdir(sql):
        raise RequestError(f"query: the SELECT comes first, then the folder: rlrun query 'SELECT …' {sql}")
    place = place_of(folder)
    if not place.is_dir():
        raise RunDirError(f"{place} does not exist" if not place.exists() else f"{place} is a file, not a run folder")
    with duckdb.connect(config=SAFE) as database:
        try:
            statements = database.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise RequestError(f"query: wanted one SELECT, got {sql[:80]!r}")
            for name, declared in TABLES.items():
                database.execute(f"CREATE TABLE {name} ({declared})")
            _fill(database, place, {name for name in TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)})
            answer = database.execute(statements[0])
            columns: list[str] = []
            for name, *_ in answer.description or ():
                names = (name, *(f"{name}_{number}" for number in range(1, len(columns) + 1)))
                columns.append(next(free for free in names if free not in columns))
            return QueryResult(columns, answer.fetchall())
        except duckdb.Error as error:
            tables = f"; the tables are {', '.join(TABLES)}" if isinstance(error, duckdb.CatalogException) else ""
            raise RequestError(f"query: {str(error).splitlines()[0]}{tables}") from error


def _fill(database: Any, folder: Path, names: Iterable[str]) -> None:
    """Insert the rows of all runs into the tables that a query names; files that cannot be rows are left out."""
    import duckdb

    readers = {"runs": _summaries, "config": _settings, "metrics": _metrics}
    for run in runs_beneath(folder):
        label = str(run.path.relative_to(folder))
        for name in names:
            with suppress(RecursionError, ValueError, duckdb.Error):  # nested deeply, text or a number of no column
                if rows := readers[name](run):
                    places, values = ", ".join(["?", *["unnest(?)"] * len(rows[0])]), map(list, zip(*rows, strict=True))
                    database.execute(f"INSERT INTO {name} SELECT {places}", [label, *values])


def _summaries(run: RunDir) -> list[tuple[Any, ...]]:
    row = about(run)
    figures = (row.env_steps, row.updates, row.seconds, row.objective)
    return [(row.status, row.created, " ".join(row.overrides), *map(finite, figures), json.dumps(finite(row.summary)))]


def _settings(run: RunDir) -> list[tuple[Any, ...]]:
    with suppress(RlrunError):  # a damaged config has no rows
        pairs = ((dotted(path), value) for path, value in leaves(plain(load(run.config))))
        return [(key, value if isinstance(value, str | None) else json.dumps(value)) for key, value in pairs]
    return []


def _metrics(run: RunDir) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with suppress(RunDirError):  # a run that has written nothing yet
        for line in lines_of(run.metrics, METRIC_BYTES):
            record = record_of(line) or {}
            axes = [number_of(record.pop(name, None)) for name in AXES]
            numbers = ((name, number_of(value)) for name, value in record.items())
            rows += [(*axes, name, value) for name, value in numbers if value is not None]
    return rows
