"""Videos of episodes, without a screen or a system's ffmpeg."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.collect.agents import Agent
from rlrun.collect.evaluate import Evaluation, Moment, evaluate, require_opponents, restored_generators, sampling, stage
from rlrun.core.errors import MissingExtra, RequestError, RlrunError, did_you_mean
from rlrun.core.files import reason, sync, sync_directory, write_all
from rlrun.core.typing import Array
from rlrun.env import Env
from rlrun.env.wrapper_state import States
from rlrun.training.callback import Stop

FALLBACK_FPS = 30.0  # for environments that do not state theirs
GIF_FPS = 50.0  # gif counts hundredths of a second, and viewers slow down frames that last only one
HEADLESS = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}  # read at the first rendering
PALETTE = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"  # 256 colors for each frame
MUJOCO = "; without a screen MuJoCo draws by MUJOCO_GL=egl (libEGL and a driver) or MUJOCO_GL=osmesa (libOSMesa)"
PATIENCE = 5.0  # seconds to wait for a failed encoder
PREFIX = re.compile(r"^\[[^]]*\] ")  # the part of ffmpeg that a line comes from
FORMATS = {
    "mp4": ("-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"),
    "gif": ("-filter_complex", PALETTE, "-f", "gif"),
}

_hidden: set[str] = set()  # variables of HEADLESS that this module has set


def _ffmpeg() -> str:
    """Return the path of the encoder's program."""
    from imageio_ffmpeg import get_ffmpeg_exe

    return str(get_ffmpeg_exe())


def require_encoder(place: str, form: str = "mp4") -> None:
    """Raise an error, before a run, if videos cannot be written.

    Raises:
        MissingExtra: the encoder is not installed.
        RequestError: its program is missing, or the format is unknown.
    """
    if form not in FORMATS:
        raise RequestError(f"--format {form}: wanted one of {', '.join(FORMATS)}{did_you_mean(form, FORMATS)}")
    try:
        _ffmpeg()
    except ModuleNotFoundError:
        raise MissingExtra(place, "imageio-ffmpeg", "video") from None
    except RuntimeError as error:
        way_out = "set IMAGEIO_FFMPEG_EXE to the path of one"
        raise RequestError(f"{place}: the package imageio-ffmpeg came without an ffmpeg; {way_out}") from error
    for name in HEADLESS.keys() - os.environ.keys():
        os.environ[name] = HEADLESS[name]
        _hidden.add(name)


def unset_headless() -> None:
    """Unset the variables of `require_encoder`, so that windows can open."""
    while _hidden:
        os.environ.pop(_hidden.pop(), None)


def screen(place: str, env: Env) -> Env:
    """Return a separate env that renders images, after a first rendering.

    Raises:
        RequestError: the environment cannot render; the message names the missing part.
    """
    modes = env.envs[0].metadata.get("render_modes") or () if env.envs else ("rgb_array",)
    if "rgb_array" not in modes:
        rendered = f"only {', '.join(map(str, modes))}" if modes else "nothing"
        raise RequestError(f"{place}: environment '{env.name}' draws no pictures (rgb_array), it renders {rendered}")
    return rendered_copy(env, "rgb_array", picture_of, refusal=f"{place}: environment '{env.name}' cannot be drawn")


def rendered_copy(
    env: Env, render_mode: str, look: Callable[[Env], object], *, refusal: str, fps: float | None = None
) -> Env:
    """Return a copy of an environment that renders, after one reset and one rendering.

    Args:
        env: to copy.
        render_mode: of Gymnasium.
        look: raises if the rendering is not usable.
        refusal: the beginning of the error message.
        fps: frames per second, in place of the environment's.

    Raises:
        RequestError: the copy cannot be made or rendered.
    """
    single_env = None
    try:
        with restored_generators():
            single_env = env.copy(num_envs=1, render_mode=render_mode)
            for inner in single_env.envs if fps is not None else ():
                inner.unwrapped.metadata = {**inner.metadata, "render_fps": fps}
            single_env.renew()  # this episode must not affect later ones
            single_env.reset(0)
            look(single_env)
    except Exception as error:
        if single_env is not None:
            single_env.close()
        if isinstance(error, Stop):
            raise
        mujoco = render_mode == "rgb_array" and "mujoco" in sys.modules
        message = _message(error)
        if "render_mode" in message and "takes no such argument" in message:
            message = f"its class takes no render_mode; add it: def __init__(self, render_mode=None), for {render_mode}"
        raise RequestError(f"{refusal}: {message}{MUJOCO if mujoco else ''}") from error
    return single_env


