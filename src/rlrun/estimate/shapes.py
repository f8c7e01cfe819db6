"""Which jobs cost the same, and in what jobs differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlrun.config.words import Word, parse
from rlrun.sweep.expansion import Job

# Last parts of keys whose number changes what is learned, not what a step takes.
IDLE = frozenset(
    (
        *("seed", "lr", "discount", "lambda", "clip", "target_rate", "per_dim"),
        *("value_weight", "entropy_weight", "kl_weight"),
    )
)


@dataclass(frozen=True)
class Shape:
    """Jobs that cost the same.

    Attributes:
        words: that they have in common, without those that cost nothing.
        label: of these the ones that not all shapes have.
        jobs: in the order of the sweep.
    """

    words: tuple[str, ...]
    label: str
    jobs: tuple[Job, ...]


def shape_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words that tell what a run costs, in an order of their own.

    Two runs of different words may cost the same; two of the same words do, as long as conf/ stays as it is.
    """
    return tuple(sorted(word.text for word in parse(words) if not _idle(word)))


def shapes(jobs: Iterable[Job]) -> list[Shape]:
    """Return jobs by what they cost, in the order in which they come."""
    kinds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        kinds.setdefault(shape_of(job.words), []).append(job)
    common = set.intersection(*map(set, kinds)) if kinds else set()
    return [Shape(words, " ".join(word for word in words if word not in common), (*of,)) for words, of in kinds.items()]


def differing(jobs: Sequence[Job]) -> tuple[list[str], list[list[str]]]:
    """Return the keys whose words are not the same in all jobs, and the value of each job for each of them."""
    rows = [{word.key: word.text for word in parse(job.words)} for job in jobs]
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if len({row.get(key) for row in rows}) > 1]
    return keys, [[_value(row.get(key, "")) for key in keys] for row in rows]


def _value(text: str) -> str:
    _, equals, value = text.partition("=")
    return value if equals else text


def _idle(word: Word) -> bool:
    return word.key.rpartition(".")[2] in IDLE and type(word.value) in (int, float)
