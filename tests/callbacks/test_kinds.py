"""Metrics that are no numbers, and metrics over windows."""

import json
import math
import re
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.callbacks.written import events_of, history_of
from tests.identical import compare, differing
from tests.resume.twins import copy_as_killed

import rlrun
from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.logging.sinks import Jsonl, TensorBoard, Wandb, make_sinks
from rlrun.core import worker
from rlrun.runs.directory import RunDir
from rlrun.training import metrics
from rlrun.training.callback import Callback, Stop
from rlrun.training.metrics import Windows, as_numbers, as_record

VALUES = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, math.nan])
PIXELS = np.zeros((4, 6, 3), np.uint8)
PIXELS[1, 2] = (255, 128, 0)
FRAMES = np.stack([np.full((4, 6, 1), shade) for shade in (0.0, 0.5, 1.0)])
KINDS = {
    "own/spread": rlrun.Histogram(VALUES),
    "own/view": rlrun.Image(PIXELS),
    "own/clip": rlrun.Video(FRAMES, fps=10),
    "own/note": rlrun.Text("2 < 3"),
    "own/number": 0.5,
}
QUANTILES = {"own/spread/q05": 0.2, "own/spread/q25": 1.0, "own/spread/q50": 2.0, "own/spread/q75": 3.0}


class Gives(Callback):
    """A callback with these metrics."""

    def __init__(self, metrics):
        self.given = metrics

    @property
    def metrics(self):
        return self.given


def logged(run, *sinks, metrics=KINDS, state=None, updates=(1,), every=1, **options):
    """Log these metrics after each update; return the logger's state after the last, whose record is still open."""
    logger = Logger(sinks, every=every, **options)
    if state is not None:
        logger.load_state_dict(state)
    callback = Gives(metrics)
    logger.begin_training({"own": callback}, run.path)
    for update in updates:
        logger.end_cycle(update, step=10 * update)
    state = logger.state_dict()
    logger.end_training(Stop("over"), update=updates[-1], step=10 * updates[-1])
    return state


def records(run):
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def test_tensorboard_shows_kinds_as_what_they_are(run):
    logged(run, TensorBoard())
    written = events_of(run.path)
    (histogram,) = written.Histograms("own/spread")
    value = histogram.histogram_value
    assert (value.min, value.max, value.num, sum(value.bucket)) == (0.0, 4.0, 5.0, 5.0)
    assert [limit for limit, count in zip(value.bucket_limit, value.bucket, strict=True) if count] == [
        0.0625, 1.0625, 2.0625, 3.0625, 4.0
    ]  # fmt: skip
    (image,) = written.Images("own/view")
    assert (np.asarray(Pillow.open(BytesIO(image.encoded_image_string))) == PIXELS).all()
    (clip,) = written.Images("own/clip")
    video = Pillow.open(BytesIO(clip.encoded_image_string))
    assert (video.format, video.n_frames, video.info["duration"], clip.width, clip.height) == ("GIF", 3, 100, 6, 4)
    (text,) = written.Tensors("own/note/text_summary")
    assert text.tensor_proto.string_val[0] == b"2 < 3"
    assert written.Tags()["scalars"].count("own/number") == 1
    assert not [name for name in written.Tags()["scalars"] if name.startswith(("own/spread", "own/view"))]


def test_wandb_shows_kinds_as_what_they_are(run):
    logged(run, Wandb(mode="offline"))
    (path,) = run.wandb.glob("offline-run-*/*.wandb")
    (items,) = history_of(path)
    files = path.parent / "files"
    assert {name: items[f"{name}._type"] for name in KINDS if name != "own/number"} == {
        "own/spread": "histogram",
        "own/view": "image-file",
        "own/clip": "video-file",
        "own/note": "html-file",
    }
    assert sum(items["own/spread.values"]) == 5
    assert (np.asarray(Pillow.open(files / items["own/view.path"])) == PIXELS).all()
    assert Pillow.open(files / items["own/clip.path"]).n_frames == 3
    assert (files / items["own/note.path"]).read_text() == "<pre>2 &lt; 3</pre>"
    assert items["own/number"] == 0.5


