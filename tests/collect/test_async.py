"""A worker makes the steps of a collector, obeys its jobs, and ends with the run."""

import copy
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tests.collect.counting import Constant, Walking

from rlrun import env as envs
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.checkpointing import digest
from rlrun.collect import AsyncCollector, Collector, EpsilonGreedy, PolicyAgent
from rlrun.core import worker
from rlrun.core.errors import ConfigError, WorkerError
from rlrun.core.schedules import Linear
from rlrun.memory import Past, ReplayLoader, Rollout, Table
from rlrun.nn import ActorCritic

from . import probes
from .probes import labelled

KINDS = ["thread", "process"]


def counting(count=1, **kwargs):
    return envs.make(target="tests.collect.counting.Counting", kwargs=kwargs, num_envs=count)


@pytest.fixture
def warm(children, monkeypatch):
    """Start workers from a process that has imported everything."""
    monkeypatch.setattr(worker, "start", children.worker)


@pytest.fixture
def begun():
    """Return a function that begins a collector, and ends all that were begun."""
    collectors = []

    def begin(kind="thread", count=1, agent=None, columns=None, **options):
        named = ("length", "sleep", "breaks", "place")
        env = counting(count, **{name: options.pop(name) for name in named if name in options})
        table = Noting(spaces=env.spaces, length=5000, num_envs=count, columns=columns)
        collector = AsyncCollector(env, agent or Constant(), table, kind=kind, **options)
        collectors.append(collector)
        collector.begin_training()
        return collector

    yield begin
    for collector in collectors:
        collector.end_training(None)


def settled(collector):
    """Wait until the worker has made all steps that it may; return how many are ready."""
    envs, until = collector.env.num_envs, time.monotonic() + 60
    while time.monotonic() < until:
        ready = collector.worker.messages.qsize() * envs
        if collector.steps + ready >= collector._allowed.limit:
            return ready
        time.sleep(0.01)
    raise AssertionError("the worker makes no steps")


class Noting(Table):
    """Keeps the actions of all rows, in order."""

    def __init__(self, **options):
        super().__init__(**options)
        self.noted = []

    def add(self, env_index, row):
        super().add(env_index, row)
        self.noted += row["action"].tolist()


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_collects_exactly_the_steps_wanted(kind, begun):
    collector = begun(kind, queue=200)
    assert [collector.collect(100) for _ in range(5)] == [100] * 5
    assert (collector.steps, collector.episodes, len(collector.table.noted)) == (500, 71, 500)
    assert (collector.metrics["episode/length"], collector.metrics["episode/return"]) == (7.0, 7.0)


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("random", [False, True])
def test_stores_what_a_collector_stores(count, mode, random):
    states = []
    for kind in (Collector, partial(AsyncCollector, kind="thread", queue=4)):
        env = labelled(mode, count)
        agent = EpsilonGreedy(Still(), epsilon=0.5, spaces=env.spaces, seed=3)
        collector = probes.collector_for(env, agent, kind=kind, warm_up_seed=7)
        assert collector.collect(30, random=random) >= 30
        collector.end_training(None)
        state = collector.state_dict() | {"table": collector.table.state_dict(), "agent": agent.state_dict()}
        states.append(digest(state))
    assert states[0] == states[1]


def test_states_go_on_behind_a_warm_up():
    """A warm-up that ends within an episode leaves the state that acting would."""
    tables = []
    for kind in (Collector, partial(AsyncCollector, kind="thread", queue=4)):
        torch.manual_seed(0)
        env = counting(2)
        network = QNetwork(env.spaces, core="gru", hidden=[4], core_size=3)
        table = Table(spaces=env.spaces, num_envs=2, length=100, adaptors=[Past(network, length=2, burn_in=1)])
        agent = EpsilonGreedy(network, epsilon=0.0, spaces=env.spaces, seed=0)
        collector = probes.collector_for(env, agent, kind=kind, table=table, warm_up_seed=7)
        collector.collect(8, random=True)
        collector.collect(16)
        collector.end_training(None)
        tables.append(digest(table.state_dict()))
    assert tables[0] == tables[1]


