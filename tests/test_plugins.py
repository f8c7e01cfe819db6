"""Packages that bring algorithms and environments by being installed; docs/plugins.md, as the page has it."""

import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.command import forget

import rlrun
from rlrun.analysis import doctor
from rlrun.config import choices, compose, plugins
from rlrun.core.errors import BuildError, ConfigError
from rlrun.devtools import init as scaffold

PAGE = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()
TINY = ("algorithm.hidden=[8,8]", "algorithm.warmup_steps=20", "stop.env_steps=40", "evaluation.every=0", "logger=[]")
BUILD = "import os, sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages; stand in an empty one."""
    (tmp_path / "site").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(plugins, "_warned", set())
    known = set(sys.modules)
    yield tmp_path / "site"
    forget(known)


@pytest.fixture
def install(site):
    """Install a package by hand: its entry, and its files."""

    def install_package(package, *entries, group="rlrun.plugins", **files):
        about = site / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {module}" for name, module in (entry.split("=") for entry in entries)]
        (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        for name, text in files.items():
            path = site / package / (name if name[:2] == "__" else name.replace("__", "/"))
            path = path.with_suffix(".yaml" if "conf/" in str(path) else ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    return install_package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project of `rlrun init` as a plugin, built as the page says."""
    place = scaffold.init(tmp_path_factory.mktemp("built") / "walker")
    (move,) = re.findall(r"^    mv (.*)$", PAGE, re.MULTILINE)
    shutil.move(*(place / override for override in move.split()))
    (entry,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    with (place / "pyproject.toml").open("a") as file:
        file.write(f"\n{entry}")
    overrides = [sys.executable, "-c", BUILD, str(place.parent)]
    built = subprocess.run(overrides, cwd=place, check=True, capture_output=True, text=True)
    return place.parent / built.stdout.split()[-1]


@pytest.fixture
def walker(wheel, site):
    zipfile.ZipFile(wheel).extractall(site)
    importlib.invalidate_caches()


# --- functions


def test_a_function_of_an_installed_package_is_a_resolver(install, tmp_path):
    code = "def twice(number):\n    return 2 * int(number)\n"
    install("numbered", "twice=numbered:twice", "thrice=numbered.absent:f", group="rlrun.resolvers", __init__=code)
    line = ["algorithm=dqn", "env=cartpole", "algorithm.n_step=${twice:2}", *TINY]
    assert compose(line).config.algorithm.n_step == 4
    assert "numbered" in sys.modules
    result = rlrun.train(line, run_dir=tmp_path / "run")
    assert result.config.algorithm.n_step == 4
    assert rlrun.resume(tmp_path / "run", ["stop.env_steps=60"]).summary["env_steps"] == 60
    with pytest.raises(BuildError, match=r"resolvers\.thrice: numbered\.absent"):
        compose([*line, "seed=${thrice:2}"])
    own = [*line, "resolvers.twice=operator.neg", "algorithm.n_step=3", "seed=1", "notes.x='${twice:${seed}}'"]
    assert compose(own).config.notes.x == -1  # the user's own wins


# --- one that is sound


@pytest.mark.usefixtures("walker")
def test_to_be_installed_is_all(monkeypatch, tmp_path):
    (plugin,) = plugins.installed()
    assert (plugin.name, plugin.package, plugin.version, plugin.problem) == ("walker", "walker", "0.1.0", None)
    assert choices("env")["catch"] == "A ball falls, a paddle catches it"
    result = rlrun.train(["algorithm=dueling", "env=catch", *TINY], run_dir=tmp_path / "run")
    assert type(result.trainer.callbacks["q_loss"].network).__module__ == "walker.network"
    assert len(rlrun.evaluate(tmp_path / "run", episodes=2).returns) == 2
    assert rlrun.resume(tmp_path / "run", ["stop.env_steps=60"]).summary["env_steps"] == 60


@pytest.mark.usefixtures("walker")
def test_what_it_brings_is_told_apart(rlrun):
    code, out, _ = rlrun("list", "envs")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert lines["catch"].endswith("(plugin walker)")
    assert not lines["cartpole"].endswith(")") or "plugin" not in lines["cartpole"]
    (finding,) = doctor.of_plugins()
    assert (finding.status, finding.text) == ("ok", "walker 0.1.0 (walker)")


@pytest.mark.usefixtures("walker")
def test_the_users_own_files_go_before_its_and_its_before_ours(site):
    (site / "walker" / "conf" / "algorithm" / "dqn.yaml").write_text(
        "# @package _global_\ndefaults: [/rlrun/algorithm/dqn, _self_]\nalgorithm: {lr: 0.5, discount: 0.5}\n"
    )
    config = compose(["algorithm=dqn", "env=cartpole"]).config
    assert (config.algorithm.lr, config.algorithm.discount) == (0.5, 0.5)
    own = Path("conf/algorithm")
    own.mkdir(parents=True)
    (own / "dqn.yaml").write_text(
        "# @package _global_\ndefaults: [/rlrun/algorithm/dqn, _self_]\nalgorithm: {lr: 0.25}\n"
    )
    config = compose(["algorithm=dqn", "env=cartpole"]).config
    assert (config.algorithm.lr, config.algorithm.discount) == (0.25, 0.99)
    notes = [finding.text for finding in doctor.of_plugins() if finding.status == "note"]
    assert notes == ["its algorithm/dqn replaces the packaged one"]


# --- those that are not

BROKEN = {  # package: entry, files, what is said
    "gone": (["broken=no_such_package"], {}, "no package 'no_such_package'"),
    "bare": (["broken=bare"], {"__init__": ""}, "there is no .*/bare/conf/"),
    "greedy": (["broken=torch.nn"], {}, "its entry names 'torch.nn', which is not a package of its own"),
    "typo": (
        ["broken=typo"],
        {"conf__algorithm__good": "# Good\na: 1\n", "conf__algorithm__bad": "a: [1\n"},
        r".*bad.yaml, line \d: not valid YAML",
    ),
}


@pytest.mark.parametrize("package", BROKEN)
def test_a_broken_plugin_is_left_out_in_one_line(package, install, rlrun, caplog):
    entries, files, text = BROKEN[package]
    install(package, *entries, **files)
    with caplog.at_level(logging.WARNING, "rlrun"):
        for _ in range(2):
            assert compose(["algorithm=dqn", "env=cartpole"]).preset == "dqn_cartpole"
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.match(rf"plugin 'broken' is ignored: {text}", message)
    assert "good" not in rlrun("list", "algorithms")[1]
    (finding,) = doctor.of_plugins()
    assert (finding.status, finding.name, finding.remedy) == ("note", "broken", f"fix it, or pip uninstall {package}")


def test_help_asks_for_no_plugin(rlrun, monkeypatch):
    def fail(**about):
        raise AssertionError("asked")

    monkeypatch.setattr(plugins.metadata, "entry_points", fail)
    assert rlrun("--help")[0] == 0
    assert rlrun("train", "--help")[0] == 0


def test_one_that_cannot_be_imported_concerns_who_names_it(install, rlrun):
    config = "# Failing\n_target_: rlrun.env.make\ntarget: failing.Env\n"
    install(
        "failing", "failing=failing", __init__="raise RuntimeError('no engine\\nat all')\n", conf__env__fails=config
    )
    assert compose(["algorithm=dqn", "env=cartpole"]).preset == "dqn_cartpole"
    code, _, err = rlrun("train", "algorithm=dqn", "env=fails", *TINY)
    assert (code, err.count("\n")) == (2, 1)
    assert "importing 'failing' failed: RuntimeError: no engine" in err
    (finding,) = doctor.of_plugins()
    assert (finding.status, finding.text) == ("note", "fails: RuntimeError: no engine")


def test_of_two_with_one_name_the_first_package_counts(install):
    install("zebra", "same=zebra", conf__env__striped="# Striped\nid: Striped-v0\n")
    install("ant", "same=ant", conf__env__small="# Small\nid: Small-v0\n")
    assert {"small"} == {"small", "striped"} & set(choices("env"))
    first, second = doctor.of_plugins()
    assert (first.status, first.text) == ("ok", "ant 1.0 (ant)")
    assert second.text == "is left out: it is called like the one of ant, which counts"


def test_a_package_whose_installation_broke_off_is_called_by_its_module(install, site):
    install("half", "same=half", conf__env__first="# First\n")
    install("torn", "same=torn", conf__env__second="# Second\n")
    for package in ("half", "torn"):
        (site / f"{package}-1.0.dist-info" / "METADATA").unlink()
    counts, excluded = doctor.of_plugins()
    (module,) = re.fullmatch(r"\((half|torn)\)", counts.text).groups()
    assert excluded.text == f"is left out: it is called like the one of {module}, which counts"


def test_what_a_plugin_says_steers_no_terminal(install, rlrun, caplog):
    install("odd", "a\x1b]0;b=odd", conf__env__bad="[1]")
    install("bidi", "bidi=bidi", conf__env__left="# \u202egnp\n")
    with caplog.at_level(logging.WARNING, "rlrun"):
        _, out, _ = rlrun("list", "envs")
    assert caplog.messages[0].startswith("plugin 'a?]0;b' is ignored: ")
    assert re.search(r"^left +\?gnp \(plugin bidi\)$", out, re.MULTILINE)


def test_a_conf_package_and_a_module_can_be_named(install, site):
    install("one", "one=one.conf", conf__env__first="# First\n")
    install("two", "two=two.inner", inner="raise RuntimeError\n", conf__env__second="# Second\n")
    folders = [plugin.folder.relative_to(site).as_posix() for plugin in plugins.installed()]
    assert folders == ["one/conf", "two/conf"]
    assert "two" not in sys.modules


def test_a_file_that_asks_for_what_is_not_there_is_told_where_it_is_chosen(install):
    install("ant", "ant=ant", conf__env__odd="defaults: [nowhere, _self_]\n")
    assert compose(["algorithm=dqn", "env=cartpole"]).preset
    with pytest.raises(ConfigError, match="its defaults name 'env/nowhere'"):
        compose(["algorithm=dqn", "env=odd"])
