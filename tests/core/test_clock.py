"""Where the time of a run goes."""

import pytest

from rlrun.core import clock
from rlrun.core.clock import Spent, is_clock, timed


@pytest.fixture
def now(monkeypatch):
    time = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: time[0])
    return time


def test_shares_are_of_the_time_since_the_last_call(now):
    spent = Spent()
    with spent.during("update"):
        now[0] = 3.0
    now[0] = 4.0
    assert spent.shares() == {"time/update": 0.75}
    with spent.during("update"):
        now[0] = 5.0
    now[0] = 8.0
    assert spent.shares() == {"time/update": 0.25}


def test_sampling_is_the_rest_of_loading(now):
    spent = Spent()
    spent.update(load=5.0, env=2.0, act=1.0)
    now[0] = 10.0
    assert spent.shares() == {"time/env": 0.2, "time/act": 0.1, "time/sample": 0.2}
    spent["env"] += 1.0  # acting without a loader
    now[0] = 12.0
    assert spent.shares() == {"time/env": 0.5, "time/act": 0.0, "time/sample": 0.0}


def test_blocks_of_ones_own_code_have_their_mean(now, monkeypatch):
    monkeypatch.setattr(Spent, "current", spent := Spent())

    @timed("parse")
    def parse(seconds):
        now[0] += seconds

    for seconds in (1.0, 3.0):
        parse(seconds)
    with timed("block"):
        now[0] += 0.5
    assert spent.timed() == {"time/parse_seconds": 2.0, "time/block_seconds": 0.5}
    assert spent.timed() == {}
    monkeypatch.setattr(Spent, "current", None)
    parse(1.0)
    assert spent.timed() == {}


def test_names_of_the_clock():
    names = ("seconds", "time/env", "env_steps_per_second", "system/memory", "env_steps", "loss/time", "sometime/x")
    assert [name for name in names if is_clock(name)] == list(names[:4])
