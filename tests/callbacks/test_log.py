"""The logger and its sinks."""

import io
import json
import os
import random
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.callbacks.written import events_of

from rlrun.callbacks.logging import sinks
from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.logging.record import Sink
from rlrun.callbacks.logging.sinks import Jsonl, Terminal, Wandb, make_sinks
from rlrun.core.clock import Spent
from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RlrunError
from rlrun.core.files import duration
from rlrun.runs.progress import line, where_time_goes
from rlrun.training.callback import Callback, Stop
from rlrun.training.metrics import to_host


class Loss(Callback):
    """A callback with metrics; counts how often they are read."""

    reads = 0

    @property
    def metrics(self):
        self.reads += 1
        return {"loss/q": torch.tensor(0.5), "episode/return": 7.0}


class Memory(Sink):
    """A sink that keeps records, or fails."""

    def __init__(self, fails=""):
        self.records, self.fails, self.closed, self.tries = [], fails, [], 0

    def open(self, run, config, *, records, axis):
        self.opened = (records, axis, config)

    def write(self, record):
        self.tries += 1
        if self.fails:
            raise ConnectionError(self.fails)
        self.records.append(record)

    def close(self, failed=False):
        self.closed.append(failed)


def begun(*into, every=10, callbacks=None, run=None, state=None):
    logger = Logger(into, every=every)
    if state is not None:
        logger.load_state_dict(state)
    logger.begin_training(callbacks or {"q": Loss()}, run)
    return logger


def read(run):
    return [json.loads(text) for text in run.metrics.read_text().splitlines()]


def test_metrics_are_read_only_when_due():
    sink, loss = Memory(), Loss()
    logger = begun(sink, callbacks={"q": loss})
    for update in range(1, 11):
        logger.end_cycle(update, step=update * 4)
    logger.end_cycle(11, step=41)
    assert loss.reads == 4
    assert [record["env_steps"] for record in sink.records] == [12, 20, 32, 40]


def test_record_holds_axis_metrics_and_speed():
    sink = Memory()
    logger = begun(sink)
    logger.end_cycle(5, step=20)
    logger.end_cycle(6, step=21)
    (record,) = sink.records
    assert list(record)[:3] == ["env_steps", "updates", "seconds"]
    assert (record["env_steps"], record["updates"], record["loss/q"], record["episode/return"]) == (20, 5, 0.5, 7.0)
    assert record["time/env_steps_per_second"] == pytest.approx(20 / record["seconds"])


def test_without_environment_updates_are_the_axis():
    sink = Memory()
    logger = begun(sink)
    for update in range(1, 25):
        logger.end_cycle(update)
    assert [(record["env_steps"], record["updates"]) for record in sink.records] == [(0, 10), (0, 20)]
    assert "time/env_steps_per_second" not in sink.records[0]


def test_a_metric_of_two_callbacks_is_told_once(caplog):
    logger = begun(Memory(), callbacks={"q": Loss(), "mine": Loss()})
    for update in (10, 20):
        logger.end_cycle(update)
    assert sorted(caplog.messages) == [
        f"metric '{name}' of callbacks.mine replaces another one of this name" for name in ("episode/return", "loss/q")
    ]


def test_record_says_where_time_goes():
    sink, spent = Memory(), Spent()
    logger = Logger([sink], every=10)
    logger.begin_training({}, None, spent=spent)
    began = time.perf_counter()
    time.sleep(0.02)
    spent["load"] += 1e-3
    logger.end_cycle(1, step=10)
    with spent.during("evaluate"):  # the last evaluation, after the metrics were collected
        time.sleep(0.02)
    least = time.perf_counter() - began
    logger.end_training(None, update=1, step=10)
    elapsed = time.perf_counter() - began
    (record,) = sink.records
    assert spent["evaluate"] / elapsed <= record["time/evaluate"] <= spent["evaluate"] / least
    assert record["time/sample"] * elapsed >= 1e-3
    assert spent["write"] > 0.0
    shares = where_time_goes(record)
    assert list(shares) == ["evaluate", "sample"]
    assert line({"env_steps": 9, "time/act": 0.001, "time/env": 0.25, "time/update": 0.5, "time/write": 0.1}) == (
        "9 steps  50% update, 25% env"
    )