def test_metrics_jsonl_has_numbers_alone(run):
    logged(run, Jsonl())
    (record,) = records(run)
    named = {name: value for name, value in record.items() if name.startswith("own/")}
    assert named == pytest.approx({**QUANTILES, "own/spread/q95": 3.8, "own/number": 0.5})


@pytest.mark.parametrize("name", ["env_steps", "windowed[0]:x", "windowed[3]: ", "Windowed[3]:x", "window(3):x"])
def test_names_that_mean_something_else_are_left_out(name, run, caplog):
    logged(run, Jsonl(), metrics={name: 7.0})
    assert re.fullmatch(rf"metric '{re.escape(name)}' has (the|a) name .*; it is left out", caplog.messages[-1])
    assert records(run)[0].get(name) != 7.0


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (torch.ones(3), r"the shape \[3\]; a metric is one number, or a Histogram, Image, Video or Text"),
        ("cat", "the type str; a metric is one number"),
        (rlrun.Image(np.zeros((3, 8, 8))), r"the shape \[3, 8, 8\]; frames have \[H, W, channels\]"),
        (rlrun.Video(np.zeros((4, 6, 3))), None),
        (rlrun.Video(np.zeros((6, 3))), r"the shape \[6, 3\]; frames"),
        (rlrun.Video(FRAMES, fps=0), r"fps=0; frames a second are above 0"),
        (rlrun.Text(3), "a Text of the type int"),
        (rlrun.Histogram(["a"]), "values of the type str"),
        (rlrun.Histogram([torch.ones((), requires_grad=True)] * 2), "values that are no array"),
    ],
)
def test_what_is_no_metric_is_left_out_in_one_line(value, fault, run, caplog):
    logged(run, Jsonl(), metrics={"own/x": value}, updates=(1, 2))
    if fault is None:  # frames without channels
        assert caplog.text == ""
        return
    (entry,) = caplog.records
    assert re.fullmatch(f"metric 'own/x' has {fault}.*; it is left out", entry.message)


def test_pixels_of_all_sorts_become_bytes():
    for pixels in (
        PIXELS,
        torch.tensor(PIXELS),
        PIXELS / 255.0,
        torch.tensor(PIXELS / 255.0).bfloat16(),
        PIXELS.astype(int),
    ):
        assert np.abs(as_record({"x": rlrun.Image(pixels)})[0]["x"].pixels.astype(int) - PIXELS).max() <= 1
    empty = as_record({"x": rlrun.Histogram([math.nan])})[0]["x"]
    assert (empty.counts.tolist(), np.isnan(empty.quantiles).all()) == ([0], True)
    assert as_numbers({"a": rlrun.Histogram(torch.arange(5)), "b": rlrun.Text("x"), "c": torch.ones(1)}) == {
        "a/q05": 0.2, "a/q25": 1.0, "a/q50": 2.0, "a/q75": 3.0, "a/q95": pytest.approx(3.8), "c": 1.0
    }  # fmt: skip


@pytest.mark.parametrize(
    "values", [[10.0, math.nextafter(10.0, 9.0)], [0.0, 5e-324], [1e-295, 1e-295], [1.7e308, -1.7e308]]
)
def test_any_finite_numbers_have_a_histogram(values):
    record, faults = as_record({"x": rlrun.Histogram(values)})
    assert faults == {}
    assert record["x"].counts.sum() == 2
    assert np.isfinite(record["x"].edges).all()


def test_infinities_of_both_signs_have_no_mean():
    windows = Windows()
    for value in (math.inf, -math.inf):
        windows.take({"windowed[2]:x": value})
    assert math.isnan(windows.read()["x"])
    assert list(windows.state_dict()) == ["windowed[2]:x"]
    windows.take({"windowed[2]:x": 3.0})
    assert windows.read()["x/cumulative"] == 3.0


def test_small_numbers_spread_over_the_bins():
    distribution = as_record({"x": rlrun.Histogram([1e-12, 2e-9, 5e-9])})[0]["x"]
    assert distribution.edges[[0, -1]].tolist() == [1e-12, 5e-9]


def test_arrays_of_a_store_may_be_used_again():
    store, array = metrics.MetricStore(), np.ones(2)
    store.put({"x": rlrun.Histogram(array)})
    array[:] = 5.0
    assert as_numbers(store.read())["x/q50"] == 1.0


