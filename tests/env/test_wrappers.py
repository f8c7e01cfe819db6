import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FrameStackObservation

from rlrun.core.errors import BuildError, ConfigError, SpaceError
from rlrun.env import make
from rlrun.env.stacks import frames_of
from rlrun.env.toys import Chain, ImageObservation, MixedAction
from rlrun.env.wrappers import ActionRepeat, FrameStack, KeepNumbers, RandomGoal, ResizeGray, TimeLimit


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


def test_frames_join_along_a_given_axis():
    env = FrameStack(Counter(), count=3, axis=0)
    env.reset()
    assert env.step(0)[0].tolist() == [0, 0, 0, 0, 1, 1]
    assert env.observation_space.shape == (6,)
    assert frames_of(FrameStack(Counter((84, 84), np.uint8), count=3)) == 3
    assert frames_of(FrameStack(Counter((84, 84), np.uint8), count=3, axis=0)) == 1  # the memory would stack otherwise


class Marked(FrameStack):
    """Adds something to the stack."""


class MarkedByGymnasium(FrameStackObservation):
    """The same."""


def test_a_subclass_of_a_stack_is_stored_as_it_is():
    image = Counter((84, 84), np.uint8)
    assert [frames_of(stack(image, 3)) for stack in (FrameStackObservation, MarkedByGymnasium, Marked)] == [3, 1, 1]


def test_chosen_parts_are_stacked():
    env = FrameStack(RandomGoal(Counter(), 3), count=2, keys=["observation"])
    goal = env.reset(seed=0)[0]["goal"]
    observation = env.step(0)[0]
    assert observation["observation"].tolist() == [[0, 0], [1, 1]]
    assert observation["goal"] == goal
    assert observation in env.observation_space
    with pytest.raises(SpaceError, match=r"FrameStack\.keys: the observation has no part 'speed'"):
        FrameStack(RandomGoal(Counter(), 3), count=2, keys=["speed"])
    with pytest.raises(ConfigError, match=r"FrameStack\.keys: wanted a list of parts, such as \[goal\], got 'goal'"):
        FrameStack(RandomGoal(Counter(), 3), count=2, keys="goal")
    with pytest.raises(ConfigError, match=r"FrameStack\.axis: wanted a number from -1 to 0, got 3"):
        FrameStack(Counter(), count=2, axis=3)


def test_frame_stack_keeps_no_reference():
    env = FrameStack(MemoryReuse(), count=2)
    env.reset()
    env.step(0)
    assert env.step(0)[0][:, 0].tolist() == [1, 2]


class MemoryReuse(Counter):
    """Returns the same array each time, as some simulators do."""

    memory = np.zeros(2, np.float32)

    def look(self):
        self.memory[:] = self.count
        return self.memory


def test_resizing_averages_areas():
    class Checker(Counter):
        def look(self):
            return np.kron(np.array([[0, 100], [40, 60]], np.uint8), np.ones((2, 2), np.uint8))

    assert ResizeGray(Checker((4, 4), np.uint8), size=2).reset()[0].tolist() == [[0, 100], [40, 60]]
    assert ResizeGray(Checker((4, 4), np.uint8), size=1).reset()[0].tolist() == [[50]]


def test_grey_weighs_colors():
    class Green(Counter):
        def look(self):
            return np.full((4, 4, 3), (0, 100, 0), np.uint8)

    assert ResizeGray(Green((4, 4, 3), np.uint8), size=2).reset()[0].tolist() == [[59, 59], [59, 59]]
    assert ResizeGray(Green((4, 4, 3), np.uint8), size=(1, 2), gray=False).reset()[0].tolist() == [[[0, 100, 0]] * 2]


@pytest.mark.parametrize(
    ("limit", "count", "steps"), [(9, 3, [(3.0, False, False), (2.0, True, False)]), (4, 8, [(4.0, False, True)])]
)
def test_repeated_action_sums_rewards(limit, count, steps):
    env = ActionRepeat(TimeLimit(Counter(), limit), count=count)
    env.reset()
    assert [env.step(0)[1:4] for _ in steps] == steps


