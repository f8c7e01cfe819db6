"""Rules about the outcome of a run: changes of networks and policy, values, and the course of returns."""

from statistics import median

from rlrun.analysis.why.causes import Cause, NotApplicable, ceiling, horizon, override, rewards_are_changed, rule, shown
from rlrun.analysis.why.facts import ENOUGH, Facts, Setting, Unknown, median_of_newer_half

TOO_LARGE, CLIP_LIMIT = 1_000.0, 1e-3  # gradient norm relative to its limit; the largest limit that is suspicious
LARGE, SMALL, DRIFTED = 100.0, 1e-3, 3.0  # root mean squares of observations; the last one of normalized ones
NORMALISE = "normalize them: +with=observation_norm"
NATS = 1.0
WORTH, WORTH_BOUNDED = 1e-5, 1e-3  # relative to a reward; the second for a bounded temperature
BONUS = 0.5  # weight of entropy relative to advantages of size 1
FAST, SLOW = 0.15, 1e-4  # an update's share of the weights
RATE, USUAL = 0.03, 1e-3  # learning rates: Adam diverges at the first
UPDATES = 200
DEAD = 0.75  # share of units
SATURATED = 0.8  # share of actions; swinging a pendulum up wants six tenths
COLLAPSED = 0.05  # of the entropy that a run began with
ALIKE = 1e-3  # of the spread of particles that a run began with
FAR = 2.0  # times what rewards can add up to
DIVERGED, CLIPPED = 0.04, 0.4  # nats, where 0.01 is usual; share of ratios
GAP = 0.5  # of the range of returns
FEW = 40  # updates a rollout; stable-baselines3 makes 320, CleanRL 32 or 320
FALLEN, LASTING = 0.5, 0.1  # share of the rise to the peak that is lost; of the run, for which it is


@rule(
    "scale of observations",
    f"their root mean square is above {LARGE:g} or below {SMALL:g}; normalized ones: above {DRIFTED:g}, the "
    "normalizer has drifted",
    "`+with=observation_norm`; `normalizers.observation.mode=em`",
    of_env=True,
)
def observations(facts: Facts) -> Cause | None:
    size = facts.late("observation/size")
    about, evidence = f"observations are about {shown(size)} large", {"size": size}
    if facts.setting("agent.preprocess.observation_norm") is not None:
        if size <= DRIFTED:
            return None
        reason = f"normalized {about} in place of 1: the normalizer has drifted from what comes"
        remedy = "statistics that follow: normalizers.observation.mode=em +normalizers.observation.rate=1.0e-3"
        return reason, evidence, remedy
    if 0 < size < SMALL:
        return f"{about}: a network hardly reacts to them", evidence, NORMALISE
    if size > LARGE:
        return f"{about}: the first layer starts saturated, or learns too fast", evidence, NORMALISE
    return None


@rule(
    "gradients clipped to nothing",
    f"they are {TOO_LARGE:,.0f} times as large as a limit of at most {CLIP_LIMIT:g}",
    "`algorithm.max_grad_norm=…`",
)
def clipping(facts: Facts) -> Cause | None:
    limits = {name: facts.figure(f"callbacks.{name}.max_grad_norm") for name in facts.under("grad_norm")}
    clips = {name: limit for name, limit in limits.items() if limit is not None}
    if not clips:
        raise NotApplicable
    for name, limit in clips.items():
        norms = facts.values(f"grad_norm/{name}", 3)
        share = sum(norm > limit.value for norm in norms) / len(norms)
        if share < 0.9 or limit.value > CLIP_LIMIT or median(norms) < TOO_LARGE * limit.value:
            continue
        reason = f"gradients of {name}, about {shown(median(norms))} large, are clipped to {shown(limit.value)}"
        evidence = {"grad_norm": median(norms), "max_grad_norm": limit.value, "clipped": share}
        return reason, evidence, f"a limit near their size: {override(limit.key, 0.5)}, or {override(limit.key, None)}"
    return None


