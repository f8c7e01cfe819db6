"""Where rewards are rare, priorities save updates."""

import numpy as np
import pytest
from benchmarks import priority_chain as chain


def test_memory_of_the_chain_holds_all_sequences_of_actions():
    table = chain.fill(3, chain.SAMPLERS["uniform"](0), seed=0)
    row, index = table.storage.arrays, np.flatnonzero(table.index.complete[: table.index.size])
    transitions = sorted(zip(*(row[name][index].tolist() for name in ("observation", "action", "reward")), strict=True))
    wrong = [(0, 1, 0.0)] * 4 + [(1, 0, 0.0)] * 2 + [(2, 1, 0.0)]
    assert transitions == sorted(wrong + [(0, 0, 0.0)] * 4 + [(1, 1, 0.0)] * 2 + [(2, 0, 1.0)])


@pytest.mark.parametrize("seed", range(5))
def test_priorities_need_at_most_half_of_the_updates(seed):
    needed = {name: chain.updates_needed(7, make(seed), seed) for name, make in chain.SAMPLERS.items()}
    assert needed["prioritized"] <= 0.5 * needed["uniform"]
