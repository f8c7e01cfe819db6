"""MLflow."""

import logging
import os
import re
import shlex
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from rlrun.callbacks.logging.record import (
    Record,
    Tracker,
    kept_id,
    noted,
    position,
    titles,
)
from rlrun.core.errors import MissingExtra
from rlrun.runs.directory import RunDir

BATCH = 1000  # metrics that MLflow takes at once


class Mlflow(Tracker):
    """MLflow, by default the database `mlflow/mlflow.db` of the run.

    After a resume, records that MLflow already has are not written again. A histogram is its quantiles. Usage is not
    reported.

    Args:
        experiment: of the run.
        name: of the run; its overrides and its seed unless given.
        uri: of a server or a database; the variable MLFLOW_TRACKING_URI unless given, else the run's own.
    """

    def __init__(
        self,
        experiment: str = "rlrun",
        *,
        name: str | None = None,
        uri: str | None = None,
    ) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import mlflow
            import sqlalchemy  # noqa: F401
        except ImportError:
            raise MissingExtra("logger mlflow", "mlflow-skinny", "mlflow") from None
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it says when it makes tables
        self._mlflow: Any = mlflow
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._experiment, self._name = experiment, name
        self.note = "id" if self._uri else "local_id"  # so an upload keeps the id of the run's own database
        self._client: Any = None
        self._id = ""

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
        assert run is not None
        run.mlflow.mkdir(exist_ok=True)
        uri = self._uri or f"sqlite:///{run.mlflow / 'mlflow.db'}"
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        note, make = run.mlflow / self.note, partial(self._create, titles(run, config)[1])
        self._id = kept_id(note, make)
        if not self._knows(self._id):  # the id is of another server, as after `rlrun upload`
            note.unlink()
            self._id = kept_id(note, make)
        self._client.update_run(self._id, status="RUNNING")
        how = f" in {uri}; to see it, with all of MLflow: mlflow ui --backend-store-uri {shlex.quote(uri)}"
        run.echo(f"mlflow: run {self._id}{'' if self._uri else how}")  # an address may hold a password
        known = self._client.get_run(self._id).data
        for name, value in _hyperparameters(run, config).items():
            if _key(name) not in known.params:  # MLflow refuses another value
                self._client.log_param(self._id, _key(name), str(value)[:6000])
        for name, text in noted(config).items():
            self._client.set_tag(self._id, _key(name), text[:5000])
        self.newest = position({"env_steps": 0, "updates": -1, **known.metrics})

    def _knows(self, id: str) -> bool:
        try:
            self._client.get_run(id)
        except self._mlflow.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def _create(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        home = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        return str(self._client.create_run(home, run_name=self._name or name).info.run_id)

    def log(self, record: Record, at: int) -> None:
        now, entry = round(time.time() * 1000), self._mlflow.entities.Metric
        metrics = [entry(_key(name), float(value), now, at) for name, value in record.items()]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._id, metrics[first : first + BATCH])

    def close(self, failed: bool = False) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _hyperparameters(run: RunDir, config: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the algorithm's numbers and texts, the environment's id, the seed, and the overrides, by config key."""
    values = {f"algorithm.{name}": value for name, value in (config.get("algorithm") or {}).items()}
    values |= {"env.id": (config.get("env") or {}).get("id"), "seed": config.get("seed")}
    for override in run.read_overrides():
        key, _, text = override.lstrip("+~").partition("=")
        values.setdefault(key, text)
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


def _key(name: str) -> str:
    """Return a name that MLflow accepts."""
    parts = re.sub(r"[^/\w.\- :]", "_", name)[:250].split("/")
    return "/".join(part for part in parts if part.strip("."))