@rule(
    "weight of entropy",
    f"entropy is {NATS:g} nat below its target at a temperature near 0, or a bonus of {BONUS:g} keeps it random",
    "`algorithm.temperature.largest=null`, `algorithm.entropy_weight=…`",
)
def entropy_weight(facts: Facts) -> Cause | None:
    parts = [part for part in facts.under("temperature") if f"entropy_target/{part}" in facts.series]
    weights = [facts.figure(f"callbacks.{name}.entropy_weight") for name in facts.under("loss")]
    bonuses = [weight for weight in weights if weight is not None and weight.value > 0]
    if not bonuses and not parts:
        raise NotApplicable
    signs = [_temperature_too_low(facts, part) for part in parts]
    signs += [_bonus_too_high(facts, weight, part) for weight in bonuses for part in facts.under("entropy")]
    return next((sign for sign in signs if sign is not None), None)


def _temperature_too_low(facts: Facts, part: str) -> Cause | None:
    """Fire if the temperature is near 0 and entropy below its target."""
    entropy, target = facts.late(f"entropy/{part}"), facts.late(f"entropy_target/{part}")
    value, reward = facts.late(f"temperature/{part}"), abs(facts.late("batch/reward"))
    largest = facts.figure("algorithm.temperature.largest")
    bounded = largest is not None and value >= 0.9 * largest.value
    if entropy >= target - NATS or value >= (WORTH_BOUNDED if bounded else WORTH) * reward:
        return None
    reason = (
        f"the {part} entropy is {shown(entropy)} nats, its target {shown(target)}, and the temperature "
        f"{shown(value)} with rewards of {shown(reward)}: nothing keeps the policy exploring"
    )
    remedy = "let callbacks.temperature adapt it" if largest is None else f"let it rise: {override(largest.key, None)}"
    return reason, {"entropy": entropy, "target": target, "temperature": value}, remedy


def _bonus_too_high(facts: Facts, weight: Setting, part: str) -> Cause | None:
    """Fire if a bonus keeps the entropy at its maximum."""
    late, most = facts.late(f"entropy/{part}", 4), max(facts.values(f"entropy/{part}"))
    if weight.value < BONUS or most <= 0 or late < 0.97 * most:
        return None
    reason = f"the entropy stays at {shown(late)} nats: its weight of {shown(weight.value)} outweighs returns"
    return reason, {"entropy": late, "weight": weight.value}, f"a smaller weight: {override(weight.key, 0.01)}"


@rule(
    "learning rate too high",
    f"an update changes {FAST:.0%} of the weights, the rate is {RATE:g}, or a loss is not finite",
    "`algorithm.lr=…`",
)
def rate_high(facts: Facts) -> Cause | None:
    for name, since in facts.broken.items():
        if name.startswith("loss/"):
            loss = name.removeprefix("loss/")
            reason = f"the loss of {loss} is not finite from step {shown(since)} on"
            return reason, {"env_steps": since}, _rate_override(facts, loss, 0.1)
    ratios = _update_ratios(facts, 1, "update_ratio")
    name = max(ratios, key=lambda key: ratios[key])
    rate = facts.number(f"callbacks.{name}.optimizer.lr")
    if ratios[name] < FAST and (rate is None or rate < RATE):
        return None
    reason = f"single updates of {name} change up to {100 * ratios[name]:.2g} % of its weights"
    return _of_rate(facts, reason, name, ratios[name], 0.01)


@rule("learning rate too low", f"no update changes more than {SLOW:g} of the weights", "`algorithm.lr=…`")
def rate_low(facts: Facts) -> Cause | None:
    requirement = f"update_ratio over {UPDATES} updates"
    ratios = _update_ratios(facts, 3, requirement)
    if facts.updates < UPDATES:
        raise Unknown(requirement)
    name = min(ratios, key=lambda key: ratios[key])
    if ratios[name] > SLOW:
        return None
    reason = f"no update of {name} changes more than {shown(ratios[name])} of its weights"
    return _of_rate(facts, reason, name, ratios[name], 1e-3 / max(ratios[name], 1e-9))


def _update_ratios(facts: Facts, least: int, requirement: str) -> dict[str, float]:
    """Return for each loss its largest update relative to its weights."""
    ratios = {name: max(facts.values(f"update_ratio/{name}", least)) for name in facts.under("update_ratio")}
    if not ratios:
        raise Unknown(requirement)
    return ratios


def _of_rate(facts: Facts, reason: str, name: str, ratio: float, factor: float) -> Cause:
    rate, evidence = facts.number(f"callbacks.{name}.optimizer.lr"), {"update_ratio": ratio}
    if rate is not None:
        reason, evidence = f"{reason}, at a learning rate of {shown(rate)}", evidence | {"learning_rate": rate}
    return reason, evidence, _rate_override(facts, name, factor)


