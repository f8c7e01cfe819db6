"""What a fork takes of another run's memory: its rows and priorities, not its random numbers and counters."""

from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.schedules import Linear
from rlrun.memory import Prioritized, Shuffled, Table

from .tables import COLUMNS, EJECTORS, SAMPLERS, fill

KINDS = {**SAMPLERS, "shuffled": lambda seed: Shuffled(seed=seed)}


def drawn(table: Table) -> list[Any]:
    return [table.sample(8, 2)["reward"].tolist() for _ in range(3)]


def fork(table: Table, parent: Table) -> Table:
    table.load_state_dict(table.forked(parent.state_dict()))
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_samples_follow_from_the_seed_of_the_fork(kind):
    def table(seed: int, size: int = 200) -> Table:
        return Table(length=size, columns=COLUMNS, sampler=KINDS[kind](seed))

    parent = fill(table(1), [7, 9, 12, 5, 30])
    drawn(parent)
    first, same, other = (drawn(fork(table(seed), parent)) for seed in (2, 2, 4))
    assert first == same
    assert (first != other) is ("in order" not in kind)
    assert fork(table(1), parent).sampler.generator.bit_generator.state == (
        table(1).sampler.generator.bit_generator.state
    )


@pytest.mark.parametrize(
    ("kind", "parent", "taken"),
    [
        ("recent", "recent", True),
        ("recent and prioritized", "recent", False),
        ("prioritized", "uniform", False),
        ("stratified", "uniform", True),
        ("shuffled", "uniform", True),
    ],
)
def test_a_sampler_takes_a_state_with_all_that_it_needs(kind, parent, taken):
    here, there = (Table(length=9, columns=COLUMNS, sampler=KINDS[name](0)).sampler for name in (kind, parent))
    assert here.takes(there.state_dict()) is taken


@pytest.mark.parametrize("kind", ["uniform", "coverage"])
def test_ejections_follow_from_the_seed_of_the_fork(kind):
    def table(seed: int) -> Table:
        return Table(length=40, columns=COLUMNS, sampler=SAMPLERS["uniform"](0), ejector=EJECTORS[kind](seed))

    parent = fill(table(1), [5] * 12)
    assert parent.ejector.generator.bit_generator.state != table(1).ejector.generator.bit_generator.state
    for seed in (1, 2):
        ejector = fork(table(seed), parent).ejector
        assert ejector.generator.bit_generator.state == table(seed).ejector.generator.bit_generator.state


def prioritized(alpha: Any) -> Table:
    """Return a table whose rows have priorities up to 11."""
    table = fill(Table(length=50, columns=COLUMNS, sampler=Prioritized(alpha=alpha)), [12])
    for _ in range(20):
        batch = table.sample(6)
        batch.feedback(1.0 + batch["reward"].double())
    return table


@pytest.mark.parametrize(("before", "after"), [(0.6, 0.6), (0.6, 0.9), (0.6, 0.0), (0.5, Linear(0.25, 1.0, 100))])
def test_priorities_have_the_power_of_the_fork(before, after):
    parent = prioritized(alpha=before)
    here = fork(Table(length=50, columns=COLUMNS, sampler=Prioritized(alpha=after)), parent).sampler
    power = here.alpha(0)
    priorities = parent.sampler.tree.leaves ** (1.0 / before)
    assert priorities.max() > 5.0
    assert here.tree.leaves == pytest.approx(np.where(priorities > 0.0, priorities**power, 0.0))
    assert here.largest == pytest.approx(parent.sampler.highest**power)
    assert (here.picks, parent.sampler.picks) == (0, 20)


def test_no_priority_is_above_the_highest_after_a_schedule():
    parent = prioritized(alpha=Linear(1.0, 0.001, 20))
    here = fork(Table(length=50, columns=COLUMNS, sampler=Prioritized(alpha=1.0)), parent).sampler
    assert here.tree.leaves.max() == here.largest == parent.sampler.highest


def test_powers_of_zero_tell_no_priority():
    parent = prioritized(alpha=0.0)
    here = fork(Table(length=50, columns=COLUMNS, sampler=Prioritized(alpha=0.5)), parent).sampler
    there = parent.sampler
    assert here.tree.leaves == pytest.approx(np.where(there.tree.leaves > 0.0, there.highest**0.5, 0.0))


def test_rows_of_a_burst_are_drawn_again_and_its_priorities_are_kept():
    parent = fill(Table(length=50, columns=COLUMNS, sampler=Prioritized(feedback="burst", alpha=1.0)), [12])
    parent.draw_ahead(3, 4)
    batch = parent.sample(4)
    batch.feedback(torch.full((4,), 7.0))
    for feedback in ("burst", "update"):
        sampler = Prioritized(feedback=feedback, alpha=1.0, seed=5)
        here = fork(Table(length=50, columns=COLUMNS, sampler=sampler), parent)
        here.sample(4)
        assert sampler.highest == pytest.approx(7.0)
        assert sampler.picks == 1
