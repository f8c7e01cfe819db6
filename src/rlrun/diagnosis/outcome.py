"""Checks of what came of a run: what the policy wants, how sure it is, what it believes, and how it plays."""

from __future__ import annotations

from statistics import median

from rlrun.diagnosis.facts import ENOUGH, Facts, Unknown
from rlrun.diagnosis.setting import horizon, rewards_are_changed
from rlrun.diagnosis.signs import Beside, Sign, shown, word

SATURATED = 0.8  # share of actions; swinging a pendulum up wants six tenths
COLLAPSED = 0.05  # of the entropy that a run began with
FAR = 2.0  # times what rewards can add up to
DIVERGED, CLIPPED = 0.04, 0.4  # nats, where 0.01 is usual; share of ratios
GAP = 0.5  # of the range of returns
FALLEN, LASTING = 0.5, 0.1  # share of the rise to the peak that is lost; of the run, for which it is


def saturated(facts: Facts) -> Sign | None:
    """Fire where a policy wants nothing but the ends of its range."""
    if not facts.under("entropy") or "action/saturated" not in facts.series:
        raise Beside
    share = facts.late("action/saturated", 4)
    if share < SATURATED:
        return None
    reason = f"{share:.0%} of the policy's actions lie at the ends of their range: the bounds hold it back"
    remedy = "look at the bounds of the action space, and at the scale of actions that env.wrappers make"
    return Sign(reason, {"saturated": share}, remedy)


