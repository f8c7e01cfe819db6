"""How far numbers of a file may be off: by the tolerance, or as far as slightly changed inputs move their row."""

import numpy as np
import pytest

from rlrun.core.errors import RlrunError
from rlrun.export.checking import differing

WANTED = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("off", "moved", "refused"),
    [
        ((0, 1), None, True),
        ((0, 1), (0, 1), False),
        ((0, 1), (0, 2), False),
        ((0, 1), (1, 1), True),  # another row moves
    ],
)
@pytest.mark.parametrize("single", [False, True], ids=["numbers", "number"])
def test_rows_differ_as_they_move(off, moved, refused, single):
    outputs, changed = WANTED.copy(), WANTED.copy()
    outputs[off] = 0.1
    if moved is not None:
        changed[moved] = 0.2
    wanted, outputs, changed = ({"action": part.max(1) if single else part} for part in (WANTED, outputs, changed))
    if refused:
        with pytest.raises(RlrunError, match=r"'action' is off by 1\.0e-01"):
            differing(outputs, wanted, [wanted, changed])
    else:
        assert differing(outputs, wanted, [wanted, changed]) == pytest.approx(0.1)
