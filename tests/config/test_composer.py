"""One composer for many command lines, and the quick ways to read and print a config."""

import copy
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlrun.config import Composer, compose, composition, files, places, sources, to_yaml
from rlrun.config.interpolation import plain

COMMANDS = (
    ["algorithm=dqn", "env=cartpole"],
    ["algorithm=dqn", "env=cartpole", "algorithm.lr=1.0e-3", "with=rnd"],
    ["algorithm=sac", "env=pendulum", "seed=3", "env.kwargs={code:'012',rate:'1e-3'}", "~callbacks.interrupt"],
    ["algorithm=dqn", "env=cartpole", "env.id=Acrobot-v1"],  # the tuned preset is off
    ["preset=dqn_cartpole", "stop.updates=1e3"],
    ["algorithm=ppo", "env=cartpole", "with=[rnd,reward_norm]", "env.wrappers=[{_target_:a.B,x:[1,null,true]}]"],
    ["algorithm=dqn", "env=cartpole", "seed=4"],
)


def comparable(composed):
    """All of a composed config that can be compared, interpolations unresolved."""
    return plain(composed.config), composed.overrides, composed.choices, composed.layers, composed.project


def alone(overrides):
    """Compose as a process does that never composed before."""
    composition._of_packaged.clear()
    return comparable(compose(overrides))


def test_one_composer_composes_as_one_for_each():
    composer = Composer()
    for overrides in (*COMMANDS, COMMANDS[1]):
        composed, expected = composer.compose(overrides), alone(overrides)
        assert comparable(composed) == comparable(compose(overrides)) == expected
        composed.config.algorithm.hidden.append(3)  # which later configs must not show
        composed.config.seed = 9


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Take a copy of the packaged files for them, from which nobody has composed yet."""
    copy = Path(shutil.copytree(places.packaged_dir(), tmp_path / "packaged"))
    monkeypatch.setattr(places, "packaged_dir", lambda: copy)


@pytest.fixture
def read(monkeypatch):
    """The files that are read from now on, in order."""
    paths: list[str] = []

    def noting(path, label=None):
        paths.append(str(path))
        return files.read_yaml(path, label)

    monkeypatch.setattr(sources, "read_yaml", noting)
    return paths


def test_a_file_is_read_once(packaged, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    composer = Composer()
    composer.compose(COMMANDS[0])
    before = len(read)
    composer.compose(COMMANDS[-1])
    assert read
    assert len(read) == before


def test_packaged_files_are_read_once_for_all_composers(packaged, read):
    first = compose(COMMANDS[0])
    before, expected = len(read), copy.deepcopy(comparable(first))
    first.config.algorithm.hidden.append(3)
    first.layers[0].content.clear()
    first.choices.clear()
    again = compose(COMMANDS[0])
    assert read
    assert len(read) == before
    assert comparable(again) == expected


def test_own_files_are_read_anew_by_each_composer(packaged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "conf" / "env" / "mine.yaml"
    path.parent.mkdir(parents=True)
    for name in ("Acrobot-v1", "CartPole-v1"):
        path.write_text(f"id: {name}\n")
        assert compose(["algorithm=dqn", "env=mine"], check=False).config.env.id == name


@pytest.mark.parametrize("overrides", COMMANDS)
def test_trees_and_texts_are_those_of_omegaconf(overrides):
    config = compose(overrides).config
    assert plain(config) == OmegaConf.to_container(config, resolve=False)
    assert to_yaml(config) == OmegaConf.to_yaml(config)


def test_threads_compose_at_once(monkeypatch):
    monkeypatch.setattr(composition, "_of_packaged", {})  # or most of them would only read what another one composed
    names = ["a2c", "ppo", "dqn", "sac", "td3", "ddpg"]
    with ThreadPoolExecutor(len(names)) as pool:
        composed = list(pool.map(lambda name: compose([f"algorithm={name}", "env.id=A-v0"], check=False), names))
    assert [one.choices["algorithm"] for one in composed] == names


def test_a_dict_of_one_command_line_is_not_changed_by_another():
    line = ["algorithm=dqn", "env=cartpole", "env.kwargs={a: 1}"]
    changed = compose([*line, "env.kwargs.a=2", "env.kwargs.b=3"], check=False)
    assert changed.config.env.kwargs == {"a": 2, "b": 3}
    assert compose(line, check=False).config.env.kwargs == {"a": 1}
