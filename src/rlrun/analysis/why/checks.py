"""Checks of `rlrun why` that combine several numbers; their docstrings are the conditions in `docs/why.md`."""

import math
from statistics import median
from typing import NamedTuple

from rlrun.analysis.why.facts import ENOUGH, RAW, Facts, NotApplicable, Number, Unknown, median_of_newer_half, override

ENDLESS = 5_000  # steps of an env without an end of episode, if its time limit is unknown
LARGE, SMALL = 1e4, 1e-3  # limits of sums of discounted rewards
MOST_DIGITS = 300  # most digits of a factor; floats have at most 308
LONGEST_TASK = 25  # steps; shorter tasks may have a fixed length by design
EPISODES, SAME = 5, 20  # episodes that suffice for a judgement; equal episodes that cannot be chance
FAR = 2.0  # ratio of values to the largest possible sum of rewards
FALLEN = 0.5  # share of the rise to the peak


class Found(NamedTuple):
    """The result of a check or a sign that fired.

    Attributes:
        reason: a sentence with the run's own numbers.
        evidence: these numbers, by name.
        name: of the loss, part or callback that the rule's advice refers to.
        remedy: replaces that advice, if set.
    """

    reason: str
    evidence: dict[str, float]
    name: str = ""
    remedy: str = ""


def failed(facts: Facts) -> Found | None:
    """The run failed."""
    if facts.status != "failed":
        return None
    reason = f"it ended at step {Number(facts.env_steps)}: {facts.failure or 'log.txt does not say why'}"
    return Found(reason, {"env_steps": facts.env_steps})


def no_reward(facts: Facts) -> Found | None:
    """Every reward that was learned from is 0, or every episode has the same return."""
    if facts.names("intrinsic/*"):
        raise NotApplicable
    learned, episodes = facts.series.get("batch/reward", []), facts.values("episode/count")[-1]
    if len(learned) >= 3 and not any(point.value for point in learned):
        return Found(f"every reward of {len(learned)} sampled batches is 0", {"batches": len(learned), "reward": 0.0})
    returns, spread = facts.values("episode/return", 3), facts.series.get("evaluation/std_return", [])
    if episodes < SAME:
        raise Unknown(f"{SAME} complete episodes")
    is_fork = any(isinstance(run, str) for run in (facts.config.get("init") or {}).values())
    if is_fork or len(set(returns)) > 1 or any(point.value for point in spread):
        return None
    reason = f"each of {Number(episodes)} episodes had a return of {Number(returns[0])}: actions make no difference"
    return Found(reason, {"episodes": episodes, "return": returns[0]})


def no_end(facts: Facts) -> Found | None:
    """No episode ended within twice the time limit, or within many steps where none is known."""
    if facts.values("episode/count")[-1] > 0:
        return None
    steps, limit = facts.env_steps / (facts.number("num_envs") or 1.0), facts.limit
    least = 2 * limit if limit is not None else ENDLESS
    if steps < least:
        raise Unknown(f"{least:,} steps per environment")
    known = f" although its time limit is {limit:,} steps" if limit is not None else ""
    return Found(f"no episode ended in {Number(steps)} steps of each env{known}", {"steps": steps, "episodes": 0.0})


def reward_scale(facts: Facts) -> Found | None:
    """Discounted rewards add up to very large or very small sums."""
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
    reason = f"rewards of {Number(size)} a step add up to about {Number(size * reach)}: {effect}"
    factor = 10.0 ** -max(round(math.log10(size)), -MOST_DIGITS)
    remedy = f"+with=reward_scale {override('memory.adaptors.reward_scale.factor', factor)}, or +with=reward_norm"
    return Found(reason, {"reward_a_step": size, "steps_ahead": reach}, remedy=remedy)


