"""Outputs of an environment are checked at every step: refused if they cannot be stored, else one warning of a kind."""

import logging

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
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


class Later(gymnasium.Env):
    """Gives a result at one step of its second episode, which ends there if the result says so."""

    action_space = Discrete(2)

    def __init__(self, space=BOX, at=4, after=5, **result):
        self.observation_space, self.at, self.after, self.changed = space, at, after, result
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self.good(), {}

    def good(self):
        if isinstance(self.observation_space, Dict):
            return {"seen": GOOD, "side": 0}
        zero = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        return zero if self.observation_space.shape else int(zero)

    def step(self, action):
        self.count += 1
        result = {"observation": self.good(), "reward": 0.0, "terminated": False, "truncated": False, "info": {}}
        if self.episode == 1:
            result["truncated"] = self.count == 3
        elif self.count == self.at:
            result |= self.changed
        return tuple(result.values())


def go(kind, given, steps=9):
    """Step two envs with restarts, and return the newest step."""
    if kind == "native":
        env = BatchedEnv(SyncVectorEnv([lambda: Later(**given)] * 2), place="Later")
    else:
        env = make(target=f"{__name__}.Later", kwargs=given, vectorization=kind, num_envs=2)
    try:
        env.reset(0)
        for _ in range(steps):
            step = env.step(np.zeros(2, np.int64))
            env.restart(step.terminated | step.truncated)
        return step
    finally:
        env.close()


SCALAR = np.float32(0.25)
LATER = {
    "a number ends an episode": ({"observation": SCALAR, "terminated": True}, r"an observation of shape \[\]"),
    "one number for three": ({"observation": [0.25]}, r"an observation of shape \[1\]"),
    "a row more": ({"observation": np.zeros((1, 3))}, r"an observation of shape \[1, 3\]"),
    "a part of a dict": ({"space": NESTED, "observation": {"seen": SCALAR, "side": 0}}, r"part 'seen' of shape \[\]"),
    "a missing part": ({"space": NESTED, "observation": {"seen": GOOD}}, "without the part 'side'"),
    "no choice": ({"space": Discrete(3), "observation": 3}, "from 3 to 3, out of its bounds"),
    "no choices": ({"space": MultiDiscrete([2, 3]), "observation": np.array([1, 3])}, "from 1 to 3, out of its bounds"),
    "no bits": ({"space": MultiBinary(2), "observation": np.array([0, -1])}, "from -1 to 0, out of its bounds"),
    "an array as reward": ({"reward": np.zeros(2)}, r"a reward of shape \[2\]; wanted one number"),
    "a list as reward": ({"reward": [1.0]}, r"a reward of shape \[1\]; wanted one number"),
    "no reward": ({"reward": None}, "a reward of NoneType"),
    "a text as flag": ({"truncated": "no"}, "truncated of str 'no'; wanted True or False"),
    "an array as flag": ({"terminated": np.array([True])}, r"terminated of shape \[1\]; wanted True or False"),
    "arrays as flags": ({"terminated": np.array([True, False])}, r"terminated of shape \[2\]; wanted True or False"),
    "a list as info": ({"info": [1]}, r"an info of list '\[1\]'; wanted a dict"),
    "an empty list as info": ({"info": []}, r"an info of list '\[\]'; wanted a dict"),
}
IN_WORKERS = ("a number ends an episode", "a missing part", "an array as reward", "an array as flag", "a list as info")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "case"), [("sync", case) for case in LATER] + [("async", case) for case in IN_WORKERS]
)
def test_later_outputs_are_refused_where_they_are_made(kind, case):
    given, message = LATER[case]
    with pytest.raises(RlrunError, match=rf"Later': step failed in env [01]: it gave .*{message}") as caught:
        go(kind, given)
    assert str(caught.value).endswith("(step 4 of the episode)")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "given",
    [
        {"terminated": np.True_, "truncated": np.False_, "at": 6},
        {"terminated": np.array(True), "at": 6},
        {"terminated": 1, "truncated": 0, "at": 6},
    ],
    ids=str,
)
def test_flags_of_numpy_are_flags(kind, given):
    step = go(kind, given | {"reward": np.float64(2.5)})
    assert (step.terminated.tolist(), step.truncated.tolist(), step.reward.tolist()) == (
        [True] * 2,
        [False] * 2,
        [2.5] * 2,
    )


TYPES = {
    "doubles": np.float64([0.5, 1.0, 1.5]),
    "whole numbers": np.arange(1, 4),
    "a list": [0.5, 1.0, 1.5],
    "every second number": np.arange(6, dtype=np.float32)[::2],
    "another order of bytes": np.array([0.5, 1.0, 1.5], ">f4"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("given", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("steps", [7, 8])
def test_one_observation_of_another_type_has_its_numbers(given, steps):
    step = go("sync", {"observation": given}, steps)
    wanted = np.float32(given if steps == 7 else GOOD)
    assert step.observation.tolist() == [wanted.tolist()] * 2


@pytest.mark.parametrize("kind", ["sync", "async", "native"])
def test_the_last_observation_of_an_episode_is_compared_with_its_bounds(kind, caplog):
    with caplog.at_level(logging.WARNING, "rlrun"):
        go(kind, {"observation": np.float32([0.0, 7.0, 0.0]), "terminated": True})
    assert [record.message.rpartition("Later")[2].lstrip("': ") for record in caplog.records] == [
        "it gave an observation from 0 to 7, out of its bounds; its observation_space says Box[3] float32"
    ]


SEEN, TWO = np.zeros((2, 3), np.float32), np.zeros(2)
NATIVE = {
    "observations": ((GOOD, TWO, TWO, TWO, {}), r"observations of shape \[3\]; wanted \[2, 3\]"),
    "rewards": ((SEEN, TWO[:, None], TWO, TWO, {}), r"rewards of shape \[2, 1\] for 2 envs; .*"),
    "flags": ((SEEN, TWO, np.False_, TWO, {}), r"flags of shapes \[\] and \[2\]; wanted \[2\]"),
    "info": ((SEEN, TWO, TWO, TWO, [1]), "an info of list; wanted a dict"),
}


@pytest.mark.parametrize("case", NATIVE)
def test_outputs_of_a_vector_environment_are_refused(case):
    result, message = NATIVE[case]

    class Wrong(SyncVectorEnv):
        def step(self, action):
            right = super().step(action)
            return result if self.later else right

    vector = Wrong([Later] * 2)
    vector.later = False
    env = BatchedEnv(vector, place="mine")
    env.reset(0)
    env.step(np.zeros(2, np.int64))
    vector.later = True
    with pytest.raises(RlrunError, match=rf"^mine: step failed: it gave {message} \(step 2 since all envs were reset"):
        env.step(np.zeros(2, np.int64))


def test_error_of_vector_environment_names_it():
    class Broken(SyncVectorEnv):
        def reset(self, **options):
            raise ValueError("no reset")

    with pytest.raises(RlrunError, match=r"^env 'mine': reset failed: ValueError: no reset"):
        BatchedEnv(Broken([Gives]), place="env 'mine'").reset(0)
