"""Checks of how networks take what they are given: sizes of inputs, gradients and updates, entropies, values."""

from __future__ import annotations

from statistics import median

from rlrun.diagnosis.facts import Facts, Unknown
from rlrun.diagnosis.signs import Beside, Sign, shown, word

CLIPPED, LIMIT = 1_000.0, 1e-3  # how often a gradient is larger than what it is clipped to; limits that starve
LARGE, SMALL, DRIFTED = 100.0, 1e-3, 3.0  # root mean squares of observations; the last one of normalised ones
FAST, SLOW, RATE = 0.15, 1e-4, 0.03  # an update's share of the weights; a learning rate that no Adam bears
SATURATED, DEAD = 0.8, 0.75  # shares
NATS = 1.0
COLLAPSED = 0.05  # of the entropy that a run began with
FAR = 2.0  # times what rewards can add up to
DIVERGED, CLIPPED_RATIOS = 0.2, 0.6
GAP = 0.5  # of the range of returns


def clipping(facts: Facts) -> Sign | None:
    """Fire where gradients are clipped to next to nothing."""
    names = facts.under("grad_norm")
    limits = {name: facts.setting(f"callbacks.{name}.max_grad_norm") for name in names}
    held = {name: limit for name, limit in limits.items() if limit is not None and limit.number is not None}
    if not held:
        raise Beside
    for name, limit in held.items():
        assert limit.number is not None
        norms = facts.values(f"grad_norm/{name}", 3)
        share = sum(norm > limit.number for norm in norms) / len(norms)
        if share < 0.9 or limit.number > LIMIT or median(norms) < CLIPPED * limit.number:
            continue
        reason = f"gradients of {name}, about {shown(median(norms))} large, are clipped to {shown(limit.number)}"
        evidence = {"grad_norm": median(norms), "max_grad_norm": limit.number, "clipped": share}
        return Sign(reason, evidence, f"a limit near their size: {word(limit.key, 0.5)}, or {limit.key}=null")
    return None


def observations(facts: Facts) -> Sign | None:
    """Fire where networks are given huge or tiny numbers, or where a normaliser no longer fits what comes."""
    size = facts.late("observation/size")
    normalised = facts.setting("agent.preprocess.observation_norm") is not None
    evidence = {"size": size}
    if normalised and size > DRIFTED:
        reason = f"normalised observations are {shown(size)} large in place of 1: the normaliser has drifted from them"
        cure = "statistics that follow faster: normalisers.observation.mode=em, or memory.adaptors.observation_norm.update=rollout"
        return Sign(reason, evidence, cure)
    if not normalised and size > LARGE:
        reason = f"observations are about {shown(size)} large: the first layer is at its ends, or far from where it began"
        return Sign(reason, evidence, "normalise them: +with=observation_norm")
    if not normalised and 0 < size < SMALL:
        reason = f"observations are about {shown(size)} large: a network hardly sees them"
        return Sign(reason, evidence, "normalise them: +with=observation_norm")
    return None


