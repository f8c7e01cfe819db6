"""`rlrun init`: what it makes trains, passes its own tests, and takes its user's files."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rlrun.config import compose
from rlrun.config.interpolation import plain
from rlrun.core.errors import RequestError, RlrunError
from rlrun.devtools import init as scaffold


@pytest.fixture
def made(rlrun, project, monkeypatch):
    """Make a project and stand in it."""
    outcome = rlrun("init", "walker")
    assert (outcome.code, outcome.out) == (0, f"{project / 'walker'}\n"), outcome.err
    monkeypatch.chdir(project / "walker")
    return project / "walker"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("made")
def test_its_own_tests_are_green(forked):
    process = forked(["--rootdir=.", "-p", "no:cacheprovider", "-q"], module="pytest")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert re.search(r"^4 passed", out, re.MULTILINE)


def test_what_it_makes_keeps_to_the_habits_of_ruff(made):
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    for overrides in (["check"], ["format", "--check"]):
        subprocess.run([ruff, *overrides, "--isolated", "--no-cache", made], check=True, capture_output=True)


def test_a_file_of_its_users_replaces_the_packaged_one(made):
    """As its README says."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (made / "README.md").read_text(), re.DOTALL)
    overrides = ["algorithm=sac", "env=cartpole", "preset=null"]
    before = plain(compose(overrides).config)
    (made / "conf" / "algorithm" / "sac.yaml").write_text(block)
    after = plain(compose(overrides).config)
    assert after["algorithm"] == {**before["algorithm"], "lr": 1.0e-3, "discount": 0.95} != before["algorithm"]
    assert {**after, "algorithm": None} == {**before, "algorithm": None}


def test_an_empty_folder_will_do_and_keeps_what_it_is(rlrun, project, monkeypatch):
    (project / "walker").mkdir(mode=0o750)
    monkeypatch.chdir(project / "walker")
    before = Path.cwd().stat().st_ino
    assert rlrun("init", ".").code == 0
    assert Path.cwd().stat().st_ino == before
    assert "walker/environment.py" in files(Path.cwd())


# --- refusals


def test_a_folder_that_holds_something_is_refused_and_left_alone(rlrun, write):
    file = write("walker/conf/env/catch.yaml", "mine: 1\n")
    outcome = rlrun("init", "walker")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "is not empty" in outcome.err
    assert (files(file.parents[2]), file.read_text()) == (["conf/env/catch.yaml"], "mine: 1\n")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("my-walker", "is invalid; try my_walker"),
        ("2legs", "is invalid; try my_2legs"),
        ("walker_", "is invalid; try walker"),  # pip takes no such name
        ("class", "is invalid; try my_class"),
        ("Läufer", "is invalid; try l_ufer"),
        ("torch", "is another package; try my_torch"),
        ("random", "is another package; try my_random"),
        ("conf", "is a folder of the project; try my_conf"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused_with_one_that_can(name, way, project):
    with pytest.raises(RequestError, match=re.escape(way)):
        scaffold.init(project / name)
    assert list(project.iterdir()) == []


def test_a_file_in_its_place_is_refused(write):
    with pytest.raises(RequestError, match="is a file"):
        scaffold.init(write("walker", ""))


@pytest.mark.parametrize(("step", "exists"), [("write_text", False), ("write_text", True), ("rename", False)])
def test_full_disk_leaves_no_file(exists, step, project, monkeypatch):
    count = [0]

    def failing(work):
        def once(*arguments):
            count[0] += 1
            if count[0] == (1 if step == "rename" else 3):
                raise OSError(28, "No space left on device")
            return work(*arguments)

        return once

    if exists:
        (project / "walker").mkdir()
    where, name = (scaffold, step) if step == "write_text" else (Path, step)
    monkeypatch.setattr(where, name, failing(getattr(where, name)))
    with pytest.raises(RlrunError, match="No space left"):
        scaffold.init(project / "walker")
    assert [str(path.relative_to(project)) for path in project.rglob("*")] == (["walker"] if exists else [])