def test_warm_up_is_random_throughout(begun):
    collector = begun(queue=1000)
    collector.collect(40, random=True)
    settled(collector)
    collector.collect(10, random=True)
    collector.collect(60)
    choices = collector.table.noted
    assert len(set(choices[:50])) == 5
    assert set(choices[50:]) == {1}


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", KINDS)
def test_pushed_agent_acts(kind, begun):
    collector = begun(kind, queue=20, refresh=0)
    collector.collect(30)
    settled(collector)
    collector.agent.action = 4
    collector.push()
    collector.collect(100)
    choices = collector.table.noted
    assert choices[:42] == [1] * 42  # steps in the queue are kept
    assert choices[-75:] == [4] * 75


def test_agent_is_refreshed_periodically(begun):
    collector = begun(queue=5, refresh=3)
    collector.collect(1)
    for update in range(1, 7):
        collector.agent.action = 4 if update >= 3 else 2
        collector.end_batch(update)
        settled(collector)
        collector.collect(20)
    assert set(collector.table.noted) == {1, 4}  # 2 was never sent
    assert collector.metrics["async/age"] == 0


def test_agent_counts_stored_steps_only(begun):
    agent = EpsilonGreedy(Still(), epsilon=Linear(1.0, 0.0, 100), spaces=counting().spaces, seed=1)
    collector = begun(agent=agent, queue=50, refresh=1)
    collector.collect(10, random=True)
    collector.collect(30)
    settled(collector)
    assert agent.steps == 30
    collector.end_batch(1)  # the copy that is sent now is behind the worker's
    collector.collect(60)
    collector.end_batch(2)
    collector.collect(200)
    assert agent.steps == 290
    assert set(collector.table.noted[-180:]) == {0}  # epsilon has come to its end


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_counters_come_back(kind, begun, monkeypatch):
    collector = begun(kind, agent=Walking(), queue=50)
    monkeypatch.setattr(multiprocessing.current_process(), "authkey", b"ours")  # a fresh interpreter has another one
    collector.collect(10)
    assert collector.agent.way.tolist() == [10.0]
    assert collector.table.noted == [0, 1, 2, 3, 4] * 2


class Still:
    def act(self, observation, explore):
        return torch.zeros(len(observation), dtype=torch.int64)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", KINDS)
def test_full_queue_never_blocks(kind, begun):
    collector = begun(kind, count=2, queue=30)
    collector.collect(2)
    assert settled(collector) in (28, 30)
    big = np.zeros(3_000_000)  # more than any pipe holds
    collector.agent.big = big
    begin = time.monotonic()
    for _ in range(3):
        collector.push()
    collector.end_training(None)
    assert time.monotonic() - begin < 5.0
    assert not collector.worker.alive()


def test_steps_keep_their_interval(begun):
    collector = begun(interval=0.05)
    collector.collect(1)
    begin = time.monotonic()
    collector.collect(10)
    assert 0.42 < time.monotonic() - begin < 3.0


def test_take_never_waits(begun):
    collector = begun(queue=30, max_unroll=12, sleep=0.01)
    assert collector.take() == 0
    collector.collect(1)
    settled(collector)
    assert [collector.take() for _ in range(2)] == [12, 12]
    settled(collector)
    collector.max_unroll = None
    assert collector.take() >= 30
    assert collector.take() < 5


def test_loader_without_pace_never_waits(begun):
    collector = begun(sleep=0.05, queue=10)
    loader = ReplayLoader(table=collector.table, collector=collector, batch=4, steps_per_update=0, warm_up=5)
    batches = iter(loader)
    next(batches)
    begin, before = time.monotonic(), collector.steps
    for _ in range(200):
        next(batches)
    assert not loader.ready()  # the next batch may follow a step
    while collector.steps < before + 5:
        next(batches)
    assert time.monotonic() - begin > 0.2
    with pytest.raises(ConfigError, match="collect_steps"):
        ReplayLoader(table=collector.table, collector=collector, batch=4, steps_per_update=0, collect_steps=2)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", KINDS)
def test_environment_is_closed_in_its_worker(kind, begun, tmp_path):
    collector = begun(kind, place=str(tmp_path / "closed"))
    collector.collect(5)
    pid = getattr(collector.worker, "pid", os.getpid())
    begin = time.monotonic()
    collector.end_training(None)
    assert time.monotonic() - begin < 5.0
    assert (tmp_path / "closed").read_text() == str(pid)
    assert kind == "thread" or gone(pid)
    assert [thread for thread in threading.enumerate() if thread.name == "unroll"] == []


