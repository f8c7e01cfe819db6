import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlrun.algorithms.imitation.handcrafted import Thrust
from rlrun.collect import PolicyAgent, RandomAgent, evaluate
from rlrun.core.errors import ConfigError
from rlrun.env import make, sprites, toys
from rlrun.env.goals import BitFlip, PointReach

ALL = [*(getattr(toys, name) for name in toys.__all__), BitFlip, PointReach]


def episode(env, policy, seed):
    observation, _ = env.reset(seed=seed)
    rewards, over = [], False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        rewards.append(reward)
        over = terminated or truncated
    return rewards, terminated, truncated


def mean_return(env, policy, episodes=300):
    return np.mean([sum(episode(env, policy, seed)[0]) for seed in range(episodes)])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("env", ALL, ids=lambda env: env.__name__)
def test_toy_passes_the_checker(env):
    check_env(env(), skip_render_check=True)


@pytest.mark.parametrize(
    ("state", "push", "observation", "reward"),
    [((2.0, 0.25), 0.5, [2.75, 0.75], -7.5625), ((-9.5, -1.0), 0.0, [-10.0, 1.0], -100.0)],
    ids=["free", "wall"],
)
def test_ball_moves_by_its_new_velocity(state, push, observation, reward):
    env = toys.HitTheMiddle()
    env.reset(seed=0)
    env.position, env.velocity = state
    seen, paid, *_ = env.step(np.array([push], np.float32))
    assert (seen.tolist(), paid) == (observation, reward)


def test_ball_has_a_known_answer():
    rewards, terminated, truncated = episode(toys.HitTheMiddle(), lambda o: np.zeros(1), seed=0)
    assert (len(rewards), terminated, truncated) == (31, False, True)
    linear = mean_return(toys.HitTheMiddle(), lambda o: np.clip([-0.5 * o[0] - 0.8 * o[1]], -1, 1))
    assert -43 < linear < -36
    assert mean_return(toys.HitTheMiddle(), lambda o: np.zeros(1)) < -900


def test_pictures_show_cart_and_pole():
    env, known = toys.CartPolePixels(), gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    env.cart.state = np.array([1.0, 0.0, 0.0, 0.0])
    upright = env.observe()
    assert upright[10].nonzero()[0].tolist() == [28, 29]  # 20.5 + 8 a unit, and both pixels half a pixel beside it
    assert upright[:, 28].nonzero()[0].tolist() == [*range(5, 39)]  # 30 pixels above row 36, and the cart
    assert (upright[5, 28], upright[6, 28], upright[38, 25]) == (127, 255, 127)
    env.cart.state = np.array([1.0, 0.0, 0.2, 0.0])
    assert env.observe()[7].nonzero()[0].mean() == pytest.approx(28.5 + 29 * math.tan(0.2), abs=0.5)

    known.reset(seed=0)
    env.cart.state = known.state = np.array([0.0, 0.1, 0.1, -0.2])
    for action in (1, 0, 1, 1, 1):
        assert env.step(action)[1:4] == known.step(action)[1:4]
        np.testing.assert_array_equal(env.cart.state, known.state)


def test_pictures_have_a_known_answer():
    env = toys.CartPolePixels()
    falling = lambda _: int(env.cart.state @ [0.05, 0.1, 1.0, 0.5] > 0.0)  # noqa: E731
    assert [len(episode(env, falling, seed)[0]) for seed in range(2)] == [500, 500]
    assert episode(env, falling, 0)[1:] == (False, True)
    assert episode(env, lambda _: 1, 0)[1:] == (True, False)


def controller(env):
    """Return a policy that moves the nearer pair of the two by inverse kinematics."""

    def policy(_):
        distance, angle = np.hypot(*env.target), math.atan2(*env.target)
        bend = math.acos(2 * distance**2 - 1)  # of both links, whose length is a half
        pairs = np.array([[angle - bend / 2, bend], [angle + bend / 2, -bend]])
        ways = (pairs - env.angles + math.pi) % (2 * math.pi) - math.pi
        return np.clip(8 * ways[abs(ways).max(1).argmin()] - 7 * env.change, -1, 1)

    return policy