class Mean(Callback):
    """Metrics of every update in a window, by the store; those of records, by the property."""

    def end_batch(self, update):
        self.store.put({"windowed[3]:own/x": torch.tensor([update, update + 2.0]), "own/newest": update})

    @property
    def metrics(self):
        return {**self.store.read(), "windowed[2]:own/records": self.store.newest["own/newest"]}


@pytest.mark.parametrize("through", [range(0), range(1, 4), range(1, 8), range(1, 601)])
def test_windows_are_means_of_the_newest_and_sums_of_all(through):
    windows, values = Windows(), [0.1 * number for number in through]
    halves = len(values) // 2
    for value in values[:halves]:
        windows.take({"windowed[5]:a/b": torch.tensor(value, dtype=torch.float64), "c": 1})
    resumed = Windows()
    resumed.load_state_dict(json.loads(json.dumps(windows.state_dict())))
    for either in (windows, resumed):
        for value in values[halves:]:
            either.take({"windowed[5]:a/b": value})
    assert windows.read() == resumed.read()
    expected = {"a/b": np.mean(values[-5:]), "a/b/cumulative": sum(values)} if values else {}
    assert windows.read() == pytest.approx(expected)


def test_a_window_copies_a_buffer():
    windows, buffer = Windows(), torch.zeros(1)
    for _ in range(3):
        windows.take({"windowed[9]:a": buffer})
        buffer += 1.0
    metrics = {"windowed[9]:a": rlrun.Text("x"), "windowed[0]:a": 1, "a": 5}
    assert not windows.take(metrics)
    assert list(metrics) == ["windowed[9]:a", "windowed[0]:a", "a"]
    assert windows.read() == {"a": 1.0, "a/cumulative": 3.0}


def test_windows_are_of_updates_and_of_records(run):
    logger, mean = Logger([Jsonl()], every=2), Mean()
    logger.begin_training({"mean": mean}, run.path)
    for update in range(1, 13):
        mean.end_batch(update)
        logger.end_cycle(update)
    logger.end_training(Stop("over"), update=12)
    last = records(run)[-1]
    assert {name: value for name, value in last.items() if name.startswith("own/")} == {
        "own/newest": 12,
        "own/x": 12.0,  # the mean of 11, 12 and 13
        "own/x/cumulative": 90.0,
        "own/records": 11.0,
        "own/records/cumulative": 42.0,
    }


