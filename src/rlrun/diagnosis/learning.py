"""Checks of how networks take what they are given: sizes of inputs, gradients and updates, entropies, values."""

from __future__ import annotations

from statistics import median

from rlrun.diagnosis.facts import Facts, Figure, Unknown
from rlrun.diagnosis.signs import Beside, Sign, shown, word

CLIPPED, LIMIT = 1_000.0, 1e-3  # how often a gradient is larger than what it is clipped to; limits that starve
LARGE, SMALL, DRIFTED = 100.0, 1e-3, 3.0  # root mean squares of observations; the last one of normalised ones
NORMALISE = "normalise them: +with=observation_norm"
NATS = 1.0
WORTH, WORTH_HELD = 1e-5, 1e-3  # a temperature beside a reward; the latter where a bound holds it down
BONUS = 0.5  # weight of entropy beside advantages of size 1
FAST, SLOW = 0.15, 1e-4  # an update's share of the weights
RATE, USUAL = 0.03, 1e-3  # learning rates: no Adam bears the first
UPDATES = 200
DEAD = 0.75  # share of units


def observations(facts: Facts) -> Sign | None:
    """Fire where networks are given huge or tiny numbers, or where a normaliser no longer fits what comes."""
    size = facts.late("observation/size")
    about, evidence = f"observations are about {shown(size)} large", {"size": size}
    if facts.setting("agent.preprocess.observation_norm") is not None:
        if size <= DRIFTED:
            return None
        reason = f"normalised {about} in place of 1: the normaliser has drifted from what comes"
        cure = "statistics that follow: normalisers.observation.mode=em +normalisers.observation.rate=1.0e-3"
        return Sign(reason, evidence, cure)
    if 0 < size < SMALL:
        return Sign(f"{about}: a network hardly sees them", evidence, NORMALISE)
    if size > LARGE:
        return Sign(f"{about}: the first layer begins at its ends, or learns too fast", evidence, NORMALISE)
    return None


def clipping(facts: Facts) -> Sign | None:
    """Fire where gradients are clipped to next to nothing."""
    limits = {name: facts.figure(f"callbacks.{name}.max_grad_norm") for name in facts.under("grad_norm")}
    clips = {name: limit for name, limit in limits.items() if limit is not None}
    if not clips:
        raise Beside
    for name, limit in clips.items():
        norms = facts.values(f"grad_norm/{name}", 3)
        share = sum(norm > limit.value for norm in norms) / len(norms)
        if share < 0.9 or limit.value > LIMIT or median(norms) < CLIPPED * limit.value:
            continue
        reason = f"gradients of {name}, about {shown(median(norms))} large, are clipped to {shown(limit.value)}"
        evidence = {"grad_norm": median(norms), "max_grad_norm": limit.value, "clipped": share}
        return Sign(reason, evidence, f"a limit near their size: {word(limit.key, 0.5)}, or {word(limit.key, None)}")
    return None


def entropy_weight(facts: Facts) -> Sign | None:
    """Fire where entropy is worth nothing although it lies below its target, or so much that nothing else counts."""
    parts = [part for part in facts.under("temperature") if f"entropy_target/{part}" in facts.series]
    weights = {name: facts.figure(f"callbacks.{name}.entropy_weight") for name in facts.under("loss")}
    bonuses = [weight for weight in weights.values() if weight is not None and weight.value > 0]
    if not bonuses and not parts:
        raise Beside
    signs = [_worthless(facts, part) for part in parts]
    signs += [_overrated(facts, weight, part) for weight in bonuses for part in facts.under("entropy")]
    return next((sign for sign in signs if sign is not None), None)


def _worthless(facts: Facts, part: str) -> Sign | None:
    """Fire where a temperature near 0 lets entropy lie below its target."""
    entropy, target = facts.late(f"entropy/{part}"), facts.late(f"entropy_target/{part}")
    value, reward = facts.late(f"temperature/{part}"), abs(facts.late("batch/reward"))
    largest = facts.figure("algorithm.temperature.largest")
    bounded = largest is not None and value >= 0.9 * largest.value
    if entropy >= target - NATS or value >= (WORTH_HELD if bounded else WORTH) * reward:
        return None
    reason = (
        f"the {part} entropy is {shown(entropy)} nats, its target {shown(target)}, and the temperature "
        f"{shown(value)} beside rewards of {shown(reward)}: nothing keeps the policy exploring"
    )
    cure = f"let it rise: {word(largest.key, None)}" if largest is not None else "let callbacks.temperature adapt it"
    return Sign(reason, {"entropy": entropy, "target": target, "temperature": value}, cure)


