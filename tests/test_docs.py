"""Pages that tell the truth: commands run, blocks are current, limits hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlrun import experiment
from rlrun.config import choices, compose

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = sorted((ROOT / "docs").glob("*.md"))


def block(name):
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)\n```\n<!-- /{name} -->", README, re.DOTALL)
    assert found, f"README.md has no block '{name}'"
    return found.group(1)


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("CONTRIBUTING.md", 60)])
def test_pages_are_short(page, most):
    assert len((ROOT / page).read_text().splitlines()) <= most


def test_readme_has_two_set_up_commands():
    commands = re.findall(r"^python -m pip install .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert all("-c constraints.txt" in command for command in commands)
    assert [command.split("&&")[1].split()[0] for command in commands] == ["rlrun", "python"]


def test_readme_shows_the_real_data_flow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [line.rstrip() for line in block("explain").splitlines()]
    assert shown == experiment.explain(["algorithm=dqn", "env=cartpole"]).splitlines()


@pytest.mark.parametrize("line", re.findall(r"^    rlrun train ([^#\n-][^#\n]*)", README, re.MULTILINE))
def test_commands_in_readme_compose(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compose(line.split()).config.seed >= 0


def test_readme_output_is_of_a_run_that_learned():
    assert float(re.search(r"mean return ([\d.]+)", block("first-run")).group(1)) >= 475


def test_every_target_in_the_readme_exists(tmp_path, monkeypatch):
    from rlrun.config.targets import find_target

    for target in set(re.findall(r"_target_: (rlrun[\w.]+)", README)):
        assert callable(find_target(target, "README.md"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in DOCS)])
def test_every_test_that_a_page_names_is_there(page):
    named = re.findall(r"\btests/[\w./]*\w", (ROOT / page).read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_choice_has_a_line():
    for group in ("algorithm", "env", "memory", "experiment"):
        assert all(line for line in choices(group).values()), group


ROOMS = ["callbacks", "collect", "memory", "env", "algorithms", "config", "cli", "nn", "ops", "reporting"]


@pytest.mark.parametrize("room", ROOMS)
def test_architecture_names_every_room(room):
    assert f"{room}/" in (ROOT / "docs" / "architecture.md").read_text()