def test_record_says_what_the_process_takes():
    sink = Memory()
    logger = begun(sink)
    kept = []
    for update in range(1, 4):
        logger.end_cycle(update, step=10 * update)
        kept.append(np.ones(1 << 23))  # 64 MiB, which malloc always asks of the system
    logger.end_training(None, update=3, step=30)
    first, *_, last = sink.records
    assert first["system/memory_growth"] == 0.0
    assert 60.0 < last["system/memory_growth"] < 300.0  # others may give memory back
    assert last["system/memory"] == pytest.approx(first["system/memory"] + last["system/memory_growth"])
    assert 0.0 < last["system/cpu"] < 100.0


def test_all_tensors_take_one_copy(monkeypatch):
    copies = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: copies.append(tensor.shape) or original(tensor))
    metrics = {"a": torch.tensor(2), "b": 1, "c": torch.ones(1, requires_grad=True), "d": 0.25}
    assert to_host(metrics) == {"a": 2.0, "b": 1, "c": 1.0, "d": 0.25}
    assert copies == [(2,)]


def test_end_writes_new_metrics_once():
    sink = Memory()
    logger = begun(sink)
    logger.end_cycle(5, step=20)
    logger.end_training(None, update=5, step=20)
    assert [record["updates"] for record in sink.records] == [5]
    sink = Memory()
    logger = begun(sink)
    logger.end_training(Stop("over"), update=3, step=6)
    assert [record["updates"] for record in sink.records] == [3]
    failed = Memory()
    begun(failed).end_training(ValueError("x"), update=0)
    assert (sink.closed, failed.closed) == ([False], [True])


@pytest.mark.parametrize("at", ["open", "write", "close"])
def test_a_sink_that_raises_is_dropped_with_one_warning(at, run, caplog):
    def fails(*arguments, **options):
        raise ConnectionError("no route")

    broken, sink = Memory(), Memory()
    setattr(broken, at, fails)
    logger = begun(Jsonl(), broken, sink, run=run)
    for update in (1, 2, 3):
        logger.write(update * 10, update, {"loss/q": 0.5})
    logger.end_training(None, update=3, step=30)
    assert [record["env_steps"] for record in sink.records] == [10, 20, 30]
    assert len(read(run)) == 3
    assert caplog.messages == ["logger memory is left out from here on: ConnectionError: no route"]


def test_an_update_has_one_record(run):
    logger = begun(Jsonl(), run=run)
    logger.write(15, 3, {"evaluation/mean_return": 9.0})
    logger.end_cycle(3, step=15)
    logger.write(15, 3, {"bias/mean": 1.0})
    assert read(run) == []
    logger.end_cycle(4, step=19)
    logger.write(20, 5, {"evaluation/mean_return": 8.0})
    logger.end_cycle(5, step=20)
    logger.write(20, 5, {"evaluation/mean_return": 8.0}, counted=False)  # the one at the end
    logger.end_training(Stop("over"), update=5, step=20)
    first, second = read(run)
    assert [(record["env_steps"], record["updates"], record["loss/q"]) for record in (first, second)] == [
        (15, 3, 0.5),
        (20, 5, 0.5),
    ]
    assert (first["evaluation/mean_return"], first["bias/mean"], second["evaluation/mean_return"]) == (9.0, 1.0, 8.0)


def test_nan_is_null_in_json(run):
    logger = begun(Jsonl(), run=run)
    logger.write(15, 3, {"loss/q": torch.tensor(float("nan")), "loss/p": float("inf")})
    logger.end_cycle(4, step=16)
    assert (read(run)[0]["loss/q"], read(run)[0]["loss/p"]) == (None, None)


