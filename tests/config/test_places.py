"""Where config files are looked for, and what is listed without reading YAML."""

import sys

import pytest

from rlrun.config import compose, places
from rlrun.config.places import choices, packaged_dir, search_path
from rlrun.core.errors import ConfigError


@pytest.mark.usefixtures("miniature")
def test_options_are_listed_with_their_first_comment():
    assert choices("algorithm") == {
        "dqn": "Deep Q-learning in miniature (arXiv 1312.5602)",
        "sac": "Soft actor-critic in miniature",
    }


@pytest.mark.usefixtures("miniature")
def test_the_users_options_come_first_and_are_merged(write):
    write("conf/algorithm/mine.yaml", "a: 1\n")
    write("conf/algorithm/sac.yaml", "# @package _global_\n# Mine\na: 1\n")
    options = choices("algorithm")
    assert [*options] == ["dqn", "mine", "sac"]
    assert (options["mine"], options["sac"]) == ("", "Mine")
    assert choices("nothing") == {}


def test_the_packaged_folder_is_nobodys_own(monkeypatch):
    monkeypatch.chdir(packaged_dir().parent)
    assert [place.packaged for place in search_path()] == [True]


def test_the_project_cannot_replace_installed_packages(tmp_path):
    places.add_to_path(tmp_path)
    places.add_to_path(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[-1] == str(tmp_path)


def test_modules_of_another_project_are_not_taken_for_this_ones(write, monkeypatch, tmp_path):
    write("one/late.py", "number = lambda: 1\n")
    write("two/late.py", "number = lambda: 2\n")
    call = ("algorithm=dqn", "env=cartpole", "resolvers.number=late.number", "seed=${number:}")
    places.add_to_path(tmp_path / "one")
    monkeypatch.chdir("two")
    assert compose(call).config.seed == 2  # of two that nobody has imported this project's counts
    monkeypatch.chdir("../one")
    with pytest.raises(ConfigError, match=r"one/late.py cannot be imported beside .*/two/late.py, which this process"):
        compose(call)
