"""One composer for many command lines, and the quick ways to read and print a config."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlrun.config import Composer, compose, files, sources, to_yaml
from rlrun.config.tree import plain

COMMANDS = (
    ["algorithm=dqn", "env=cartpole"],
    ["algorithm=dqn", "env=cartpole", "algorithm.lr=1.0e-3", "with=rnd"],
    ["algorithm=sac", "env=pendulum", "seed=3", "env.kwargs={code:'012',rate:'1e-3'}", "~callbacks.interrupt"],
    ["algorithm=dqn", "env=cartpole", "env.id=Acrobot-v1"],  # the tuned pair is off
    ["experiment=dqn_cartpole", "stop.updates=1e3"],
    ["algorithm=ppo", "env=cartpole", "with=[rnd,reward_norm]", "env.wrappers=[{_target_:a.B,x:[1,null,true]}]"],
    ["algorithm=dqn", "env=cartpole", "seed=4"],
)


def told(composed):
    """All of a composed config that can be compared, interpolations unresolved."""
    return plain(composed.config), composed.words, composed.choices, composed.layers, composed.project


def test_one_composer_composes_as_one_for_each():
    composer = Composer()
    for words in (*COMMANDS, COMMANDS[1]):
        assert told(composer.compose(words)) == told(compose(words))


def test_a_file_is_read_once(monkeypatch):
    read: list[str] = []

    def counting(path, label=None):
        read.append(str(path))
        return files.read_yaml(path, label)

    monkeypatch.setattr(sources, "read_yaml", counting)
    composer = Composer()
    composer.compose(COMMANDS[0])
    before = len(read)
    composer.compose(COMMANDS[-1])
    assert read
    assert len(read) == before


def test_what_is_done_to_one_config_does_not_show_in_the_next():
    composer = Composer()
    first = composer.compose(COMMANDS[0])
    first.config.algorithm.hidden.append(3)
    first.config.seed = 9
    assert told(composer.compose(COMMANDS[0])) == told(compose(COMMANDS[0]))


@pytest.mark.parametrize("words", COMMANDS)
def test_trees_and_texts_are_those_of_omegaconf(words):
    config = compose(words).config
    assert plain(config) == OmegaConf.to_container(config, resolve=False)
    assert to_yaml(config) == OmegaConf.to_yaml(config)
