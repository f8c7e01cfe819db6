"""Names of earlier versions compose as today's, with one line of advice each."""

from __future__ import annotations

import logging

import pytest

import rlrun.core.renames
from rlrun.config import renames
from rlrun.config.tree import plain

TABLE = {
    "keys": {"old_rate": "lr", "q_target.speed": "tau"},
    "groups": {"experiment": "preset", "pair": "preset"},
    "options": {"memory/ring": "replay"},
    "values": {"mode": {"smallest": "min"}},
    "targets": {"rlrun.callbacks.Old": "rlrun.callbacks.New", "rlrun.old_package": "rlrun.nn"},
}


@pytest.fixture
def table(monkeypatch):
    renames._advise.cache_clear()
    for module in (renames, rlrun.core.renames):
        monkeypatch.setattr(module, "table", lambda section: TABLE[section])


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("experiment=dqn_cartpole", "preset=dqn_cartpole"),
        ("+experiment=a", "+preset=a"),
        ("pair=null", "preset=null"),
        ("~pair", "~preset"),
        ("memory=ring", "memory=replay"),
        ("memory=[ring,own]", "memory=[replay,own]"),
        ("algorithm.old_rate=0.1,0.2", "algorithm.lr=0.1,0.2"),
        ("callbacks.q_target.speed=1", "callbacks.q_target.tau=1"),
        ("callbacks.other.speed=1", "callbacks.other.speed=1"),
        ("algorithm.mode=smallest", "algorithm.mode=min"),
        ("seed=3", "seed=3"),
        ("nothing", "nothing"),
    ],
)
def test_overrides_get_todays_names(before, now, table, caplog):
    with caplog.at_level(logging.WARNING):
        assert renames.override(before) == now
        renames.override(before)
    assert len(caplog.records) == (before != now)


def test_files_get_todays_names(table, caplog):
    content = {
        "defaults": ["_self_", {"override /memory": "ring"}, {"/experiment": ["a", "b"]}, {"optional pair@x": None}],
        "algorithm": {"old_rate": 0.1, "mode": "smallest", "twice": "${.old_rate} and ${algorithm.old_rate}"},
        "callbacks": {"q_target": {"_target_": "rlrun.old_package.Critics", "speed": 0.5}},
        "own": {"_target_": "mine.Thing", "old_rate": 1},
        "env": {"kwargs": {"old_rate": 1}},
    }
    with caplog.at_level(logging.WARNING):
        now = renames.tree(content, "mine.yaml")
    assert now == {
        "defaults": ["_self_", {"override /memory": "replay"}, {"/preset": ["a", "b"]}, {"optional preset@x": None}],
        "algorithm": {"lr": 0.1, "mode": "min", "twice": "${.lr} and ${algorithm.lr}"},
        "callbacks": {"q_target": {"_target_": "rlrun.nn.Critics", "tau": 0.5}},
        "own": {"_target_": "mine.Thing", "old_rate": 1},
        "env": {"kwargs": {"old_rate": 1}},
    }
    assert "mine.yaml: algorithm.old_rate is called algorithm.lr now" in caplog.messages


def test_a_users_preset_of_before_is_chosen(compose, write):
    write("conf/experiment/mine.yaml", "# @package _global_\ndefaults: [override /algorithm: dqn]\nseed: 7\n")
    composed = compose("experiment=mine", "env=pendulum")
    assert (composed.config.seed, composed.overrides[0]) == (7, "preset=mine")
    assert plain(composed.config) == plain(compose("preset=mine", "env=pendulum").config)


def test_the_table_names_what_is_there():
    from hydra.utils import get_object

    for now in renames.table("targets").values():
        get_object(now)
