"""Options of Hydra applications."""

import pytest

from .conftest import refused

LINE = ("algorithm=dqn", "env=cartpole")


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        (("--cfg", "job"), "rlrun config OVERRIDES prints the config"),
        (("-c", "job"), "rlrun config OVERRIDES prints the config"),
        (("--info", "defaults-tree"), "--provenance says which file or override set each key"),
        (("-cn", "train"), "the file is train.yaml"),
        (("--config-name=train",), "the file is train.yaml"),
        (("--config-path", "x"), "--config-dir names a folder of yours"),
    ],
)
def test_an_option_of_hydra_is_refused_with_the_way_out(options, way_out, rlrun):
    refused(rlrun("train", *LINE, *options), ["there is no option -", way_out])


def test_a_config_folder_is_named_as_for_hydra(rlrun, write):
    write("settings/env/mine.yaml", "defaults: [gym, _self_]\nid: Mine-v0\n")
    outcome = rlrun("config", "-cd", "settings", "algorithm=dqn", "env=mine")
    assert "id: Mine-v0" in outcome.out
