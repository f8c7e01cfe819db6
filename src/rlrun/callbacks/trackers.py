"""Sinks that keep runs for a service: Weights & Biases, MLflow, trackio."""

import hashlib
import html
import logging
import os
import posixpath
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlrun.callbacks.record import Placed, Record, files_of, gif, hyperparameters, noted, pillow, titles
from rlrun.core.errors import ConfigError, MissingExtra
from rlrun.runs.directory import RunDir
from rlrun.runs.files import head, read_json, require_own_database, write_text
from rlrun.security import trust
from rlrun.training.metrics import MEDIA, Distribution, Image, Video, numbers_of

MODES = ("offline", "online", "disabled", "shared", "dryrun", "run")  # of W&B
BATCH = 1000  # metrics that MLflow takes at once
_messages = logging.getLogger("rlrun")


class Wandb(Placed):
    """Weights & Biases, by default offline; files are in the run's `wandb/`.

    An active wandb run of this process stays active. An untrusted run sends nothing, unless the user typed `logger=…`.
    No code is stored. Git is not called, as it runs programs that a repository names: the manifest has the commit.

    Args:
        project: on the server.
        name: of the run there; WANDB_NAME unless given, else its overrides and its seed.
        mode: `offline`, `online` or `disabled`; the variable WANDB_MODE unless given, else `offline`, but `online`
            where an agent of a wandb sweep has started the run.
        tags: of the run.
        group: of runs; WANDB_RUN_GROUP unless given, else the overrides without the seed.
        entity: user or team.
        artifacts: send the best checkpoint, the exports and the videos, when the run ends in order.
    """

    def __init__(
        self,
        project: str = "rlrun",
        *,
        name: str | None = None,
        mode: str | None = None,
        tags: Iterable[str] = (),
        group: str | None = None,
        entity: str | None = None,
        artifacts: bool = False,
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it sends durations and versions offline, too
        try:
            import wandb
        except ImportError:
            raise MissingExtra("logger wandb", "wandb", "wandb") from None
        self._wandb: Any = wandb
        self._mode = mode or os.environ.get("WANDB_MODE", "online" if "WANDB_SWEEP_ID" in os.environ else "offline")
        if self._mode not in MODES:
            raise ConfigError(f"logger.wandb.mode: wanted one of {', '.join(MODES)}, got {self._mode!r}")
        chosen = () if mode in (None, os.environ.get("WANDB_MODE")) else (str(mode),)
        if self._mode not in ("offline", "disabled") and trust.is_foreign("logger", "wandb", *chosen):
            _messages.warning("logger wandb stays offline: mode %r comes with the run; say logger=… again", self._mode)
            self._mode = "offline"
        self._name, self._group = name or os.environ.get("WANDB_NAME"), group or os.environ.get("WANDB_RUN_GROUP")
        self._project, self._tags, self._entity = project, list(tags), entity
        self.artifacts = artifacts
        self._session: Any = None
        self._next = 0

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
        assert run is not None
        run.wandb.mkdir(exist_ok=True)
        if not (known := _id_in(run.wandb / "id", 8)):
            write_text(run.wandb / "id", known := secrets.token_hex(4))  # not from a generator that training uses
        group, name = titles(run, config)
        notes = noted(config)
        tags = (config.get("notes") or {}).get("tags")
        self._session = self._wandb.init(
            project=self._project,
            entity=self._entity,
            tags=[*self._tags, *map(str, tags if isinstance(tags, list) else [])],
            notes="\n".join(f"{key}: {value}" for key, value in notes.items()) or None,
            name=self._name or name,
            group=self._group or group or None,
            reinit="create_new" if self._wandb.run is not None else None,
            id=known,
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            dir=str(run.path),
            config=dict(config),
            settings=self._wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )
        if self._mode == "offline":
            run.echo(f"wandb: offline; to send the run: wandb sync {shlex.quote(str(Path(self._session.dir).parent))}")
        elif self._mode == "online":
            run.echo(f"wandb: online at {self._session.url}")
        # with updates before the first step, a place counts both
        self._axis = "axis" if self.offline and self.axis == "env_steps" else self.axis
        self._session.define_metric(self._axis)
        self._session.define_metric("*", step_metric=self._axis)
        # the service's counter must rise; a resumed session starts at 0 offline, and at its last value online
        self._next = max(records, self._session.step)

    def write(self, record: Record) -> None:
        values = {name: self._of(value) if isinstance(value, tuple) else value for name, value in record.items()}
        self._session.log({**values, self._axis: self.place(record)}, step=self._next)
        self._next += 1

    def _of(self, value: Any) -> Any:
        if isinstance(value, Distribution):
            return self._wandb.Histogram(np_histogram=(value.counts.tolist(), value.edges.tolist()))
        if isinstance(value, Image):
            return self._wandb.Image(pillow(value.pixels))
        if isinstance(value, Video):
            return self._wandb.Video(BytesIO(gif(value)), format="gif")
        return self._wandb.Html(f"<pre>{html.escape(value.text)}</pre>", inject=False)

    def send(self, run: RunDir) -> None:
        """Send files of the run."""
        for name, files in files_of(run).items():
            artifact = self._wandb.Artifact(f"{self._session.id}-{name}", "video" if name == "videos" else "model")
            for path, place in files:
                artifact.add_file(str(path), place, policy="immutable")  # not copied to a folder of W&B
            self._session.log_artifact(artifact)

    def close(self, error: BaseException | None) -> None:
        self._session.finish(exit_code=0 if error is None else 1)


class Mlflow(Placed):
    """MLflow, by default the database `mlflow/mlflow.db` of the run; its artifacts are beside it.

    MLflow forgets nothing: after a resume, records that it has already are not written again. A histogram is its
    quantiles. An untrusted run stays in its folder, unless the user typed `logger=…`. Usage is not reported.

    Args:
        experiment: that the run is part of.
        name: of the run; its overrides and its seed unless given.
        artifacts: add the best checkpoint, the exports and the videos, when the run ends in order.
        uri: of a server or a database; the variable MLFLOW_TRACKING_URI unless given, else the run's own.
    """

    def __init__(
        self,
        experiment: str = "rlrun",
        *,
        name: str | None = None,
        uri: str | None = None,
        artifacts: bool = False,
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
        chosen = () if uri in (None, os.environ.get("MLFLOW_TRACKING_URI")) else (str(uri),)
        if self._uri and trust.is_foreign("logger", "mlflow", *chosen):
            _messages.warning("logger mlflow stays in the run's folder: say logger=… again to send it elsewhere")
            self._uri = None
        self._experiment, self._name, self.artifacts = experiment, name, artifacts
        self._client: Any = None
        self._id = ""
        self._sent = Sent()
        self._takes_files = True
        self._folder: Any = None  # of files, if it is the run's own

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
        from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

        assert run is not None
        run.mlflow.mkdir(exist_ok=True)
        uri = self._uri or f"sqlite:///{run.mlflow / 'mlflow.db'}"
        if not self._uri:
            require_own_database(run.mlflow / "mlflow.db")
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        files = (run.mlflow / "artifacts").as_uri()
        note = run.mlflow / "id"
        self._id = _id_in(note, 32)
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
        else:
            experiment = self._client.get_experiment_by_name(self._experiment)
            database = Path(uri.removeprefix("sqlite:///")).absolute()  # MLflow puts files into the working directory
            place = (database.parent / "artifacts").as_uri() if uri.startswith("sqlite:///") else None
            home = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment, place)
            self._id = self._client.create_run(home, run_name=self._name or titles(run, config)[1]).info.run_id
            write_text(note, self._id)
            how = f" in {uri}; to see it, with all of MLflow: mlflow ui --backend-store-uri {shlex.quote(uri)}"
            run.echo(f"mlflow: run {self._id}{'' if self._uri else how}")  # an address may hold a password
        parameters = {_key(name): str(value)[:6000] for name, value in hyperparameters(run, config).items()}
        known = self._client.get_run(self._id)
        for name in parameters.keys() - known.data.params.keys():  # MLflow refuses another value
            self._client.log_param(self._id, name, parameters[name])
        for name, text in noted(config).items():
            self._client.set_tag(self._id, _key(name), text[:5000])
        self._sent = Sent(_position({"env_steps": 0, "updates": -1, **known.data.metrics}))
        # The database of a run that was moved, or made by others, may name any place for its artifacts.
        links = any(path.is_symlink() for path in run.mlflow.rglob("*"))
        inside = known.info.artifact_uri == f"{files}/{self._id}/artifacts" and not links
        self._takes_files = inside or bool(self._uri)
        self._folder = None if self._uri else LocalArtifactRepository(f"{files}/{self._id}/artifacts")
        if self._takes_files and run.config.is_file():
            self._store(run.config, "")

    def write(self, record: Record) -> None:
        if not self._sent.lacks(record):
            return
        at, now, entry = self.place(record), round(time.time() * 1000), self._mlflow.entities.Metric
        metrics = [entry(_key(name), float(value), now, at) for name, value in numbers_of(record).items()]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._id, metrics[first : first + BATCH])
        for name, value in record.items() if self._takes_files else ():
            if isinstance(value, MEDIA):
                self._add(_key(name), f"{at:010d}", value)
        self._sent.add(record)

    def _add(self, place: str, name: str, value: Any) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder, name)
            if isinstance(value, Image):
                pillow(value.pixels).save(file := file.with_suffix(".png"))
            elif isinstance(value, Video):
                (file := file.with_suffix(".gif")).write_bytes(gif(value))
            else:
                (file := file.with_suffix(".txt")).write_text(value.text, encoding="utf-8")
            self._store(file, place)

    def _store(self, file: Path, place: str) -> None:
        """Add a file; in the run's own folder without asking its database, which another person may have made."""
        if self._folder is None:
            self._client.log_artifact(self._id, str(file), place or None)
        else:
            self._folder.log_artifact(str(file), place or None)

    def send(self, run: RunDir) -> None:
        """Add files of the run."""
        for name, files in files_of(run).items() if self._takes_files else ():
            for path, place in files:
                self._store(path, posixpath.dirname(f"{name}/{place}"))

    def close(self, error: BaseException | None) -> None:
        self._client.set_terminated(self._id, "FINISHED" if error is None else "FAILED")


