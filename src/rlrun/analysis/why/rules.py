"""The rules of `rlrun why`, read from rules.yaml, and their application to a run."""

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import yaml

from rlrun.analysis.why import checks
from rlrun.analysis.why.checks import Found
from rlrun.analysis.why.facts import Facts, NotApplicable, Number, Unknown, override, windowed

ALWAYS = ("observation/size", "update_ratio", "dead_units")  # metrics that every run should have
COMPARISONS: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, ">": operator.gt, "≥": operator.ge}
CONDITION = re.compile(r"(\S+) ([<>≥]) ([\d.e-]+)(?: × (\S+))?")
FILL = re.compile(r"(:? )\{([\w.*]+)([=×])([^}]+)\}")  # an override in advice, with the characters before it


class Condition(NamedTuple):
    """A comparison of a run's number with a bound, or with a multiple of another number."""

    number: str
    comparison: str
    bound: float
    base: str

    @classmethod
    def of(cls, text: str) -> "Condition":
        """Parse a condition; raise ValueError for other text."""
        if (match := CONDITION.fullmatch(text)) is None:
            raise ValueError(f"no condition: {text}")
        number, comparison, bound, base = match.groups(default="")
        return cls(number, comparison, float(bound), base)

    def numbers(self, facts: Facts, name: str) -> tuple[float, float] | None:
        """Return a run's number and its bound, or None if the run lacks one."""
        value = facts.measure(self.number.replace("*", name))
        base = facts.measure(self.base.replace("*", name)) if self.base else 1.0
        return None if value is None or base is None else (value, self.bound * base)

    def holds(self, facts: Facts, name: str) -> bool:
        """Return True if the condition is true for a run."""
        numbers = self.numbers(facts, name)
        return numbers is not None and COMPARISONS[self.comparison](*numbers)


class Sign(NamedTuple):
    """Conditions that must all hold, and the sentence that reports them."""

    conditions: list[Condition]
    reason: str

    def __call__(self, facts: Facts) -> Found | None:
        """Return the sign if a run has it; of several matching names, the one with the most extreme number.

        Raises:
            Unknown: a metric has too few values.
            NotApplicable: the run does not have the number.
        """
        first = self.conditions[0]
        names, source = facts.names(first.number), windowed(first.number)[1]
        found = [(*numbers, name) for name in names if (numbers := first.numbers(facts, name)) is not None]
        if not found:
            raise Unknown(source.removesuffix("/*")) if source.startswith(ALWAYS) else NotApplicable
        for value, bound, name in sorted(found, reverse=first.comparison != "<"):
            if all(condition.holds(facts, name) for condition in self.conditions):
                evidence = {source.replace("*", name): value, "bound": bound}
                return Found(self.reason.format(value=Number(value), name=name), evidence, name)
        return None


class Rule(NamedTuple):
    """A likely cause of bad learning.

    Attributes:
        name: of the cause.
        signs: any of them indicates the cause; a check comes first, if there is one.
        conditions: text for the table in `docs/why.md`.
        advice: the remedy.
        of_env: True if it only applies to runs with an environment.
        updates: least number of updates before its signs are meaningful.
    """

    name: str
    signs: tuple[Callable[[Facts], Found | None], ...]
    conditions: str
    advice: str
    of_env: bool
    updates: int

    def check(self, facts: Facts) -> Found | None:
        """Return the result of the first sign that fires, with a remedy; None if none fires.

        Raises:
            Unknown: a sign lacks data, and no other one fired.
            NotApplicable: the rule does not apply to this run.
        """
        errors: list[Exception] = []
        first: Found | None = None
        for sign in self.signs:
            try:
                first = first or sign(facts)
            except (NotApplicable, Unknown) as error:
                errors.append(error)
        lacks = [error for error in errors if isinstance(error, Unknown)]
        if first is None and (lacks or len(errors) == len(self.signs)):
            raise (lacks or errors)[0]
        if facts.updates < self.updates:
            raise Unknown(f"{self.updates:,} updates")
        return first and first._replace(remedy=first.remedy or filled(self.advice, facts, first.name))


def load_rules() -> tuple[Rule, ...]:
    """Return the rules of rules.yaml, in its order."""
    rules = []
    for name, row in yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8")).items():
        signs, texts = [], []
        if "check" in row:
            signs.append(check := getattr(checks, row["check"]))
            texts.append(check.__doc__.rstrip("."))
        for text, reason in row.get("signs", {}).items():
            signs.append(Sign([Condition.of(part) for part in text.split(" and ")], reason))
            texts.append(f"`{text}`")
        after = f" after {row['updates']:,} updates" if "updates" in row else ""
        conditions = "; ".join(texts) + after
        rules.append(Rule(name, tuple(signs), conditions, row["advice"], row.get("env", False), row.get("updates", 0)))
    return tuple(rules)


def filled(advice: str, facts: Facts, name: str) -> str:
    """Replace `{KEY=VALUE}` and `{KEY×FACTOR}` in advice by overrides, or remove them if the config lacks the key."""

    def put(fill: re.Match[str]) -> str:
        lead, key, sign, text = fill.groups()
        figure = facts.figure(key.replace("*", name))
        if figure is None or (sign == "×" and not figure.value):
            return ""
        value = None if text == "null" else float(text) * (figure.value if sign == "×" else 1.0)
        if value is not None and figure.value == int(figure.value) and abs(value) >= 1.0:
            value = round(value)
        return lead + override(figure.key, value)

    return FILL.sub(put, advice)


RULES = load_rules()
