"""Costs of the framework; the least of several attempts, since other load can only add.

Ratios hold on every machine: this process measures both sides, one after the other. The bars are looser than those of
`python -m benchmarks`, because the windows are short: they find a new cost, not a percent.
"""

import time

import pytest
from benchmarks import dispatch, side
from tests.pace import within

pytestmark = pytest.mark.speed

TRIES, SLACK = 8, 0.05
SMALL = ("algorithm.hidden=[64,64]", "algorithm.batch_size=64", "algorithm.warmup_steps=100")  # overhead is most of it
CASES = {  # overrides, environment steps of the window
    "sac-pendulum": (SMALL, 150, 300),
    "dqn-cartpole": (SMALL, 150, 550),
    "ppo-cartpole": ((), 512, 2_560),
}


def ratio(plain, ours, enough):
    """Return how many times as fast ours is, by the least that each took so far, once it is enough or tries are over.

    plain, ours: return the time that they took.
    """
    least = [float("inf")] * 2
    for _ in range(TRIES):
        least = [min(best, measure()) for best, measure in zip(least, (plain, ours), strict=True)]
        if least[0] / least[1] >= enough:
            break
    return least[0] / least[1]


def test_dispatch_of_nine_empty_callbacks_takes_ten_microseconds():
    assert (dispatch.CALLBACKS, dispatch.BAR) == (9, 10.0)
    assert within(dispatch.microseconds, dispatch.BAR)


def test_dispatch_is_no_dearer_than_calls_that_look_their_data_up():
    updates = 1_000

    def plain():
        parts, batch = [dispatch.Empty() for _ in range(dispatch.CALLBACKS)], dict.fromkeys(dispatch.NAMES)
        hooks = {"begin_batch": ("next_observation", "reward"), "backward": ("observation", "action"), "end_batch": ()}
        calls = [(getattr(part, hook), names) for hook, names in hooks.items() for part in parts]
        start = time.process_time()
        for _ in range(updates):
            for call, names in calls:
                call(**{name: batch[name] for name in names})
        return (time.process_time() - start) / updates * 1e6

    assert ratio(plain, lambda: dispatch.microseconds(updates=updates), 1.0) >= 1.0


@pytest.mark.parametrize("name", CASES)
def test_a_run_keeps_pace_with_its_bare_loop(name):
    overrides, first, last = CASES[name]
    case = side.CASES[name]._replace(overrides=(*side.CASES[name].overrides, *overrides))

    def taken(measure):
        return lambda: measure(case, first=first, last=last)["processor_seconds"]

    enough = case.bar - SLACK
    assert ratio(taken(side.measure_bare), taken(side.measure_rlrun), enough) >= enough
