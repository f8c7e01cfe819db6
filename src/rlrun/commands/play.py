"""Show episodes of a run's policy; the Python equivalent of `rlrun play`."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlrun.algorithms.search.picture import Pictured
from rlrun.collect.evaluate import Evaluation, Moment, evaluate, restored_generators
from rlrun.collect.video import fps_of, rendered_copy, unset_headless
from rlrun.commands.person import Person
from rlrun.core.errors import RequestError, printable
from rlrun.core.files import counted
from rlrun.env import Env
from rlrun.export.opening import Exported, exported, frozen_in, is_export, refuse_overrides
from rlrun.loading.policy import Frozen
from rlrun.runs.directory import RunDir
from rlrun.runs.trust import require_trusted

COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # the only harmless control sequence: colors and styles
PLAIN = "\x1b[0m"


def play(
    run: Path | str,
    *,
    episodes: int = 5,
    seed: int = 0,
    checkpoint: str = "latest",
    stochastic: bool = False,
    text: bool = False,
    person: bool = False,
    tree: Path | None = None,
    fps: float | None = None,
    trust: bool = False,
    overrides: Iterable[str] = (),
    say: Callable[[str], None] = print,
    ask: Callable[[str], str] = input,
) -> Evaluation:
    """Show episodes of a run's frozen policy in a window or the terminal; the Python equivalent of `rlrun play`.

    Args:
        run: a run directory, or an exported policy, FILE.onnx.
        episodes: how many; episode i starts with `reset(seed=seed + i)`.
        seed: of the first episode.
        checkpoint: `latest`, `best`, or a number of environment steps.
        stochastic: sample actions as in training, instead of the best ones.
        text: show it in the terminal, even if a window could be opened.
        person: play against you in the terminal, by typed moves.
        tree: .svg file for a picture of the first search, if the policy searches.
        fps: steps per second; None = the environment's own rate.
        trust: build the run even if it was made elsewhere, and remember that it is trusted.
        overrides: for a run, `env.kwargs.KEY=VALUE` and `env.reset_options.KEY=VALUE`, which vary its environment. For
            an exported policy, they may also choose another environment; for a run from data, they choose one.
        say: called with each text to print.
        ask: shows a question and returns the person's answer.

    Raises:
        RequestError: no such run or checkpoint; it is damaged or not trusted; or its environment can be shown neither
            in a window nor as text, or is not a game for a person.
    """
    unset_headless()
    with _policy(run, checkpoint, overrides, trust=trust, stochastic=stochastic) as policy:
        agent = policy.agent if tree is None else Pictured(policy.agent, tree)
        try:
            mode = _mode(policy.env, text=text or person)
        except RequestError as error:
            if tree is None or person:
                raise
            report = evaluate(policy.env, agent, episodes=1, seed=seed, max_steps=1, wrappers=policy.wrappers)
            say(f"{tree}: a picture of the first search; {str(error).partition(';')[0].removeprefix('play: ')}")
            return report
        fps = fps or fps_of(policy.env)
        look = lines_of if mode == "ansi" else lambda env: None  # a window opens at the reset
        how = "as text" if mode == "ansi" else "in a window"
        refusal = f"play: environment '{policy.env.name}' cannot be shown {how}"
        shown = rendered_copy(policy.env, mode, look, refusal=refusal, fps=fps)  # a window keeps its own frame rate
        with closing(shown) as screen, restored_generators():
            torch.manual_seed(seed)
            watch = viewer(screen, say, fps=fps, text=mode == "ansi")
            opponents = {}
            if person:
                opponents["you"] = Person(ask, say)
                watch = opponents["you"].watch(partial(lines_of, screen))
            return evaluate(
                screen,
                agent,
                episodes=episodes,
                seed=seed,
                max_steps=policy.max_steps,
                explore=stochastic,
                wrappers=policy.wrappers,
                watch=watch,
                opponents=opponents,
            )


@contextmanager
def _policy(
    run: Path | str, checkpoint: str, overrides: Iterable[str], *, trust: bool, stochastic: bool
) -> Iterator[Frozen | Exported]:
    if is_export(run):
        with exported(run, overrides, trust=trust) as file:
            file.require(checkpoint=checkpoint, stochastic=stochastic)
            yield file
        return
    refuse_overrides(run, overrides)
    where = RunDir.open(run).checkpoint(checkpoint)
    require_trusted(run, trust)
    with frozen_in(run, overrides, act="play") as policy:
        policy.take_only(where)
        yield policy


def _mode(env: Env, *, text: bool) -> str:
    """Return the render mode: `human` for a window, or `ansi` for text.

    Raises:
        RequestError: neither is possible; the message has an alternative.
    """
    modes = env.envs[0].metadata.get("render_modes") or () if env.envs else ("human", "ansi")
    hidden = os.environ.get("SDL_VIDEODRIVER") in ("dummy", "offscreen")
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    window = not sys.platform.startswith("linux") or (display and not hidden)
    if not text and window and "human" in modes:
        return "human"
    if "ansi" in modes:
        return "ansi"
    reason = f"environment '{env.name}' renders no text (ansi)"
    if "human" not in modes:
        reason += " and no window (human)"
    elif not window:
        reason += ", and there is no display for a window"
    film = "films need no display: rlrun eval RUN --video FOLDER"
    raise RequestError(f"play: {reason}; {film if 'rgb_array' in modes else 'rlrun eval has numbers'}")


def viewer(env: Env, say: Callable[[str], None], *, fps: float, text: bool) -> Callable[[Moment], None]:
    """Return a watcher that shows each step at a frame rate, with the return so far.

    Args:
        env: one env; it draws its window itself.
        say: called with each text to print.
        fps: steps per second.
        text: print what the environment renders.
    """
    due = 0.0  # monotonic time of the next step

    def show(moment: Moment) -> None:
        nonlocal due
        time.sleep(max(0.0, due - time.monotonic()))
        due = time.monotonic() + 1.0 / fps
        if text:
            reward = f"  reward {moment.reward:.2f}" if moment.step else ""
            say(f"seed {moment.seed}  step {moment.step}{reward}  return {moment.total:.2f}")
            for line in lines_of(env):
                say(line)
        if moment.ending is not None:
            steps = counted(moment.step, "step")
            say(f"seed {moment.seed}: return {moment.total:.2f} in {steps}, {moment.ending}")

    return show


def lines_of(env: Env) -> list[str]:
    """Return the lines of an environment's text rendering, without control sequences except colors.

    Raises:
        RequestError: it does not render text.
    """
    text: Any = env.render()
    if not isinstance(text, str):
        raise RequestError(f"render() gave no text: {type(text).__name__}")
    return [harmless(line) for line in text.splitlines()]


def harmless(line: str) -> str:
    """Return a line with all control sequences except colors replaced, and the color reset at its end."""
    parts = COLOUR.split(line)
    shown = (part if COLOUR.fullmatch(part) else printable(part) for part in parts)
    return "".join(shown) + (PLAIN if len(parts) > 1 else "")