def _message(error: Exception) -> str:
    lines = str(error).splitlines()
    if isinstance(error, RlrunError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def picture_of(env: Env) -> Array:
    """Return the current frame of the first env: [H, W, 3] uint8.

    Raises:
        RlrunError: the environment renders no image.
    """
    frame = env.render()
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        kind = f"{list(frame.shape)} {frame.dtype}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise RlrunError(f"render() gave no picture ([H, W, 3] uint8): {kind}")
    return frame


class VideoRecorder:
    """A watcher that writes one video for each episode.

    A video has the frames of the reset and of each step. The file of an unfinished episode is deleted.

    Args:
        env: one env that renders frames.
        name: episode -> file, whose suffix is the format.

    Attributes:
        paths: files that were written.
    """

    def __init__(self, env: Env, name: Callable[[Moment], Path]) -> None:
        self.env = env
        self.name = name
        self.paths: list[Path] = []
        self._fps = fps_of(env)
        self._encoder: VideoEncoder | None = None

    def __call__(self, moment: Moment) -> None:
        """Add the current frame to the video of an episode.

        Raises:
            RlrunError: the frame cannot be rendered or written.
        """
        path = self.name(moment)
        every = math.ceil(self._fps / GIF_FPS) if path.suffix == ".gif" else 1
        if moment.step % every and moment.ending is None:
            return
        try:
            frame = picture_of(self.env)
        except Stop:
            raise
        except Exception as error:
            place = f"{path}: step {moment.step} of environment '{self.env.name}'"
            raise RlrunError(f"{place} could not be drawn: {_message(error)}") from error
        height, width, _ = frame.shape
        if height % 2 or width % 2:  # the encoder wants even sides: an odd one repeats its last row
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._encoder is None:
            self._encoder = VideoEncoder(path, frame.shape, self._fps / every)
        self._encoder.write(frame)
        if moment.ending is not None:
            encoder, self._encoder = self._encoder, None
            encoder.finish()
            self.paths.append(path)

    def __enter__(self) -> VideoRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._encoder is not None:
            self._encoder.drop()


class VideoEncoder:
    """A video file that gets its name when it is complete.

    Args:
        path: its suffix is one of `FORMATS`.
        shape: of its frames, [H, W, 3].
        fps: frames per second.

    Raises:
        RlrunError: it cannot be written; the incomplete file is deleted.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self.path = path
        self._shape = shape
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        rate = str(Fraction(fps).limit_denominator(1001))
        source = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{shape[1]}x{shape[0]}", "-r", rate, "-i", "-")
        command = [_ffmpeg(), "-y", "-v", "error", *source, *FORMATS[path.suffix[1:]], str(self._temporary)]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # In a separate session: only this process handles a Ctrl-C.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise RlrunError(f"{path} cannot be written: {reason(error)}") from error
        self._input: Any = self._process.stdin

    def write(self, frame: Array) -> None:
        """Add a frame."""
        if frame.shape != self._shape:
            raise RlrunError(f"{self.path}: a picture of {list(frame.shape)} after one of {list(self._shape)}")
        try:
            write_all(self._input.fileno(), np.ascontiguousarray(frame).reshape(-1))
        except OSError as error:
            raise self._failed(error) from error

    def finish(self) -> None:
        """Complete the file, and give it its name."""
        try:
            self._input.close()
            if self._process.wait() != 0:
                raise self._failed(None)
            sync(self._temporary)
            os.replace(self._temporary, self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Delete an unfinished file; a finished one stays."""
        if self._errors.closed:
            return
        self._process.kill()
        self._input.close()
        self._process.wait()
        self._errors.close()
        self._temporary.unlink(missing_ok=True)

    def _failed(self, error: OSError | None) -> RlrunError:
        self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)  # for its error message
        self._errors.seek(0)
        lines = [PREFIX.sub("", line) for line in self._errors.read().decode(errors="replace").splitlines()]
        cause = lines[0] if lines else reason(error) if error is not None else "ffmpeg failed"
        return RlrunError(f"{self.path} cannot be written: {cause}")