def test_full_disk_ends_the_run(run, monkeypatch):
    logger = begun(Jsonl(), run=run)
    monkeypatch.setattr(os, "write", lambda handle, data: len(data) - 1)  # the disk took all but the last byte
    logger.write(1, 1, {})
    with pytest.raises(RlrunError, match=r"metrics\.jsonl cannot be written: No space left on device"):
        logger.write(2, 2, {})


def test_seconds_include_those_before_resume():
    state = {**begun(Memory()).state_dict(), "seconds": 100.0}
    sink = Memory()
    logger = begun(Jsonl(), sink, state=state)  # without a directory nothing is written to files
    logger.write(1, 1, {})
    logger.end_cycle(2)
    assert 100 < sink.records[0]["seconds"] < 105


def opened(total=None, **options):
    """Return a terminal that prints plain lines, and where."""
    stream = io.StringIO()
    terminal = Terminal(total, stream=stream, **{"seconds": 0, **options})
    terminal.open(None, {})
    return terminal, stream


def test_plain_terminal_prints_every_record():
    terminal, stream = opened(1_000_000)
    logger = begun(terminal, callbacks={"q": Loss(), **{f"long{i}": Loss() for i in range(9)}})
    for update in (10, 20, 30):
        logger.end_cycle(update, step=update * 1000)
    logger.write(30_000, 30, {"evaluation/mean_return": 123.456})
    logger.end_cycle(31, step=30_100)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("30,000/1,000,000 steps 3%  return 7.0  evaluation 123.5  loss q=0.5")
    assert " to go" in lines[-1]


def test_time_to_go_waits_for_learning():
    terminal, stream = opened(5_000)
    for step, update, rate in ((500, 0, 9_000.0), (1_000, 1, 8_000.0), (2_000, 500, 40.0)):
        terminal.write({"env_steps": step, "updates": update, "seconds": 1.0, "time/env_steps_per_second": rate})
    lines = stream.getvalue().splitlines()
    assert [text.rpartition("  ")[2] for text in lines] == ["9,000 steps/s", "8,000 steps/s", "1:15 to go"]


def test_plain_terminal_shows_the_last():
    terminal, stream = opened(seconds=1000)
    logger = begun(terminal)
    for update in range(10, 200, 10):
        logger.end_cycle(update, step=update)
    logger.end_training(None, update=190, step=190)
    assert [text.split("  ")[0] for text in stream.getvalue().splitlines()] == ["10 steps", "190 steps"]


def test_last_line_comes_once_with_its_evaluation():
    terminal, stream = opened(100)
    terminal.write({"env_steps": 50, "updates": 5, "seconds": 1.0, "episode/return": 3.0})
    terminal.write({"env_steps": 100, "updates": 9, "seconds": 2.0, "episode/return": 4.0})
    terminal.write({"env_steps": 100, "updates": 9, "seconds": 3.0, "evaluation/mean_return": 7.0})
    terminal.close()
    assert stream.getvalue().splitlines() == [
        "50/100 steps 50%  return 3.0",
        "100/100 steps 100%  return 4.0  evaluation 7.0",
    ]


