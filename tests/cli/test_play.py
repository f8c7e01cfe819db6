"""`rlrun play`: what the policy does, in the terminal or in a window, and nothing that could command the terminal."""

import io
import json
import shutil
import signal
import sys
import time

import gymnasium
import pytest

import rlrun as package
from rlrun.collect import video
from rlrun.commands import play as playing

from .conftest import TINY

CLEAR = "\x1b[2J"
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    for name in DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    overrides = [*TINY, "algorithm=dqn", "env.id=FrozenLake-v1", "evaluation.max_steps=6", "evaluation.every=20"]
    return package.train(overrides, run_dir=tmp_path_factory.mktemp("trained") / "run").run_dir


@pytest.fixture
def run(trained, project):
    return shutil.copytree(trained, project / "run")


def by_hand(actions, seed):
    """Play with plain gymnasium: what is rendered, and the rewards."""
    env = gymnasium.make("FrozenLake-v1", render_mode="ansi")
    env.reset(seed=seed)
    shown, rewards = [env.render()], []
    for action in actions:
        rewards.append(env.step(action)[1])
        shown.append(env.render())
    return shown, rewards


def test_text_shows_each_step_with_the_return_so_far(run):
    lines = []
    report = package.play(run, episodes=2, seed=3, fps=1e6, say=lines.append)
    assert report.returns == package.evaluate(run, episodes=2, seed=3).returns
    names = {"Left": 0, "Down": 1, "Right": 2, "Up": 3}
    actions = [names[line.strip(" ()")] for line in lines if line.startswith("  (")]
    for i, length in enumerate(report.lengths):
        shown, rewards = by_hand([actions.pop(0) for _ in range(length)], seed=3 + i)
        total = 0.0
        for step, (text, reward) in enumerate(zip(shown, [None, *rewards], strict=True)):
            total += reward or 0.0
            paid = "" if reward is None else f"  reward {reward:.2f}"
            expected = [f"seed {3 + i}  step {step}{paid}  return {total:.2f}", *text.splitlines()]
            printed, lines = lines[: len(expected)], lines[len(expected) :]
            assert [line.removesuffix("\x1b[0m") for line in printed] == [
                line.removesuffix("\x1b[0m") for line in expected
            ]
        assert lines.pop(0) == f"seed {3 + i}: return {total:.2f} in {length} steps, {report.endings[i]}"
    assert lines == []