class Trackio(Placed):
    """trackio: all runs of the user in one folder, TRACKIO_DIR, which `trackio show` displays.

    trackio forgets nothing: after a resume, records that it has already are not written again. Nothing leaves the
    machine before `trackio sync`. An untrusted run that is new to it writes nothing, unless the user typed `logger=…`.

    Args:
        project: in trackio.
        name: of the run there; its overrides and its seed unless given.
        group: of runs; the overrides without the seed unless given.
    """

    def __init__(
        self,
        project: str = "rlrun",
        *,
        name: str | None = None,
        group: str | None = None,
    ) -> None:
        try:
            import trackio
        except ImportError:
            raise MissingExtra("logger trackio", "trackio", "trackio") from None
        self._trackio: Any = trackio
        self._project, self._name, self._group = project, name, group
        self._foreign = trust.is_foreign("logger", "trackio")
        self._session: Any = None
        self._sent = Sent()

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
        from trackio.run import Run
        from trackio.sqlite_storage import SQLiteStorage

        assert run is not None
        group, name = titles(run, config)
        name = (self._name or name).replace("/", "_")  # it is a folder of images
        facts = repr([read_json(run.manifest).get("created"), run.path.name])
        id = hashlib.sha256(facts.encode()).hexdigest()[:32]  # the same after a resume, also elsewhere
        names = {record["id"]: record["name"] for record in SQLiteStorage.get_run_records(self._project)}
        name = names.get(id) or name  # overrides of a resume do not change it
        known = SQLiteStorage.get_logs(self._project, name, run_id=id)
        if self._foreign and not known:
            _messages.warning("logger trackio is left out: it comes with the run; say logger=… again")
            return
        SQLiteStorage.init_db(self._project)  # raises what trackio would only warn of later
        self._sent = Sent(max((_position(record) for record in known), default=-1.0))
        self._session = Run(
            None, self._project, None, name=name, run_id=id, group=self._group or group or None, config=dict(config)
        )
        run.echo(f"trackio: to see the run: trackio show --project {shlex.quote(self._project)}")

    def write(self, record: Record) -> None:
        if self._session is None or not self._sent.lacks(record):
            return
        with TemporaryDirectory() as folder:
            values = {
                name: self._of(value, Path(folder, f"{number}.gif")) if isinstance(value, tuple) else value
                for number, (name, value) in enumerate(record.items())
            }
            self._session.log(values, step=self.place(record))  # which copies the files
        self._sent.add(record)

    def _of(self, value: Any, file: Path) -> Any:
        if isinstance(value, Distribution):
            return self._trackio.Histogram(np_histogram=(value.counts, value.edges))
        if isinstance(value, Image):
            return self._trackio.Image(pillow(value.pixels))
        if isinstance(value, Video):
            file.write_bytes(gif(value))
            return self._trackio.Video(file)
        return self._trackio.Markdown(value.text)

    def close(self, error: BaseException | None) -> None:
        if self._session is not None:
            with redirect_stdout(StringIO()):  # where it says that it is at work
                self._session.finish()


