"""Metrics that are no numbers, and metrics over windows."""

import json
import math
import random
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.callbacks.wandb_files import history_of

import rlrun
from rlrun.callbacks.log import Logger
from rlrun.callbacks.sinks import Jsonl, TensorBoard, Wandb
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Callback, Stop
from rlrun.training.metrics import as_numbers, in_record

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


@pytest.fixture
def run(tmp_path):
    return RunDir.claim(tmp_path / "run")


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


def events(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run.tensorboard), {"images": 0, "tensors": 0, "histograms": 0}).Reload()


def test_tensorboard_shows_kinds_as_what_they_are(run):
    logged(run, TensorBoard())
    written = events(run)
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
    before = (random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum())
    logged(run, Wandb(mode="offline"))
    assert (random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum()) == before
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


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (torch.ones(3), r"the shape \[3\]; a metric is one number, or a Histogram, Image, Video or Text"),
        ("cat", "the type str; a metric is one number"),
        (rlrun.Image(np.zeros((3, 8, 8))), r"the shape \[3, 8, 8\]; frames have \[H, W, channels\]"),
        (rlrun.Video(np.zeros((4, 6, 3))), None),
        (rlrun.Video(np.zeros((6, 3))), r"the shape \[6, 3\]; frames"),
        (rlrun.Histogram(["a"]), "values of the type str"),
    ],
)
def test_what_is_no_metric_is_left_out_in_one_line(value, fault, run, caplog):
    logged(run, Jsonl(), metrics={"own/x": value}, updates=(1, 2))
    if fault is None:  # frames without channels
        assert caplog.text == ""
        return
    (entry,) = caplog.records
    assert entry.message.startswith("metric 'own/x' has ")
    assert entry.message.endswith("; it is left out")
    with pytest.raises(ValueError, match=fault):
        in_record(value)


def test_pixels_of_all_sorts_become_bytes():
    for pixels in (
        PIXELS,
        torch.tensor(PIXELS),
        PIXELS / 255.0,
        torch.tensor(PIXELS / 255.0).bfloat16(),
        PIXELS.astype(int),
    ):
        assert np.abs(in_record(rlrun.Image(pixels)).pixels.astype(int) - PIXELS).max() <= 1
    empty = in_record(rlrun.Histogram([math.nan]))
    assert (empty.counts.tolist(), np.isnan(empty.quantiles).all()) == ([0], True)
    assert as_numbers({"a": rlrun.Histogram(torch.arange(5)), "b": rlrun.Text("x"), "c": torch.ones(1)}) == {
        "a/q05": 0.2, "a/q25": 1.0, "a/q50": 2.0, "a/q75": 3.0, "a/q95": pytest.approx(3.8), "c": 1.0
    }  # fmt: skip
