"""Which built parts a checkpoint holds, and under which names."""

import sys
from types import ModuleType

import gymnasium
import pytest
import torch
from omegaconf import OmegaConf
from threadpoolctl import threadpool_info

from rlrun.config import compose
from rlrun.loading.assembly import builder_of, prepare_process, process_as_set_up, process_restored, stateful
from rlrun.memory import Scale, Table, Uniform


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


@pytest.mark.parametrize("threads", [1, 2])
def test_numpy_takes_as_many_threads_as_torch(threads):
    config = OmegaConf.create({"threads": threads, "precision": "highest", "device": "cpu"})
    with process_restored():
        assert process_as_set_up(prepare_process(config))["threads"] == threads
        assert {part["num_threads"] for part in threadpool_info() if part["user_api"] == "blas"} == {threads}


@pytest.mark.parametrize("env", [["env=cartpole"], []])
@pytest.mark.parametrize("length", [["env.kwargs.length=7"], ["+env.length=7"]])
def test_the_class_of_an_environment_is_the_same_as_its_target(env, length, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    composed = compose(["algorithm=dqn", "num_envs=2", "env._target_=rlrun_tests_env.Halls", *env, *length])
    assert composed.preset is None  # of another environment
    built = builder_of(composed.config).get("env")
    assert (built.num_envs, built.spaces.observation.shape) == (2, (7,))
    built.close()


@pytest.fixture(autouse=True)
def halls(monkeypatch):
    """Make a class importable that is no part of this package."""
    module = ModuleType("rlrun_tests_env")
    module.Halls = type("Halls", (Halls,), {"__module__": "rlrun_tests_env"})
    monkeypatch.setitem(sys.modules, "rlrun_tests_env", module)


class Halls(gymnasium.Env):
    """Halls of any length."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (length,))
        self.action_space = gymnasium.spaces.Discrete(2)