def test_live_terminal_redraws_one_line(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    before = sys.stdout
    logger = begun(Terminal(100, stream=stream))
    logger.end_cycle(20, step=50)
    assert sys.stdout is before
    logger.end_training(None, update=40, step=100)
    text = stream.getvalue()
    assert "100/100 steps" in text
    assert text.count("\n") == 1


def test_line_names_what_it_shows():
    record = {"env_steps": 0, "updates": 50, "time/updates_per_second": 10.0, "loss/vae": 0.123456}
    assert line(record, total=100) == "50/100 updates 50%  loss vae=0.123  10 updates/s  0:05 to go"
    assert duration(3725) == "1:02:05"
    assert line({"env_steps": 4096}, total=4000) == "4,096/4,000 steps 100%"


OFFLINE = 40  # updates before the first environment step


def test_tensorboard_continues_its_axis(run):
    state = None
    parts = (((10, 0), (20, 0), (40, 0)), (45, 5)), (((50, 10),), (58, 18)), (((60, 20),), (61, 21))
    for part, (update, step) in parts:  # the latter is beyond each checkpoint
        logger = Logger(make_sinks(["tensorboard"], offline=OFFLINE)[1:], every=10, offline=OFFLINE)
        if state is not None:
            logger.load_state_dict(state)
        logger.begin_training({"q": Loss()}, run.path)
        for at in part:
            logger.end_cycle(at[0], step=at[1])
        state = logger.state_dict()
        logger.end_training(Stop("SIGTERM"), update=update, step=step)
    events = events_of(run.path)
    assert [(event.step, event.value) for event in events.Scalars("loss/q")] == [
        (at, 0.5) for at in (10, 20, 40, 50, 60, 61)
    ]
    assert [event.value for event in events.Scalars("env_steps")] == [0, 0, 0, 10, 20, 21]


def test_wandb_axis_includes_offline_updates(run, tmp_path, monkeypatch):
    logged, defined = [], []
    session = SimpleNamespace(
        step=0,
        summary={},
        dir=str(tmp_path / "offline-run" / "files"),
        define_metric=lambda name, **of: defined.append((name, of)),
        log=lambda record, step: logged.append(record),
    )
    sink = Wandb(mode="offline")
    sink.offline = OFFLINE
    monkeypatch.setattr(sink._wandb, "init", lambda **named: session)
    sink.open(run, {})
    for update, step in ((10, 0), (40, 0), (43, 3), (50, 10)):
        sink.write({"env_steps": step, "updates": update, "loss/q": 0.5})
    assert defined == [("axis", {}), ("*", {"step_metric": "axis"})]
    assert [record["axis"] for record in logged] == [10, 40, 43, 50]
    assert [record["env_steps"] for record in logged][2:] == [3, 10]


def test_wandb_offline_draws_no_number(run, capfd):
    before = (random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum())
    for update in (10, 20):  # a run and its resume
        logger = begun(Wandb(mode="offline"), run=run)
        logger.end_cycle(update, step=update * 4)
        logger.end_training(None, update=update, step=update * 4)
    assert (random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum()) == before
    identity = (run.wandb / "id").read_text()
    files = list(run.wandb.glob(f"offline-run-*-{identity}/run-{identity}.wandb"))
    assert files
    assert all(path.stat().st_size > 0 for path in files)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert [text for text in printed.err.splitlines() if "wandb: offline; to send the run:" not in text] == []
    settings = logger._all[0]._session.settings
    assert (settings.disable_code, settings.disable_git) == (True, True)


def test_an_unknown_mode_of_wandb_is_refused():
    with pytest.raises(ConfigError, match=r"logger\.wandb\.mode: wanted one of offline, online, .*, got 'onlin'"):
        Wandb(mode="onlin")


@pytest.mark.parametrize(
    ("given", "env", "name", "group"),
    [
        ({}, {}, "algorithm=dqn env=cartpole s3", "algorithm=dqn env=cartpole"),
        ({"name": "mine", "group": "ours"}, {}, "mine", "ours"),
        ({}, {"WANDB_NAME": "mine", "WANDB_RUN_GROUP": "ours"}, "mine", "ours"),
    ],
)
def test_wandb_names_a_run_by_overrides(given, env, name, group, run, tmp_path, monkeypatch):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    options = {}
    run.overrides.write_text("algorithm=dqn\nenv=cartpole\nseed=3\nlogger=[wandb]\n")
    files = tmp_path / "run" / "wandb" / "offline-run-1" / "files"
    session = SimpleNamespace(
        step=0, summary={}, dir=str(files), url="https://there/1", define_metric=lambda *of, **how: None
    )
    for mode, text in (("offline", f"to send the run: wandb sync {files.parent}"), ("online", "at https://there/1")):
        sink = Wandb(mode=mode, **given)
        monkeypatch.setattr(sink._wandb, "init", lambda **named: options.update(named) or session)
        sink.open(run, {"seed": 3})
        assert (options["name"], options["group"]) == (name, group)
        assert f"wandb: {mode}" in run.log.read_text()
        assert text in run.log.read_text()


def test_wandb_leaves_an_active_run_alone(run, tmp_path):
    import wandb

    with wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True)) as active:
        logger = begun(Wandb(mode="offline"), run=run)
        logger.end_cycle(10, step=40)
        logger.end_training(None, update=10, step=40)
        assert wandb.run is active
        active.log({"mine": 1})


