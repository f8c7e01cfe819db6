import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as theirs

from rlrun.core.errors import SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces, leaves, leaves_of
from rlrun.env.recorded import StepBlock
from rlrun.env.spaces import action_writer, batch_reader, empty, from_gymnasium, row_splitter, row_writer

NESTED = theirs.Dict(
    {
        "pair": theirs.Tuple((theirs.Discrete(3, start=2), theirs.Box(0.0, 4.0, (2,), np.float64))),
        "bits": theirs.MultiBinary(2),
    }
)


@pytest.mark.parametrize(
    ("space", "action", "dtype"),
    [
        (theirs.Box(-1.0, 2.0, (3,), np.float64), False, "float32"),
        (theirs.Box(0, 255, (16, 16, 1), np.uint8), False, "uint8"),
        (theirs.Box(0, 1, (2,), np.int32), False, "int32"),
        (theirs.Box(0, 1, (2,), np.uint16), False, "int32"),
        (theirs.Box(0, 1, (2,), np.bool_), False, "bool"),
        (theirs.Box(0, 9, (2,), np.int32), True, "float32"),
    ],
)
def test_box_has_a_dtype_of_torch(space, action, dtype):
    box = from_gymnasium(space, "x", action=action)
    assert isinstance(box, Box)
    assert (box.dtype, box.shape, box.high.dtype, box.image) == (dtype, space.shape, dtype, len(space.shape) == 3)


def test_choices_keep_shape_and_start():
    assert from_gymnasium(theirs.Discrete(4, start=-1), "x") == Discrete(4, start=-1)
    space = from_gymnasium(theirs.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]])), "x")
    assert isinstance(space, MultiDiscrete)
    assert (space.choices, space.start.tolist()) == ((2, 3, 4, 5), [[0, 1], [2, 3]])
    bits = from_gymnasium(theirs.MultiBinary(3), "x")
    assert isinstance(bits, MultiDiscrete)
    assert (bits.choices, bits.dtype) == ((2, 2, 2), "int8")


def test_nested_parts_are_named():
    space = from_gymnasium(NESTED, "x")
    assert isinstance(space, Composite)
    assert {path for path, _ in leaves(space)} == {"pair.0", "pair.1", "bits"}


class MissionSpace(theirs.Text):
    """As MiniGrid calls it."""


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("inner", theirs.Text(3), r"^env 'e'\.inner is Text; wanted Box"),
        ("inner", theirs.Sequence(theirs.Discrete(2)), r"^env 'e'\.inner is Sequence; wanted Box"),
        ("inner", theirs.Tuple(()), r"^env 'e'\.inner is Tuple; wanted Box"),
        ("mission", MissionSpace(5), r"mission is MissionSpace; .*as env=minigrid has it, .*FilterObservation"),
        ("arm.pos", theirs.Discrete(2), r"^env 'e' has a part 'arm.pos'"),
    ],
)
def test_unusable_space_is_named(name, space, message):
    with pytest.raises(SpaceError, match=message):
        from_gymnasium(theirs.Dict({name: space}), "env 'e'")


def test_largest_double_is_no_bound(recwarn):
    space = from_gymnasium(theirs.Box(-np.finfo(np.float64).max, np.finfo(np.float64).max, (1,), np.float64), "x")
    assert isinstance(space, Box)
    assert not space.bounded
    assert not recwarn.list


def test_row_and_batch_readers_agree():
    envs = [{"pair": (np.int64(3 + i), np.array([i, 0.5])), "bits": np.array([i, 1], np.int8)} for i in range(2)]
    buffer, write = empty(from_gymnasium(NESTED, "x"), 2), row_writer(NESTED)
    for env_index, value in enumerate(envs):
        write(buffer, env_index, value)
    batch = gymnasium.vector.utils.concatenate(NESTED, envs, gymnasium.vector.utils.create_empty_array(NESTED, 2))
    tree = batch_reader(NESTED)(batch)
    for observations in (buffer, tree):
        assert observations["pair"]["0"].tolist() == [1, 2]  # zero-based: 3 - 2, 4 - 2
        assert observations["pair"]["1"].dtype == np.float32
        assert observations["bits"].tolist() == [[0, 1], [1, 1]]


