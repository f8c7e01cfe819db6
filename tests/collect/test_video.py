"""Videos hold the pictures that were drawn, appear whole or not at all, and are refused where none can be made."""

from __future__ import annotations

import sys
import time

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.spaces import Box
from PIL import Image, ImageSequence

from rlrun.collect.evaluate import evaluate
from rlrun.collect.video import Film, Stage, VideoEncoder, VideoRecorder, fps_of, require_encoder, screen
from rlrun.core.errors import MissingExtra, RequestError, RlrunError
from rlrun.env.sync import SyncEnv


class Painted(gymnasium.Env):
    """Draws its step number as a shade; an episode started by seed s takes s + 2 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space, action_space = Box(-9, 9, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    def __init__(self, size=(32, 48), picture=None):
        self.size = size
        self.picture = picture or self.shade
        self.drawn = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.steps = (seed or 0) + 2, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps), self.steps == self.length, False, {}

    def shade(self):
        return np.full((*self.size, 3), 20 * self.steps, np.uint8)

    def render(self):
        self.drawn += 1
        return self.picture()


def painted(**options):
    def copy(count=1, render_mode=None):
        env = SyncEnv([Painted(**options) for _ in range(count)])
        env.copier, env.name = copy, "painted"
        return env

    return copy()


def still(observation, state=None, *, explore=True):
    return {"action": np.zeros_like(observation)}


def film(env, folder, form, episodes=2):
    with VideoRecorder(env, lambda now: folder / f"{now.episode}.{form}") as recorder:
        evaluate(env, still, episodes=episodes, seed=1, watch=recorder)
    return recorder.paths


def shades(path):
    """Return the mean shade of each picture."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            return [np.asarray(frame.convert("RGB")).mean() for frame in ImageSequence.Iterator(image)]
    frames = imageio_ffmpeg.read_frames(str(path))
    next(frames)
    return [np.frombuffer(frame, np.uint8).mean() for frame in frames]


@pytest.mark.parametrize("size", [(32, 48), (33, 49)])
@pytest.mark.parametrize("form", ["mp4", "gif"])
def test_a_video_has_the_picture_of_the_reset_and_of_each_step(form, size, tmp_path):
    paths = film(painted(size=size), tmp_path, form)
    assert [path.name for path in paths] == [f"0.{form}", f"1.{form}"]
    assert sorted(tmp_path.iterdir()) == paths
    for length, path in zip((3, 4), paths, strict=True):
        assert shades(path) == pytest.approx([20 * step for step in range(length + 1)], abs=3)


def test_sides_that_the_encoder_cannot_have_lose_no_row(tmp_path):
    (path,) = film(painted(size=(33, 49)), tmp_path, "mp4", episodes=1)
    assert next(imageio_ffmpeg.read_frames(str(path)))["source_size"] == (50, 34)


@pytest.mark.parametrize(("describe_error", "fps"), [(25, 25.0), (12.5, 12.5), (None, 30.0), (0, 30.0), ("x", 30.0)])
def test_pace_is_what_the_environment_says(describe_error, fps, tmp_path):
    env = painted()
    env.envs[0].metadata = {"render_fps": describe_error}
    assert fps_of(env) == fps
    mp4, gif = (film(env, tmp_path, form, episodes=1)[0] for form in ("mp4", "gif"))
    assert next(imageio_ffmpeg.read_frames(str(mp4)))["fps"] == pytest.approx(fps, rel=0.01)
    with Image.open(gif) as image:
        delays = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert np.mean(delays[:-1]) == pytest.approx(1000 / fps, abs=4)  # whole hundredths of a second


def test_a_gif_of_a_fast_environment_leaves_pictures_out_but_not_the_last(tmp_path):
    env = painted()
    env.envs[0].metadata = {"render_fps": 125}
    (path,) = film(env, tmp_path, "gif", episodes=1)  # a reset and three steps
    assert shades(path) == pytest.approx([0, 60], abs=3)
    with Image.open(path) as image:
        assert image.info["duration"] == pytest.approx(1000 * 3 / 125, abs=10)