def _rate_override(facts: Facts, name: str, factor: float) -> str:
    """Return the override that multiplies a loss's learning rate by a factor, at most to a usual one."""
    rate = facts.figure(f"callbacks.{name}.optimizer.lr")
    if rate is None:
        return f"another learning rate of {name}"
    wanted = min(rate.value * factor, USUAL) if rate.value > 0 else USUAL
    return f"a {'smaller' if factor < 1 else 'larger'} learning rate: {override(rate.key, wanted)}"


@rule(
    "actions at their bounds",
    f"{SATURATED:.0%} of the policy's greedy actions are at the ends of the range",
    "the bounds of the action space",
)
def saturated(facts: Facts) -> Cause | None:
    if not facts.under("entropy") or "action/saturated" not in facts.series:
        raise NotApplicable
    share = facts.late("action/saturated", 4)
    if share < SATURATED:
        return None
    reason = f"{share:.0%} of the policy's actions are at the ends of their range: the bounds limit it"
    remedy = "look at the bounds of the action space, and at the scale of actions that env.wrappers make"
    return reason, {"saturated": share}, remedy


@rule(
    "dead units", f"no gradient reaches {DEAD:.0%} of a network's hidden units", "`algorithm.lr=…`, layers with a norm"
)
def dead(facts: Facts) -> Cause | None:
    shares = {name: facts.late(f"dead_units/{name}") for name in facts.under("dead_units")}
    if not shares:
        raise Unknown("dead_units")
    name = max(shares, key=lambda key: shares[key])
    if shares[name] < DEAD:
        return None
    reason = f"no gradient reaches {shares[name]:.0%} of the hidden units of {name}"
    return reason, {"dead_units": shares[name]}, f"{_rate_override(facts, name, 0.1)}, or layers with a norm"