class Sent:
    """The newest records that a service has: of evaluations, whose results may come late, and of all else.

    position: of the newest that it had at the start.
    """

    def __init__(self, position: float = -1.0) -> None:
        self._newest = {True: position, False: position}

    def lacks(self, record: Record) -> bool:
        """Return True for a record that the service has not."""
        return _position(record) > self._newest[_evaluates(record)]

    def add(self, record: Record) -> None:
        """Note that the service has a record."""
        self._newest[_evaluates(record)] = _position(record)


def _evaluates(record: Record) -> bool:
    return all(name.startswith("evaluation/") for name in record if "/" in name)


def _position(record: Mapping[str, float]) -> float:
    """Return a number that grows with every record of a run, or of its evaluations."""
    return record["env_steps"] + record["updates"]


def _key(name: str) -> str:
    """Return a name that MLflow accepts."""
    parts = re.sub(r"[^/\w.\- :]", "_", name)[:250].split("/")
    return "/".join(part for part in parts if part.strip("."))


def _id_in(note: Path, letters: int) -> str:
    """Return the run's id at the service, which its folder keeps for a resume; empty before the first start."""
    text = head(note, letters + 1).decode(errors="replace")
    return text if re.fullmatch(f"[0-9a-f]{{{letters}}}", text) else ""