def hidden(folder):
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def until(ready, seconds=30.0):
    """Wait for the encoder, which is a process of its own."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_an_episode_that_did_not_end_leaves_no_file(error, tmp_path):
    seen = []

    def fail(now):
        seen.append({path.name for path in tmp_path.iterdir() if not path.name.startswith(".")})
        recorder(now)
        if now.episode == 1 and now.step == 2:
            until(lambda: hidden(tmp_path))
            raise error

    env = painted()
    with pytest.raises(type(error)), VideoRecorder(env, lambda now: tmp_path / f"{now.episode}.mp4") as recorder:
        evaluate(env, still, episodes=2, seed=1, watch=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["0.mp4"]  # the hidden file is gone, too
    assert seen[:4] == [set()] * 4  # before the first is whole it has no name
    assert seen[4:] == [{"0.mp4"}] * 3


def test_an_older_video_stays_until_the_new_one_is_whole(tmp_path):
    (tmp_path / "0.mp4").write_text("old")
    encoder = VideoEncoder(tmp_path / "0.mp4", (32, 48, 3), 25.0)
    encoder.write(np.zeros((32, 48, 3), np.uint8))
    encoder.drop()
    assert (tmp_path / "0.mp4").read_text() == "old"
    film(painted(), tmp_path, "mp4", episodes=1)
    assert len(shades(tmp_path / "0.mp4")) == 4


def test_an_encoder_that_fails_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules["rlrun.collect.video"].FORMATS, "mp4", ("-f", "nonsense"))
    with pytest.raises(RlrunError, match=r"0\.mp4 cannot be written: .*nonsense"):
        film(painted(), tmp_path, "mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "film").write_text("")
    with pytest.raises(RlrunError, match="cannot be written: "):
        VideoEncoder(tmp_path / "film" / "0.mp4", (32, 48, 3), 25.0)
    with pytest.raises(RequestError, match=r"--video .* cannot be made: "):
        Stage(painted(), episodes=1, film=Film(tmp_path / "film"))


PICTURES = {
    "nothing": (lambda: None, "NoneType"),
    "text": (lambda: "a", "str"),
    "gray": (lambda: np.zeros((32, 48), np.uint8), r"\[32, 48\] uint8"),
    "floats": (lambda: np.zeros((32, 48, 3)), r"\[32, 48, 3\] float64"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_what_is_no_picture_is_refused_before_the_first_step(name, tmp_path):
    picture, pattern = PICTURES[name]
    with pytest.raises(RequestError, match=f"--video: environment 'painted' cannot be drawn: .*: {pattern}"):
        Stage(painted(picture=picture), episodes=1, film=Film(tmp_path))


def test_an_environment_that_draws_nothing_is_refused():
    env = painted()
    env.envs[0].metadata = {"render_modes": ["human"]}
    with pytest.raises(
        RequestError, match=r"environment 'painted' draws no pictures \(rgb_array\), it renders only hu"
    ):
        screen("evaluation.video", env)


def test_a_picture_of_another_size_is_refused(tmp_path):
    env = painted()
    env.envs[0].picture = lambda: np.zeros((32 + 2 * env.envs[0].steps, 48, 3), np.uint8)
    with pytest.raises(RlrunError, match=r"a picture of \[34, 48, 3\] after one of \[32, 48, 3\]"):
        film(env, tmp_path, "mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_without_its_program_is_refused(monkeypatch):
    def missing():
        raise RuntimeError("No ffmpeg exe could be found.\nInstall ffmpeg")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(RequestError, match=r"--video: .* set IMAGEIO_FFMPEG_EXE"):
        require_encoder("--video")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match=r"\[video\]"):
        require_encoder("--video")


@pytest.mark.parametrize(("filmed", "expected"), [(None, 5), (2, 2), (9, 5)])
def test_only_the_first_episodes_are_filmed_and_all_are_played(filmed, expected, tmp_path):
    with Stage(painted(), episodes=5, seed=3) as stage:
        plain, none = stage.play(still)
    with Stage(painted(), episodes=5, seed=3, film=Film(tmp_path, "gif", filmed)) as stage:
        evaluation, paths = stage.play(still, "one")
        again, _ = stage.play(still, "two")
    assert evaluation == plain == again
    assert evaluation.lengths == [5, 6, 7, 8, 9]
    assert (none, paths) == ([], [tmp_path / "one" / f"episode_{i:03d}_seed_{3 + i}.gif" for i in range(expected)])
    assert len(list((tmp_path / "two").iterdir())) == expected


class Growing(Painted):
    """Every episode is a step longer than the one before."""

    def reset(self, *, seed=None, options=None):
        self.before = getattr(self, "before", 0) + 1
        return super().reset(seed=self.before)


def test_the_look_before_the_first_step_counts_for_nothing(tmp_path):
    def copy(count=1, render_mode=None):
        env = SyncEnv([Growing() for _ in range(count)])
        env.copier = copy
        return env

    with Stage(copy(), episodes=1) as stage, Stage(copy(), episodes=1, film=Film(tmp_path)) as filmed:
        assert stage.play(still)[0].lengths == filmed.play(still)[0].lengths == [3]