@pytest.mark.parametrize(("axis", "places"), [("env_steps", [10, 20, 30]), ("samples", [8, 16, 24])])
def test_axis_is_that_of_tensorboard_and_wandb(axis, places, run):
    def go(updates, state, lost=()):
        sinks = make_sinks(["tensorboard", {"wandb": {"mode": "offline"}}], axis=axis)
        logger = Logger(sinks, every=10, axis=axis)
        if state is not None:
            logger.load_state_dict(state)
        logger.begin_training({"own": Gives({"own/x": 0.5})}, run.path)
        state = None
        for update in (*updates, *lost):
            state = state if update in updates else state or json.loads(json.dumps(logger.state_dict()))
            if logger.hook("end_batch"):
                logger.end_batch(
                    {"default": {"observation": {"x": torch.ones(4, 2, 3)}, "terminated": torch.ones(4, 2)}}
                )
            logger.end_cycle(update, step=10 * update)
        logger.end_training(Stop("over"), update=update, step=10 * update)
        return state

    go([3], go([1, 2], None, lost=[3, 4]))  # a resumed run hides the records after its checkpoint
    assert [event.step for event in events_of(run.path).Scalars("own/x")] == places
    assert [(record["env_steps"], record["updates"]) for record in records(run)] == [(10, 1), (20, 2), (30, 3)]
    newest = max(run.wandb.glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert history_of(newest)[-1][axis] == places[-1]


def test_a_kind_costs_nothing_when_no_record_is_due(run, monkeypatch):
    calls = []
    monkeypatch.setattr(metrics, "_in_record", lambda value: calls.append(value) or 0.5)
    callback, logger = Callback(), Logger([Jsonl()], every=100)
    logger.begin_training({"own": callback}, run.path)
    for update in range(1, 100):
        callback.store.put(KINDS)
        logger.end_cycle(update, step=update)
    assert calls == []
    logger.end_cycle(100, step=100)
    assert len(calls) == len(KINDS)


def test_a_checkpoint_of_before_is_loaded(run):
    old = {"last": {"env_steps": 4, "updates": 2, "seconds": 1.0}, "seconds": 1.5, "pending": None, "records": 0}
    logged(run, Jsonl(), updates=(3,), state={**old, "newest": 0, "open": {"env_steps": 4, "updates": 2, "own/x": 1.0}})
    assert [record["updates"] for record in records(run)] == [2, 3]


def test_the_same_image_is_written_once(run):
    logged(run, TensorBoard(), updates=(1, 2, 3))
    written = events_of(run.path)
    assert [len(written.Images("own/view")), len(written.Histograms("own/spread"))] == [1, 3]


OWN = '''
import gymnasium
import numpy as np

import rlrun
from rlrun.training.callback import Callback


class Own(Callback):
    """Metrics of every update, without a state of its own."""

    data_group = "default"

    def end_batch(self, reward, update):
        self.store.put({
            "windowed[30]:own/reward": reward * update,
            "own/spread": rlrun.Histogram(reward),
            "own/note": rlrun.Text(f"update {update}"),
        })

    @property
    def metrics(self):
        metrics = self.store.read()
        return {**metrics, "windowed[3]:own/records": metrics.get("own/reward", 0.0)}


class Walk(gymnasium.Env):
    """Walks along numbers by luck; an info has the steps, an image and whether it came far."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.path = [0.0]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.path.append(self.path[-1] + (2 * action - 1) * self.np_random.random())
        end = len(self.path) > 7
        view = rlrun.Image(np.full((2, 2), abs(self.path[-1]) / 9.0))
        info = {"path": rlrun.Histogram(self.path), "view": view, "success": self.path[-1] > 0.0} if end else {}
        return np.array(self.path[-1:], np.float32), self.path[-1], end, False, info
'''


@pytest.mark.parametrize("envs", ["env.vectorization=sync", "env.vectorization=async", "+with=async"])
def test_a_resumed_run_has_the_metrics_of_the_one_that_never_stopped(envs, tmp_path, monkeypatch, children):
    monkeypatch.setattr(worker, "start", children.worker)  # a process that has imported everything
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_walk.py").write_text(OWN)
    own = ("+callbacks.own._target_=own_walk.Own", "env.target=own_walk.Walk", "logger=[tensorboard]", envs)
    short = ("stop.env_steps=130", "algorithm.hidden=[8]", "algorithm.warmup_steps=40", "log.axis=samples")
    every = ("log.every=10", "evaluation.every=70", "evaluation.episodes=1", "checkpoint.every=40")
    whole, killed = RunDir(tmp_path / "whole"), RunDir(tmp_path / "killed")
    rlrun.train(["algorithm=dqn", "num_envs=2", "preset=null", *own, *short, *every], run_dir=whole.path)
    if "with" in envs:  # the order of events is not that of a run without a stop
        assert records(whole)[-1].keys() >= {"episode/path/q05", "distribution/success/q95"}
        return
    copy_as_killed(whole.path, killed.path, at=80)
    rlrun.resume(killed.path)
    same = compare(whole.path, killed.path)
    assert all(same.values()), (same, differing(whole.path, killed.path))
    last = records(whole)[-1]
    assert last.keys() >= {
        *(f"{name}/q50" for name in ("own/spread", "episode/path", "distribution/return", "distribution/success")),
        *("own/reward", "own/reward/cumulative", "own/records", "own/records/cumulative", "episode/success"),
    }
    assert last["samples"] == last["updates"] * 128
    written = [events_of(run.path) for run in (whole, killed)]
    for read in (lambda of: of.Histograms("own/spread"), lambda of: of.Histograms("episode/path")):
        one, other = ([(event.step, event.histogram_value) for event in read(of)] for of in written)
        assert one == other
        assert len(one) >= 8
    one, other = ({event.step for event in of.Images("episode/view")} for of in written)
    assert one <= other  # the newest image before a checkpoint may come once more
    assert len(other - one) <= 1
