"""Compare two runs; the Python equivalent of `rlrun diff`. No code of the runs is executed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.config.interpolation import dotted, leaves, plain
from rlrun.config.saved import load
from rlrun.core.files import known
from rlrun.runs.directory import RunDir

CIRCUMSTANCES = ("git", "python", "platform", "host", "cpu", "device", "gpu", "threads", "resume", "parent")
FIGURES = ("status", "env_steps", "updates", "episodes", "seconds", "objective")
ABSENT = "absent"


class Side(NamedTuple):
    """A value of one run, and the file or override that set it, if known."""

    value: Any
    set_by: str | None = None


class Pair(NamedTuple):
    """A value that differs."""

    first: Side
    second: Side


class Difference(NamedTuple):
    """The differences between two runs, by name.

    Attributes:
        config: keys of the config, except links to other keys.
        circumstances: source, machine, versions of packages.
        outcome: results of training.
    """

    config: dict[str, Pair]
    circumstances: dict[str, Pair]
    outcome: dict[str, Pair]

    @property
    def empty(self) -> bool:
        """True if nothing differs except the training time."""
        return not self.config and not self.circumstances and not (self.outcome.keys() - {"seconds"})

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `rlrun diff --json` prints."""
        return {
            part: {name: {"one": pair.first._asdict(), "other": pair.second._asdict()} for name, pair in pairs.items()}
            for part, pairs in self._asdict().items()
        }


def diff(left: Path | str, right: Path | str) -> Difference:
    """Compare two runs.

    Raises:
        RunDirError: one of them is not a run, or its config cannot be read.
    """
    runs = [RunDir.open(left), RunDir.open(right)]
    abouts = [known(run.manifest) for run in runs]
    summaries = [known(run.summary) for run in runs]
    set_by: list[dict[str, Any]] = [
        about["set_by"] if isinstance(about.get("set_by"), dict) else {} for about in abouts
    ]
    settings = [{dotted(path): value for path, value in leaves(plain(load(run.config)))} for run in runs]
    versions = [_flat(about) for about in abouts]
    figures = [{name: summary.get(name) for name in FIGURES} for summary in summaries]
    return Difference(
        config=_pairs(settings[0], settings[1], *set_by),
        circumstances=_pairs(versions[0], versions[1], {}, {}),
        outcome=_pairs(figures[0], figures[1], {}, {}),
    )


def _flat(about: Mapping[str, Any]) -> dict[str, Any]:
    packages = about.get("packages")
    facts = {name: about.get(name) for name in CIRCUMSTANCES}
    if facts["resume"] == "exact":  # the same as an uninterrupted run
        facts["resume"] = None
    return {**facts, **(packages if isinstance(packages, dict) else {})}


def _pairs(
    left: Mapping[str, Any], right: Mapping[str, Any], first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, Pair]:
    """Return the pairs in which two mappings differ, in the order of the first, then of the second.

    first, second: the file or override that set each value, if known.
    """
    pairs = {}
    for name in dict.fromkeys([*left, *right]):
        values = left.get(name, ABSENT), right.get(name, ABSENT)
        if values[0] != values[1] or type(values[0]) is not type(values[1]):
            sides = (Side(value, known.get(name)) for value, known in zip(values, (first, second), strict=True))
            pairs[name] = Pair(*sides)
    return pairs
