"""A user's class in the place of a packaged one: which keys of the node are its own."""

import pytest
from omegaconf import OmegaConf

from rlrun.config import compose as compose_packaged
from rlrun.config.interpolation import plain
from rlrun.config.layers import OVERRIDE, Layer
from rlrun.config.replaced import VOID, mark
from rlrun.core.errors import ConfigError

NET = {"_target_": "rlrun.nn.Critics", "hidden": [4], "members": 2}


def marked(*layers):
    """Return the part `net` that layers (packaged, content) come to."""
    config = OmegaConf.create()
    for _, content in layers:
        config.merge_with({"net": content})
    named = [Layer("file" if packaged else OVERRIDE, "", packaged, {"net": content}) for packaged, content in layers]
    mark(config, named)
    return plain(config)["net"]


def test_keys_of_packaged_files_are_optional_and_those_of_users_are_not():
    node = marked((True, NET), (False, {"_target_": "my.Net", "hidden": [8], "width": 3}))
    assert (node["_replaces_"], node["_optional_"]) == ("rlrun.nn.Critics", ["members"])


@pytest.mark.parametrize(
    "layers",
    [
        [(True, NET), (False, {"hidden": [8]})],
        [(True, NET), (False, {"_target_": "rlrun.nn.Critics"})],
        [(True, NET), (True, {"_target_": "rlrun.nn.ImplicitCritics"})],
        [(True, {"_target_": "???", "gain": 1}), (False, {"_target_": "my.Policy"})],
        [(False, {"_target_": "my.Net"})],
    ],
    ids=["a number", "the same class", "another packaged one", "a class that has to be named", "a part of the user's"],
)
def test_other_nodes_are_not_marked(layers):
    assert not {"_replaces_", "_optional_"} & {*marked(*layers)}


@pytest.mark.parametrize(
    ("preset", "typed", "wanted"),
    [
        ("dqn_cartpole_pixels", [], []),
        ("dqn_cartpole_pixels", ["encoder=nature"], ["encoder"]),
        ("dqn_cartpole_pixels", ["encoder.features=8"], ["encoder"]),
        ("dqn_dueling_cartpole", [], []),
        ("dqn_dueling_cartpole", ["algorithm.dueling=true", "algorithm.recurrent=null"], ["dueling", "core"]),
    ],
)
def test_options_that_a_preset_chose_are_not_wanted(preset, typed, wanted):
    overrides = ["algorithm=dqn", f"preset={preset}", *typed, "networks.q._target_=my.Net"]
    config = compose_packaged(overrides, check=False).config
    node = plain(config)["networks"]["q"]
    assert [name for name in node.get("_wanted_", []) if name in VOID] == wanted


def test_a_file_of_the_user_replaces_as_an_override_does(compose, write):
    header = "# @package _global_\ndefaults: [/rlrun/algorithm/dqn, _self_]\n"
    write("conf/algorithm/mine.yaml", f"{header}networks: {{q: {{_target_: my.Net, width: 3}}}}\n")
    node = plain(compose("algorithm=mine", "env=cartpole", check=False).config)["networks"]["q"]
    assert node["_replaces_"] == "parts.Network"
    assert "width" not in node["_optional_"]


@pytest.mark.parametrize("typed", ["networks.q.width=3", "networks.q.deep.er=3", "networks.q.net={width: 3}"])
def test_a_key_of_a_users_class_needs_no_plus(typed):
    overrides = [typed, "networks.q._target_=my.Net"]  # in any order
    node = plain(compose_packaged(["algorithm=dqn", *overrides], check=False).config)
    key = typed.split("=")[0].split(".")[2]
    assert key in node["networks"]["q"]
    assert key not in node["networks"]["q"]["_optional_"]


@pytest.mark.parametrize("typed", ["networks.q.width=3", "optimizer.width=3", "env.width=3"])
def test_a_key_of_a_packaged_class_is_refused(typed):
    with pytest.raises(ConfigError, match=f"{typed[:-2]}: no such key"):
        compose_packaged(["algorithm=dqn", "env=cartpole", typed], check=False)
