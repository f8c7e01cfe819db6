"""Which keys somebody reads, where each came from, and how a config is printed and read back."""

import time

import pytest
from omegaconf import OmegaConf

from rlrun.config import load, provenance, to_yaml, unread
from rlrun.config.interpolation import locate, mentions
from rlrun.config.reading import missing, reached
from rlrun.core.errors import ConfigError, RunDirError

GROUPS = ("algorithm=dqn", "env=pendulum")

OBJECT = {"_target_": "T", "a": "${x.y}"}
TEXTS = {"t": "x-${a}-${b.c}", "r": "${oc.select:d,1}", "n": "${e.${f}}", "s": "${.t}"}


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"seed": 1, "trainer": OBJECT, "x": {"y": 1, "z": 2}, "w": {"v": {"u": 1}}}, ["x.z", "w"]),
        (  # links that lead to links
            {"trainer": "${a.b.c}", "a": "${d}", "d": {"b": {"c": "${e}", "f": 1}}, "e": [1, "${g}"], "g": 0},
            ["d.b.f"],
        ),
        ({"trainer": TEXTS, "a": 1, "b": {"c": 2}, "d": 3, "e": {"k": 4, "l": 5}, "f": "k", "g": 6}, ["e.l", "g"]),
        (  # an attribute reads the whole object
            {"trainer": "${spaces.action.size}", "spaces": {"_target_": "S", "env": "${env}"}, "env": {"id": 1}},
            [],
        ),
    ],
)
def test_unread_keys(config, keys):
    assert unread(config) == keys


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.select:seed,7}", 3),
        ("${oc.select:absent,7}", 7),
        ("${oc.select:absent.key,${num_envs}}", 1),
        ("${oc.select:absent}", None),
    ],
)
def test_a_selected_key_may_be_absent(text, value, compose):
    config = compose(*GROUPS, "seed=3", f"algorithm.discount='{text}'").config
    assert to_yaml(config, resolve=True, package="algorithm.discount").split("\n")[0] == str(
        "null" if value is None else value
    )


def test_roots_can_be_given():
    config = {"a": {"b": 1}, "c": 2}
    assert unread(config, reached(config, ["a"])) == ["c"]


def test_only_values_that_are_read_must_be_given():
    config = {"trainer": {"a": "${x}", "b": "???"}, "x": "???", "y": "???"}
    assert missing(reached(config)) == ["trainer.b", "x"]


def test_relative_links_start_from_their_own_place():
    tree = {"a": {"b": {"c": "${.d}", "d": 1, "e": "${..f}"}, "f": 2, "g": ["${.[1]}", 3]}}
    assert [locate(tree, path).node for path in (("a", "b", "c"), ("a", "b", "e"), ("a", "g", "0"))] == [1, 2, 3]


def test_provenance_names_the_file_or_the_word(compose, write):
    write("conf/env/mine.yaml", "defaults: [gym]\nid: Mine-v0\nkwargs: {size: 1}\n")
    sources = provenance(compose("algorithm=dqn", "env=mine", "seed=3", "env.kwargs.x=1"))
    assert sources["seed"] == sources["env.kwargs.x"] == "override"
    assert sources["algorithm.lr"] == "rlrun/algorithm/dqn.yaml"
    assert sources["env.id"].endswith("conf/env/mine.yaml")
    assert sources["env.kwargs.size"].endswith("conf/env/mine.yaml")
    assert sources["stop.env_steps"] == "rlrun/train.yaml"


def test_every_key_has_a_source(compose):
    composed = compose(
        "algorithm=sac", "env=cartpole", "with=rnd", "algorithm.hidden=[8,8]", "~callbacks.novelty.weight"
    )
    assert len(provenance(composed)) > 30
    assert "" not in provenance(composed)
    assert provenance(composed)["algorithm.hidden"] == "override"


def test_a_saved_config_comes_back_unresolved(compose, tmp_path):
    config = compose(*GROUPS, "env.kwargs.code='012'", "env.kwargs.rate=1e-5").config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert OmegaConf.to_container(load(tmp_path / "config.yaml")) == OmegaConf.to_container(config)


def test_resolving_fills_in_values_and_keeps_links_to_objects(compose):
    text = to_yaml(compose(*GROUPS, "num_envs=3").config, resolve=True)
    config = OmegaConf.create(text)
    assert (config.env.num_envs, config.callbacks.q_loss.lr, list(config.networks.q.hidden)) == (3, 1e-3, [64])
    assert "network: ${networks.q}" in text


def test_reading_a_saved_config_evaluates_nothing(tmp_path):
    (tmp_path / "config.yaml").write_text("a: ${oc.env:RLRUN_ABSENT}\nb: {_target_: os.system}\n")
    assert OmegaConf.to_container(load(tmp_path / "config.yaml"))["a"] == "${oc.env:RLRUN_ABSENT}"


def test_a_damaged_saved_config_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match=r"config.yaml, line 2: not valid YAML"):
        load(tmp_path / "config.yaml")
    with pytest.raises(RunDirError, match=r"absent.yaml cannot be read"):
        load(tmp_path / "absent.yaml")


def test_a_million_dots_are_read_at_once():
    """No part of a text is looked at twice: it may come from another person's run."""
    text = "${" + "." * 1_000_000
    begun = time.process_time()
    assert mentions(text, ("a",)) == []
    assert time.process_time() - begun < 5.0
