"""Rules about the inputs of a run: its task, rewards and memory, and the times of its updates.

`RULES` has all rules, and causes come before their symptoms: the first rule that fires is the most likely cause.
"""

import math
import shlex
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from rlrun.analysis.why.facts import Facts, Setting, Unknown, median_of_newer_half

WARM_UP = 0.9  # of the budget
SETTLED, PATIENCE = 1_000, 20_000  # updates before a target network is judged; before a slow one is, in a running run
ENDLESS = 5_000  # steps of an env without an end, where no time limit is known
BATCHES = 4  # that a memory must hold at least
LARGE, SMALL = 1e4, 1e-3  # sums of discounted rewards
MOST_DIGITS = 300  # of a factor: floats have at most 308
LONGEST_TASK = 25  # steps; shorter tasks may well have a fixed length of their own
EPISODES, SAME = 5, 20  # episodes that are enough to judge by; too many to be equal by chance

Cause = tuple[str, Mapping[str, float], str]  # reason, evidence and remedy of a `Finding`
Check = Callable[[Facts], Cause | None]  # may raise `Unknown` or `NotApplicable`


class NotApplicable(Exception):
    """A check does not apply to runs of this kind."""


class Rule(NamedTuple):
    """A named check, the condition at which it fires, and the remedy."""

    name: str
    fires: str
    helps: str
    check: Check
    of_env: bool = False  # it means nothing without an environment
    reads: str | None = None  # a metric without which it does not apply


RULES: list[Rule] = []


def rule(name: str, fires: str, helps: str, **options: Any) -> Callable[[Check], Check]:
    """Append the decorated check to `RULES`."""

    def append(check: Check) -> Check:
        RULES.append(Rule(name, fires, helps, check, **options))
        return check

    return append


def shown(value: float) -> str:
    """Return a number with three significant digits and separated thousands."""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"


def override(key: str, value: float | None) -> str:
    """Return an override that sets a number, or null, in a form that YAML reads as such; an odd key is quoted."""
    text = "null" if value is None else f"{value:.2g}"
    if value is not None and value == int(value) and 1 <= abs(value) < 1e12:
        text = f"{int(value):_}"
    mantissa, _, exponent = text.partition("e")
    if exponent:
        text = f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(exponent)}"
    return shlex.quote(f"{key}={text}")


@rule("failed run", "the run failed", "what log.txt says")
def failed(facts: Facts) -> Cause | None:
    if facts.status != "failed":
        return None
    reason = f"it ended at step {shown(facts.env_steps)}: {facts.failure or 'log.txt does not say why'}"
    return reason, {"env_steps": facts.env_steps}, "see the traceback in log.txt, then: rlrun resume RUN"


@rule(
    "warm-up longer than the run",
    f"no update was made, or the warm-up takes {WARM_UP:.0%} of the budget",
    "`algorithm.warmup_steps=…`",
)
def no_update(facts: Facts) -> Cause | None:
    warm_up = facts.figure("loader.warm_up")
    if warm_up is None:
        raise NotApplicable
    budget = facts.number("stop.env_steps")
    if not facts.env_steps:
        raise Unknown("any record")
    too_long = budget is not None and warm_up.value >= WARM_UP * budget
    if not too_long and not (facts.status == "completed" and facts.updates == 0):  # others may have stopped during it
        return None
    end = budget if budget is not None else facts.env_steps
    evidence = {"warm_up": warm_up.value, "env_steps": facts.env_steps, "updates": facts.updates}
    reason = f"the warm-up of {shown(warm_up.value)} steps takes up the run of {shown(end)}: " + (
        "no update was ever made" if facts.updates == 0 else f"only {shown(facts.updates)} updates were made"
    )
    return reason, evidence, f"a shorter warm-up: {override(warm_up.key, max(min(1_000, end // 10), 1))}"


@rule(
    "rollout longer than the run",
    "the budget is one rollout or less, so one update is made",
    "`stop.env_steps=…`, `algorithm.horizon=…`",
)
def one_rollout(facts: Facts) -> Cause | None:
    horizon, budget = facts.figure("loader.horizon"), facts.figure("stop.env_steps")
    if horizon is None or budget is None:
        raise NotApplicable
    rollout = horizon.value * (facts.number("num_envs") or 1.0)
    if rollout < budget.value:
        return None
    reason = (
        f"a rollout of {shown(rollout)} steps takes up the run of {shown(budget.value)}: one update is made at most"
    )
    evidence = {"rollout": rollout, "budget": budget.value}
    return reason, evidence, f"a larger budget: {override(budget.key, 100 * rollout)}"


