"""Where config files are looked for, and what is listed without reading YAML."""

import sys

import pytest

from rlrun.config import places
from rlrun.config.places import ConfigFolder, choices, packaged_dir, search_path
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


@pytest.mark.parametrize("name", ["..", "../x.yaml", "env/../../x.yaml", "./../x.yaml", "/etc/passwd", "//etc/passwd"])
@pytest.mark.parametrize("packaged", [True, False])
def test_no_name_leads_out_of_a_folder(packaged, name, tmp_path):
    with pytest.raises(ConfigError, match=r"'\.\.' and absolute paths lead out of .*; name a config file inside it"):
        ConfigFolder(tmp_path, packaged=packaged).inside(name)


def test_a_link_leads_out_of_no_folder_but_the_installed_one(tmp_path):
    folder = tmp_path / "conf"
    for name in ("conf/with", "more"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "more" / "x.yaml").write_text("# Of nobody\n")
    (folder / "with" / "x.yaml").symlink_to(tmp_path / "more" / "x.yaml")
    (folder / "more").symlink_to(tmp_path / "more")
    (folder / "with" / "inner.yaml").write_text("# Inner\n")
    (folder / "with" / "outer.yaml").symlink_to(folder / "with" / "inner.yaml")
    (tmp_path / "linked").symlink_to(folder)
    for place in (ConfigFolder(folder), ConfigFolder(folder, plugin="a"), ConfigFolder(tmp_path / "linked")):
        for name, what in (("with/x.yaml", "config file"), ("more", "folder"), ("more/x.yaml", "config file")):
            with pytest.raises(ConfigError, match=f"a symbolic link leads out of .*; put a copy of the {what} in its"):
                place.inside(name)
        assert place.inside("with/outer.yaml").read_text() == "# Inner\n"
        assert place.inside("").is_dir()
    assert ConfigFolder(folder, packaged=True).inside("with/x.yaml").is_file()
    assert choices("with", folder)["inner"] == "Inner"
    assert "x" not in choices("with", folder)
