"""What sinks keep of whole runs, read back by their own libraries."""

import io
import random
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from tests.callbacks.written import events_of, history_of, records_of

from rlrun.callbacks.sinks import Mlflow, Trackio
from rlrun.callbacks.trackers import Sent
from rlrun.commands.resume import resume
from rlrun.commands.train import train
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import values_of
from rlrun.security import trust
from rlrun.training.metrics import Histogram, Image, Text, Video, as_record

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


def test_tensorboard_has_config_hparams_and_videos(tmp_path):
    from tensorboard.plugins.hparams.metadata import (
        SESSION_END_INFO_TAG,
        SESSION_START_INFO_TAG,
        parse_session_start_info_plugin_data,
    )

    run = trained(tmp_path, "tensorboard", "evaluation.video=true")
    events = events_of(run)
    text = events.Tensors("config/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.strip("`\n") == (run / "config.yaml").read_text().strip()
    data = events.summary_metadata[SESSION_START_INFO_TAG].plugin_data.content
    hparams = parse_session_start_info_plugin_data(data).hparams
    assert (hparams["algorithm.lr"].number_value, hparams["seed"].number_value) == (0.002, 3)
    assert (hparams["algorithm"].string_value, hparams["env.id"].string_value) == ("dqn", "CartPole-v1")
    assert SESSION_END_INFO_TAG in events.summary_metadata
    assert events.Scalars("evaluation/best_return")[-1].value == max(returns(run))
    assert [event.value for event in events.Scalars("evaluation/mean_return")] == returns(run)
    films = events.Images("evaluation/video")
    assert [film.step for film in films] == [40, 80, 100]
    film = PIL.Image.open(io.BytesIO(films[0].encoded_image_string))
    assert (film.format, film.width, film.is_animated) == ("GIF", 320, True)
    assert np.asarray(film.convert("RGB")).std() > 1.0


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


@pytest.mark.usefixtures("with_tables")
def test_artifacts_have_the_best_checkpoint_and_videos(tmp_path):
    loggers = "{wandb:{artifacts:true,mode:offline}},{mlflow:{artifacts:true}}"
    run = tmp_path / "run"
    train([*SHORT, f"logger=[{loggers}]", "stop.env_steps=50", "evaluation.video=true"], run_dir=run)
    best = RunDir(run).checkpoint("best")
    assert best.name.startswith("0000000050")  # saved after the logger's end
    assert [path.name for path in sorted((run / "videos").iterdir())] == ["0000000040.mp4", "0000000050.mp4"]
    expected = {
        "checkpoint": {path.relative_to(best).as_posix() for path in best.rglob("*") if path.is_file()},
        "videos": {"0000000040.mp4", "0000000050.mp4"},
    }
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    history_of(file)  # waits for its end
    artifacts = [record.artifact for record in records_of(file) if record.HasField("artifact")]
    sent = {artifact.name.partition("-")[2]: artifact for artifact in artifacts}
    assert {name: {entry.path for entry in artifact.manifest.contents} for name, artifact in sent.items()} == expected
    assert all(Path(entry.local_path).is_relative_to(run) for entry in sent["videos"].manifest.contents)
    session, client = mlflow_of(run)
    assert {path.path for path in client.list_artifacts(session.info.run_id)} == {"config.yaml", *expected}
    assert {path.path for path in client.list_artifacts(session.info.run_id, "videos")} == {
        f"videos/{name}" for name in expected["videos"]
    }
    assert session.info.status == "FINISHED"


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
    assert [entry.path for entry in client.list_artifacts(session.info.run_id)] == ["config.yaml"]


@pytest.fixture
def opened(tmp_path, with_tables):
    """Return a run, and a function that opens a sink for it and writes a record."""
    run = RunDir.claim(tmp_path / "run")
    run.config.write_text("seed: 1\n")
    run.manifest.write_text("{}")

    def write(sink, at, **metrics):
        sink.open(run, {}, records=0, axis=0)
        sink.write({"env_steps": at, "updates": 1, "seconds": 0.0, **metrics})
        sink.close(None)
        return run.path

    return write


def test_mlflow_has_other_kinds_than_numbers(opened):
    pixels = np.zeros((4, 4, 3), np.uint8)
    metrics = {"a/image": Image(pixels), "video": Video(pixels[None].repeat(2, 0)), "text": Text("<b>")}
    run = opened(Mlflow(), 10, **metrics, **as_record({"histogram": Histogram([1.0, 2.0, 3.0]), "../x y!/": 1.0})[0])
    session, client = mlflow_of(run)
    folders = [client.list_artifacts(session.info.run_id, folder) for folder in ("a/image", "video", "text")]
    assert {entry.path for folder in folders for entry in folder} == {
        "a/image/0000000010.png",
        "video/0000000010.gif",
        "text/0000000010.txt",
    }
    assert session.data.metrics["histogram/q50"] == 2.0
    assert session.data.metrics["x y_"] == 1.0


@pytest.mark.parametrize("way", ["moved", "trigger", "link"])
def test_mlflow_writes_files_only_into_the_run(way, opened, tmp_path):
    from mlflow.tracking import _tracking_service as tracking

    run = opened(Mlflow(), 10, text=Text("inside"))
    session, _ = mlflow_of(run)
    place = run / "mlflow" / "artifacts" / session.info.run_id / "artifacts" / "text"
    if way != "link":
        move = f"UPDATE runs SET artifact_uri = '{(tmp_path / 'elsewhere').as_uri()}'"
        with sqlite3.connect(run / "mlflow" / "mlflow.db") as database:  # the trigger moves it after it was looked at
            database.execute(move if way == "moved" else f"CREATE TRIGGER t AFTER INSERT ON params BEGIN {move}; END")
    else:
        shutil.rmtree(place)
        place.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (run / "overrides.txt").write_text("stop.env_steps=1\n")
    tracking.utils._artifact_repos_cache.clear()  # another process has none
    opened(Mlflow(), 20, text=Text("outside"), loss=0.5)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert mlflow_of(run)[0].data.metrics["loss"] == 0.5


@pytest.mark.parametrize(
    ("typed", "stays"), [({}, True), ({"logger": ["terminal"]}, True), ({"logger": ["mlflow"]}, False)]
)
def test_untrusted_run_stays_in_its_folder(typed, stays, opened, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/theirs.db")
    with trust.limited(typed=typed):
        run = opened(Mlflow(), 10)
    assert (run / "mlflow" / "mlflow.db").exists() == stays
    assert {path.name for path in tmp_path.iterdir()} == ({"run"} if stays else {"run", "theirs.db", "artifacts"})
    assert ("logger mlflow stays in the run's folder" in caplog.text) == stays


def test_results_of_earlier_updates_reach_a_service():
    sent, training, result = Sent(5.0), {"loss/q_loss": 1.0}, {"evaluation/mean_return": 2.0}
    at = [{"env_steps": step, "updates": step} for step in range(8)]
    assert not sent.lacks({**at[2], **training})  # which it had before
    for place, record in ((6, training), (3, result), (4, result)):
        assert sent.lacks({**at[place], **record})
        sent.add({**at[place], **record})
        assert not sent.lacks({**at[place], **record})


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


def test_trackio_has_other_kinds_than_numbers(trackio, opened, tmp_path):
    pixels, project = np.zeros((4, 4, 3), np.uint8), f"kinds-{tmp_path.name}"
    metrics = {"image": Image(pixels), "video": Video(pixels[None].repeat(2, 0)), "text": Text("<b>")}
    for at in (10, 10, 20):  # the second is there already
        opened(
            Trackio(project, name="../x" if at == 10 else "y"),
            at,
            **metrics,
            **as_record({"histogram": Histogram([1.0, 2.0])})[0],
        )
    _, logs = logs_of(trackio, project)
    assert [log["step"] for log in logs] == [10, 20]
    assert (logs[0]["text"]["_value"], sum(logs[0]["histogram"]["values"])) == ("<b>", 2)
    media = tmp_path.parent / "trackio" / "media"
    for name, kind in (("image", "PNG"), ("video", "GIF")):
        assert PIL.Image.open(media / logs[0][name]["file_path"]).format == kind
        assert logs[0][name]["file_path"].startswith(f"{project}/.._x/10/")


def test_untrusted_run_is_not_added_to_trackio(trackio, opened, tmp_path, caplog):
    project, store = f"theirs-{tmp_path.name}", tmp_path.parent / "trackio"
    for typed in ({}, {"logger": ["mlflow"]}):
        with trust.limited(typed=typed):
            opened(Trackio(project), 10)
        assert caplog.text.count("logger trackio is left out") == 1
        assert not (store / f"{project}.db").exists()
        caplog.clear()
    for typed in ({"logger": ["trackio"]}, {}):  # from then on it is the user's
        with trust.limited(typed=typed):
            opened(Trackio(project), 20 if typed else 30)
    assert [log["step"] for log in logs_of(trackio, project)[1]] == [20, 30]