@rule(
    "no reward",
    "every reward that was learned from is 0, or every episode has the same return",
    "the environment's reward; `+with=rnd` where rewards are rare",
    of_env=True,
)
def no_reward(facts: Facts) -> Cause | None:
    if any(any(facts.values(name)) for name in facts.series if name.startswith("intrinsic/")):
        raise NotApplicable
    counted = facts.values("episode/count")[-1]
    learned = facts.series.get("batch/reward", [])
    remedy = "look at what the environment pays and at env.wrappers; where rewards are rare: +with=rnd"
    factor = facts.figure("memory.adaptors.reward_scale.factor")
    if factor is not None and factor.value == 0:
        remedy = f"a factor of rewards that is not 0: {override(factor.key, 1.0)}"
    if len(learned) >= 3 and not any(point.value for point in learned):
        reason = f"every reward of {len(learned)} sampled batches is 0: there is nothing to learn from"
        return reason, {"batches": len(learned), "reward": 0.0}, remedy
    returns = facts.values("episode/return", 3)
    if counted < EPISODES:
        raise Unknown(f"{EPISODES} complete episodes")
    if not any(returns) and not learned:
        reason = f"the return of all of {shown(counted)} episodes is 0: no reward was ever found"
        return reason, {"episodes": counted, "return": 0.0}, remedy
    spread = facts.series.get("evaluation/std_return", [])
    all_equal = len(set(returns)) == 1 and counted >= SAME and not any(point.value for point in spread)
    if all_equal and not any(isinstance(run, str) for run in (facts.config.get("init") or {}).values()):
        reason = f"every one of {shown(counted)} episodes had a return of {shown(returns[0])}, whatever the actions"
        return reason, {"episodes": counted, "return": returns[0]}, remedy
    return None


@rule(
    "episodes never end",
    f"no episode ended within twice the time limit, or {ENDLESS:,} steps an env where none is known",
    "a `TimeLimit` in `env.wrappers`",
    of_env=True,
)
def no_end(facts: Facts) -> Cause | None:
    if facts.values("episode/count")[-1] > 0:
        return None
    envs = facts.number("num_envs") or 1.0
    steps, limit = facts.env_steps / envs, facts.limit
    least = 2 * limit if limit is not None else ENDLESS
    if steps < least:
        raise Unknown(f"{least:,} steps per environment")
    known = f" although its time limit is {limit:,} steps" if limit is not None else ""
    reason = f"no episode ended in {shown(steps)} steps of each env{known}"
    wrapper = "'env.wrappers=[{_target_: gymnasium.wrappers.TimeLimit, _partial_: true, max_episode_steps: 1000}]'"
    evidence = {"env_steps": facts.env_steps, "envs": envs, "episodes": 0.0}
    return reason, evidence, f"give it a time limit: {wrapper}"


@rule(
    "target network stands still",
    "the target network needs more updates to follow its network than were made",
    "`algorithm.tau=…`, `algorithm.target_every=…`",
)
def stuck_target(facts: Facts) -> Cause | None:
    taus = {name: facts.figure(f"callbacks.{name}.tau") for name in facts.under("target_distance")}
    moving = {name: tau for name, tau in taus.items() if tau is not None}
    if not moving:
        raise NotApplicable
    if facts.updates < SETTLED:
        raise Unknown(f"{SETTLED:,} updates")
    for name, tau in moving.items():
        every = facts.figure(f"callbacks.{name}.every") or Setting("", 1.0)
        time = (every.value or 1.0) / tau.value if tau.value > 0 else math.inf
        if time <= facts.updates or (facts.status == "running" and time < PATIENCE):
            continue
        distance = facts.series[f"target_distance/{name}"][-1].value
        pace = "moves in no update" if math.isinf(time) else f"needs {shown(time)} updates to follow"
        reason = (
            f"the target network of callbacks.{name} {pace}, {shown(facts.updates)} were made; "
            f"its distance is {distance:.0%} of the network's norm"
        )
        evidence = {"tau": tau.value, "every": every.value, "updates": facts.updates, "distance": distance}
        remedy = override(tau.key, 0.005)
        if tau.value > 0 and every.value > 1:
            remedy = override(every.key, max(int(facts.updates * tau.value / 20), 1))
        return reason, evidence, f"faster updates of it: {remedy}"
    return None