@pytest.mark.parametrize(("kept", "lost"), [(3, None), (2, None), (1, "metrics.jsonl has lost 1 of 2 records")])
def test_lost_records_make_a_resume_approximate(kept, lost, run):
    run.metrics.write_text('{"env_steps": 1}\n' * kept + '{"env_st')
    logger = Logger([Jsonl()], every=10)
    logger.load_state_dict({**logger.state_dict(), "records": 2})
    logger.begin_training({}, run.path)
    assert logger.approximate == lost
    logger.end_training(None)
    assert len(run.metrics.read_text().splitlines()) == min(kept, 2)


def test_sinks_are_made_by_name():
    loggers = make_sinks(["jsonl", "terminal", {"wandb": {"project": "x", "mode": "disabled"}}], total=500, offline=40)
    assert [type(sink) for sink in loggers] == [Jsonl, Terminal, Wandb]
    assert (loggers[1].total, loggers[1].offline, loggers[2].offline) == (500, 40, 40)
    assert [type(sink) for sink in make_sinks(None)] == [Jsonl]


def test_terminal_shows_offline_updates():
    terminal, stream = opened(100, offline=4_000)
    rates = {"time/updates_per_second": 10.0, "time/env_steps_per_second": 0.0}
    for update in (1_000, 4_000):
        terminal.write({"env_steps": 0, "updates": update, "seconds": 1.0, **rates})
    terminal.write({"env_steps": 50, "updates": 4_050, "seconds": 2.0, "time/env_steps_per_second": 5.0})
    assert stream.getvalue().splitlines() == [
        "1,000/4,000 offline updates 25%  10 offline updates/s  5:00 to go",
        "4,000/4,000 offline updates 100%  10 offline updates/s",
        "50/100 steps 50%  5 steps/s  0:10 to go",
    ]


def test_unknown_sink_gets_a_hint():
    with pytest.raises(ConfigError, match=r"logger 'tensorbord' is unknown.*did you mean 'tensorboard'"):
        make_sinks(["tensorbord"])
    with pytest.raises(ConfigError, match=r"logger: a builtins\.object is not a sink; derive it from rlrun\."):
        make_sinks([object()])
    with pytest.raises(BuildError, match=r"^logger\.wandb: no setting 'projekt' \(did you mean 'project'\?\)$"):
        make_sinks([{"wandb": {"projekt": "x"}}])
    with pytest.raises(BuildError, match=r"^logger\.mlflow: no setting 'zz'; it takes experiment, name, uri$"):
        make_sinks([{"mlflow": {"zz": "x"}}])


@pytest.mark.parametrize(
    ("sink", "module"),
    [("TensorBoard", "torch.utils.tensorboard"), ("Wandb", "wandb"), ("Mlflow", "mlflow"), ("Trackio", "trackio")],
)
def test_missing_package_names_the_extra(monkeypatch, sink, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"\[{sink.lower()}\]'"):
        getattr(sinks, sink)()


def test_a_line_of_progress_has_no_control_characters():
    record = {"env_steps": 0, "updates": 5, "validation/a\x1b[2J\x07\nb": 1.0, "loss/c\x07": 2.0}
    assert line(record).isprintable()
