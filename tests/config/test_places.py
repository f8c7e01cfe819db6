"""Where config files are looked for, and what is listed without reading YAML."""

import sys

import pytest

from rlrun.config import places
from rlrun.config.places import choices, packaged_dir, search_path


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
