"""Checks of what a run was given: its task, its rewards, its memory, and when it learns at all."""

from __future__ import annotations

import math
from statistics import median

from rlrun.diagnosis.facts import Facts, Figure, Unknown
from rlrun.diagnosis.signs import Beside, Sign, shown, word

WARM_UP = 0.9  # of the budget
SETTLED, PATIENCE = 1_000, 20_000  # updates after which a slow copy is judged; that a run at work is given
ENDLESS = 5_000  # steps a lane without an end, where no time limit is known
BATCHES = 4  # that a memory must hold at least
LARGE, SMALL = 1e4, 1e-3  # sums of discounted rewards
MOST_DIGITS = 300  # of a factor: floats end not far beyond
LONGEST_TASK = 25  # steps; shorter tasks may well have a fixed length of their own
FEW = 40  # updates a rollout; stable-baselines3 makes 320, CleanRL 32 or 320
EPISODES, SAME = 5, 20  # that are enough to judge by; to be all alike by chance


def no_update(facts: Facts) -> Sign | None:
    """Fire where nothing is learned before the warm-up ends, and the run ends first."""
    warm_up = facts.figure("loader.warm_up")
    if warm_up is None:
        raise Beside
    budget = facts.number("stop.env_steps")
    if not facts.env_steps:
        raise Unknown("any record")
    too_long = budget is not None and warm_up.value >= WARM_UP * budget
    if not too_long and not (facts.status == "completed" and facts.updates == 0):  # others may have been left in it
        return None
    end = budget if budget is not None else facts.env_steps
    evidence = {"warm_up": warm_up.value, "env_steps": facts.env_steps, "updates": facts.updates}
    reason = f"the warm-up of {shown(warm_up.value)} steps takes up the run of {shown(end)}: " + (
        "no update was ever made" if facts.updates == 0 else f"only {shown(facts.updates)} updates were made"
    )
    return Sign(reason, evidence, f"a shorter warm-up: {word(warm_up.key, max(min(1_000, end // 10), 1))}")


def no_reward(facts: Facts) -> Sign | None:
    """Fire where every reward that was learned from is 0, or every episode is worth the same."""
    if any(any(facts.values(name)) for name in facts.series if name.startswith("intrinsic/")):
        raise Beside
    counted = facts.values("episode/count")[-1]
    learned = facts.series.get("batch/reward", [])
    if len(learned) >= 3 and not any(point.value for point in learned):
        reason = f"every reward of {len(learned)} sampled batches is 0: there is nothing to learn from"
        return Sign(reason, {"batches": len(learned), "reward": 0.0}, _look_at_reward(facts))
    returns = facts.values("episode/return", 3)
    if counted < EPISODES:
        raise Unknown(f"{EPISODES} complete episodes")
    if not any(returns) and not learned:
        reason = f"the return of all of {shown(counted)} episodes is 0: no reward was ever found"
        return Sign(reason, {"episodes": counted, "return": 0.0}, _look_at_reward(facts))
    spread = facts.series.get("evaluation/std_return", [])
    same = len(set(returns)) == 1 and counted >= SAME and not any(point.value for point in spread)
    if same and facts.setting("init.from") is None:
        reason = f"every one of {shown(counted)} episodes had a return of {shown(returns[0])}, whatever was done"
        return Sign(reason, {"episodes": counted, "return": returns[0]}, _look_at_reward(facts))
    return None


def _look_at_reward(facts: Facts) -> str:
    factor = facts.figure("memory.adaptors.reward_scale.factor")
    if factor is not None and factor.value == 0:
        return f"a factor of rewards that is not 0: {word(factor.key, 1.0)}"
    return "look at what the environment pays and at env.wrappers; where rewards are rare: +with=rnd"


def no_end(facts: Facts) -> Sign | None:
    """Fire where no episode ended in a time in which several should have."""
    if facts.values("episode/count")[-1] > 0:
        return None
    lanes = facts.number("num_envs") or 1.0
    steps, limit = facts.env_steps / lanes, facts.limit
    least = 2 * limit if limit is not None else ENDLESS
    if steps < least:
        raise Unknown(f"{least:,} steps a lane")
    known = f" although its time limit is {limit:,} steps" if limit is not None else ""
    reason = f"no episode ended in {shown(steps)} steps of each lane{known}"
    wrapper = "'env.wrappers=[{_target_: gymnasium.wrappers.TimeLimit, _partial_: true, max_episode_steps: 1000}]'"
    evidence = {"env_steps": facts.env_steps, "lanes": lanes, "episodes": 0.0}
    return Sign(reason, evidence, f"give it a time limit: {wrapper}")


def stuck_target(facts: Facts) -> Sign | None:
    """Fire where the slow copy that targets come from has no time to follow its network."""
    rates = {name: facts.figure(f"callbacks.{name}.rate") for name in facts.under("target_distance")}
    target_rates = {name: rate for name, rate in rates.items() if rate is not None}
    if not target_rates:
        raise Beside
    if facts.updates < SETTLED:
        raise Unknown(f"{SETTLED:,} updates")
    for name, rate in target_rates.items():
        every = facts.number(f"callbacks.{name}.every") or 1.0
        time = every / rate.value if rate.value > 0 else math.inf
        if time <= facts.updates or (facts.status == "running" and time < PATIENCE):
            continue
        return _stuck(facts, name, rate, time)
    return None


