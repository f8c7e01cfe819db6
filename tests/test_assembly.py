"""Which built parts a checkpoint holds, and under which names."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf
from threadpoolctl import threadpool_info, threadpool_limits

from rlrun.assembly import prepare_process, process_as_set_up, products_of, stateful
from rlrun.errors import RequestError
from rlrun.memory import Scale, Table, Uniform
from rlrun.nn import products, ways


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
def set_up():
    """Set this process up by words beside the defaults; what it was before comes back."""
    before = products.in_use()

    def call(so_far=None, **words):
        config = OmegaConf.create(
            {"threads": torch.get_num_threads(), "precision": "highest", "device": "cpu", **words}
        )
        return process_as_set_up(prepare_process(config, so_far))["matmul"]

    yield call
    products.use(before)


def test_a_run_stays_with_the_products_that_it_began_with(set_up, monkeypatch):
    for fastest in products.WAYS:
        monkeypatch.setattr(ways, "fastest", lambda fastest=fastest: fastest)
        assert set_up(matmul="auto") == fastest
        for so_far in products.WAYS:
            assert set_up(so_far, matmul="auto") == so_far
        assert set_up("torch", matmul="onednn") == "onednn"  # the user's word
        assert set_up() == "torch"  # a config of a version that knew torch only
    manifests = {}, {"matmul": "onednn"}, {"matmul": "onednn", "resumed": [{"matmul": "torch"}]}
    assert [products_of(about) for about in manifests] == ["torch", "onednn", "torch"]


@pytest.mark.parametrize("threads", [1, 2])
def test_numpy_takes_as_many_threads_as_torch(set_up, threads):
    before = torch.get_num_threads()
    try:
        set_up(matmul="numpy", threads=threads)
        found = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
        assert found == {threads}
    finally:
        torch.set_num_threads(before)
        threadpool_limits(before, "blas")


def test_products_that_are_not_there_are_refused_if_asked_for(set_up, monkeypatch):
    monkeypatch.setattr(products, "_operator", None)
    assert set_up("onednn", matmul="auto") == "torch"
    with pytest.raises(RequestError, match="matmul=onednn: this build of torch has no such products"):
        set_up(matmul="onednn")
