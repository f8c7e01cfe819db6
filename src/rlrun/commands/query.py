"""Query runs with SQL; the Python equivalent of `rlrun query`. No code of the runs is executed."""

import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlrun.commands.ls import about, frame_of
from rlrun.config.files import parse_yaml
from rlrun.config.interpolation import dotted, leaves
from rlrun.core.errors import ConfigError, MissingExtra, RequestError, RlrunError, RunDirError, printable
from rlrun.core.files import finite, place_of, read_bytes
from rlrun.runs.directory import RunDir, runs_beneath

TABLES = {  # name -> columns in DuckDB's syntax
    "runs": "run VARCHAR, status VARCHAR, created VARCHAR, overrides VARCHAR, env_steps BIGINT, updates BIGINT, "
    "seconds DOUBLE, objective DOUBLE, summary JSON",
    "config": "run VARCHAR, key VARCHAR, value VARCHAR",
    "metrics": "run VARCHAR, env_steps BIGINT, updates BIGINT, seconds DOUBLE, name VARCHAR, value DOUBLE",
}
FILES = {"runs": "runs.json", "config": "config.json", "metrics": "*.jsonl"}
READ = "read_ndjson_objects(?, ignore_errors = true, filename = true, maximum_object_size = 134217728)"
INSERT = {  # name -> SQL that inserts rows from files
    "runs": f"""
        INSERT INTO runs SELECT json->>'run', json->>'status', json->>'created', json->>'overrides',
            TRY_CAST(json->>'env_steps' AS BIGINT), TRY_CAST(json->>'updates' AS BIGINT),
            TRY_CAST(json->>'seconds' AS DOUBLE), TRY_CAST(json->>'objective' AS DOUBLE),
            TRY_CAST(json->>'summary' AS JSON)
        FROM {READ}""",
    "config": f"""
        INSERT INTO config SELECT json->>'run', unnest(json->>'$.keys[*]'), unnest(json->>'$.texts[*]') FROM {READ}""",
    "metrics": f"""
        WITH lines AS (
            SELECT json, CAST(regexp_extract(filename, '([0-9]+)[.]jsonl$', 1) AS BIGINT) AS number
            FROM {READ} WHERE json_type(json) = 'OBJECT'),
        entries AS (
            SELECT number, TRY_CAST(json->>'env_steps' AS BIGINT) AS env_steps,
                TRY_CAST(json->>'updates' AS BIGINT) AS updates, TRY_CAST(json->>'seconds' AS DOUBLE) AS seconds,
                json, unnest(json_keys(json)) AS name FROM lines),
        numbers AS (
            SELECT *, json_extract(json, '/' || replace(replace(name, '~', '~0'), '/', '~1')) AS entry FROM entries
            WHERE name NOT IN ('env_steps', 'updates', 'seconds'))
        INSERT INTO metrics SELECT run, env_steps, updates, seconds, name, CAST(entry AS DOUBLE)
        FROM numbers JOIN label USING (number)
        WHERE json_type(entry) IN ('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')
            AND abs(TRY_CAST(entry AS DOUBLE)) < 1e100""",
}
# The user's SQL cannot access files, the network or the process environment, and cannot change these settings.
BLOCK = re.compile(r"^(?=\w+:)", re.MULTILINE)  # start of a top-level key of a config
SAFE = ("enable_external_access = false", "python_enable_replacements = false", "lock_configuration = true")
_output = logging.getLogger("rlrun.output")