@rule(
    "replay memory too small", f"it is full with less than {BATCHES} batches, or than one episode", "`memory.length=…`"
)
def small_memory(facts: Facts) -> Cause | None:
    length, batch = facts.figure("memory.length"), facts.number("loader.batch")
    if length is None or batch is None:
        raise NotApplicable
    episode = facts.late("episode/length", 1) if "episode/length" in facts.series else 0.0
    if length.value >= max(BATCHES * batch, episode):
        return None
    if facts.env_steps < length.value:
        raise Unknown("a full memory")
    several = f"{BATCHES} batches of {shown(batch)}"
    than = f"an episode of {shown(episode)} steps" if length.value < episode else several
    reason = f"the memory holds {shown(length.value)} transitions, less than {than}: samples repeat"
    evidence = {"length": length.value, "batch": batch, "episode_length": episode}
    return reason, evidence, f"a larger memory: {override(length.key, 100_000)}"


@rule(
    "scale of rewards",
    f"discounted rewards add up to more than {LARGE:,.0f}, or less than {SMALL:g}",
    "`+with=reward_norm`, `+with=reward_scale`",
)
def reward_scale(facts: Facts) -> Cause | None:
    discount = facts.number("algorithm.discount")
    if discount is None or not 0 <= discount <= 1 or rewards_are_changed(facts):
        raise NotApplicable
    returns, lengths = facts.values("episode/return", 3), facts.values("episode/length", 3)
    steps = [abs(total) / max(length, 1.0) for total, length in zip(returns, lengths, strict=False)]
    truncated = facts.series.get("episode/truncated", [])
    reach = horizon(discount)
    if truncated and truncated[-1].value <= 0.5:
        reach = min(reach, max(lengths))
    late, largest = median_of_newer_half(steps), max(steps)
    if late * reach > LARGE:
        size, effect = late, "far above what networks start from"
    elif 0 < largest * reach < SMALL:
        size, effect = largest, "errors of values are larger"
    else:
        return None
    reason = f"rewards of {shown(size)} a step add up to about {shown(size * reach)}: {effect}"
    factor = 10.0 ** -max(round(math.log10(size)), -MOST_DIGITS)
    remedy = f"+with=reward_scale {override('memory.adaptors.reward_scale.factor', factor)}, or +with=reward_norm"
    return reason, {"reward_a_step": size, "steps_ahead": reach}, remedy


def rewards_are_changed(facts: Facts) -> bool:
    """Return True if the learned rewards differ from those that episode returns sum."""
    adaptors = facts.setting("memory.adaptors")
    names = adaptors.value if adaptors is not None and isinstance(adaptors.value, dict) else {}
    changing = [name for name, value in names.items() if value and str(name).startswith(("reward", "return_norm"))]
    return bool(changing or facts.under("intrinsic"))


def horizon(discount: float) -> float:
    """Return the discounted sum of an endless series of rewards of 1."""
    return 1.0 / max(1.0 - discount, 1e-4)


@rule(
    "time limit reported as termination",
    "episodes terminate exactly at the time limit, or all at the same step, and none is truncated",
    "`truncated` in place of `terminated`",
    of_env=True,
)
def termination_at_time_limit(facts: Facts) -> Cause | None:
    truncated, counted = facts.values("episode/truncated"), facts.values("episode/count")[-1]
    lengths = facts.values("episode/length", 3)
    if counted < EPISODES:
        raise Unknown(f"{EPISODES} complete episodes")
    limit = facts.limit
    if limit is not None:
        reached, where = limit in lengths, f"the time limit of {shown(limit)} steps"
    else:
        reached = len(set(lengths)) == 1 and lengths[0] >= LONGEST_TASK
        where = f"{shown(lengths[0])} steps, all of them"
    if any(truncated) or not reached:
        return None
    reason = (
        f"episodes terminate at {where}, and none of {shown(counted)} was truncated: a time limit is reported as an end"
    )
    remedy = "let the environment, or its wrapper, return truncated in place of terminated where time is up"
    return reason, {"episodes": counted, "length": lengths[-1], "truncated": 0.0}, remedy


def ceiling(facts: Facts) -> str | None:
    """Return why returns need not rise any further, or None."""
    evaluated = [facts.series.get(f"evaluation/mean_{name}", []) for name in ("return", "length")]
    if not all(evaluated):
        return None
    late, steps = (median(point.value for point in points[-(len(points) // 3 + 1) :]) for points in evaluated)
    if late == steps == facts.limit:
        return f"the time limit of {shown(steps)} steps, each of which pays 1"
    threshold = facts.threshold
    return None if threshold is None or late < threshold else f"the task counts as solved from {shown(threshold)} on"
