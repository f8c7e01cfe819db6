"""Episodes of a run's policy to look at; the Python equivalent of `rlrun play`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from rlrun.collect.evaluate import Evaluation, Moment, evaluate, undisturbed
from rlrun.collect.video import fps_of, rehearsed, uncover
from rlrun.core.errors import RequestError
from rlrun.env import Env
from rlrun.export.opening import Exported, exported, is_export, refuse_overrides
from rlrun.loading.policy import Frozen, frozen
from rlrun.runs.directory import RunDir
from rlrun.runs.files import counted

COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # the one command to a terminal that changes no more than how letters look
PLAIN = "\x1b[0m"


def play(
    run: Path | str,
    *,
    episodes: int = 5,
    seed: int = 0,
    checkpoint: str = "latest",
    stochastic: bool = False,
    text: bool = False,
    fps: float | None = None,
    trust: Iterable[str] = (),
    overrides: Iterable[str] = (),
    say: Callable[[str], None] = print,
) -> Evaluation:
    """Show episodes of a run's frozen policy in a window or the terminal; the Python equivalent of `rlrun play`.

    Args:
        run: a run directory, or an exported policy, FILE.onnx.
        episodes: how many; episode i starts with `reset(seed=seed + i)`.
        seed: of the first episode.
        checkpoint: `latest`, `best`, or a number of environment steps.
        stochastic: sample actions as in training, in place of the best ones.
        text: in the terminal, also where a window could be opened.
        fps: steps a second; None = as the environment says.
        trust: packages that the run's config may import, beyond those of any run and of the user's project.
        overrides: of an exported policy: the environment, in place of the one that it was trained in or to change that.
        say: takes what is to be printed.

    Raises:
        RequestError: no such run or checkpoint, it is damaged or names code that is not trusted, or its environment
            can be shown neither way here.
    """
    uncover()
    with _policy(run, checkpoint, trust, overrides, stochastic=stochastic) as policy:
        mode = _mode(policy.env, text=text)
        fps = fps or fps_of(policy.env)
        with closing(_opened(policy.env, mode, fps)) as env_index, undisturbed():
            torch.manual_seed(seed)
            watch = Viewer(env_index, say, fps=fps, text=mode == "ansi")
            return evaluate(
                env_index,
                policy.agent,
                episodes=episodes,
                seed=seed,
                max_steps=policy.max_steps,
                explore=stochastic,
                watch=watch,
            )


@contextmanager
def _policy(
    run: Path | str, checkpoint: str, trust: Iterable[str], overrides: Iterable[str], *, stochastic: bool
) -> Iterator[Frozen | Exported]:
    if is_export(run):
        with exported(run, overrides, trust) as file:
            file.require(checkpoint=checkpoint, stochastic=stochastic)
            yield file
        return
    refuse_overrides(overrides)
    where = RunDir.open(run).checkpoint(checkpoint)
    with frozen(run, trust) as policy:
        policy.take_only(where)
        yield policy


def displayed() -> bool:
    """Return True if a window could be opened."""
    if not sys.platform.startswith("linux"):
        return True
    hidden = os.environ.get("SDL_VIDEODRIVER") in ("dummy", "offscreen")
    return not hidden and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _mode(env: Env, *, text: bool) -> str:
    """Return how an environment is shown: `human`, in a window, or `ansi`, as text.

    Raises:
        RequestError: neither way; with the way out.
    """
    modes = env.envs[0].metadata.get("render_modes") or () if env.envs else ("human", "ansi")
    window = displayed()
    if not text and window and "human" in modes:
        return "human"
    if "ansi" in modes:
        return "ansi"
    lacks = f"environment '{env.name}' renders no text (ansi)"
    if "human" not in modes:
        lacks += " and no window (human)"
    elif not window:
        lacks += ", and there is no display for a window"
    raise RequestError(f"play: {lacks}; {_way_out(modes)}")


def _way_out(modes: Iterable[str]) -> str:
    return "films need no display: rlrun eval RUN --video FOLDER" if "rgb_array" in modes else "rlrun eval has numbers"


def _opened(env: Env, mode: str, fps: float) -> Env:
    """Return one env that is shown, after a first look at it; a window keeps the pace itself.

    Raises:
        RequestError: it cannot be.
    """
    look = lines_of if mode == "ansi" else lambda env_index: None  # a window opens by the reset
    refusal = f"play: environment '{env.name}' cannot be shown {'as text' if mode == 'ansi' else 'in a window'}"
    return rehearsed(env, mode, look, refusal=refusal, fps=fps)


class Viewer:
    """Show each step as long as it takes, with the return so far: a watcher.

    Args:
        env: one env; in a window it draws itself.
        say: takes what is to be printed.
        fps: steps a second.
        text: print what the environment renders.
    """

    def __init__(self, env: Env, say: Callable[[str], None], *, fps: float, text: bool) -> None:
        self.env = env
        self.say = say
        self.pause = 1.0 / fps
        self.text = text
        self._next = 0.0  # when the next step may be shown, on the monotonic clock

    def __call__(self, moment: Moment) -> None:
        """Show a step when its time has come."""
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self.pause
        if self.text:
            reward = f"  reward {moment.reward:.2f}" if moment.step else ""
            self.say(f"seed {moment.seed}  step {moment.step}{reward}  return {moment.total:.2f}")
            for line in lines_of(self.env):
                self.say(line)
        if moment.ending is not None:
            steps = counted(moment.step, "step")
            self.say(f"seed {moment.seed}: return {moment.total:.2f} in {steps}, {moment.ending}")


def lines_of(env: Env) -> list[str]:
    """Return what an environment renders as text, harmless to a terminal.

    Raises:
        RequestError: it renders none.
    """
    text: Any = env.render()
    if not isinstance(text, str):
        raise RequestError(f"render() gave no text: {type(text).__name__}")
    return [harmless(line) for line in text.splitlines()]


def harmless(line: str) -> str:
    """Return a line in which colors stay, and what else would command a terminal is replaced; it ends in none."""
    parts = COLOUR.split(line)
    shown = (
        part if COLOUR.fullmatch(part) else "".join(char if char.isprintable() else "?" for char in part)
        for part in parts
    )
    return "".join(shown) + (PLAIN if len(parts) > 1 else "")
