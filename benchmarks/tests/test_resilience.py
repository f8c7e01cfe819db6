"""Runs that are killed are compared, and shown on the page."""

import re

from benchmarks import resilience
from tests.resume.kills import CELLS
from tests.resume.test_exact import REPLAY, SHORT


def test_a_cell_is_killed_compared_and_shown(monkeypatch, page_of):
    monkeypatch.setitem(resilience.CELLS, "tiny", (*CELLS["dqn-cartpole-1-sync"], *SHORT, *REPLAY))
    cells = resilience.measure(["tiny"], kills=1, workers=1)
    cell = cells["tiny"]
    assert (cell["kills"], cell["resumes"], cell["damaged"], cell["left_behind"]) == (1, 1, [], 0)
    assert set(cell["identical"].values()) == {True}
    assert (cell["resume"], cell["passed"]) == ("exact", True)
    text = page_of("resilience", {**cells, "broken": {**cell, "kills": 0, "passed": False}})
    assert re.search(r"\| tiny \| 1 of 1 \| [01] \| 1 \| 0 \| 0 \| 0 \| identical \|", text)
    assert "| broken | 0 of 1 |" in text
