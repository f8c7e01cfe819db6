"""The first outputs of an environment are checked: refused if they cannot be stored, else one warning of a kind."""

import logging

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import SyncVectorEnv

from rlrun.core.errors import RlrunError
from rlrun.env import make
from rlrun.env.batched import BatchedEnv

BOX = Box(-1.0, 1.0, (3,), np.float32)
NESTED = Dict({"seen": BOX, "side": Discrete(2)})
GOOD = np.zeros(3, np.float32)


class Gives(gymnasium.Env):
    """Gives these outputs."""

    def __init__(self, first=GOOD, observation=GOOD, reward=0.0, terminated=False, space=BOX):
        self.observation_space, self.action_space = space, Discrete(2)
        self.first, self.result = first, (observation, reward, terminated, False, {})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if isinstance(self.first, Exception):
            raise self.first
        return None if self.first is None else (self.first, {})

    def step(self, action):
        return self.result


TARGET = f"{__name__}.Gives"


class OfGym(Gives):
    """Has the signatures of Gym."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, old):
        super().__init__(space=self.observation_space)
        self.old = old

    def reset(self, **options):
        if self.old == "reset()" and options:
            raise TypeError("OfGym.reset() got an unexpected keyword argument 'seed'")
        return GOOD[:2] if self.old == "bare" else (GOOD[:2], {})

    def step(self, action):
        return GOOD[:2], 0.0, False, {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("old", ["step", "reset()", "bare"])
def test_gym_environment_is_explained(kind, old):
    expected = r"step\(action\)" if old == "step" else r"reset\(\*, seed"
    with pytest.raises(RlrunError, match=rf"OfGym': .* failed in env [01]: .*; Gymnasium expects {expected}"):
        walk(kind, f"{__name__}.OfGym", old=old)


def walk(kind, target=TARGET, **given):
    env = make(target=target, kwargs=given, vectorization=kind, num_envs=2)
    try:
        env.reset(0)
        for _ in range(3):
            env.step(np.zeros(2, np.int64))
    finally:
        env.close()


REFUSED = [
    ({"first": 1.0}, r"reset.* it gave an observation of shape \[\]; its observation_space says Box\[3\] float32"),
    ({"first": np.zeros(4)}, r"reset.* it gave an observation of shape \[4\]"),
    ({"observation": np.ones(1)}, r"step.* it gave an observation of shape \[1\]"),
    ({"observation": None}, r"step.* it gave an observation of NoneType 'None'"),
    ({"observation": np.array(["a", "b", "c"])}, r"step.* it gave an observation of ndarray"),
    ({"reward": "1"}, r"step.* it gave a reward of str '1'; wanted one number"),
    ({"reward": None}, r"step.* it gave a reward of NoneType 'None'"),
    ({"reward": [1.0, 2.0]}, r"step.* it gave a reward of shape \[2\]; wanted one number"),
    ({"reward": np.ones(1)}, r"step.* it gave a reward of shape \[1\]; wanted one number"),
    ({"terminated": "no"}, r"step.* it gave terminated of str 'no'; wanted True or False"),
    ({"space": NESTED}, r"reset.* it gave an observation of type ndarray, without the part 'seen'"),
    ({"space": NESTED, "first": {"seen": GOOD}}, r"of type dict, without the part 'side' of its observation_space"),
    ({"space": NESTED, "first": {"seen": GOOD, "side": 2}}, r"with part 'side' from 2 to 2, out of .* Discrete"),
    ({"space": Tuple([BOX]), "first": 7}, r"reset.* it gave an observation of type int, without the part '0'"),
]

CASES = [("sync", *case) for case in REFUSED] + [("async", *REFUSED[index]) for index in (0, 6, 9)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "given", "message"), CASES)
def test_unstorable_output_is_refused(kind, given, message):
    with pytest.raises(RlrunError, match=rf"env.target '{TARGET}'.*{message}") as caught:
        walk(kind, **given)
    assert caught.value.exit_code == 1


REMARKS = [
    ({"first": np.zeros(3, np.int64)}, "it gave an observation of dtype int64, which is cast"),
    ({"first": [0.0, 1000.0, 0.0]}, "it gave an observation from 0 to 1000, out of its bounds"),
    ({"terminated": None}, "it gave terminated=None, which counts as False"),
]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("given", "message"), REMARKS, ids=[message for _, message in REMARKS])
def test_cast_output_is_one_warning(kind, given, message, caplog):
    with caplog.at_level(logging.WARNING, "rlrun"):
        walk(kind, **given)
    assert [record.message.startswith(f"env.target '{TARGET}': {message}") for record in caplog.records] == [True]


def test_copy_repeats_no_warning(caplog):
    env = make(target=TARGET, kwargs={"terminated": None, "first": [0.0, -3.0, 0.0]})
    with caplog.at_level(logging.WARNING, "rlrun"):
        for vec_env in (env, env.copy()):
            vec_env.reset(0)
            vec_env.step(np.zeros(1, np.int64))
            vec_env.close()
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("first", "cause"), [(ValueError("no reset"), "ValueError: no reset"), (None, "TypeError: cannot unpack")]
)
@pytest.mark.parametrize("again", [False, True], ids=["first", "restart"])
def test_error_in_reset_names_its_env(first, cause, again):
    env = make(target=TARGET, num_envs=2)
    if again:
        env.reset(0)
    env.envs[1].first = first
    with pytest.raises(RlrunError, match=rf"^env.target '{TARGET}': reset failed in env 1: {cause}") as caught:
        env.restart(np.array([False, True])) if again else env.reset(0)
    assert caught.value.exit_code == 1


def test_error_of_vector_environment_names_it():
    class Broken(SyncVectorEnv):
        def reset(self, **options):
            raise ValueError("no reset")

    with pytest.raises(RlrunError, match=r"^env 'mine': reset failed: ValueError: no reset"):
        BatchedEnv(Broken([Gives]), place="env 'mine'").reset(0)
