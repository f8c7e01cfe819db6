from __future__ import annotations

import pytest

from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Constant, CosineAnnealing, Cyclic, Exponential, Linear, Staircase, Step, as_schedule


def first(schedule, count):
    return [round(schedule(step), 3) for step in range(count)]


def test_linear_stays_at_its_last_value():
    assert first(Linear(0.0, 1.0, steps=4), 6) == [0, 0.25, 0.5, 0.75, 1, 1]


def test_linear_waits_for_its_begin():
    assert first(Linear(2.0, 1.0, steps=2, begin=3), 7) == [2, 2, 2, 2, 1.5, 1, 1]


def test_linear_without_width_is_at_its_end():
    assert first(Linear(0.0, 1.0, steps=0, begin=2), 4) == [0, 0, 1, 1]


def test_linear_holds_its_first_value_for_a_share_of_its_steps():
    assert first(Linear(2.0, 1.0, steps=4, hold=0.5), 6) == [2, 2, 2, 1.5, 1, 1]


def test_linear_without_an_end_stays_at_its_first_value():
    assert first(Linear(1.0, 0.0, steps=None), 3) == [1, 1, 1]


def test_staircase_holds_the_line():
    assert first(Staircase(0.0, 1.0, steps=4, every=2), 6) == [0, 0, 0.5, 0.5, 1, 1]


def test_exponential_shrinks_by_equal_factors():
    assert first(Exponential(1.0, 0.01, steps=2), 4) == [1, 0.1, 0.01, 0.01]


def test_exponential_refuses_a_zero_end():
    with pytest.raises(ConfigError, match="same sign"):
        Exponential(1.0, 0.0, steps=2)


def test_triangle_goes_up_and_down():
    assert first(Cyclic(0.0, 1.0, half_period=2), 7) == [0, 0.5, 1, 0.5, 0, 0.5, 1]


def test_shrinking_triangle_halves_each_peak():
    schedule = Cyclic(0.0, 1.0, half_period=2, shrink=0.5)
    assert [schedule(step) for step in (2, 6, 10)] == [1.0, 0.5, 0.25]


def test_cosine_bounces_back():
    assert first(CosineAnnealing(1.0, 0.0, steps=4), 6) == [1, 0.854, 0.5, 0.146, 0, 0.146]


def test_restarting_cosine_never_reaches_its_end():
    assert first(CosineAnnealing(1.0, 0.0, steps=4, restart=True), 6) == [1, 0.854, 0.5, 0.146, 1, 0.854]


def test_steps_change_at_their_boundaries():
    assert first(Step(values=[3.0, 2.0, 1.0], at=[2, 4]), 6) == [3, 3, 2, 2, 1, 1]


def test_steps_need_one_value_more():
    with pytest.raises(ConfigError, match="one value more"):
        Step(values=[1.0], at=[2])


def test_a_number_becomes_a_constant():
    assert as_schedule(3) == Constant(3.0)
    assert as_schedule(3)(10**9) == 3.0


def test_a_schedule_stays_itself():
    schedule = Linear(0.0, 1.0, steps=4)
    assert as_schedule(schedule) is schedule
