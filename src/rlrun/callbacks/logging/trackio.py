"""trackio."""

import hashlib
import shlex
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from rlrun.callbacks.logging.record import Record, Tracker, position, titles
from rlrun.core.errors import MissingExtra
from rlrun.core.files import read_json
from rlrun.runs.directory import RunDir


class Trackio(Tracker):
    """trackio: all runs of the user in one folder, TRACKIO_DIR, which `trackio show` displays.

    After a resume, records that trackio already has are not written again. Nothing leaves the machine before
    `trackio sync`.

    Args:
        project: in trackio.
        name: of the run there; its overrides and its seed unless given.
        group: of runs; the overrides without the seed unless given.
    """

    def __init__(self, project: str = "rlrun", *, name: str | None = None, group: str | None = None) -> None:
        try:
            import trackio  # noqa: F401
        except ImportError:
            raise MissingExtra("logger trackio", "trackio", "trackio") from None
        self._project, self._name, self._group = project, name, group
        self._session: Any = None

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
        from trackio.run import Run
        from trackio.sqlite_storage import SQLiteStorage

        assert run is not None
        group, name = titles(run, config)
        facts = repr([read_json(run.manifest).get("created"), run.path.name])
        id = hashlib.sha256(facts.encode()).hexdigest()[:32]  # the same after a resume, also elsewhere
        names = {record["id"]: record["name"] for record in SQLiteStorage.get_run_records(self._project)}
        name = names.get(id) or (self._name or name)
        known = SQLiteStorage.get_logs(self._project, name, run_id=id)
        SQLiteStorage.init_db(self._project)  # raises errors that later would only be trackio's warnings
        self.newest = max(map(position, known), default=-1.0)
        self._session = Run(
            None, self._project, None, name=name, run_id=id, group=self._group or group or None, config=dict(config)
        )
        run.echo(f"trackio: to see the run: trackio show --project {shlex.quote(self._project)}")

    def log(self, record: Record, at: int) -> None:
        self._session.log(record, step=at)

    def close(self, failed: bool = False) -> None:
        with redirect_stdout(StringIO()):  # it prints its progress
            self._session.finish()