def _overrated(facts: Facts, weight: Figure, part: str) -> Sign | None:
    """Fire where a bonus keeps entropy at the most that there is."""
    entropies = facts.values(f"entropy/{part}", 4)
    late, most = median(entropies[len(entropies) // 2 :]), max(entropies)
    if weight.value < BONUS or most <= 0 or late < 0.97 * most:
        return None
    reason = f"the entropy stays at {shown(late)} nats: its weight of {shown(weight.value)} outweighs returns"
    return Sign(reason, {"entropy": late, "weight": weight.value}, f"a smaller weight: {word(weight.key, 0.01)}")


def rate_high(facts: Facts) -> Sign | None:
    """Fire where single updates change much of the weights, or a loss is no number any more."""
    for name in facts.broken:
        if name.startswith("loss/"):
            loss, since = name.removeprefix("loss/"), facts.broken[name]
            reason = f"the loss of {loss} is no finite number from step {shown(since)} on"
            return Sign(reason, {"env_steps": since}, rate_word(facts, loss, 0.1))
    ratios = {name: max(facts.values(f"update_ratio/{name}")) for name in facts.under("update_ratio")}
    if not ratios:
        raise Unknown("update_ratio")
    name = max(ratios, key=lambda key: ratios[key])
    rate = facts.number(f"callbacks.{name}.optimiser.lr")
    if ratios[name] < FAST and (rate is None or rate < RATE):
        return None
    reason = f"single updates of {name} change up to {100 * ratios[name]:.2g} % of its weights{_at(rate)}"
    return Sign(reason, _evidence(ratios[name], rate), rate_word(facts, name, 0.01))


def rate_low(facts: Facts) -> Sign | None:
    """Fire where updates hardly change the weights at all."""
    ratios = {name: max(facts.values(f"update_ratio/{name}", 3)) for name in facts.under("update_ratio")}
    if not ratios or facts.updates < UPDATES:
        raise Unknown(f"update_ratio over {UPDATES} updates")
    name = min(ratios, key=lambda key: ratios[key])
    if ratios[name] > SLOW:
        return None
    rate = facts.number(f"callbacks.{name}.optimiser.lr")
    reason = f"no update of {name} changes more than {shown(ratios[name])} of its weights{_at(rate)}"
    return Sign(reason, _evidence(ratios[name], rate), rate_word(facts, name, 1e-3 / max(ratios[name], 1e-9)))


def _at(rate: float | None) -> str:
    return "" if rate is None else f", at a learning rate of {shown(rate)}"


def _evidence(ratio: float, rate: float | None) -> dict[str, float]:
    return {"update_ratio": ratio} | ({} if rate is None else {"learning_rate": rate})


def rate_word(facts: Facts, name: str, factor: float) -> str:
    """Return the word that sets a loss's learning rate to so many times what it is, at most to a usual one."""
    rate = facts.figure(f"callbacks.{name}.optimiser.lr")
    if rate is None:
        return f"another learning rate of {name}"
    wanted = min(rate.value * factor, USUAL) if rate.value > 0 else USUAL
    return f"a {'smaller' if factor < 1 else 'larger'} learning rate: {word(rate.key, wanted)}"


def dead(facts: Facts) -> Sign | None:
    """Fire where most hidden units learn nothing any more."""
    shares = {name: facts.late(f"dead_units/{name}") for name in facts.under("dead_units")}
    if not shares:
        raise Unknown("dead_units")
    name = max(shares, key=lambda key: shares[key])
    if shares[name] < DEAD:
        return None
    reason = f"no gradient reaches {shares[name]:.0%} of the hidden units of {name}"
    return Sign(reason, {"dead_units": shares[name]}, f"{rate_word(facts, name, 0.1)}, or layers with a norm")
