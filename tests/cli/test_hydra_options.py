"""Options of Hydra applications."""

import json
import os
import sqlite3
from contextlib import closing
from datetime import datetime

import pytest
from omegaconf import OmegaConf

from .conftest import TINY, refused

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


def test_notes_are_free_and_found_by_a_query_and_by_mlflow(project, rlrun):
    notes = ("notes.paper.figure=3", "notes.tags=[a,b]", "notes.day='on ${now:%Y}'", "logger=[mlflow]")
    assert rlrun("train", *LINE, *TINY, *notes, "--run-dir", "r").code == 0
    day = f"on {datetime.now():%Y}"
    rows = rlrun("query", "SELECT key, value FROM config WHERE key LIKE 'notes.%'", "r", "--json").out
    assert {row["key"]: row["value"] for row in json.loads(rows)} == {
        "notes.paper.figure": "3",
        "notes.tags": '["a", "b"]',
        "notes.day": day,  # as of the start, which a resume keeps
    }
    with closing(sqlite3.connect(project / "r/mlflow/mlflow.db")) as database:
        tags = dict(database.execute("SELECT key, value FROM tags"))
    assert (tags["paper.figure"], tags["tags"], tags["day"]) == ("3", "['a', 'b']", day)
    assert rlrun("resume", "r", "notes.seen=true", "stop.env_steps=60").code == 0
    assert "seen: true" in (project / "r/config.yaml").read_text()


def test_a_function_of_the_user_is_a_resolver_of_the_run_and_of_all_that_is_done_with_it(project, rlrun, write):
    write("mine.py", "def twice(number):\n    return 2 * int(number)\n")
    text = "defaults: [/rlrun/train, _self_]\nresolvers: {twice: mine.twice}\nalgorithm: {n_step: '${twice:2}'}\n"
    write("conf/train.yaml", text)
    assert "n_step: 4" in rlrun("config", *LINE, "preset=null", "--resolve").out
    quick = (*LINE, *TINY, "preset=null")
    assert rlrun("train", *quick, "--run-dir", "r").code == 0
    assert rlrun("resume", "r", "stop.env_steps=60").code == 0
    assert rlrun("eval", "r", "--episodes", "1").code == 0
    (project / "elsewhere").mkdir()
    os.chdir("elsewhere")
    refused(rlrun("eval", "../r", "--episodes", "1"), ["mine.twice comes with the run", "--trust mine"])
    assert rlrun("eval", "../r", "--episodes", "1", "--trust", "mine").code == 0


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("resolvers.twice=mine.thrice",), ["resolvers.twice: mine.thrice: mine", "has no 'thrice'"]),
        (("resolvers.now=mine.twice",), ["resolvers.now: ${now:…} is a resolver of Hydra"]),
        (("algorithm.n_step=${twice:x}", "resolvers.twice=mine.twice"), ["algorithm.n_step: ValueError", "'x'"]),
        (("algorithm.n_step=${twice:2}",), ["algorithm.n_step: Unsupported interpolation type twice"]),
        (("notes=3",), ["notes: wanted keys with values, got 3"]),
    ],
)
def test_a_wrong_resolver_is_refused(overrides, parts, rlrun, write):
    OmegaConf.clear_resolver("twice")
    write("mine.py", "def twice(number):\n    return 2 * int(number)\n")
    refused(rlrun("config", *LINE, *overrides), parts)
