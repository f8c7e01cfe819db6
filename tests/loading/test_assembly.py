"""Which built parts a checkpoint holds, and under which names."""

import pytest
import torch
from omegaconf import OmegaConf
from threadpoolctl import threadpool_info

from rlrun.core.errors import RequestError
from rlrun.loading import assembly
from rlrun.loading.assembly import Machine, machine_here, machine_of, prepare_process, process_as_set_up, stateful
from rlrun.memory import Scale, Table, Uniform
from rlrun.nn import fast_linear
from rlrun.runs import machine_cache as remembered


class Counted(Scale):
    """An adaptor with a state."""

    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        self.count = state["count"]


def table(sampler=None):
    return Table(columns={"observation": {"shape": [1]}, "reward": {}}, length=8, sampler=sampler)


def test_parts_with_a_state_are_found_once_by_their_shortest_path():
    network = torch.nn.Linear(1, 1)
    built = {"agent.policy": network, "q": network, "agent": object(), "list": [network], "kind": torch.nn.Linear}
    assert stateful(built) == {"q": network}


def test_what_serves_a_tables_rows_is_in_the_tables_own_state():
    inner, outer, shared, adaptor = Uniform(), Uniform(), Uniform(), Counted("reward", factor=2.0)
    replay, goals = table(outer), table(shared)
    built = {"memory": replay, "memory.sampler": outer, "memory.sampler.inner": inner, "memory.adaptors.scale": adaptor}
    built |= {"goals": goals, "samplers.shared": shared, "samplers.shared_of_nobody": Uniform()}
    assert set(stateful(built)) == {"goals", "memory", "memory.adaptors.scale", "samplers.shared_of_nobody"}


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """Nothing is known about this machine yet."""
    monkeypatch.setattr(remembered, "user_cache_path", lambda *names, **options: tmp_path / "cache" / "rlrun")


@pytest.fixture
def timed_again(monkeypatch):
    """Time backends and threads again at each call."""
    monkeypatch.setattr(assembly, "remembered", lambda question, about, find, fits: find())


@pytest.fixture
def set_up():
    """Set this process up by overrides beside the defaults; what it was before comes back."""
    before, threads = fast_linear.in_use(), torch.get_num_threads()

    def call(so_far=None, **overrides):
        config = OmegaConf.create({"threads": threads, "precision": "highest", "device": "cpu", **overrides})
        about = process_as_set_up(prepare_process(config, None if so_far is None else Machine(*so_far)))
        assert machine_of(about) == machine_here() == Machine(about["matmul"], about["threads"])
        return about

    yield call
    fast_linear.use(before)
    fast_linear.set_threads(threads)


def test_a_run_stays_with_the_backend_that_it_began_with(set_up, timed_again, monkeypatch):
    for fastest in fast_linear.BACKENDS:
        monkeypatch.setattr(fast_linear, "fastest", lambda fastest=fastest: fastest)
        assert set_up(matmul_backend="auto")["matmul"] == fastest
        assert set_up(("numpy", 1), matmul_backend="auto")["matmul"] == fastest  # a backend of earlier versions
        for so_far in fast_linear.BACKENDS:
            assert set_up((so_far, 1), matmul_backend="auto")["matmul"] == so_far
        assert set_up(("torch", 1), matmul_backend="onednn")["matmul"] == "onednn"  # the user's override
        assert set_up()["matmul"] == "torch"  # a config of a version that knew torch only
    manifests = {}, {"matmul": "onednn", "threads": 2}, {"matmul": "onednn", "resumed": [{"matmul": "torch"}]}
    assert [machine_of(about) for about in manifests] == [("torch", 1), ("onednn", 2), ("torch", 1)]
    assert {machine_of({"threads": damaged}).threads for damaged in (None, "two", [], 0, -3, 1.5)} == {1}


def test_a_run_stays_with_the_threads_that_it_began_with(set_up, timed_again, monkeypatch):
    monkeypatch.setattr(assembly, "cores", lambda: 6)
    monkeypatch.setattr(fast_linear, "best_threads", lambda at_most: at_most)
    assert set_up(threads="auto")["threads"] == 6
    assert set_up(threads="auto", learners=2)["threads"] == 3  # cores are shared
    assert set_up(("torch", 2), threads="auto")["threads"] == 2
    assert set_up(("torch", 12), threads="auto")["threads"] == 6  # begun on a larger machine
    assert set_up(("torch", 2), threads=1)["threads"] == 1


def test_all_runs_of_a_machine_take_what_the_first_one_found_out(set_up, empty_cache, monkeypatch):
    monkeypatch.setattr(assembly, "cores", lambda: 6)
    for number, way in enumerate(fast_linear.BACKENDS):
        monkeypatch.setattr(fast_linear, "fastest", lambda way=way: way)
        monkeypatch.setattr(fast_linear, "best_threads", lambda at_most, number=number: 2 + number)
        about = set_up(matmul_backend="auto", threads="auto")
        assert (about["matmul"], about["threads"]) == (fast_linear.BACKENDS[0], 2)
    assert set_up(matmul_backend="auto", threads=4)["matmul"] == fast_linear.BACKENDS[-1]  # that is another question
    monkeypatch.setattr(assembly, "cpu", lambda: "another")
    assert set_up(matmul_backend="auto", threads="auto")["matmul"] == fast_linear.BACKENDS[-1]


@pytest.mark.parametrize("threads", [1, 2])
def test_numpy_takes_as_many_threads_as_torch(set_up, threads):
    assert set_up(matmul_backend="torch", threads=threads)["threads"] == threads
    assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {threads}


def test_missing_backend_is_refused_if_asked_for(set_up, monkeypatch):
    monkeypatch.setattr(fast_linear, "_operator", None)
    assert set_up(("onednn", 1), matmul_backend="auto")["matmul"] == "torch"
    with pytest.raises(RequestError, match="matmul_backend=onednn: this build of torch has no such products"):
        set_up(matmul_backend="onednn")