def test_reacher_has_a_known_answer():
    env = toys.Reacher()
    assert mean_return(env, controller(env), 200) == pytest.approx(-3.5, abs=0.2)
    generator = np.random.default_rng(0)
    assert mean_return(env, lambda _: generator.uniform(-1, 1, 2), 200) == pytest.approx(-41, abs=3)
    assert mean_return(env, lambda _: np.zeros(2), 200) == pytest.approx(-42, abs=3)


def test_reacher_moves_and_pays():
    env = toys.Reacher()
    env.reset(seed=0)
    env.angles, env.change, env.target = np.array([0.0, np.pi / 2]), np.array([0.0, 0.1]), np.array([0.0, 0.3])
    seen, paid, terminated, _, _ = env.step(np.array([2.0, 0.0], np.float32))
    first, second = 0.1, 0.1 + np.pi / 2 + 0.07  # a full push, and 0.7 of the change before
    end = 0.5 * np.array([np.sin(first) + np.sin(second), np.cos(first) + np.cos(second)])
    assert (paid, terminated) == (pytest.approx(-np.linalg.norm(end - env.target)), False)
    np.testing.assert_allclose(seen[:2], np.cos([0.1, np.pi / 2 + 0.07]), atol=1e-6)
    np.testing.assert_allclose(seen[4:], [0.1, 0.07, 0.0, 0.3], atol=1e-6)


def test_pictures_show_arm_and_target():
    env = toys.ReacherPixels()
    env.reset(seed=0)
    env.angles, env.target = np.array([0.0, np.pi / 2]), np.array([-0.5, 0.0])  # to the right, then down
    upper, lower, target = np.moveaxis(env.observe(), -1, 0)
    assert upper[20].nonzero()[0].tolist() == [*range(19, 32)]  # from 20.5 to 30, and 1.5 pixels beyond
    assert lower[:, 30].nonzero()[0].tolist() == [*range(19, 32)]
    assert np.argwhere(target).mean(0).tolist() == [11.0, 20.5]
    assert (upper.max(), lower.max(), target.max()) == (255, 255, 255)


def test_sprites_have_a_known_answer():
    env = toys.Sprites()
    env.action_space.seed(0)
    nearer = mean_return(env, lambda _: (env.centers[0] - env.centers[1]).clip(-1.0, 1.0), 100)
    assert nearer == pytest.approx(-2.0, abs=0.2)
    assert mean_return(env, lambda _: env.action_space.sample(), 100) == pytest.approx(-18.8, abs=1.5)
    rewards, terminated, truncated = episode(env, lambda _: np.ones(2, np.float32), seed=0)
    assert (len(rewards), terminated, truncated) == (50, False, True)
    assert env.centers[1].tolist() == [26.0, 26.0]


def test_sprites_move_as_they_are_drawn():
    env = toys.Sprites()
    env.reset(seed=0)
    env.centers, env.shapes, env.colors = np.array([[6.0, 6.0], [20.0, 10.0]]), np.array([1, 0]), np.array([1, 2])
    image, reward, *_ = env.step(np.array([-1.0, 0.5], np.float32))
    rows, columns = (image == sprites.PALETTE[2]).all(-1).nonzero()
    assert {*rows.tolist()} == {*range(14, 25)}  # the square around row 19
    assert {*columns.tolist()} == {*range(6, 16)}  # and column 10.5
    assert reward == pytest.approx(-math.hypot(13.0, 4.5) / math.hypot(21.0, 21.0))


def test_sprites_differ_in_both():
    draws = (sprites.placed(np.random.default_rng(seed)) for seed in range(50))
    assert not any(shapes[0] == shapes[1] or colors[0] == colors[1] or 0 in colors for _, shapes, colors in draws)


def test_shapes_have_their_pixels():
    apart, colors = np.array([[8.0, 8.0], [23.0, 23.0]]), np.array([1, 2])
    counts = [(sprites.drawn(apart, np.array([shape, 0]), colors)[1] == 1).sum() for shape in range(4)]
    assert dict(zip(sprites.SHAPES, counts, strict=True)) == {"square": 121, "disk": 81, "diamond": 85, "cross": 57}


