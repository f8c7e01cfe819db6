"""docs/projects.md, from its first command to its last, in the project that `rlrun init` makes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rlrun.config import compose

PAGE = (Path(__file__).parents[2] / "docs" / "projects.md").read_text()
COMMANDS = [
    shlex.split(line.partition("#")[0]) for line in re.findall(r"^    ((?:rlrun|cd|python) .*)$", PAGE, re.MULTILINE)
]
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def walker(rlrun, project, monkeypatch):
    """What the page's first two commands make."""
    assert COMMANDS[:2] == [["rlrun", "init", "walker"], ["cd", "walker"]]
    assert rlrun("init", "walker").code == 0
    monkeypatch.chdir(project / "walker")
    return project / "walker"


def test_every_command_does_what_it_says(walker, rlrun):
    (walker / "conf" / "algorithm" / "sac.yaml").write_text(BLOCKS[-1])
    words = [command[2:] for command in COMMANDS if command[1] in ("train", "check", "explain", "config")]
    assert len(words) == len(COMMANDS) - 3  # init, cd and pytest
    for each in words:
        assert compose([word for word in each if not word.startswith("--")]).choices["algorithm"]
    for command in COMMANDS:
        if command[1] in ("check", "explain", "config"):
            outcome = rlrun(*command[1:])
            assert outcome.code == 0, outcome.err
            assert "walker" in outcome.out or "catch" in outcome.out


def test_the_blocks_are_those_of_the_project(walker):
    for block, name in zip(BLOCKS, ("env/catch", "algorithm/dueling"), strict=False):
        lines = (walker / "conf" / f"{name}.yaml").read_text().splitlines()
        assert [line for line in block.splitlines() if line not in lines] == []