def test_text_is_chosen_by_itself_without_a_display(run, rlrun):
    chosen = rlrun("play", "run", "--episodes", "1", "--fps", "1000", "--text")
    default = rlrun("play", "run", "--episodes", "1", "--fps", "1000")
    assert chosen == default
    assert (chosen.code, chosen.err) == (0, "")
    assert chosen.out.startswith("seed 0  step 0  return 0.00\n\nSFFF\n")  # no colors where nobody looks


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colors_reach_a_terminal(run, rlrun, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert rlrun("play", "run", "--episodes", "1", "--fps", "1000").code == 0
    assert "\n\x1b[41mS\x1b[0mFFF\x1b[0m\n" in terminal.getvalue()


def test_steps_take_the_time_that_was_asked_for(run):
    started = time.monotonic()
    report = package.play(run, episodes=1, fps=20, say=lambda line: None)
    assert time.monotonic() - started >= sum(report.lengths) / 20


HOSTILE = {
    "plain": "plain",
    "\x1b[31mred\x1b[0m": "\x1b[31mred\x1b[0m\x1b[0m",
    "\x1b[38;5;9mred": "\x1b[38;5;9mred\x1b[0m",
    CLEAR: "?[2J",
    "\x1b]0;title\x07": "?]0;title?",
    "\x1b]52;c;aGE=\x07": "?]52;c;aGE=?",
    "a\rb\x08c\x9b2J": "a?b?c?2J",
    "\x1b[31\x1b[2Jm": "?[31?[2Jm",
    "\u202egnp": "?gnp",
    "┌─┐ é": "┌─┐ é",
}


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_text_of_an_environment_cannot_command_the_terminal(text):
    assert playing.harmless(text) == HOSTILE[text]


SHOWN = """
import signal
from rlrun.env.toys import Chain


class Shown(Chain):
    metadata = {"render_modes": ["human", "ansi", "rgb_array"], "render_fps": 1000}
    modes, text, broken = [], "\\x1b[2Jat {}\\x1b[32m", False

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        if self.broken and self.render_mode == "human":
            raise RuntimeError("no screen\\nat all")
        self.modes.append((self.render_mode, self.metadata.get("render_fps")))
        return super().reset(seed=seed)

    def render(self):
        return self.text.format(self.state) if self.render_mode == "ansi" else None


class Filmed(Shown):
    metadata = {"render_modes": ["human", "rgb_array"]}


class Hidden(Chain):
    pass


class Interrupting(Shown):
    def step(self, action):
        if self.render_mode and self.state == 2:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)
"""


@pytest.fixture
def chain(tiny_run, write):
    """Train on an environment of the project."""
    write("shown.py", SHOWN)

    def train(name):
        assert tiny_run("algorithm=dqn", f"env.target=shown.{name}", "--run-dir", name).code == 0
        import shown

        return getattr(shown, name)

    return train


def test_lines_of_the_project_s_environment_are_harmless(chain, rlrun):
    chain("Shown")
    outcome = rlrun("play", "Shown", "--episodes", "1")
    assert outcome.out.splitlines()[1::2] == ["?[2Jat 0", "?[2Jat 1", "?[2Jat 2", "?[2Jat 3", "?[2Jat 4", "?[2Jat 0"]
    assert outcome.out.splitlines()[-1] == "seed 0: return 5.00 in 5 steps, terminated"


def test_a_window_is_opened_where_there_is_a_display(chain, rlrun, monkeypatch):
    shown = chain("Shown")
    shown.modes.clear()
    monkeypatch.setenv("DISPLAY", ":0")
    outcome = rlrun("play", "Shown", "--episodes", "2", "--fps", "500")
    assert outcome.out.splitlines() == [f"seed {seed}: return 5.00 in 5 steps, terminated" for seed in (0, 1)]
    assert shown.modes[-2:] == [("human", 500.0)] * 2  # the environment keeps the pace itself
    assert "step 1 " in rlrun("play", "Shown", "--episodes", "1", "--text").out


def test_a_window_opens_also_where_videos_were_made_before(chain, rlrun, monkeypatch):
    shown = chain("Shown")
    monkeypatch.setenv("DISPLAY", ":0")
    for is_set in (False, True):
        monkeypatch.setattr(video, "_hidden", set())
        if is_set:
            monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # set by the user: it stays
        video.require_encoder("--video")
        shown.modes.clear()
        rlrun("play", "Shown", "--episodes", "1")
        assert shown.modes[-1][0] == ("ansi" if is_set else "human")


REFUSED = {
    ("Filmed",): "environment 'filmed' renders no text (ansi), and there is no display for a window; films need no "
    "display: rlrun eval RUN --video FOLDER",
    ("Hidden",): "environment 'hidden' renders no text (ansi) and no window (human); rlrun eval has numbers",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_what_cannot_be_shown_is_refused_with_the_way_out(overrides, chain, rlrun):
    chain(overrides[0])
    assert rlrun("play", *overrides) == (2, "", f"rlrun: play: {REFUSED[overrides]}\n")


def test_a_window_that_cannot_be_opened_is_refused(chain, rlrun, monkeypatch):
    shown = chain("Shown")
    monkeypatch.setattr(shown, "broken", True)
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    outcome = rlrun("play", "Shown")
    why = "env.target 'shown.Shown': reset failed in env 0: RuntimeError: no screen at all"
    message = f"rlrun: play: environment 'shown' cannot be shown in a window: {why}\n"
    assert outcome == (2, "", message)


def test_ctrl_c_leaves_with_one_line(chain, rlrun):
    chain("Interrupting")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell in its background
    try:
        outcome = rlrun("play", "Interrupting")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (outcome.code, outcome.err) == (130, "rlrun: stopped by SIGINT\n")
    assert outcome.out.splitlines()[-2] == "seed 0  step 2  reward 1.00  return 2.00"


def test_play_takes_a_checkpoint_and_refuses_a_damaged_one(run, rlrun):
    assert rlrun("play", "run", "--checkpoint", "7").code == 2
    latest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    (latest / "state.json").write_text(json.dumps({}))
    outcome = rlrun("play", "run")
    assert (outcome.code, outcome.out, "state.json is damaged" in outcome.err) == (2, "", True)
