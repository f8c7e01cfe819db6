from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env

from rlrun.env.toys import Chain, DiscreteStart, HitTheMiddle, ImageObservation, MixedAction
from rlrun.env.wrappers import ActionRepeat, FloatScale, FrameStack, PreviousAction, ResizeGrey, TimeLimit
from rlrun.errors import ConfigError, SpaceError


class Counter(gymnasium.Env):
    """Observe the step's number in every pixel; reward 1; ends by itself after five steps."""

    def __init__(self, shape=(2,), dtype=np.float32):
        self.observation_space = Box(0, 100, shape, dtype)
        self.action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look(), {}

    def step(self, action):
        self.count += 1
        return self.look(), 1.0, self.count == 5, False, {}

    def look(self):
        return np.full(self.observation_space.shape, self.count, self.observation_space.dtype)


def test_frames_are_stacked_oldest_first():
    env = FrameStack(Counter(), count=3)
    assert env.reset()[0].tolist() == [[0, 0]] * 3
    env.step(0)
    assert env.step(0)[0][:, 0].tolist() == [0, 1, 2]
    assert env.reset()[0][:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [((8, 9), (4, 8, 9)), ((8, 9, 1), (8, 9, 4)), ((8, 9, 3), (8, 9, 12)), ((3, 8, 9), (12, 8, 9))],
)
def test_frames_of_images_join_along_channels(shape, stacked):
    env = FrameStack(Counter(shape, np.uint8), count=4)
    env.reset()
    observation = env.step(0)[0]
    assert observation.shape == env.observation_space.shape == stacked
    assert sorted(set(observation.reshape(-1).tolist())) == [0, 1]


def test_frame_stack_keeps_no_reference():
    env = FrameStack(MemoryReuse(), count=2)
    env.reset()
    env.step(0)
    assert env.step(0)[0][:, 0].tolist() == [1, 2]


class MemoryReuse(Counter):
    """Return the same array each time, as some simulators do."""

    memory = np.zeros(2, np.float32)

    def look(self):
        self.memory[:] = self.count
        return self.memory


def test_resizing_averages_areas():
    class Checker(Counter):
        def look(self):
            return np.kron(np.array([[0, 100], [40, 60]], np.uint8), np.ones((2, 2), np.uint8))

    assert ResizeGrey(Checker((4, 4), np.uint8), size=2).reset()[0].tolist() == [[0, 100], [40, 60]]
    assert ResizeGrey(Checker((4, 4), np.uint8), size=1).reset()[0].tolist() == [[50]]


def test_grey_weighs_colours():
    class Green(Counter):
        def look(self):
            return np.full((4, 4, 3), (0, 100, 0), np.uint8)

    assert ResizeGrey(Green((4, 4, 3), np.uint8), size=2).reset()[0].tolist() == [[59, 59], [59, 59]]
    assert ResizeGrey(Green((4, 4, 3), np.uint8), size=(1, 2), grey=False).reset()[0].tolist() == [[[0, 100, 0]] * 2]


@pytest.mark.parametrize(("low", "high", "ends"), [(0.0, 1.0, [0.0, 1.0]), (-1.0, 1.0, [-1.0, 1.0])])
def test_floats_span_the_range_asked_for(low, high, ends):
    env = FloatScale(ImageObservation(), low=low, high=high)
    pixels = np.array([0, 255], np.uint8).repeat(128).reshape(16, 16, 1)
    scaled = env.observation(pixels)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose([scaled.min(), scaled.max()], ends, atol=1e-6)


def test_repeated_action_sums_rewards_and_stops_at_the_end():
    env = ActionRepeat(Counter(), count=3)
    env.reset()
    assert [env.step(0)[1:4] for _ in range(2)] == [(3.0, False, False), (2.0, True, False)]


def test_repeated_action_keeps_truncation_apart():
    env = ActionRepeat(TimeLimit(Counter(), 4), count=8)
    env.reset()
    assert env.step(0)[1:4] == (4.0, False, True)


def test_previous_action_is_observed_and_forgotten_at_reset():
    env = PreviousAction(DiscreteStart())
    assert env.reset(seed=0)[0]["previous_action"] == 3
    assert env.step(5)[0]["previous_action"] == 5
    assert env.reset()[0]["previous_action"] == 3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("env", [HitTheMiddle, MixedAction, DiscreteStart], ids=lambda env: env.__name__)
def test_previous_action_passes_the_checker(env):
    check_env(PreviousAction(env()), skip_render_check=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "env", [FrameStack(Chain(), 2), FrameStack(ImageObservation(), 2), ResizeGrey(Counter((9, 9, 3), np.uint8), 8)]
)
def test_wrapped_images_pass_the_checker(env):
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("count", [0, 1.5, True])
def test_count_is_a_whole_number_above_zero(count):
    with pytest.raises(ConfigError, match="count wants a whole number above 0"):
        ActionRepeat(Counter(), count)


def test_wrong_observations_are_refused():
    with pytest.raises(SpaceError, match="uint8 images"):
        ResizeGrey(Counter())
    with pytest.raises(SpaceError, match="wants a Box observation, got Dict"):
        FrameStack(PreviousAction(Counter()), 2)
    with pytest.raises(SpaceError, match="finite bounds"):
        FloatScale(gymnasium.make("CartPole-v1"))