def test_batch_reader_copies():
    batch = np.zeros((2, 3), np.float32)
    assert not np.shares_memory(batch_reader(theirs.Box(-1, 1, (3,)))(batch), batch)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_box_action_is_scaled_and_bounded(dtype):
    write = action_writer(theirs.Box(np.array([-2, 0.1], dtype), np.array([2, 0.7], dtype), dtype=dtype), 3)
    actions = write(np.array([[-1, -1], [0.5, 0], [3, 3]], np.float32))
    np.testing.assert_allclose(actions, [[-2, 0.1], [1, 0.4], [2, 0.7]], rtol=max(1e-6, np.finfo(dtype).eps))
    assert actions.dtype == dtype


def test_scaled_actions_never_leave_the_space():
    space = theirs.Box(np.float32([-0.3, 0.1, 1e-3]), np.float32([0.7, 0.7, 1.7]))
    write = action_writer(space, 2)
    assert all(space.contains(action) for action in write(np.array([[1.0] * 3, [-1.0] * 3], np.float32)))


@pytest.mark.parametrize(
    ("space", "action", "written"),
    [
        (theirs.Box(-np.inf, np.inf, (1,)), np.float32([[7.5]]), [[7.5]]),
        (theirs.Box(-3.4e38, 3.4e38, (1,), np.float32), np.zeros((1, 1), np.float32), [[0.0]]),  # no overflow
        (theirs.Box(0, 10, (1,), np.int32), np.array([[0.1], [1.0]]), [[6], [10]]),  # rounded
        (theirs.Box(0, 1, (1,), bool), np.array([[-0.1], [0.1]]), [[False], [True]]),
        (theirs.Discrete(3, start=5), np.array([2]), [7]),
    ],
)
def test_actions_are_written_for_their_space(space, action, written):
    assert action_writer(space, len(action))(action).tolist() == written
    assert action_writer(theirs.Discrete(3), 1) is None  # nothing to convert


def test_nested_actions_are_split_by_env():
    tree = {"pair": {"0": np.array([0, 2]), "1": np.zeros((2, 2), np.float32)}, "bits": np.array([[0, 1], [1, 1]])}
    batch = action_writer(NESTED, 2)(tree)
    actions = list(row_splitter(NESTED)(batch))
    assert all(NESTED.contains(action) for action in actions)
    assert [int(action["pair"][0]) for action in actions] == [2, 4]
    assert actions[0]["pair"][1].tolist() == [2.0, 2.0]  # the middle of [0, 4]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    "space",
    [theirs.Box(-1.0, 1.0, (17,)), theirs.Box(0, 255, (5, 3, 1), np.uint8), theirs.Discrete(3), NESTED],
    ids=["box", "image", "choice", "nested"],
)
def test_every_step_lies_where_an_array_of_its_own_could(space, num_envs):
    """So that a policy rounds alike, whether it acts on a step or on a resumed observation."""
    observation = from_gymnasium(space, "x")
    block = StepBlock(Spaces(observation, Discrete(2)), num_envs)
    for _ in range(5):
        step = block.advance()
        for leaf, own in zip(
            leaves_of(observation, step.observation), leaves_of(observation, empty(observation, num_envs)), strict=True
        ):
            assert leaf.ctypes.data % 16 == 0
            assert (leaf.shape, leaf.dtype, leaf.flags.c_contiguous) == (own.shape, own.dtype, True)


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (theirs.Box(-1, 1, (0,)), True, r"has shape \[0\]: an action of no numbers"),
        (theirs.Dict(a=theirs.Box(-1, 1, (2, 0))), True, r"place.a has shape \[2, 0\]"),
        (theirs.Dict({"": theirs.Discrete(2)}), False, "a part whose name is empty"),
        (theirs.Dict({"": theirs.Discrete(2)}), True, "a part whose name is empty"),
    ],
)
def test_spaces_that_nothing_is_learned_from_are_refused(space, action, message):
    with pytest.raises(SpaceError, match=message):
        from_gymnasium(space, "place", action=action)
