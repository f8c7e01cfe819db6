import pytest

from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Constant, CosineAnnealing, Cyclic, Exponential, Linear, Staircase, Step, as_schedule


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Linear(0.0, 1.0, steps=4), [0, 0.25, 0.5, 0.75, 1, 1]),
        (Linear(2.0, 1.0, steps=2, begin=3), [2, 2, 2, 2, 1.5, 1, 1]),
        (Linear(0.0, 1.0, steps=0, begin=2), [0, 0, 1, 1]),
        (Linear(2.0, 1.0, steps=4, hold=0.5), [2, 2, 2, 1.5, 1, 1]),
        (Linear(1.0, 0.0, steps=None), [1, 1, 1]),
        (Staircase(0.0, 1.0, steps=4, every=2), [0, 0, 0.5, 0.5, 1, 1]),
        (Exponential(1.0, 0.01, steps=2), [1, 0.1, 0.01, 0.01]),
        (Cyclic(0.0, 1.0, half_period=2), [0, 0.5, 1, 0.5, 0, 0.5, 1]),
        (Cyclic(0.0, 1.0, half_period=2, shrink=0.5), [0, 0.5, 1, 0.5, 0, 0.25, 0.5, 0.25, 0, 0.125, 0.25]),
        (CosineAnnealing(1.0, 0.0, steps=4), [1, 0.854, 0.5, 0.146, 0, 0.146]),
        (CosineAnnealing(1.0, 0.0, steps=4, restart=True), [1, 0.854, 0.5, 0.146, 1, 0.854]),
        (Step(values=[3.0, 2.0, 1.0], at=[2, 4]), [3, 3, 2, 2, 1, 1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_schedule_has_these_values(schedule, values):
    assert [round(schedule(step), 3) for step in range(len(values))] == values


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: Exponential(1.0, 0.0, steps=2), "same sign"), (lambda: Step(values=[1.0], at=[2]), "one value more")],
)
def test_impossible_schedule_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_numbers_become_constants():
    assert as_schedule(3) == Constant(3.0)
    assert as_schedule(3)(10**9) == 3.0
    schedule = Linear(0.0, 1.0, steps=4)
    assert as_schedule(schedule) is schedule