WRAPPED = [FrameStack(Chain(), 2), FrameStack(ImageObservation(), 2), ResizeGray(Counter((9, 9, 3), np.uint8), 8)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("env", [*WRAPPED, RandomGoal(MixedAction(), 3), KeepNumbers(Counter((3,)), [1])], ids=str)
def test_wrapped_environment_passes_the_checker(env):
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("count", [0, 1.5, True])
def test_count_is_a_positive_integer(count):
    with pytest.raises(ConfigError, match="count wants a whole number above 0"):
        ActionRepeat(Counter(), count)


@pytest.mark.parametrize("places", [[0, 2], [2, 0]])
def test_kept_numbers_stay_in_order(places):
    env = KeepNumbers(gymnasium.make("Pendulum-v1"), places)
    whole = gymnasium.make("Pendulum-v1")
    assert env.observation_space.high.tolist() == [[1.0, 1.0, 8.0][place] for place in places]
    assert env.reset(seed=3)[0].tolist() == whole.reset(seed=3)[0][places].tolist()
    action = np.ones(1, np.float32)
    assert env.step(action)[0].tolist() == whole.step(action)[0][places].tolist()


@pytest.mark.parametrize("places", [[], [0, 0], [3], [-1]])
def test_kept_numbers_have_places(places):
    with pytest.raises(ConfigError, match=r"places: wanted different places from 0 to 2, got \["):
        KeepNumbers(gymnasium.make("Pendulum-v1"), places)


def test_wrong_observations_are_refused():
    with pytest.raises(SpaceError, match="KeepNumbers wants a vector"):
        KeepNumbers(ImageObservation(), [0])
    with pytest.raises(SpaceError, match="uint8 images"):
        ResizeGray(Counter())
    with pytest.raises(SpaceError, match="wants a Box observation, got Dict"):
        FrameStack(RandomGoal(Counter(), 3), 2)


# --- a goal for each episode


def goals(seed, episodes, count=4):
    """Return the goal of each episode, and whether it stayed the same."""
    wrapped = RandomGoal(Counter(), count)
    episode_goals, constant = [], True
    for episode in range(episodes):
        observation, _ = wrapped.reset(seed=seed if episode == 0 else None)
        episode_goals.append(int(observation["goal"]))
        over = False
        while not over:
            observation, _, over, *_ = wrapped.step(0)
            constant &= observation["goal"] == episode_goals[-1]
    return episode_goals, constant


def test_goals_are_constant_and_uniform():
    episode_goals, constant = goals(0, 7_000, count=7)
    assert constant
    counts = np.bincount(episode_goals, minlength=7)
    assert len(counts) == 7
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 16.81  # chi-square of 6 degrees, p = 0.01
    assert abs(np.corrcoef(episode_goals[:-1], episode_goals[1:])[0, 1]) < 0.03


def test_first_goals_of_seeds_are_uniform():
    env = RandomGoal(Counter(), 4)
    counts = np.bincount([env.reset(seed=seed)[0]["goal"] for seed in range(4_000)], minlength=4)
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 11.34  # 3 degrees, p = 0.01


def test_continuous_goals_are_constant_and_uniform():
    env = RandomGoal(TimeLimit(gymnasium.make("CartPole-v1"), 3), size=2)
    assert env.observation_space["goal"] == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    drawn = []
    for seed in range(300):
        first = env.reset(seed=seed)[0]["goal"]
        assert env.step(0)[0]["goal"].tolist() == first.tolist()
        drawn.append(first)
    assert np.abs(np.mean(drawn, 0)).max() < 0.15
    assert np.std(drawn, 0) == pytest.approx([1 / np.sqrt(3)] * 2, rel=0.1)


@pytest.mark.parametrize("options", [{}, {"count": 3, "size": 2}])
def test_goal_is_a_choice_or_numbers(options):
    with pytest.raises(ConfigError, match="wanted a count or a size"):
        RandomGoal(gymnasium.make("CartPole-v1"), **options)


def test_goals_change_no_draw_of_environments():
    bare, wrapped = MixedAction(), RandomGoal(MixedAction(), 4)
    action = {"choice": 0, "level": np.zeros(1, np.float32)}
    for seed in (3, None):
        assert bare.reset(seed=seed)[0] == wrapped.reset(seed=seed)[0]["observation"]
        assert bare.step(action)[0] == wrapped.step(action)[0]["observation"]


def test_named_wrappers_are_outermost():
    env = make(
        target="rlrun.env.toys.Chain",
        wrappers=[lambda env: FrameStack(env, count=2)],
        around={"none": None, "goal": lambda env: RandomGoal(env, count=3)},
        num_envs=2,
    )
    observation = env.reset(0)
    assert observation["observation"].shape == (2, 2, 5)
    assert observation["goal"].shape == (2,)


def test_failing_named_wrapper_is_named():
    with pytest.raises(BuildError, match=r"^env.around.broken around env.target 'rlrun.env.toys.Chain': ValueError"):
        make(target="rlrun.env.toys.Chain", around={"broken": lambda env: int("no")})