@dataclass(frozen=True)
class QueryResult:
    """The rows that a query selected.

    Attributes:
        columns: names; a second column of the same name ends in _1, as in DuckDB.
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
    """Run a SELECT on the tables `runs`, `config` and `metrics` of the runs in a folder.

    Args:
        sql: one SELECT in DuckDB's dialect.
        folder: of a run, of a sweep, or one that contains runs.

    Raises:
        RequestError: there is no such folder, DuckDB is not installed, or it refuses the query.
    """
    duckdb = _duckdb()
    if os.path.isdir(sql):
        raise RequestError(f"query: the SELECT comes first, then the folder: rlrun query 'SELECT …' {sql}")
    place = place_of(folder)
    if not place.is_dir():
        raise RunDirError(f"{place} does not exist" if not place.exists() else f"{place} is a file, not a run folder")
    with duckdb.connect() as database:
        try:
            statements = database.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise RequestError(f"query: wanted one SELECT, got {sql[:80]!r}")
            for name, declared in TABLES.items():
                database.execute(f"CREATE TABLE {name} ({declared})")
            _fill(database, place, {name for name in TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)})
            for setting in SAFE:
                database.execute(f"SET {setting}")
            answer = database.execute(statements[0])
            columns: list[str] = []
            for name, *_ in answer.description or ():
                names = (name, *(f"{name}_{number}" for number in range(1, len(columns) + 1)))
                columns.append(next(free for free in names if free not in columns))
            return QueryResult(columns, answer.fetchall())
        except duckdb.Error as error:
            tables = f"; the tables are {', '.join(TABLES)}" if isinstance(error, duckdb.CatalogException) else ""
            raise RequestError(f"query: {str(error).splitlines()[0]}{tables}") from error


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtra("rlrun query", "duckdb", "query") from None
    return duckdb


def _fill(database: Any, folder: Path, names: Collection[str]) -> None:
    """Insert the rows of all runs into the tables of a query, by JSON files with plain names, which DuckDB reads."""
    runs = runs_beneath(folder)
    labels = [os.fsencode(run.path.relative_to(folder)).decode(errors="replace") for run in runs]
    troubles: list[str] = []
    with TemporaryDirectory() as place:
        for name, reader in (("runs", _summary), ("config", _settings)):
            with open(Path(place, f"{name}.json"), "w", encoding="utf-8", errors="replace") as file:
                for run, label in zip(runs, labels, strict=True) if name in names else ():
                    about, trouble = reader(run)
                    file.write(json.dumps({"run": label, **about}, ensure_ascii=False) + "\n")
                    troubles += [f"{label}: {trouble}"] * (trouble is not None)
        for number, (run, label) in enumerate(zip(runs, labels, strict=True)) if "metrics" in names else ():
            if run.metrics.is_file() and os.access(run.metrics, os.R_OK):
                Path(place, f"{number}.jsonl").symlink_to(run.metrics)
            elif run.metrics.exists():
                troubles.append(f"{label}: metrics.jsonl cannot be read")
        database.execute("CREATE TABLE label AS SELECT unnest($1) AS run, unnest(range(len($1))) AS number", [labels])
        for name in names:
            if files := sorted(Path(place).glob(FILES[name])):
                try:
                    database.execute(INSERT[name], [[*map(str, files)]])
                except _duckdb().Error:  # one file is bad: insert each by itself
                    troubles += [f"{_owner(file, labels)}: {why}" for file, why in _insert(database, name, files)]
        database.execute("DROP TABLE label")
    for trouble in troubles:
        _output.warning("%s", printable(trouble))


def _insert(database: Any, name: str, files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Insert the rows of each file; yield files that DuckDB refuses, with its reason."""
    for file in files:
        try:
            database.execute(INSERT[name], [[str(file)]])
        except _duckdb().Error as error:
            yield file, str(error).splitlines()[0]


def _owner(file: Path, labels: Sequence[str]) -> str:
    return f"{labels[int(file.stem)]}: metrics.jsonl" if file.stem.isdecimal() else file.stem


def _summary(run: RunDir) -> tuple[dict[str, Any], str | None]:
    """Return the row of a run, and a message about the part that could not be read, or None."""
    row, trouble = about(run), None
    try:
        summary = json.dumps(finite(row.summary))
    except (RecursionError, ValueError):
        summary, trouble = "null", "summary.json is nested too deeply"
    figures = {name: finite(getattr(row, name)) for name in ("env_steps", "updates", "seconds", "objective")}
    texts = {"status": row.status, "created": row.created, "overrides": " ".join(row.overrides)}
    return {**texts, **figures, "summary": summary}, trouble


def _settings(run: RunDir) -> tuple[dict[str, Any], str | None]:
    """Return the keys of a run's config with their values as text, and an error message or None."""
    try:
        text = read_bytes(run.config).decode()
        try:
            pairs = [pair for block in BLOCK.split(text) for pair in _leaves(block)]
            if len({key for key, _ in pairs}) < len(pairs):
                pairs = _leaves(text)  # raises the error about a duplicate key
        except ConfigError:  # a YAML alias in one block refers to another
            pairs = _leaves(text)
    except (RlrunError, RecursionError, UnicodeDecodeError) as error:
        return {"keys": [], "texts": []}, str(error)
    return {"keys": [key for key, _ in pairs], "texts": [value for _, value in pairs]}, None


@lru_cache(maxsize=10_000)
def _leaves(text: str) -> list[tuple[str, str | None]]:
    """Return the keys and values of YAML; cached, as runs have most blocks in common."""
    pairs = ((dotted(path), value) for path, value in leaves(parse_yaml(text, "config.yaml")))
    return [(key, value if isinstance(value, str | None) else json.dumps(value)) for key, value in pairs]