def temperature(facts: Facts) -> Sign | None:
    """Fire where entropy is worth nothing although it lies below its target, or so much that nothing else counts."""
    weights = [name for name in facts.under("loss") if facts.number(f"callbacks.{name}.entropy_weight")]
    parts = [part for part in facts.under("temperature") if f"entropy_target/{part}" in facts.series]
    if not weights and not parts:
        raise Beside
    for part in parts:
        entropy, target = facts.late(f"entropy/{part}"), facts.late(f"entropy_target/{part}")
        value, reward = facts.late(f"temperature/{part}"), abs(facts.late("batch/reward"))
        if entropy < target - NATS and value < 1e-3 * reward:
            reason = (
                f"the {part} entropy is {shown(entropy)} nats, its target {shown(target)}, but the temperature is "
                f"{shown(value)} beside rewards of {shown(reward)}: nothing keeps the policy exploring"
            )
            evidence = {"entropy": entropy, "target": target, "temperature": value}
            return Sign(reason, evidence, "a temperature that may rise: algorithm.temperature.largest=null")
    for name in weights:
        for part in facts.under("entropy"):
            weight = facts.setting(f"callbacks.{name}.entropy_weight")
            found = facts.values(f"entropy/{part}", 4)
            late, most = median(found[len(found) // 2 :]), max(found)
            if weight is not None and (weight.number or 0.0) >= 0.5 and most > 0 and late > 0.97 * most:
                reason = f"the entropy stays at {shown(late)} nats: its weight of {shown(weight.number or 0)} outweighs returns"
                evidence = {"entropy": late, "weight": weight.number or 0.0}
                return Sign(reason, evidence, f"a smaller weight: {word(weight.key, 0.01)}")
    return None


def rate_high(facts: Facts) -> Sign | None:
    """Fire where single updates change much of the weights, or a loss is no number any more."""
    names = facts.under("loss")
    for name in (each.removeprefix("loss/") for each in facts.broken if each.startswith("loss/")):
        reason = f"the loss of {name} is no finite number from step {shown(facts.broken[f'loss/{name}'])} on"
        return Sign(reason, {"env_steps": facts.broken[f"loss/{name}"]}, _rate_word(facts, name, 0.1))
    ratios = {name: max(facts.values(f"update_ratio/{name}")) for name in facts.under("update_ratio")}
    if not names and not facts.updates:
        raise Unknown("an update")
    if not ratios:
        raise Unknown("update_ratio")
    name = max(ratios, key=lambda each: ratios[each])
    rate = facts.number(f"callbacks.{name}.optimiser.lr")
    if ratios[name] < FAST and (rate is None or rate < RATE):
        return None
    told = "" if rate is None else f" (learning rate {shown(rate)})"
    reason = f"single updates of {name} change up to {100 * ratios[name]:.2g} % of its weights{told}"
    evidence = {"update_ratio": ratios[name]} | ({} if rate is None else {"learning_rate": rate})
    return Sign(reason, evidence, _rate_word(facts, name, 0.01))


def rate_low(facts: Facts) -> Sign | None:
    """Fire where updates hardly change the weights at all."""
    ratios = {name: facts.values(f"update_ratio/{name}", 3) for name in facts.under("update_ratio")}
    if not ratios or facts.updates < 200:
        raise Unknown("update_ratio over 200 updates")
    largest = {name: max(values) for name, values in ratios.items()}
    name = min(largest, key=lambda each: largest[each])
    if largest[name] > SLOW:
        return None
    rate = facts.number(f"callbacks.{name}.optimiser.lr")
    told = "" if rate is None else f" (learning rate {shown(rate)})"
    reason = f"no update of {name} changes more than {shown(largest[name])} of its weights{told}: they stay as they began"
    evidence = {"update_ratio": largest[name]} | ({} if rate is None else {"learning_rate": rate})
    return Sign(reason, evidence, _rate_word(facts, name, 1e-3 / max(largest[name], 1e-9)))


def _rate_word(facts: Facts, name: str, factor: float) -> str:
    """Return the word that sets a loss's learning rate to so many times what it is, within what Adam bears."""
    rate = facts.setting(f"callbacks.{name}.optimiser.lr")
    if rate is None or not rate.number:
        return f"another learning rate of {name}"
    return f"a {'smaller' if factor < 1 else 'larger'} learning rate: {word(rate.key, min(rate.number * factor, 1e-3))}"


def saturated(facts: Facts) -> Sign | None:
    """Fire where a policy wants nothing but the ends of its range."""
    if not facts.under("entropy") or "action/saturated" not in facts.series:
        raise Beside
    share = facts.late("action/saturated", 4)
    if share < SATURATED:
        return None
    reason = f"{share:.0%} of the policy's actions lie at the ends of their range: it wants more than the bounds let it"
    remedy = "look at the bounds of the action space, and at the scale of actions that env.wrappers make"
    return Sign(reason, {"saturated": share}, remedy)


def dead(facts: Facts) -> Sign | None:
    """Fire where most hidden units learn nothing any more."""
    shares = {name: facts.late(f"dead_units/{name}") for name in facts.under("dead_units")}
    if not shares:
        raise Unknown("dead_units")
    name = max(shares, key=lambda each: shares[each])
    if shares[name] < DEAD:
        return None
    reason = f"no gradient reaches {shares[name]:.0%} of the hidden units of {name}"
    return Sign(reason, {"dead_units": shares[name]}, f"{_rate_word(facts, name, 0.1)}, or layers with a norm")


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
    weight = facts.setting(f"callbacks.{name}.entropy_weight")
    cure = word("algorithm.entropy_weight" if weight is None else weight.key, 0.01)
    return Sign(reason, {"first": first, "late": late}, f"a bonus for entropy: {cure}")


def _improved(facts: Facts) -> bool:
    """Tell whether returns rose clearly over the run, by a quarter of their range."""
    found = facts.values("episode/return", 4)
    late = median(found[len(found) // 2 :])
    return late - found[0] > 0.25 * (max(found) - min(found)) > 0


def overestimation(facts: Facts) -> Sign | None:
    """Fire where values lie beyond what the rewards of any episode add up to."""
    discount = facts.number("algorithm.discount")
    adaptors = facts.setting("memory.adaptors")
    held = adaptors.value if adaptors is not None and isinstance(adaptors.value, dict) else {}
    if discount is None or "value/mean" not in facts.series or any(str(name).startswith("reward") for name in held):
        raise Beside
    if facts.under("intrinsic"):
        raise Beside
    returns, lengths = facts.values("episode/return", 3), facts.values("episode/length", 3)
    value, far = facts.late("value/mean"), 1.0 / max(1.0 - discount, 1e-4)
    steps = [one / max(other, 1.0) for one, other in zip(returns, lengths, strict=False)]
    played = facts.series.get("evaluation/mean_return", []), facts.series.get("evaluation/mean_length", [])
    steps += [one.value / max(other.value, 1.0) for one, other in zip(*played, strict=False)]
    least, most = min(steps) * far, max(steps) * far
    bonus = _entropy_worth(facts) * far
    room = FAR * max(abs(least), abs(most)) + bonus
    if value <= most + room:
        return None
    reason = (
        f"values are {shown(value)} on average, but no episode's rewards add up to more than {shown(max(most, 0.0))} "
        f"at a discount of {discount:g}"
    )
    slower = facts.setting("algorithm.target_rate")
    cure = "a slower target" if slower is None else f"a slower target: {word(slower.key, 0.005)}"
    return Sign(reason, {"value": value, "bound": most}, f"{cure}, a smaller learning rate, or algorithm.ensemble=2")


def _entropy_worth(facts: Facts) -> float:
    """Return what the entropy of a step is worth at most, in rewards."""
    parts = [part for part in facts.under("temperature") if f"entropy/{part}" in facts.series]
    return sum(max(facts.values(f"temperature/{part}")) * max(map(abs, facts.values(f"entropy/{part}"))) for part in parts)


def ratios(facts: Facts) -> Sign | None:
    """Fire where a policy moves far from the one that acted before its rollout is used up."""
    if "policy/clipped" not in facts.series:
        raise Beside
    clipped, divergence = facts.values("policy/clipped", 3), facts.values("policy/approx_kl", 3)
    if not any(clipped) and not any(divergence):
        raise Unknown("policy/clipped beyond the first minibatch of a rollout")
    if median(clipped) < CLIPPED_RATIOS and median(divergence) < DIVERGED:
        return None
    reason = f"{median(clipped):.0%} of ratios are clipped, at a divergence of {shown(median(divergence))} nats"
    evidence = {"clipped": median(clipped), "approx_kl": median(divergence)}
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