def collapse(facts: Facts) -> Sign | None:
    """Fire where a policy became as good as deterministic early, and no better."""
    parts = [part for part in facts.under("entropy") if f"temperature/{part}" not in facts.series]
    if "discrete" not in parts:
        raise Beside
    points = facts.points("entropy/discrete", 6)
    first = points[0].value
    late = median(point.value for point in points[len(points) // 3 :])
    if first <= 0 or late > COLLAPSED * first or _improved(facts):
        return None
    reason = f"the entropy of choices fell from {shown(first)} to {shown(late)} nats early, and returns did not rise"
    name = next(iter(facts.under("loss")), "")
    weight = facts.figure(f"callbacks.{name}.entropy_weight")
    cure = "+with=entropy_target" if weight is None else word(weight.key, 0.01)
    return Sign(reason, {"first": first, "late": late}, f"a bonus for entropy: {cure}")


def _improved(facts: Facts) -> bool:
    """Tell whether returns rose clearly over the run, by a quarter of their range."""
    returns = facts.values("episode/return", 4)
    late = median(returns[len(returns) // 2 :])
    return late - returns[0] > 0.25 * (max(returns) - min(returns)) > 0


def overestimation(facts: Facts) -> Sign | None:
    """Fire where values lie beyond what the rewards of any episode add up to."""
    discount = facts.number("algorithm.discount")
    if discount is None or "value/mean" not in facts.series or rewards_are_changed(facts):
        raise Beside
    value, far = facts.late("value/mean"), horizon(discount)
    steps = [*_rewards(facts, "episode/return", "episode/length")]
    steps += _rewards(facts, "evaluation/mean_return", "evaluation/mean_length")
    if len(steps) < 3:
        raise Unknown("3 values of episode/return")
    most, room = max(steps) * far, FAR * far * max(map(abs, steps)) + far * _entropy_worth(facts)
    if value <= most + room:
        return None
    reason = f"values are {shown(value)} on average, but rewards of the best episodes add up to {shown(most)} at most"
    cure = "algorithm.ensemble=2, a slower target, or a smaller learning rate"
    return Sign(reason, {"value": value, "bound": most}, cure)


def _rewards(facts: Facts, returns: str, lengths: str) -> list[float]:
    """Return the mean rewards of a step."""
    pairs = zip(facts.series.get(returns, []), facts.series.get(lengths, []), strict=False)
    return [total.value / max(length.value, 1.0) for total, length in pairs]


def _entropy_worth(facts: Facts) -> float:
    """Return what the entropy of a step is worth at most, in rewards."""
    worth = 0.0
    for part in facts.under("temperature"):
        entropies = [abs(point.value) for point in facts.series.get(f"entropy/{part}", [])]
        worth += max(facts.values(f"temperature/{part}")) * max(entropies, default=0.0)
    return worth


def ratios(facts: Facts) -> Sign | None:
    """Fire where a policy moves far from the one that acted before its rollout is used up."""
    if "policy/clipped" not in facts.series:
        raise Beside
    clipped, divergence = facts.values("policy/clipped", 3), facts.values("policy/approx_kl", 3)
    if not any(clipped) and not any(divergence):
        raise Unknown("policy/clipped beyond the first minibatch of a rollout")
    share, moved = facts.late("policy/clipped"), facts.late("policy/approx_kl")
    if share < CLIPPED and moved < DIVERGED:
        return None
    reason = f"{share:.0%} of ratios are clipped, at a divergence of {shown(moved)} nats"
    evidence = {"clipped": share, "approx_kl": moved}
    return Sign(reason, evidence, "fewer epochs, or leave a rollout early: algorithm.kl_limit=0.02")


def evaluation(facts: Facts) -> Sign | None:
    """Fire where the frozen agent plays far worse than it does in training."""
    played, trained = facts.values("evaluation/mean_return", 4), facts.values("episode/return", 4)
    low, high = min(trained), max(trained)
    frozen, acting = median(played[len(played) // 2 :]), median(trained[len(trained) // 2 :])
    if high - low <= 0 or not _improved(facts) or frozen > acting - GAP * (high - low) or frozen > low:
        return None
    reason = f"evaluations have a return of {shown(frozen)}, training of {shown(acting)}"
    evidence = {"evaluation": frozen, "training": acting}
    return Sign(reason, evidence, "rlrun eval RUN --stochastic tells whether the draw of actions makes the difference")


def failed(facts: Facts) -> Sign | None:
    """Fire where the run failed."""
    if facts.status != "failed":
        return None
    reason = f"it ended at step {shown(facts.env_steps)}: {facts.failure or 'log.txt does not say why'}"
    return Sign(reason, {"env_steps": facts.env_steps}, "see the traceback in log.txt, then: rlrun resume RUN")


def fallen(facts: Facts) -> Sign | None:
    """Fire where returns fell far below their peak for a while, or until the end."""
    points = facts.returns
    if len(points) < ENOUGH:
        raise Unknown(f"{ENOUGH} values of evaluation/mean_return")
    values = [point.value for point in points]
    smooth = [median(values[max(index - 1, 0) : index + 2]) for index in range(len(values))]
    longest, peak, first, best = range(0), 0, 0, 0
    for index, value in enumerate(smooth):
        best = index if value > smooth[best] else best
        rise = smooth[best] - min(smooth[: best + 1])
        if rise <= 0.25 * (max(smooth) - min(smooth)) or value > smooth[best] - FALLEN * rise:
            first = index + 1
        elif index + 1 - first > len(longest):
            longest, peak = range(first, index + 1), best
    if len(longest) < max(3, LASTING * len(smooth)):
        return None
    lowest = min(smooth[longest.start : longest.stop])
    until = "the end" if longest.stop == len(smooth) else f"step {shown(points[longest.stop - 1].env_steps)}"
    reason = (
        f"returns fell from {shown(smooth[peak])} at step {shown(points[peak].env_steps)} to {shown(lowest)}, and "
        f"stayed low from step {shown(points[longest.start].env_steps)} to {until}"
    )
    evidence = {"peak": smooth[peak], "lowest": lowest, "env_steps": points[longest.start].env_steps}
    rate = facts.figure("algorithm.lr")
    smaller = "" if rate is None else f", {word(rate.key, rate.value / 3)}"
    return Sign(reason, evidence, f"+with=anneal{smaller}; the policy of the peak: rlrun eval RUN --checkpoint best")
