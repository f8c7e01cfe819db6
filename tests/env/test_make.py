import importlib
import importlib.util
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import registry

from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RlrunError, SpaceError
from rlrun.env import make
from rlrun.env.find import construct, lookup
from rlrun.env.sync import SyncEnv

TOY = "rlrun.env.toys.Chain"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"id": "CartPole-v1"}, "cartpole"),
        ({"id": "gymnasium.envs:Pendulum-v1"}, "pendulum"),
        ({"target": "rlrun.env.toys.HitTheMiddle"}, "hitthemiddle"),
    ],
)
def test_name_is_short(arguments, name):
    assert make(**arguments).name == name


@pytest.mark.parametrize(
    ("id", "kwargs", "limit"), [("Pendulum-v1", {"g": 5.0}, 200), ("CartPole-v1", {"max_episode_steps": 2}, 2)]
)
def test_time_limit_is_registered_or_given(id, kwargs, limit):
    env = make(id, kwargs=kwargs)
    env.reset(0)
    action = np.zeros((1, 1), np.float32) if id == "Pendulum-v1" else np.zeros(1, np.int64)
    flags = [bool(env.step(action).truncated[0]) for _ in range(limit)]
    assert (flags[-2:], getattr(env.envs[0].unwrapped, "g", 5.0)) == ([False, True], 5.0)


def test_unversioned_id_is_the_newest():
    assert make("CartPole").envs[0].spec.id == "CartPole-v1"


def test_wrappers_are_applied_innermost_first():
    order = []

    def wrapper(name):
        return lambda env: (order.append(name), env)[1]

    make("CartPole-v1", wrappers=[wrapper("a"), wrapper("b")])
    assert order == ["a", "b"]


class OneEnv:
    @staticmethod
    def vector_entry_point(num_envs):
        return CartPoleVectorEnv(1)


class Number:
    @staticmethod
    def vector_entry_point(num_envs):
        return num_envs


class Spaceless(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)


class Foreign(Spaceless):
    action_space = 2


