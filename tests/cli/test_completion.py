"""Completion of overrides: by an interactive bash, and by its protocol."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.pace import within

from rlrun.cli.completion import candidates

READY = "ready> "
OWN = """# @package _global_
# Own heads
defaults:
  - /algorithm/sac
  - _self_
  - override /memory: prioritized
algorithm:
  heads: 3
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """An interactive bash: it takes what a user types, Tab included, and returns the line that it has made of it."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "rlrun"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m rlrun \"$@\"\n")
    command.chmod(0o755)
    script = subprocess.run([command], env=os.environ | {"_RLRUN_COMPLETE": "source_bash"}, capture_output=True)
    (folder / "start").write_bytes(script.stdout + f"\nPS1='{READY}'\n".encode())
    (folder / "inputrc").write_text("set enable-bracketed-paste off\nset bell-style none\nset page-completions off\n")
    values = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "INPUTRC": str(folder / "inputrc"),
        "TERM": "dumb",
        "COLUMNS": "500",
    }
    pid, screen = pty.fork()
    if not pid:
        os.chdir(folder)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 500, 0, 0))
        os.execvpe("bash", ["bash", "--noprofile", "--rcfile", str(folder / "start"), "-i"], os.environ | values)

    def read(end: str) -> str:
        text, last = "", time.monotonic() + 20
        while end not in text and time.monotonic() < last:
            if select.select([screen], [], [], 1.0)[0]:
                text += os.read(screen, 65536).decode()
        return text

    def line_of(keys: str) -> str:
        os.write(screen, f"{keys}\x01printf '<%s>' \x05; echo; echo e''nd\n".encode())  # Ctrl-A, Ctrl-E
        words = re.findall(r"<([^>]*)>", read(f"\nend\r\n{READY}").rpartition("echo e''nd")[2])
        return " ".join(words)

    read(READY)
    try:
        yield line_of
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(screen)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("algorithm=td\t", "algorithm=td3"),
        ("'algorithm=td\t", "algorithm=td3"),
        ("algorithm=sac env=pendulum_n\t", "algorithm=sac env=pendulum_novelocity"),
        ("+with=rn\t", "+with=rnd"),
        ("-m algorithm=sac,td\t", "-m algorithm=sac,td3"),
        ("alg\ttd\t", "algorithm=td3"),
        ("algorithm=sac algorithm.temp\tin\t0.5", "algorithm=sac algorithm.temperature.initial=0.5"),
        ("algorithm=sac algorithm.tau\t1", "algorithm=sac algorithm.tau=1"),
        ("env=pendulum env.kw\t.g=1", "env=pendulum env.kwargs.g=1"),
        ("checkpoint.keep_b\ttr\t", "checkpoint.keep_best=true"),
        ("device=cp\t", "device=cpu"),
    ],
)
def test_bash_completes_what_is_typed(bash, keys, line):
    assert bash(f"rlrun train {keys}") == f"rlrun train {line}"


def answer(*words: str) -> list[str]:
    """Return what bash is offered for the last word, of the words as bash splits them."""
    values = {"_RLRUN_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    call = [sys.executable, "-m", "rlrun"]
    return subprocess.run(call, env=os.environ | values, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.speed
def test_bash_waits_less_than_three_tenths_of_a_second():
    def seconds() -> float:
        before = os.times()
        assert answer("rlrun", "train", "algorithm", "=", "sac", "+with", "=", "rnd", "algorithm.te")
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert within(seconds, 0.3)


def test_parts_of_a_word_are_joined():
    assert answer("rlrun", "train", "algorithm", "=", "td") == ["td3"]
    assert set(answer("rlrun", "train", "algorithm", "=")) >= {"dqn", "sac"}
    assert answer("rlrun", "train", "algorithm", "=", "env", "=", "pendulum_") == ["pendulum_novelocity"]
    assert answer("rlrun", "train", "env.id", "=", "mine", ":", "Probe-v0", "algorithm", "=", "td") == ["td3"]
    assert answer("rlrun", "train", "--dr") == ["--dry-run"]


def test_options_of_a_group_in_a_group_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/net/deep").mkdir(parents=True)
    (tmp_path / "conf/net/deep/mine.yaml").write_text("a: 1\n")
    assert candidates("+net/deep=m") == ["+net/deep=mine"]


def test_other_shells_are_offered_whole_words():
    words = {"_RLRUN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "rlrun train algorithm=td"}
    call = [sys.executable, "-m", "rlrun"]
    assert "algorithm=td3" in subprocess.run(call, env=os.environ | words, capture_output=True, text=True).stdout


def test_keys_are_those_of_the_chosen_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert candidates("al") == ["algorithm="]
    assert candidates("algorithm.ho", ["algorithm=ppo"]) == ["algorithm.horizon="]
    assert candidates("algorithm.ho", ["algorithm=sac"]) == []
    assert candidates("algorithm.ensem", ["algorithm=td3"]) == ["algorithm.ensemble="]
    assert candidates("memory.min_l", ["algorithm=ppo"]) == []
    assert candidates("memory.min_l", ["algorithm=sac"]) == ["memory.min_length="]
    assert candidates("memory.sampler.alp", ["algorithm=sac"]) == []
    assert candidates("memory.sampler.alp", ["algorithm=sac", "memory=prioritized"]) == ["memory.sampler.alpha="]
    assert candidates("~callbacks.valid", ["algorithm=sac"]) == ["~callbacks.validation"]
    assert candidates("intrinsic.rnd.wei", ["+with=[curl,rnd]"]) == ["intrinsic.rnd.weight="]
    assert candidates("networks.critics._t", ["algorithm=sac"]) == ["networks.critics._target_="]


def test_keys_of_own_files_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "conf" / "algorithm" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    (own.parent / "broken.yaml").write_text("a: [")
    (own.parent / "round.yaml").write_text("defaults: [round]\n")
    monkeypatch.chdir(tmp_path)
    assert candidates("algorithm=mi") == ["algorithm=mine"]
    assert candidates("algorithm.hea", ["algorithm=mine"]) == ["algorithm.heads="]
    assert candidates("algorithm.lr", ["algorithm=mine"]) == ["algorithm.lr="]
    assert candidates("memory.sampler.alp", ["algorithm=mine"]) == ["memory.sampler.alpha="]
    assert (
        candidates("stop.upd", ["algorithm=broken"]) == candidates("stop.upd", ["algorithm=round"]) == ["stop.updates="]
    )
