"""All rules, causes before the symptoms that they bring: the first that fires is the most likely cause."""

from __future__ import annotations

from typing import NamedTuple

from rlrun.diagnosis import learning, outcome, setting
from rlrun.diagnosis.signs import Check


class Rule(NamedTuple):
    """A check by name, what it fires at, and what helps."""

    name: str
    fires: str
    helps: str
    check: Check


RULES = (
    Rule("failed run", "the run failed", "what log.txt says", outcome.failed),
    Rule(
        "warm-up longer than the run",
        f"no update was made, or the warm-up takes {setting.WARM_UP:.0%} of the budget",
        "`algorithm.warmup_steps=…`",
        setting.no_update,
    ),
    Rule(
        "no reward",
        "every reward that was learned from is 0, or every episode has the same return",
        "the environment's reward; `+with=rnd` where rewards are rare",
        setting.no_reward,
    ),
    Rule(
        "episodes never end",
        f"no episode ended within twice the time limit, or {setting.ENDLESS:,} steps a lane where none is known",
        "a `TimeLimit` in `env.wrappers`",
        setting.no_end,
    ),
    Rule(
        "target network stands still",
        "the slow copy needs more updates to follow its network than were made",
        "`algorithm.target_rate=…`, `algorithm.target_every=…`",
        setting.stuck_target,
    ),
    Rule(
        "replay memory too small",
        f"it is full with less than {setting.BATCHES} batches, or than one episode",
        "`memory.length=…`",
        setting.small_memory,
    ),
    Rule(
        "scale of rewards",
        f"discounted rewards add up to more than {setting.LARGE:,.0f}, or less than {setting.SMALL:g}",
        "`+with=reward_norm`, `+with=reward_scale`",
        setting.reward_scale,
    ),
    Rule(
        "time limit told as termination",
        "episodes terminate exactly at the time limit, or all at the same step, and none is truncated",
        "`truncated` in place of `terminated`",
        setting.told_as_end,
    ),
    Rule(
        "scale of observations",
        f"their root mean square is above {learning.LARGE:g} or below {learning.SMALL:g}; normalised ones: above "
        f"{learning.DRIFTED:g}, the normaliser has drifted",
        "`+with=observation_norm`; `normalisers.observation.mode=em`",
        learning.observations,
    ),
    Rule(
        "gradients clipped to nothing",
        f"they are {learning.CLIPPED:,.0f} times as large as a limit of at most {learning.LIMIT:g}",
        "`algorithm.max_grad_norm=…`",
        learning.clipping,
    ),
    Rule(
        "weight of entropy",
        f"it is {learning.NATS:g} nat below its target at no temperature, or a bonus of {learning.BONUS:g} keeps it up",
        "`algorithm.temperature.largest=null`, `algorithm.entropy_weight=…`",
        learning.entropy_weight,
    ),
    Rule(
        "learning rate too high",
        f"an update changes {learning.FAST:.0%} of the weights, the rate is {learning.RATE:g}, or a loss is no number",
        "`algorithm.lr=…`",
        learning.rate_high,
    ),
    Rule(
        "learning rate too low",
        f"no update changes more than {learning.SLOW:g} of the weights",
        "`algorithm.lr=…`",
        learning.rate_low,
    ),
    Rule(
        "actions at their bounds",
        f"{outcome.SATURATED:.0%} of what a policy wants most lies at the ends of the range",
        "the bounds of the action space",
        outcome.saturated,
    ),
    Rule(
        "dead units",
        f"no gradient reaches {learning.DEAD:.0%} of a network's hidden units",
        "`algorithm.lr=…`, layers with a norm",
        learning.dead,
    ),
    Rule(
        "entropy collapsed early",
        f"choices keep {outcome.COLLAPSED:.0%} of their entropy after a third of the run, and returns did not rise",
        "`algorithm.entropy_weight=…`, `+with=entropy_target`",
        outcome.collapse,
    ),
    Rule(
        "values over-estimated",
        "they lie far beyond what the rewards of the best episodes add up to",
        "`algorithm.target_rate=…`, `algorithm.ensemble=2`",
        outcome.overestimation,
    ),
    Rule(
        "policy moves too far in an update",
        f"{outcome.CLIPPED:.0%} of ratios are clipped, or the divergence is {outcome.DIVERGED:g} nats",
        "`algorithm.kl_limit=…`, `algorithm.epochs=…`",
        outcome.ratios,
    ),
    Rule(
        "evaluation far below training",
        f"by {outcome.GAP:.0%} of the range of training's returns, and below the least of them",
        "`rlrun eval RUN --stochastic`",
        outcome.evaluation,
    ),
    Rule(
        "few updates a rollout",
        f"fewer than {setting.FEW}, no preset chose the numbers, and the ceiling is not reached",
        "`algorithm.epochs=…`, `algorithm.batch_size=…`",
        setting.few_updates,
    ),
    Rule(
        "returns fell after a peak",
        f"by {outcome.FALLEN:.0%} of the rise, for {outcome.LASTING:.0%} of the run and 3 evaluations at least",
        "`+with=anneal`, `algorithm.lr=…`, the checkpoint `best`",
        outcome.fallen,
    ),
)


def markdown() -> str:
    """Return the table of `docs/why.md`."""
    rows = [("cause", "named where", "what helps"), ("---", "---", "---"), *(rule[:3] for rule in RULES)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