@pytest.mark.usefixtures("warm")
def test_unresponsive_worker_is_killed(begun):
    collector = begun("process", sleep=60.0)
    collector.collect(0)
    time.sleep(0.1)
    begin = time.monotonic()
    collector.end_training(None)
    assert time.monotonic() - begin < 5.0
    assert gone(collector.worker.pid)


BROKE = r"^collector: its (thread|process) failed: env.target .*RuntimeError: the motor broke"


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", KINDS)
def test_error_of_environment_is_reported(kind, begun):
    collector = begun(kind, breaks=25)
    with pytest.raises(WorkerError, match=BROKE):
        collector.collect(100)
    assert collector.steps == 24  # all that had been made is stored


@pytest.mark.usefixtures("warm")
def test_unbuildable_environment_is_reported():
    env = counting()
    env.maker = partial(envs.make, target="tests.collect.counting.Missing")
    collector = AsyncCollector(env, Constant(), Table(spaces=env.spaces, length=9), kind="process")
    collector.begin_training()
    with pytest.raises(WorkerError, match="Missing"):
        collector.collect(1)
    collector.end_training(None)


def test_worker_ends_with_its_parent():
    program = """
import sys, time
from rlrun import env as envs
from rlrun.collect import AsyncCollector
from rlrun.memory import Table
from tests.collect.counting import Constant
env = envs.make(target="tests.collect.counting.Counting")
collector = AsyncCollector(env, Constant(), Table(spaces=env.spaces, length=99), queue=10)
collector.begin_training()
collector.collect(5)
print(collector.worker.pid, flush=True)
time.sleep(60)
"""
    paths = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 10
    while not gone(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert gone(pid)


# --- on-policy


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("kind", "core"), [("thread", None), ("process", None), ("thread", "gru")])
def test_rollout_stores_acting_log_prob(kind, core):
    env = counting(2)
    agent = PolicyAgent(ActorCritic(env.spaces, core=core))
    acting = copy.deepcopy(agent.policy)
    columns = {"state": {"shape": [acting.state_size]}} if core else {}
    table = Rollout(spaces=env.spaces, num_envs=2, columns=columns)
    collector = AsyncCollector(env, agent, table, kind=kind, queue=100, refresh=0)
    table.reserve(40)
    collector.begin_training()
    collector.collect(2)
    with torch.no_grad():  # the acting policy counts, not the updated one
        for parameter in agent.policy.parameters():
            parameter.add_(1.0)
    collector.collect(78)
    collector.end_training(None)
    steps, _ = table.steps(collector.observation)
    names = ("observation", "action", *columns, "log_prob")
    *inputs, log_prob = (torch.from_numpy(steps[name]).flatten(0, 1) for name in names)
    with torch.no_grad():
        assert torch.allclose(acting.evaluate_actions(*inputs).log_prob, log_prob, atol=1e-6)
        if core:  # a state is that before acting, fresh where an episode begins, else the one after the row before
            first = inputs[0][:, 0] == 0
            assert (inputs[2][first] == 0).all()
            after = acting.after(inputs[0], inputs[2])[:-2][~first[2:]]
            assert torch.allclose(after, inputs[2][2:][~first[2:]], atol=1e-6)


def test_rollout_needs_log_prob_of_agent():
    env = counting()
    with pytest.raises(ConfigError, match="older policies needs their log_prob, which a Constant does not give"):
        AsyncCollector(env, Constant(), Rollout(spaces=env.spaces), kind="thread")


# --- what is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "proces"}, r"async.kind: wanted one of .*, got 'proces' \(did you mean 'process'\?\)"),
        ({"queue": 1}, "async.queue must be at least 2, not 1"),
        ({"refresh": -1}, "async.refresh must be at least 0"),
        ({"interval": -0.1}, "async.interval must be at least 0"),
        ({"max_unroll": 0}, "async.max_unroll must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(given, message):
    env = counting(2)
    with pytest.raises(ConfigError, match=message):
        AsyncCollector(env, Constant(), Table(spaces=env.spaces, length=9, num_envs=2), **given)


def test_handmade_envs_need_threads():
    env = labelled(None, 1)
    with pytest.raises(ConfigError, match=r"cannot be made in another process; only kind=thread"):
        AsyncCollector(env, None, Table(spaces=env.spaces, length=9))