def fps_of(env: Env) -> float:
    """Return the frames per second of an environment's metadata."""
    metadata: dict[str, Any] = env.envs[0].metadata if env.envs else {}
    try:
        fps = float(metadata.get("render_fps") or FALLBACK_FPS)
    except (TypeError, ValueError):
        return FALLBACK_FPS
    return fps if math.isfinite(fps) and fps > 0 else FALLBACK_FPS


class Film(NamedTuple):
    """The episodes that are recorded as videos.

    folder: for one file per episode; form: mp4 or gif; episodes: number of the first ones, None = all.
    """

    folder: Path
    form: str = "mp4"
    episodes: int | None = None


class Stage:
    """Environments in which any number of agents play the same episodes; a context manager.

    Args:
        env: to copy; it stays unchanged.
        episodes: number for each agent; episode i starts with `reset(seed=seed + i)`.
        seed: of the first episode, and of the agents' draws.
        max_steps: of an episode.
        num_envs: environments that play in parallel, at most; None = 16.
        explore: act as in training, not greedily.
        epsilon: probability of a sampled action in place of the best one.
        film: recorded episodes; these are played one after another.
        opponents: as of `evaluate`.

    Raises:
        RequestError: the environment cannot be rendered, the folder cannot be made, or several opponents are filmed.
        ConfigError: an opponent cannot play.
    """

    def __init__(
        self,
        env: Env,
        *,
        episodes: int,
        seed: int = 0,
        max_steps: int | None = None,
        num_envs: int | None = None,
        explore: bool = False,
        epsilon: float = 0.0,
        film: Film | None = None,
        opponents: Mapping[str, Any] | None = None,
    ) -> None:
        if film is not None and len(opponents or ()) > 1:
            raise RequestError("--video films games against one opponent; give one --opponent")
        require_opponents(env, opponents or {})
        self.seed = seed
        self.film = film
        self.epsilon = epsilon
        self._play = partial(evaluate, max_steps=max_steps, explore=explore, opponents=opponents)
        most = 0 if film is None else episodes if film.episodes is None else film.episodes
        self._filmed = min(episodes, most)
        self._rest = episodes - self._filmed
        self._closing = ExitStack()
        self._screen: Env | None = None
        self._envs: Env | None = None
        with self._closing:
            if film is not None and self._filmed:
                try:
                    film.folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise RequestError(f"--video {film.folder} cannot be made: {reason(error)}") from error
                self._screen = screen("--video", env)
                self._closing.callback(self._screen.close)
            if self._rest:
                self._envs = stage(env, self._rest, num_envs)
                self._closing.callback(self._envs.close)
            self._closing = self._closing.pop_all()

    def play(self, agent: Agent, folder: str = "", wrappers: States | None = None) -> tuple[Evaluation, list[Path]]:
        """Play all episodes with an agent; the process's generators keep their state.

        Args:
            agent: chooses actions.
            folder: for its videos, in that of the film.
            wrappers: states of the environment's wrappers; None = those of new wrappers.

        Returns:
            The results, and the videos.

        Raises:
            RlrunError: a frame could not be rendered or written.
        """
        with restored_generators():
            torch.manual_seed(self.seed)
            agent = sampling(agent, self.epsilon, seed=self.seed)
            play = partial(self._play, wrappers=wrappers)
            evaluation: Evaluation = Evaluation([], [], [])
            videos: list[Path] = []
            if self._screen is not None and self.film is not None:
                place, form = self.film.folder / folder, self.film.form
                recorder = VideoRecorder(
                    self._screen, lambda now: place / f"episode_{now.episode:03d}_seed_{now.seed}.{form}"
                )
                with recorder:
                    evaluation = play(self._screen, agent, episodes=self._filmed, seed=self.seed, watch=recorder)
                videos = recorder.paths
            if self._envs is not None:
                rest = play(self._envs, agent, episodes=self._rest, seed=self.seed + self._filmed)
                evaluation = evaluation.then(rest)
        return evaluation, videos

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()