def _stuck(facts: Facts, name: str, rate: Figure, time: float) -> Sign:
    distance = facts.series.get(f"target_distance/{name}", [])
    far = f"; it lies {distance[-1].value:.0%} of the network's size away" if distance else ""
    pace = "moves in no update" if math.isinf(time) else f"needs {shown(time)} updates to follow"
    reason = f"the slow copy of callbacks.{name} {pace}, {shown(facts.updates)} were made{far}"
    every = facts.figure(f"callbacks.{name}.every")
    evidence = {"rate": rate.value, "every": 1.0 if every is None else every.value, "updates": facts.updates}
    evidence |= {"distance": distance[-1].value} if distance else {}
    cure = word(rate.key, 0.005)
    if rate.value > 0 and every is not None and every.value > 1:
        cure = word(every.key, max(int(facts.updates * rate.value / 20), 1))
    return Sign(reason, evidence, f"let it follow: {cure}")


def small_memory(facts: Facts) -> Sign | None:
    """Fire where a memory holds hardly more than what one update takes, or less than an episode."""
    length, batch = facts.figure("memory.length"), facts.number("loader.batch")
    if length is None or batch is None:
        raise Beside
    lengths = facts.series.get("episode/length", [])
    episode = median(point.value for point in lengths[len(lengths) // 2 :]) if lengths else 0.0
    if length.value >= max(BATCHES * batch, episode):
        return None
    if facts.env_steps < length.value:
        raise Unknown("a full memory")
    several = f"{BATCHES} batches of {shown(batch)}"
    than = f"an episode of {shown(episode)} steps" if length.value < episode else several
    reason = f"the memory holds {shown(length.value)} transitions, less than {than}: samples are ever the same few"
    evidence = {"length": length.value, "batch": batch, "episode_length": episode}
    return Sign(reason, evidence, f"a larger memory: {word(length.key, 100_000)}")


def reward_scale(facts: Facts) -> Sign | None:
    """Fire where sums of rewards are so large or small that a network cannot come near them."""
    discount = facts.number("algorithm.discount")
    if discount is None or not 0 <= discount <= 1 or rewards_are_changed(facts):
        raise Beside
    returns, lengths = facts.values("episode/return", 3), facts.values("episode/length", 3)
    steps = [abs(total) / max(length, 1.0) for total, length in zip(returns, lengths, strict=False)]
    ended = facts.series.get("episode/truncated", [])
    far = horizon(discount)
    reach = far if not ended or ended[-1].value > 0.5 else min(far, max(lengths))
    late, largest = median(steps[len(steps) // 2 :]), max(steps)
    if late * reach > LARGE:
        size, why = late, "far from where networks begin"
    elif 0 < largest * reach < SMALL:
        size, why = largest, "they drown in errors"
    else:
        return None
    reason = f"rewards of {shown(size)} a step add up to about {shown(size * reach)}: {why}"
    factor = word("memory.adaptors.reward_scale.factor", 10.0 ** -max(round(math.log10(size)), -MOST_DIGITS))
    return Sign(
        reason, {"reward_a_step": size, "steps_ahead": reach}, f"+with=reward_scale {factor}, or +with=reward_norm"
    )


def rewards_are_changed(facts: Facts) -> bool:
    """Tell whether what is learned from is not what episodes' returns add up."""
    return any(name.startswith("reward") for name in facts.names("memory.adaptors")) or bool(facts.under("intrinsic"))


def horizon(discount: float) -> float:
    """Return how many rewards of 1 a step add up to, discounted, without an end."""
    return 1.0 / max(1.0 - discount, 1e-4)


def told_as_end(facts: Facts) -> Sign | None:
    """Fire where episodes terminate exactly where a time limit would cut them off."""
    cut, counted = facts.values("episode/truncated"), facts.values("episode/count")[-1]
    lengths = facts.values("episode/length", 3)
    if counted < EPISODES:
        raise Unknown(f"{EPISODES} complete episodes")
    if any(cut):
        return None
    limit = facts.limit
    if limit is not None:
        reached = sum(length == limit for length in lengths)
        where = f"the time limit of {shown(limit)} steps"
    else:
        reached = len(lengths) if len(set(lengths)) == 1 and lengths[0] >= LONGEST_TASK else 0
        where = f"{shown(lengths[0])} steps, all of them"
    if not reached:
        return None
    reason = (
        f"episodes terminate at {where}, and none of {shown(counted)} was truncated: a time limit is told as an end"
    )
    remedy = "let the environment, or its wrapper, return truncated in place of terminated where time is up"
    return Sign(reason, {"episodes": counted, "length": lengths[-1], "truncated": 0.0}, remedy)


def few_updates(facts: Facts) -> Sign | None:
    """Fire where a rollout is learned from in few updates, and no preset chose their number."""
    epochs, batch = facts.figure("loader.epochs"), facts.figure("loader.minibatch")
    rows = (facts.number("loader.horizon") or 0.0) * (facts.number("num_envs") or 1.0)
    if facts.preset is not False or epochs is None or batch is None or not batch.value or not rows:
        raise Beside
    updates = epochs.value * rows / batch.value
    if updates >= FEW or ceiling(facts) is not None:
        return None
    reason = f"a rollout of {shown(rows)} steps gets {shown(updates)} updates, and no preset chose that for this task"
    remedy = f"more and smaller batches: {word(epochs.key, 10)} {word(batch.key, 64)}"
    return Sign(reason, {"rollout": rows, "updates": updates}, remedy)


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