def termination_at_time_limit(facts: Facts) -> Found | None:
    """Episodes terminate exactly at the time limit, or all at the same step, and none is truncated."""
    truncated, counted = facts.values("episode/truncated"), facts.values("episode/count")[-1]
    lengths = facts.values("episode/length", 3)
    if counted < EPISODES:
        raise Unknown(f"{EPISODES} complete episodes")
    limit = facts.limit
    reached, where = limit in lengths, f"the time limit of {limit} steps"
    if limit is None:
        reached = len(set(lengths)) == 1 and lengths[0] >= LONGEST_TASK
        where = f"{Number(lengths[0])} steps, all of them"
    if any(truncated) or not reached:
        return None
    none = f"none of {Number(counted)} was truncated: a time limit is reported as an end"
    return Found(f"episodes terminate at {where}, and {none}", {"episodes": counted, "length": lengths[-1]})


def loss_not_finite(facts: Facts) -> Found | None:
    """A loss is not finite."""
    for metric, since in facts.broken.items():
        if metric.startswith("loss/"):
            name = metric.removeprefix("loss/")
            reason = f"the loss of {name} is not finite from step {Number(since)} on"
            return Found(reason, {"env_steps": since}, name)
    return None


def overestimation(facts: Facts) -> Found | None:
    """Values are far above the returns of the best episodes."""
    discount = facts.number("algorithm.discount")
    if discount is None or "value/mean" not in facts.series or rewards_are_changed(facts):
        raise NotApplicable
    value, far = median_of_newer_half(facts.values("value/mean", 3)), horizon(discount)
    rewards: list[float] = []  # mean reward per step of an episode
    for family in (
        ("episode/",) if RAW in facts.series else ("episode/", "evaluation/mean_")
    ):  # evaluations have raw rewards
        pairs = zip(facts.series.get(f"{family}return", []), facts.series.get(f"{family}length", []), strict=False)
        rewards += [total.value / max(length.value, 1.0) for total, length in pairs]
    if len(rewards) < 3:
        raise Unknown("3 values of episode/return")
    entropy_worth = 0.0  # largest entropy bonus per step, in units of rewards
    for part in facts.names("temperature/*"):
        entropies = [abs(point.value) for point in facts.series.get(f"entropy/{part}", [])]
        entropy_worth += max(facts.values(f"temperature/{part}")) * max(entropies, default=0.0)
    most = max(rewards) * far
    if value <= most + FAR * far * max(map(abs, rewards)) + far * entropy_worth:
        return None
    reason = f"values are {Number(value)} on average, but rewards of the best episodes add up to {Number(most)} at most"
    return Found(reason, {"value": value, "bound": most})


def fallen(facts: Facts) -> Found | None:
    """Returns after their peak stay lower by half of the rise to it."""
    points = facts.returns
    if len(points) < ENOUGH:
        raise Unknown(f"{ENOUGH} values of evaluation/mean_return")
    values = [point.value for point in points]
    smooth = [median(values[max(index - 1, 0) : index + 2]) for index in range(len(values))]
    peak = smooth.index(max(smooth))
    after, rise = smooth[peak + 1 :], smooth[peak] - min(smooth[: peak + 1])
    if len(after) < 3 or rise <= 0.25 * (max(smooth) - min(smooth)):
        return None
    level = max(median(after), median(after[-3:]))  # returns may have recovered at the end
    if level > smooth[peak] - FALLEN * rise:
        return None
    when = f"step {Number(points[peak].env_steps)}"
    reason = f"returns fell from {Number(smooth[peak])} at {when} to {Number(level)} after it"
    return Found(reason, {"peak": smooth[peak], "after": level, "env_steps": points[peak].env_steps})


def rewards_are_changed(facts: Facts) -> bool:
    """Return True if the learner's rewards differ from those in episode returns."""
    adaptors = facts.setting("memory.adaptors")
    names = adaptors.value if adaptors is not None and isinstance(adaptors.value, dict) else {}
    changing = [name for name, value in names.items() if value and str(name).startswith(("reward", "return_norm"))]
    return bool(changing or facts.names("intrinsic/*"))


def horizon(discount: float) -> float:
    """Return the discounted sum of an endless series of rewards of 1."""
    return 1.0 / max(1.0 - discount, 1e-4)