def test_segments_are_what_pixels_show():
    image, segmentation = sprites.drawn(np.array([[12.0, 12.0], [16.0, 12.0]]), np.array([2, 0]), np.array([3, 5]))
    np.testing.assert_array_equal(image, sprites.PALETTE[np.array([0, 3, 5])][segmentation])
    assert (segmentation == 2).sum() == 11 * 11  # nothing is in front of the square
    assert segmentation[6].nonzero()[0].tolist() == [12]  # the diamond's corner: 0.8 * 6 < 5 pixels away
    assert segmentation[11, 12] == 2
    assert (segmentation == 1).sum() == 1 + 3 + 5 + 7 + 9 + 2  # rows 6 to 10, and two corners beside the square


def test_bandit_pays_the_mean():
    for arm, mean in enumerate((0.1, 0.5, 0.9)):
        assert episode(toys.Bandit(), lambda o, arm=arm: arm, seed=0) == ([mean], True, False)
    assert mean_return(toys.Bandit(means=[1.0, 2.0], noise=1.0), lambda o: 1, 1000) == pytest.approx(2.0, abs=0.1)


def test_chain_values_solve_bellman_equations():
    episode_end, cut = toys.Chain(3), toys.Chain(3, ending="truncated")
    assert [episode_end.value(state, 0.5) for state in range(3)] == [1.75, 1.5, 1.0]
    assert [cut.value(state, 0.5) for state in range(3)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_chain_ends_where_it_began(ending):
    env = toys.Chain(4, ending=ending)
    first = env.reset()[0]
    steps = [env.step(0) for _ in range(4)]
    assert [step[1] for step in steps] == [1.0] * 4
    assert [step[2:4] for step in steps[:3]] == [(False, False)] * 3
    assert steps[3][2:4] == (ending == "terminated", ending == "truncated")
    np.testing.assert_array_equal(steps[3][0], first)


QUIZZES = {  # the right answer, and the return of random ones
    "MixedAction": (lambda o: {"choice": int(o[0] > 0.5), "level": o}, 10 / 3),
    "DictObservation": (lambda o: int(o["level"][o["side"]] > 0), 5.0),
    "ImageObservation": (lambda o: int(o[:, 8:].mean() > o[:, :8].mean()), 5.0),
    "MultiDiscreteAction": (lambda o: np.floor(o * [2, 3, 4]).astype(int), 130 / 36),
    "TupleSpaces": (lambda o: (o[0], o[1].astype(np.float32)), 25 / 6),
    "DiscreteStart": (lambda o: o + 4, 2.5),
}


@pytest.mark.parametrize("name", QUIZZES)
def test_quiz_has_its_known_answer(name):
    env, (answer, random) = getattr(toys, name)(), QUIZZES[name]
    env.action_space.seed(0)
    assert mean_return(env, answer, 20) == pytest.approx(10.0)
    assert mean_return(env, lambda o: env.action_space.sample(), 400) == pytest.approx(random, abs=0.3)


def recalled(env, answer):
    """Return the mean return of an agent that remembers the sign of the first observation."""

    def policy(observation):
        if observation[0] != 0.0:
            policy.sign = observation[0]
        return answer(policy.sign, observation)

    return mean_return(env, policy, episodes=200)


@pytest.mark.parametrize("gap", [1, 5])
def test_recall_needs_memory(gap):
    env = toys.Recall(gap)
    rewards, terminated, truncated = episode(env, lambda observation: 1, seed=0)
    assert (len(rewards), terminated, truncated) == (gap + 1, True, False)
    assert not any(rewards[:-1])
    assert recalled(env, lambda sign, _: int(sign > 0)) == 1.0
    assert recalled(env, lambda sign, _: int(sign < 0)) == 0.0
    assert 0.4 < recalled(env, lambda sign, observation: int(observation[0] > 0)) < 0.6
    assert recalled(toys.Recall(gap, continuous=True), lambda sign, _: np.array([0.1 * sign], np.float32)) == 1.0


def test_maze_pays_side_of_the_sign():
    env = toys.TMaze(length=3)

    def turning(sign, observation):
        return (2 if sign > 0 else 1) if observation[2] else 0

    assert recalled(env, turning) == 1.0
    assert recalled(env, lambda sign, observation: 3 - turning(sign, observation) if observation[2] else 0) == 0.0
    assert 0.4 < recalled(env, lambda sign, observation: int(observation[2])) < 0.6
    rewards, terminated, _ = episode(env, lambda observation: int(observation[2]), seed=0)
    assert (len(rewards), terminated) == (4, True)


def test_maze_moves_forward_and_is_truncated():
    env = toys.TMaze(length=2)
    env.reset(seed=0)
    assert env.step(1)[0].tolist() == [0.0, 1.0, 0.0]  # turning in the corridor moves nothing
    assert env.step(0)[0].tolist() == [0.0, 1.0, 0.0]
    assert env.step(0)[0].tolist() == [0.0, 0.0, 1.0]
    assert env.step(0)[0].tolist() == [0.0, 0.0, 1.0]
    rewards, terminated, truncated = episode(env, lambda observation: 0, seed=0)
    assert (len(rewards), terminated, truncated) == (12, False, True)


@pytest.mark.parametrize("broken", [lambda: toys.Recall(gap=0), lambda: toys.TMaze(length=0)])
def test_memory_task_without_gap_is_refused(broken):
    with pytest.raises(ConfigError, match="must be at least 1, not 0"):
        broken()


def test_corridor_has_a_hidden_way():
    env = toys.Corridor(length=8)
    rewards, terminated, truncated = episode(env, lambda o: env.onward[o.argmax()], seed=0)
    assert (rewards, terminated, truncated) == ([0.0] * 7 + [1.0], True, False)
    assert set(env.onward.tolist()) == {0, 1}  # no single action leads on everywhere
    rewards, terminated, truncated = episode(env, lambda o: 1 - env.onward[o.argmax()], seed=0)
    assert (rewards, terminated, truncated) == ([0.0] * 16, False, True)
    cells = [env.reset(seed=0)[0].argmax()]
    for on in (0, 1, 1, 0, 1):
        cells.append(env.step(env.onward[cells[-1]] if on else 1 - env.onward[cells[-1]])[0].argmax())
    assert cells == [0, 0, 1, 2, 1, 2]


def corridor_success(length):
    """Return the share of episodes of `Corridor` that arrive by uniformly random actions."""
    moves = 0.5 * (np.eye(length + 1, k=1) + np.eye(length + 1, k=-1))
    moves[0, 0], moves[-1] = 0.5, np.eye(length + 1)[-1]
    return np.linalg.matrix_power(moves, 2 * length)[0, -1]


def test_random_corridor_success_is_rare():
    rng, env = np.random.default_rng(0), toys.Corridor(length=6)
    arrived = np.mean([episode(env, lambda o: rng.integers(2), seed=0)[1] for _ in range(3_000)])
    assert arrived == pytest.approx(corridor_success(6), abs=0.02)
    assert corridor_success(toys.Corridor().length) == pytest.approx(1 / 7_656, rel=1e-3)


def test_point_moves_within_walls():
    env = toys.PointMass()
    start = env.reset(seed=0)[0]
    assert np.abs(start).max() <= 0.05
    assert np.allclose(env.step(np.array([1.0, -0.5]))[0], start + np.array([0.1, -0.05]))
    for _ in range(28):
        position, reward, _, truncated, _ = env.step(np.array([1.0, -2.0]))
        assert (reward, truncated) == (0.0, False)
    assert position.tolist() == [1.0, -1.0]
    assert env.step(np.zeros(2))[2:4] == (False, True)


def test_road_pays_metres_towards_the_goal():
    env = toys.Road()
    observation, _ = env.reset(seed=0)
    distance = np.linalg.norm(observation["goal"])
    assert distance == pytest.approx(64.0 * 2**0.5)  # a quarter of a circle
    seen, reward, *_ = env.step(np.array([1.0, 0.0, 0.0]))  # 5 m straight ahead
    np.testing.assert_allclose(seen["goal"], observation["goal"] - [5.0, 0.0], atol=1e-4)
    assert reward == pytest.approx(distance - np.linalg.norm(seen["goal"]), abs=1e-4)
    back, *_ = env.step(np.array([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(back["goal"], observation["goal"], atol=1e-4)
    turned, *_ = env.step(np.array([0.0, 0.1, 0.0]))  # a tenth of half a turn to the left
    was, now = (np.arctan2(*part["goal"][::-1]) for part in (back, turned))
    assert was - now == pytest.approx(0.1 * np.pi, abs=1e-5)


def test_thrusters_add_their_forces():
    env = toys.Thrusters()
    start = env.reset(seed=0)[0].astype(np.float64)
    seen, reward, *_ = env.step(np.array([0.5, -1.0, 0.0, 2.0], np.float32))  # clipped to 1
    force = np.array([0.5 - 2 * 0.5**0.5, 0.0])  # 45 degrees backwards and 135 degrees cancel upwards
    position = start[:2] + 0.02 * force
    np.testing.assert_allclose(seen, [*position, *(0.02 * force)], atol=1e-6)
    assert reward == pytest.approx(-(position @ position) - 0.3 * 2.25, abs=1e-6)
    np.testing.assert_allclose(env.step(np.zeros(4))[0][2:], 0.9 * 0.02 * force, atol=1e-6)


def regulator(steps):
    """Return gains of the best linear policy, and its mean return without bounds, by the Riccati recursion."""
    motion, push, cost = np.array([[1.0, 0.9], [0.0, 0.9]]), np.full((2, 1), 0.02), np.zeros((2, 2))
    for _ in range(steps):
        after = cost + np.diag([1.0, 0.0])
        gains = np.linalg.solve(0.15 + push.T @ after @ push, push.T @ after @ motion)  # 0.3 |u|² = 0.15 f²
        closed = motion - push @ gains
        cost = closed.T @ after @ closed + 0.15 * gains.T @ gains
    return gains[0], -2.0 / 3.0 * cost[0, 0]  # two axes, each uniform in [-1, 1]


def test_thrusters_have_a_known_answer():
    gains, bound = regulator(toys.Thrusters.steps)
    assert gains == pytest.approx([Thrust.stiffness, Thrust.damping], abs=5e-3)
    assert bound == pytest.approx(-3.60, abs=5e-3)
    variance, random = np.diag([1.0 / 3.0, 0.0]), 0.0  # of position and velocity along an axis
    for _ in range(toys.Thrusters.steps):
        motion = np.array([[1.0, 0.9], [0.0, 0.9]])
        variance = motion @ variance @ motion.T + 2.0 / 3.0 * 0.02**2
        random -= 2.0 * variance[0, 0] + 0.3 * 4.0 / 3.0
    assert random == pytest.approx(-92.3, abs=0.05)
    env = make(target="rlrun.env.toys.Thrusters", num_envs=16)
    demonstrated = evaluate(env, PolicyAgent(Thrust()), episodes=400, seed=0).mean_return
    assert -4.0 < demonstrated <= bound + 0.3  # the standard error is 0.12
    assert evaluate(env, RandomAgent(env.spaces.action, seed=0), episodes=400, seed=0).mean_return < -80


def test_cartpole_by_a_force_moves_as_gymnasiums_at_full_force():
    ours, theirs = toys.CartPoleContinuous(), gymnasium.make("CartPole-v1").unwrapped
    ours.reset(seed=0)
    theirs.reset(seed=0)
    theirs.state = tuple(ours.state)
    for number in range(40):
        push = int(number % 3 > 0)
        seen, reward, terminated, _, _ = ours.step(np.array([2.0 * push - 1.0], np.float32))
        wanted, _, ended, _, _ = theirs.step(push)
        np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-6)
        assert (terminated, reward) == (ended, 0.0 if ended else 1.0)
        if ended:
            break
    assert ended


def test_cartpole_by_a_force_can_be_held_to_the_end():
    env, total, over = toys.CartPoleContinuous(), 0.0, False
    seen, _ = env.reset(seed=3)
    while not over:
        seen, reward, terminated, truncated, _ = env.step(np.sign(seen[2:3] + seen[3:4]))
        total, over = total + reward, terminated or truncated
    assert total == 200.0