class Text(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(3)
    action_space = gymnasium.spaces.Discrete(2)


WRONG = [
    ({}, ConfigError, "env wants one of env.id and env.target, got neither"),
    ({"id": "CartPole-v1", "target": TOY}, ConfigError, "got both; leave env=NAME out, or add env.id=null"),
    ({"id": "Walk-v0"}, ConfigError, "; one that a module of yours registers is env.id=MODULE:Walk-v0"),
    ({"id": "CartPol-v1"}, ConfigError, "no environment 'CartPol-v1' is registered (did you mean 'CartPole-v1'?)"),
    (
        {"id": "Probe/Const-v3"},
        ConfigError,
        "is registered; one that a module of yours registers is env.id=MODULE:Probe/",
    ),
    ({"id": "CartPole-v9"}, ConfigError, "env.id: no environment 'CartPole-v9' is registered (did you mean 'CartPole-"),
    ({"id": "no_such_module:X-v0"}, BuildError, "env.id 'no_such_module:X-v0': importing 'no_such_module' failed"),
    ({"id": "CartPole-v1", "vectorization": "asink"}, ConfigError, "(did you mean 'async'?)"),
    ({"id": "CartPole-v1", "num_envs": 0}, ConfigError, "num_envs wants a whole number above 0, got 0"),
    ({"id": "Pendulum-v1", "kwargs": {"gg": 1}}, BuildError, "kwargs.gg: env.id 'Pendulum-v1' takes no such argument"),
    ({"target": TOY, "kwargs": {"lenght": 3}}, BuildError, "env.kwargs.lenght: env.target"),
    ({"target": TOY, "kwargs": {"length": "x"}}, BuildError, "env.kwargs: env.target 'rlrun.env.toys.Chain' could not"),
    ({"target": TOY, "kwargs": {"ending": "never"}}, ConfigError, "env.kwargs.ending is"),
    ({"target": "rlrun.env.toys.Chian"}, BuildError, "(did you mean 'rlrun.env.toys.Chain'?)"),
    ({"target": "rlrun.env.no.Chain"}, BuildError, "No module named 'rlrun.env.no'"),
    ({"target": "Chain"}, BuildError, "wanted an import path"),
    ({"target": "collections.OrderedDict"}, BuildError, "made a OrderedDict, wanted a gymnasium.Env"),
    ({"target": "builtins.dict"}, BuildError, "env.target 'builtins.dict' made a dict, wanted a gymnasium.Env"),
    ({"target": TOY, "vectorization": "native"}, ConfigError, "has no vector_entry_point(num_envs), so"),
    (
        {"target": f"{__name__}.OneEnv", "num_envs": 3, "vectorization": "native"},
        ConfigError,
        "vector_entry_point(num_envs=3) made a CartPoleVectorEnv of 1 envs, wanted a gymnasium.vector.VectorEnv of 3",
    ),
    (
        {"target": f"{__name__}.Number", "vectorization": "native"},
        ConfigError,
        "vector_entry_point(num_envs=1) made a int, wanted a gymnasium.vector.VectorEnv of 1",
    ),
    ({"target": TOY, "vectorization": "envpool"}, ConfigError, "'envpool' needs env.id"),
    ({"id": "Pendulum-v1", "vectorization": "native"}, ConfigError, "has no native vector environment"),
    ({"id": "CartPole-v1", "vectorization": "native", "wrappers": [lambda env: env]}, ConfigError, "env.wrappers"),
    (
        {"id": "CartPole-v1", "wrappers": ["my_pkg.Mine"]},
        BuildError,
        "env.wrappers[0]: wanted {_target_: CLASS, …}, as {_target_: my_pkg.Mine}, got 'my_pkg.Mine'",
    ),
    ({"id": "CartPole-v1", "around": {"mine": 3}}, BuildError, "env.around.mine: wanted {_target_: CLASS, …}"),
    ({"target": f"{__name__}.Spaceless"}, BuildError, "Spaceless' has no action_space; Gymnasium expects a"),
    ({"target": f"{__name__}.Text"}, SpaceError, f"env.target '{__name__}.Text': the observation space is Text"),
    ({"target": f"{__name__}.Foreign"}, BuildError, "Foreign' has a builtins.int as action_space; Gymnasium expects a"),
    ({"id": "CartPole-v1", "wrappers": [lambda env: 1 / 0]}, BuildError, "env.wrappers[0] around env.id 'CartPole-v1'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_wrong_request_is_one_line(arguments, error, message):
    with pytest.raises(error) as caught:
        make(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


MISSING = [
    ("LunarLander-v3", "Box2D", "box2d"),
    ("HalfCheetah-v5", "mujoco", "mujoco"),
    ("ALE/Pong-v5", "ale_py", "atari"),
    ("MiniGrid-Empty-8x8-v0", "minigrid", "minigrid"),
]


@pytest.mark.parametrize(("id", "package", "extra"), MISSING)
def test_missing_package_names_its_extra(monkeypatch, id, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    for module in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, module)
    registered = [name for name, spec in registry.items() if str(spec.entry_point).startswith(f"{package}.")]
    for name in registered:  # by an earlier import
        monkeypatch.delitem(registry, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=rf"env.id '{id}' needs .*'{package}'.*\[{extra}\]"):
        make(id)
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtra, match=r"\[envpool\]"):
        make("CartPole-v1", vectorization="envpool")


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_copy_is_separate_and_alike(vectorization):
    env = make("CartPole-v1", kwargs={"max_episode_steps": 30}, num_envs=2, vectorization=vectorization)
    before = env.reset(0).copy()
    alone = env.copy(num_envs=1)
    np.testing.assert_array_equal(alone.reset(9)[0], gymnasium.make("CartPole-v1").reset(seed=9)[0])
    alone.step(np.ones(1, np.int64))
    alone.close()
    assert (alone.num_envs, alone.name, alone.vectorization) == (1, "cartpole", "sync")
    np.testing.assert_array_equal(env.step(np.zeros(2, np.int64)).reward, [1, 1])
    np.testing.assert_array_equal(env.reset(0), before)
    env.close()


def test_handmade_envs_cannot_be_copied():
    with pytest.raises(RlrunError, match=r"neither by a config nor by rlrun.env.make; give SyncEnv a method"):
        SyncEnv([gymnasium.make("CartPole-v1")]).copy()


@pytest.mark.parametrize(("chosen", "imported"), [("egl", False), ("osmesa", False), (None, False), ("egl", True)])
def test_broken_mujoco_gl_is_explained(chosen, imported, monkeypatch):
    def fail():
        raise AttributeError("'NoneType' object has no attribute 'eglQueryString'")

    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if chosen:
        monkeypatch.setenv("MUJOCO_GL", chosen)
    if imported:
        monkeypatch.setitem(sys.modules, "mujoco", sys)
    with pytest.raises(BuildError) as caught:
        construct("env.id 'Ant-v5'", fail, {})
    assert "MUJOCO_GL" not in str(caught.value)  # of another module
    fail.__module__ = "gymnasium.envs.mujoco.ant_v5"
    with pytest.raises(BuildError) as caught:
        construct("env.id 'Ant-v5'", fail, {})
    assert (f"; MUJOCO_GL={chosen} needs a library that is not there" in str(caught.value)) == (
        chosen is not None and not imported
    )


@pytest.mark.parametrize("id", ["ALE/Pong-v5", "HalfCheetah-v5"])
def test_native_libraries_are_silent(id, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    lookup(id)().close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_mujoco_are_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    env = lookup("HalfCheetah-v5")()
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e12
    env.step(env.action_space.sample())
    env.close()
    (text,) = {record.getMessage() for record in caplog.records}
    assert "unstable" in text
