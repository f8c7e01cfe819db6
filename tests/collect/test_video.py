"""Videos hold every picture, appear whole or not at all, and are refused early where none can be made."""

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
    """Draws its step number as a shade; the episode of seed s, or the s-th of a growing env, takes s + 2 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space, action_space = Box(-9, 9, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    resets = 0

    def __init__(self, size=(32, 48), picture=None, growing=False):
        self.size, self.picture, self.growing = size, picture or self.shade, growing

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.length, self.steps = (self.resets if self.growing else seed or 0) + 2, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps), self.steps == self.length, False, {}

    def state_dict(self):
        return {"resets": self.resets}

    def load_state_dict(self, state):
        self.resets = state["resets"]

    def shade(self):
        return np.full((*self.size, 3), 20 * self.steps, np.uint8)

    def render(self):
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


@pytest.mark.parametrize(("form", "size"), [("mp4", (32, 48)), ("mp4", (33, 49)), ("gif", (33, 49))])
def test_video_has_reset_and_every_step(form, size, tmp_path):
    paths = film(painted(size=size), tmp_path, form)
    assert [path.name for path in paths] == [f"0.{form}", f"1.{form}"]
    assert sorted(tmp_path.iterdir()) == paths
    for length, path in zip((3, 4), paths, strict=True):
        assert shades(path) == pytest.approx([20 * step for step in range(length + 1)], abs=3)
    if form == "mp4":  # odd sides are padded
        even = (size[1] + size[1] % 2, size[0] + size[0] % 2)
        assert next(imageio_ffmpeg.read_frames(str(paths[0])))["source_size"] == even


@pytest.mark.parametrize(("render_fps", "fps"), [(25, 25.0), (12.5, 12.5), (None, 30.0), (0, 30.0), ("x", 30.0)])
def test_fps_is_that_of_the_environment(render_fps, fps, tmp_path):
    env = painted()
    env.envs[0].metadata = {"render_fps": render_fps}
    assert fps_of(env) == fps
    if fps == 30.0:
        return
    mp4, gif = (film(env, tmp_path, form, episodes=1)[0] for form in ("mp4", "gif"))
    assert next(imageio_ffmpeg.read_frames(str(mp4)))["fps"] == pytest.approx(fps, rel=0.01)
    with Image.open(gif) as image:
        delays = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert np.mean(delays[:-1]) == pytest.approx(1000 / fps, abs=4)  # whole hundredths of a second


def test_fast_gif_skips_pictures(tmp_path):
    env = painted()
    env.envs[0].metadata = {"render_fps": 125}
    (path,) = film(env, tmp_path, "gif", episodes=1)  # a reset and three steps
    assert shades(path) == pytest.approx([0, 60], abs=3)
    with Image.open(path) as image:
        assert image.info["duration"] == pytest.approx(1000 * 3 / 125, abs=10)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_interrupted_episode_leaves_no_file(error, tmp_path):
    seen = []

    def fail(now):
        seen.append({path.name for path in tmp_path.iterdir() if not path.name.startswith(".")})
        recorder(now)
        if now.episode == 1 and now.step == 2:
            until = time.monotonic() + 30.0  # the encoder is a process of its own
            while not list(tmp_path.glob(".*")):
                assert time.monotonic() < until
                time.sleep(0.01)
            raise error

    env = painted()
    with pytest.raises(type(error)), VideoRecorder(env, lambda now: tmp_path / f"{now.episode}.mp4") as recorder:
        evaluate(env, still, episodes=2, seed=1, watch=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["0.mp4"]  # the hidden file is gone, too
    assert seen[:4] == [set()] * 4  # before the first is whole it has no name
    assert seen[4:] == [{"0.mp4"}] * 3


def test_old_video_stays_until_replaced(tmp_path):
    (tmp_path / "0.mp4").write_text("old")
    encoder = VideoEncoder(tmp_path / "0.mp4", (32, 48, 3), 25.0)
    encoder.write(np.zeros((32, 48, 3), np.uint8))
    encoder.drop()
    assert (tmp_path / "0.mp4").read_text() == "old"
    film(painted(), tmp_path, "mp4", episodes=1)
    assert len(shades(tmp_path / "0.mp4")) == 4


def growing():
    env = painted()
    env.envs[0].picture = lambda: np.zeros((32 + 2 * env.envs[0].steps, 48, 3), np.uint8)
    return env


@pytest.mark.parametrize(
    ("build", "output", "message"),
    [
        (painted, ("-f", "nonsense"), r"0\.mp4 cannot be written: .*nonsense"),
        (growing, None, r"a picture of \[34, 48, 3\] after one of \[32, 48, 3\]"),
    ],
)
def test_failed_encoding_leaves_nothing(build, output, message, tmp_path, monkeypatch):
    if output is not None:
        monkeypatch.setitem(sys.modules["rlrun.collect.video"].FORMATS, "mp4", output)
    with pytest.raises(RlrunError, match=message):
        film(build(), tmp_path, "mp4")
    assert list(tmp_path.iterdir()) == []


def test_file_as_folder_is_refused(tmp_path):
    (tmp_path / "film").write_text("")
    with pytest.raises(RlrunError, match="cannot be written: "):
        VideoEncoder(tmp_path / "film" / "0.mp4", (32, 48, 3), 25.0)


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        (lambda: None, "NoneType"),
        (lambda: "a", "str"),
        (lambda: np.zeros((32, 48), np.uint8), r"\[32, 48\] uint8"),
        (lambda: np.zeros((32, 48, 3)), r"\[32, 48, 3\] float64"),
    ],
)
def test_invalid_picture_is_refused_early(picture, kind, tmp_path):
    with pytest.raises(RequestError, match=f"--video: environment 'painted' cannot be drawn: .*: {kind}"):
        Stage(painted(picture=picture), episodes=1, film=Film(tmp_path))


def test_environment_without_pictures_is_refused():
    env = painted()
    env.envs[0].metadata = {"render_modes": ["human"]}
    with pytest.raises(RequestError, match=r"'painted' draws no pictures \(rgb_array\), it renders only hu"):
        screen("evaluation.video", env)


def test_missing_encoder_is_refused(monkeypatch):
    def missing():
        raise RuntimeError("No ffmpeg exe could be found.\nInstall ffmpeg")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(RequestError, match=r"--video: .* set IMAGEIO_FFMPEG_EXE"):
        require_encoder("--video")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match=r"\[video\]"):
        require_encoder("--video")


@pytest.mark.parametrize(("filmed", "expected"), [(None, 5), (2, 2), (9, 5)])
def test_first_episodes_are_filmed(filmed, expected, tmp_path):
    with Stage(painted(), episodes=5, seed=3) as stage:
        plain, none = stage.play(still)
    with Stage(painted(), episodes=5, seed=3, film=Film(tmp_path, "gif", filmed)) as stage:
        evaluation, paths = stage.play(still, "one")
        again, _ = stage.play(still, "two")
    assert evaluation == plain == again
    assert evaluation.lengths == [5, 6, 7, 8, 9]
    assert (none, paths) == ([], [tmp_path / "one" / f"episode_{i:03d}_seed_{3 + i}.gif" for i in range(expected)])
    assert len(list((tmp_path / "two").iterdir())) == expected


def test_rehearsal_changes_no_episode(tmp_path):
    plain, drawn = painted(growing=True), painted(growing=True)
    with Stage(plain, episodes=1) as stage, Stage(drawn, episodes=1, film=Film(tmp_path)) as filmed:
        assert stage.play(still)[0].lengths == filmed.play(still)[0].lengths == [3]
