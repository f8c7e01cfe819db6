"""Copies of a user's code and of its uncommitted changes, and the layers of networks, beside what came of them."""

import subprocess

import pytest

import rlrun
from rlrun.core.errors import ConfigError

SMALL = ("algorithm=dqn", "env=cartpole", "preset=null", "algorithm.hidden=[8]", "logger=[]", "evaluation.every=0")
SMALL += ("algorithm.warmup_steps=10", "algorithm.batch_size=8", "evaluation.episodes=1")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with a file that was changed, and one that git does not know."""
    folder = tmp_path / "project"
    (folder / "mine").mkdir(parents=True)
    monkeypatch.chdir(folder)
    source = folder / "mine" / "loss.py"
    source.write_text("scale = 1\n")
    for words in (["init"], ["add", "."], ["-c", "user.email=a@b.c", "-c", "user.name=A", "commit", "-m", "first"]):
        subprocess.run(["git", *words], check=True, capture_output=True)
    source.write_text("scale = 2\n")
    (folder / "mine" / "new.py").write_text("new = 1\n")
    return folder


def test_a_run_and_its_resume_keep_the_code_that_they_ran(project):
    run = project / "run"
    rlrun.train([*SMALL, "stop.env_steps=16", "log.code=[mine/*.py, none/*.py]"], run_dir=run)
    code = run / "code"
    assert {path.name: path.read_text() for path in (code / "mine").iterdir()} == {
        "loss.py": "scale = 2\n",
        "new.py": "new = 1\n",
    }
    assert "-scale = 1\n+scale = 2" in (code / "uncommitted.diff").read_text()
    assert "log.code: no file in" in (run / "log.txt").read_text()
    (project / "mine" / "loss.py").write_text("scale = 3\n")
    rlrun.resume(run, ["stop.env_steps=32"])
    assert (code / "mine" / "loss.py").read_text() == "scale = 2\n"
    assert (code / "resume_1" / "mine" / "loss.py").read_text() == "scale = 3\n"
    assert "+scale = 3" in (code / "resume_1" / "uncommitted.diff").read_text()


def test_no_code_is_kept_unasked(project):
    rlrun.train([*SMALL, "stop.env_steps=16"], run_dir=project / "run")
    assert not (project / "run" / "code").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine/los.py", "there is no file 'mine/los.py'"),
        ("../secret.py", "outside of the project"),
        ("/etc/hostname", "outside of the project"),
        ("link.py", "outside of the project"),
    ],
)
def test_other_files_are_refused_before_the_run(project, name, message):
    (project.parent / "secret.py").write_text("key = 1\n")
    (project / "link.py").symlink_to(project.parent / "secret.py")
    with pytest.raises(ConfigError, match=rf"log.code: .*{message}"):
        rlrun.train([*SMALL, f"log.code=[{name}]"], run_dir=project / "run")
    assert not (project / "run").exists()


def test_networks_are_printed_when_training_begins(project):
    rlrun.train([*SMALL, "stop.env_steps=16", "log.networks=true"], run_dir=project / "run")
    assert "networks.q: QNetwork(" in (project / "run" / "log.txt").read_text()