@rule(
    "entropy collapsed early",
    f"choices keep {COLLAPSED:.0%} of their entropy after a third of the run, and returns did not rise",
    "`algorithm.entropy_weight=…`, `+with=entropy_target`",
)
def collapse(facts: Facts) -> Cause | None:
    if "discrete" not in facts.under("entropy") or "temperature/discrete" in facts.series:
        raise NotApplicable
    values = facts.values("entropy/discrete", 6)
    first, late = values[0], median(values[len(values) // 3 :])
    if first <= 0 or late > COLLAPSED * first or _improved(facts):
        return None
    reason = f"the entropy of choices fell from {shown(first)} to {shown(late)} nats early, and returns did not rise"
    name = next(iter(facts.under("loss")), "")
    weight = facts.figure(f"callbacks.{name}.entropy_weight")
    remedy = "+with=entropy_target" if weight is None else override(weight.key, 0.01)
    return reason, {"first": first, "late": late}, f"a bonus for entropy: {remedy}"


@rule(
    "particles collapsed",
    f"their spread is below {ALIKE:g} of the first, though their entropy counts",
    "`algorithm.method=gfsf`, `algorithm.width=…`, `algorithm.entropy_weight=…`",
)
def alike(facts: Facts) -> Cause | None:
    weight = facts.figure("callbacks.particles.entropy_weight")
    if "particles/spread" not in facts.series or weight is None or not weight.value:
        raise NotApplicable
    first, late = facts.values("particles/spread", 3)[0], facts.late("particles/spread")
    if late > ALIKE * first:
        return None
    reason = f"the spread of particles fell from {shown(first)} to {shown(late)}: they are all the same"
    larger = f"a larger weight of entropy: {override(weight.key, 10.0 * weight.value)}"
    return reason, {"first": first, "late": late}, f"{larger}, or a wider kernel (algorithm.width)"


def _improved(facts: Facts) -> bool:
    """Return True if returns rose clearly over the run, by a quarter of their range."""
    returns = facts.values("episode/return", 4)
    return median_of_newer_half(returns) - returns[0] > 0.25 * (max(returns) - min(returns)) > 0


@rule(
    "values over-estimated",
    "they are far above the returns of the best episodes",
    "`algorithm.tau=…`, `algorithm.ensemble=2`",
)
def overestimation(facts: Facts) -> Cause | None:
    discount = facts.number("algorithm.discount")
    if discount is None or "value/mean" not in facts.series or rewards_are_changed(facts):
        raise NotApplicable
    value, far = facts.late("value/mean"), horizon(discount)
    rewards: list[float] = []  # of a step, on average over an episode
    for family in ("episode/", "evaluation/mean_"):
        pairs = zip(facts.series.get(f"{family}return", []), facts.series.get(f"{family}length", []), strict=False)
        rewards += [total.value / max(length.value, 1.0) for total, length in pairs]
    if len(rewards) < 3:
        raise Unknown("3 values of episode/return")
    entropy_worth = 0.0  # of a step at most, in rewards
    for part in facts.under("temperature"):
        entropies = [abs(point.value) for point in facts.series.get(f"entropy/{part}", [])]
        entropy_worth += max(facts.values(f"temperature/{part}")) * max(entropies, default=0.0)
    most = max(rewards) * far
    if value <= most + FAR * far * max(map(abs, rewards)) + far * entropy_worth:
        return None
    reason = f"values are {shown(value)} on average, but rewards of the best episodes add up to {shown(most)} at most"
    remedy = "algorithm.ensemble=2, a slower target, or a smaller learning rate"
    return reason, {"value": value, "bound": most}, remedy


@rule(
    "policy moves too far in an update",
    f"{CLIPPED:.0%} of ratios are clipped, or the divergence is {DIVERGED:g} nats",
    "`algorithm.kl_limit=…`, `algorithm.epochs=…`",
    reads="policy/clipped",
)
def ratios(facts: Facts) -> Cause | None:
    clipped, divergence = facts.values("policy/clipped", 3), facts.values("policy/approx_kl", 3)
    if not any(clipped) and not any(divergence):
        raise Unknown("policy/clipped beyond the first minibatch of a rollout")
    share, moved = facts.late("policy/clipped"), facts.late("policy/approx_kl")
    if share < CLIPPED and moved < DIVERGED:
        return None
    reason = f"{share:.0%} of ratios are clipped, at a divergence of {shown(moved)} nats"
    remedy = "fewer epochs, or an early stop of a rollout: algorithm.kl_limit=0.02"
    return reason, {"clipped": share, "approx_kl": moved}, remedy


@rule(
    "evaluation far below training",
    f"by {GAP:.0%} of the range of training's returns, and below the least of them",
    "`rlrun eval RUN --stochastic`",
    of_env=True,
)
def evaluation(facts: Facts) -> Cause | None:
    played, trained = facts.values("evaluation/mean_return", 4), facts.values("episode/return", 4)
    low, high = min(trained), max(trained)
    frozen, acting = median_of_newer_half(played), median_of_newer_half(trained)
    if high - low <= 0 or not _improved(facts) or frozen > acting - GAP * (high - low) or frozen > low:
        return None
    reason = f"evaluations have a return of {shown(frozen)}, training of {shown(acting)}"
    remedy = "rlrun eval RUN --stochastic shows whether sampled actions make the difference"
    return reason, {"evaluation": frozen, "training": acting}, remedy


@rule(
    "few updates a rollout",
    f"fewer than {FEW}, no preset chose the numbers, and the ceiling is not reached",
    "`algorithm.epochs=…`, `algorithm.batch_size=…`",
)
def few_updates(facts: Facts) -> Cause | None:
    epochs, batch = facts.figure("loader.epochs"), facts.figure("loader.minibatch")
    rows = (facts.number("loader.horizon") or 0.0) * (facts.number("num_envs") or 1.0)
    if facts.preset is not False or epochs is None or batch is None or not batch.value or not rows:
        raise NotApplicable
    updates = epochs.value * rows / batch.value
    if updates >= FEW or ceiling(facts) is not None:
        return None
    reason = f"a rollout of {shown(rows)} steps gets {shown(updates)} updates, and no preset chose that for this task"
    remedy = f"more and smaller batches: {override(epochs.key, 10)} {override(batch.key, 64)}"
    return reason, {"rollout": rows, "updates": updates}, remedy


@rule(
    "returns fell after a peak",
    f"by {FALLEN:.0%} of the rise, for {LASTING:.0%} of the run and 3 evaluations at least",
    "`+with=anneal`, `algorithm.lr=…`, the checkpoint `best`",
    of_env=True,
)
def fallen(facts: Facts) -> Cause | None:
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
    smaller = "" if rate is None else f", {override(rate.key, rate.value / 3)}"
    return reason, evidence, f"+with=anneal{smaller}; the policy of the peak: rlrun eval RUN --checkpoint best"
