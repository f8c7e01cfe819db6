"""Checks of what a run was given: its task, its rewards, its memory, and when it learns at all."""

from __future__ import annotations

from statistics import median

from rlrun.diagnosis.facts import Facts, Unknown
from rlrun.diagnosis.signs import Beside, Sign, shown, word

WARM_UP = 0.9  # of the budget
ENDLESS = 5_000  # steps a lane without an end, where no time limit is known
BATCHES = 4  # that a memory must hold at least
LARGE, SMALL = 1e4, 1e-3  # sums of discounted rewards
LONGEST_TASK = 25  # steps; shorter tasks may well have a fixed length of their own
EPISODES = 5


def no_update(facts: Facts) -> Sign | None:
    """Fire where nothing is learned before the warm-up ends, and the run ends first."""
    warm_up = facts.setting("loader.warm_up")
    if warm_up is None or warm_up.number is None:
        raise Beside
    budget = facts.number("stop.env_steps")
    if not facts.env_steps:
        raise Unknown("any record")
    over = facts.status not in ("running", "interrupted")
    too_long = budget is not None and warm_up.number >= WARM_UP * budget
    if not too_long and not (over and facts.updates == 0):
        return None
    end = budget if budget is not None else facts.env_steps
    evidence = {"warm_up": warm_up.number, "env_steps": facts.env_steps, "updates": facts.updates}
    reason = f"the warm-up of {shown(warm_up.number)} steps takes up the run of {shown(end)}: " + (
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
    same = len(set(returns)) == 1 and len(returns) > 3 and not any(point.value for point in spread)
    if same and facts.setting("init.from") is None:
        reason = f"every one of {shown(counted)} episodes had a return of {shown(returns[0])}, whatever was done"
        return Sign(reason, {"episodes": counted, "return": returns[0]}, _look_at_reward(facts))
    return None


def _look_at_reward(facts: Facts) -> str:
    factor = facts.setting("memory.adaptors.reward_scale.factor")
    if factor is not None and factor.value == 0:
        return f"a factor of rewards that is not 0: {word(factor.key, 1.0)}"
    return "look at what the environment pays and at env.wrappers; where rewards are rare: +with=rnd"


def no_end(facts: Facts) -> Sign | None:
    """Fire where no episode ended in a time in which several should have."""
    counted = facts.values("episode/count")[-1]
    lanes = facts.number("num_envs") or 1.0
    each, limit = facts.env_steps / lanes, facts.limit
    if counted > 0:
        return None
    least = 2 * limit if limit is not None else ENDLESS
    if each < least:
        raise Unknown(f"{least:,} steps a lane")
    known = f" although its time limit is {limit:,} steps" if limit is not None else ""
    reason = f"no episode ended in {shown(each)} steps of each lane{known}"
    wrapper = "'env.wrappers=[{_target_: gymnasium.wrappers.TimeLimit, _partial_: true, max_episode_steps: 1000}]'"
    return Sign(reason, {"env_steps": facts.env_steps, "lanes": lanes, "episodes": 0}, f"give it a time limit: {wrapper}")


def stuck_target(facts: Facts) -> Sign | None:
    """Fire where the slow copy that targets come from has no time to follow its network."""
    callbacks = facts.setting("callbacks")
    names = list(callbacks.value) if callbacks is not None and isinstance(callbacks.value, dict) else []
    names = [name for name in names if isinstance(name, str) and facts.number(f"callbacks.{name}.rate") is not None]
    if not names:
        raise Beside
    if facts.updates < 1_000:
        raise Unknown("1,000 updates")
    for name in names:
        rate = facts.setting(f"callbacks.{name}.rate")
        every = facts.setting(f"callbacks.{name}.every")
        period = every.number if every is not None and every.number else 1.0
        assert rate is not None and rate.number is not None
        time = period / rate.number if rate.number > 0 else float("inf")
        if time <= facts.updates or (facts.status == "running" and time < 20_000):
            continue
        distance = facts.series.get(f"target_distance/{name}", [])
        far = f", and lies {shown(distance[-1].value)} of its size away" if distance else ""
        pace = "never moves" if rate.number <= 0 else f"needs {shown(time)} updates to follow"
        reason = f"the slow copy of callbacks.{name} {pace}, of {shown(facts.updates)} that were made{far}"
        evidence = {"rate": rate.number, "every": period, "updates": facts.updates}
        evidence |= {"distance": distance[-1].value} if distance else {}
        cure = word(rate.key, 0.005)
        if rate.number > 0 and every is not None and period > 1:
            cure = word(every.key, max(int(facts.updates * rate.number / 20), 1))
        return Sign(reason, evidence, f"let it follow: {cure}")
    return None


def small_memory(facts: Facts) -> Sign | None:
    """Fire where a memory holds hardly more than what one update takes, or less than an episode."""
    length, batch = facts.setting("memory.length"), facts.number("loader.batch")
    if length is None or length.number is None or batch is None:
        raise Beside
    if facts.env_steps < length.number:
        raise Unknown("a full memory")
    lengths = facts.series.get("episode/length", [])
    episode = median(point.value for point in lengths[len(lengths) // 2 :]) if lengths else 0.0
    if length.number >= max(BATCHES * batch, episode):
        return None
    than = f"an episode of {shown(episode)} steps" if length.number < episode else f"{BATCHES} batches of {shown(batch)}"
    reason = f"the memory holds {shown(length.number)} transitions, less than {than}: samples are ever the same few"
    evidence = {"length": length.number, "batch": batch, "episode_length": episode}
    return Sign(reason, evidence, f"a larger memory: {word(length.key, 100_000)}")


def reward_scale(facts: Facts) -> Sign | None:
    """Fire where sums of rewards are so large or small that a network cannot come near them."""
    discount = facts.number("algorithm.discount")
    if discount is None or not 0 <= discount <= 1:
        raise Beside
    adaptors = facts.setting("memory.adaptors")
    held = adaptors.value if adaptors is not None and isinstance(adaptors.value, dict) else {}
    if any(str(name).startswith("reward") for name in held):
        raise Beside
    returns, lengths = facts.values("episode/return", 3), facts.values("episode/length", 3)
    steps = [abs(one) / max(other, 1.0) for one, other in zip(returns, lengths, strict=False)]
    ended = facts.series.get("episode/truncated", [])
    far = 1.0 / max(1.0 - discount, 1e-4)
    reach = far if not ended or ended[-1].value > 0.5 else min(far, max(lengths))
    late, largest = median(steps[len(steps) // 2 :]), max(steps)
    evidence = {"reward_a_step": late, "steps_ahead": reach}
    if late * reach > LARGE:
        factor = 10.0 ** -round(_digits(late))
        reason = f"rewards of {shown(late)} a step add up to about {shown(late * reach)}, far from where networks begin"
        return Sign(reason, evidence, f"+with=reward_norm, or +with=reward_scale {_scale(factor)}")
    if 0 < largest * reach < SMALL:
        factor = 10.0 ** -round(_digits(largest))
        reason = f"rewards of {shown(largest)} a step add up to about {shown(largest * reach)}: they drown in errors"
        return Sign(reason, evidence, f"+with=reward_norm, or +with=reward_scale {_scale(factor)}")
    return None


def _digits(value: float) -> float:
    from math import log10

    return log10(value)


def _scale(factor: float) -> str:
    return word("memory.adaptors.reward_scale.factor", factor)


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
    reason = f"episodes terminate at {where}, and none of {shown(counted)} was truncated: a time limit is told as an end"
    remedy = "let the environment, or its wrapper, return truncated in place of terminated where time is up"
    return Sign(reason, {"episodes": counted, "length": lengths[-1], "truncated": 0.0}, remedy)
