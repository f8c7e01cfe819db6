"""How far numbers of a file may be off: by the tolerance, or as far as slightly changed inputs move them."""

from contextlib import nullcontext

import numpy as np
import pytest

from rlrun.core.errors import RlrunError
from rlrun.export.checking import differing

WANTED = np.array([[1000.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("place", "off", "moved", "refused"),
    [
        ((1, 1), 0.1, None, True),
        ((1, 1), 0.1, (1, 1), False),
        ((1, 1), 0.1, (1, 2), True),  # another number moves
        ((1, 1), 0.1, (0, 1), True),  # another row moves
        ((1, 1), 0.005, None, True),
        ((0, 1), 0.005, None, False),  # next to a thousand
        ((0, 1), 0.02, None, True),
        ((0, 0), 0.005, None, False),
        ((0, 0), 0.02, None, True),
    ],
)
def test_numbers_differ_as_they_round(place, off, moved, refused):
    outputs, changed = WANTED.copy(), WANTED.copy()
    outputs[place] += off
    if moved is not None:
        changed[moved] = 0.2
    inputs = {"observation": np.zeros((2, 1), np.float32)}

    def policy(inputs):
        return {"action": changed if inputs["observation"].any() else WANTED}

    if refused:
        with pytest.raises(RlrunError, match="'action' is off by"):
            differing({"action": outputs}, inputs, policy, lenient=True)
    else:
        assert differing({"action": outputs}, inputs, policy, lenient=True) <= 1.001 * off


def test_numbers_are_exact_on_recorded_observations():
    outputs = WANTED.copy()
    outputs[0, 1] = 0.005
    with pytest.raises(RlrunError, match=r"off by 5\.0e-03 \(1e-05 is allowed\) in 1 of 2 rows"):
        differing({"action": outputs}, {"observation": np.zeros((2, 1), np.float32)}, lambda inputs: {"action": WANTED})


@pytest.mark.parametrize(("position", "off", "accepted"), [(0.0, 1.0, True), (0.0, 1.1, False), (2.0e-5, 1.0, False)])
def test_numbers_may_differ_where_they_jump(position, off, accepted):
    def policy(inputs):
        return {"action": (inputs["observation"] > 5.0e-7).astype(np.float32)}

    inputs = {"observation": np.array([[position]], np.float32)}
    with nullcontext() if accepted else pytest.raises(RlrunError, match="'action' is off by"):
        assert differing({"action": np.abs(policy(inputs)["action"] - np.float32(off))}, inputs, policy) == 0.0


@pytest.mark.parametrize(("off", "accepted"), [(1.000005, True), (1.1, False)])
def test_numbers_of_large_inputs_may_jump_and_round(off, accepted):
    def policy(inputs):
        return {"action": (inputs["observation"] > 5.0e-7).astype(np.float32)}

    inputs = {"observation": np.zeros((1, 1), np.float32)}
    with nullcontext() if accepted else pytest.raises(RlrunError, match="'action' is off by"):
        differing({"action": np.full((1, 1), off, np.float32)}, inputs, policy, lenient=True)


@pytest.mark.parametrize(("position", "accepted"), [(0.0, True), (2.0e-6, False), (0.5, False)])
def test_a_choice_may_differ_in_ties(position, accepted):
    def policy(inputs):
        return {"action": (inputs["observation"][:, 0] > 5.0e-7).astype(np.int64)}

    inputs = {"observation": np.array([[position]], np.float32)}
    with nullcontext() if accepted else pytest.raises(RlrunError, match="'action' is another in 1 of 1 rows"):
        assert differing({"action": 1 - policy(inputs)["action"]}, inputs, policy) == 0.0
