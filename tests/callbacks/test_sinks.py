"""What sinks keep of whole runs, read back by their own libraries."""

import random
import shutil
from pathlib import Path

import pytest
from tests.callbacks.written import history_of, records_of

from rlrun.callbacks.logging.sinks import Mlflow
from rlrun.commands.resume import resume
from rlrun.commands.train import train
from rlrun.commands.upload import upload
from rlrun.core.errors import RequestError, RlrunError
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import values_of

SHORT = [
    *("algorithm=dqn", "env=cartpole", "preset=null", "seed=3", "algorithm.lr=0.002", "algorithm.warmup_steps=20"),
    *("evaluation.every=40", "evaluation.episodes=1", "evaluation.max_steps=20", "log.every=20", "device=cpu"),
]


def trained(tmp_path, logger, *more):
    """Return the directory of a run of 100 steps that was stopped after 60 and resumed."""
    run = tmp_path / "run"
    train([*SHORT, f"logger=[{logger}]", "stop.env_steps=60", *more], run_dir=run)
    resume(run, ["stop.env_steps=100"])
    return run


def returns(run):
    return values_of(run / "metrics.jsonl", "evaluation/mean_return")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory):
    """Return a database with MLflow's tables and nothing else: making them takes seconds."""
    import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def with_tables(migrated, monkeypatch):
    """Give each new database its tables."""
    original = Mlflow.open

    def opened(sink, run, *more, **options):
        database = Path(sink._uri.removeprefix("sqlite:///")) if sink._uri else run.mlflow / "mlflow.db"
        database.parent.mkdir(exist_ok=True)
        if not database.exists():
            shutil.copy(migrated, database)
        original(sink, run, *more, **options)

    monkeypatch.setattr(Mlflow, "open", opened)


def mlflow_of(run):
    """Return the only run in a run's database, and MLflow's own client of it."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'rlrun'")
    (session,) = client.search_runs([experiment.experiment_id])
    return session, client


def test_mlflow_continues_its_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    random_state = random.getstate()
    run = trained(tmp_path, "mlflow")
    assert random.getstate() == random_state
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert "Creating" not in capfd.readouterr().err
    session, client = mlflow_of(run)
    history = client.get_metric_history(session.info.run_id, "evaluation/mean_return")
    first, *others = returns(run)
    assert [(entry.step, entry.value) for entry in history if entry.step != 60] == [
        (step, value) for step, value in zip((40, 80, 100), (first, *others), strict=True)
    ]
    assert [entry.step for entry in client.get_metric_history(session.info.run_id, "updates")] == [21, 40, 60, 80, 100]
    params = session.data.params
    assert (params["algorithm"], params["algorithm.lr"], params["seed"]) == ("dqn", "0.002", "3")
    assert (session.info.status, session.info.run_name[-3:]) == ("FINISHED", " s3")


@pytest.fixture
def opened(tmp_path, with_tables):
    """Return a run, and a function that opens a sink for it and writes a record."""
    run = RunDir.claim(tmp_path / "run")
    run.config.write_text("seed: 1\n")
    run.manifest.write_text("{}")

    def write(sink, at, **metrics):
        sink.open(run, {})
        sink.write({"env_steps": at, "updates": 1, "seconds": 0.0, **metrics})
        sink.close()
        return run.path

    return write


def test_mlflow_reports_no_usage():
    Mlflow()
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()


@pytest.fixture
def trackio(tmp_path_factory):
    """Return trackio's interface to what it has; it reads the name of its folder once a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.getbasetemp() / "trackio"))
        import trackio
    return trackio.Api()


def logs_of(trackio, project):
    """Return the only run of a project, and its logs."""
    from trackio.sqlite_storage import SQLiteStorage

    (session,) = trackio.runs(project)
    return session, SQLiteStorage.get_logs(project, session.name, run_id=session.id)


def test_trackio_continues_its_run(trackio, tmp_path, capfd):
    project = f"continued-{tmp_path.name}"
    random_state = random.getstate()
    run = trained(tmp_path, f"{{trackio:{{project:{project}}}}}")
    assert random.getstate() == random_state
    session, logs = logs_of(trackio, project)
    assert [log["step"] for log in logs] == [21, 40, 60, 80, 100]
    evaluated = [log for log in logs if "evaluation/mean_return" in log and log["step"] != 60]  # where it was stopped
    assert [log["evaluation/mean_return"] for log in evaluated] == returns(run)
    assert (session.config["seed"], session.config["algorithm"]["lr"]) == (3, 0.002)
    assert session.name.startswith("algorithm=dqn env=cartpole")
    assert "Uploading" not in capfd.readouterr().out


def test_upload_replays_all_records_into_a_new_run(with_tables, tmp_path, monkeypatch):
    run = tmp_path / "run"
    train([*SHORT, "logger=[{wandb:{project:theirs,mode:offline}}]", "stop.env_steps=60"], run_dir=run)
    before = (run / "wandb" / "id").read_text()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_st')  # of a kill
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert upload(run, "wandb", ["entity=ours"]) == 3
    kept = (run / "wandb" / "id").read_text()
    assert kept != before
    (path,) = run.glob(f"wandb/offline-run-*/run-{kept}.wandb")
    assert [row["env_steps"] for row in history_of(path)] == [21, 40, 60]
    about = next(record.run for record in records_of(path) if record.HasField("run"))
    assert (about.project, about.entity) == ("theirs", "ours")
    for _ in range(2):
        assert upload(run, "mlflow") == 3
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    sessions = client.search_runs([client.get_experiment_by_name("rlrun").experiment_id])
    for session in sessions:
        history = client.get_metric_history(session.info.run_id, "env_steps")
        assert [entry.value for entry in history] == [21, 40, 60]
    assert (len(sessions), {session.info.status for session in sessions}) == (2, {"FINISHED"})


def test_mlflow_continues_its_own_run_after_an_upload_to_another_place(opened, tmp_path):
    run = opened(Mlflow(), 10)
    service = Mlflow(uri=f"sqlite:///{tmp_path / 'service.db'}")
    (run / "mlflow" / "id").write_text("0" * 32)  # of a service that does not know it
    opened(service, 15)
    opened(sink := Mlflow(), 20)
    ids = [(run / "mlflow" / name).read_text() for name in ("local_id", "id")]
    for place, id, steps in ((sink, ids[0], [10, 20]), (service, ids[1], [15])):
        assert [entry.step for entry in place._client.get_metric_history(id, "updates")] == steps


def test_upload_that_fails_keeps_the_id(opened, monkeypatch):
    run = opened(Mlflow(), 10)
    shutil.copy(run / "mlflow" / "local_id", run / "before")
    (run / "metrics.jsonl").write_text('{"env_steps": 1, "updates": "x", "seconds": 0.0}\n')
    (run / "config.yaml").write_text("callbacks: {logger: {sinks: {names: []}}}\n")
    with pytest.raises(RlrunError, match="mlflow did not take the run: TypeError"):
        upload(run, "mlflow")
    assert (run / "mlflow" / "local_id").read_text() == (run / "before").read_text()
    with pytest.raises(RequestError, match=r"--to wandbb: wanted wandb or mlflow \(did you mean 'wandb'\?\)"):
        upload(run, "wandbb")
