"""How far numbers of a file may be off: by the tolerance, or as far as slightly changed inputs move them."""

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
    wanted, outputs, changed = ({"action": part} for part in (WANTED, outputs, changed))
    if refused:
        with pytest.raises(RlrunError, match="'action' is off by"):
            differing(outputs, wanted, [wanted, changed])
    else:
        assert differing(outputs, wanted, [wanted, changed]) <= 1.001 * off


def test_numbers_are_exact_without_changed_inputs():
    outputs = WANTED.copy()
    outputs[0, 1] = 0.005
    with pytest.raises(RlrunError, match=r"off by 5\.0e-03"):
        differing({"action": outputs}, {"action": WANTED})
