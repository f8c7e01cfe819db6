"""What every run promises, tried on one command: seeds, checkpoints, exact resume, endings, export."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun import inspection, projects, typed
from rlrun.config import Composed, compose
from rlrun.config.targets import explain
from rlrun.config.words import parse
from rlrun.conformance import endings
from rlrun.conformance.reach import differences
from rlrun.conformance.small import AT, RESUMED, shrink
from rlrun.conformance.twins import Leaves, leave, records, walk
from rlrun.conformance.verdicts import Examined, Verdict, several
from rlrun.errors import MissingExtra
from rlrun.experiment import Result, train
from rlrun.export.making import export_onnx
from rlrun.resuming import resume

LANES = 3


@dataclass(frozen=True)
class Ended:
    """A run that ended, and all that it held then."""

    result: Result
    leaves: Leaves
    unknown: list[str]

    @property
    def run(self) -> Path:
        return self.result.run_dir


def examine(
    words: Sequence[str],
    folder: Path,
    *,
    config_dir: Path | None = None,
    own: Sequence[str] = (),
    of_environment: bool = False,
) -> Examined:
    """Try one command.

    Args:
        words: of `rlrun train`.
        folder: for its runs, some megabytes.
        config_dir: the user's own conf folder.
        own: those among the words that the user typed; their numbers are not made small.
        of_environment: it is an environment that is tried, not what learns in it.
    """
    settings = {word.key: word.value for word in parse(own)}
    numbers = {"num_envs": LANES, **RESUMED}
    numbers = {key: value for key, value in numbers.items() if key not in settings}

    def small(seed: int) -> Composed:
        composed = shrink(compose(list(words), config_dir), numbers)
        composed.config.seed = int(composed.config.seed) + seed
        return composed

    verdicts: list[Verdict] = []
    try:
        baseline = ended(train(small(0), run_dir=folder / "one"))
    except Exception as error:
        return Examined([*words], [Verdict("training", "failed", explain(error))])
    verdicts.append(Verdict("training", "ok", f"{baseline.result.summary['updates']} updates"))
    verdicts += _tried("seeding", lambda: seeding(baseline, small, folder))
    verdicts += _tried("exact resume", lambda: resumed(baseline, folder, trust=_trusted(settings)))
    if not of_environment:
        verdicts += _tried(endings.NAME, lambda: [endings.check(words, folder / "endings", config_dir, settings)])
    verdicts += _tried("export", lambda: [export(baseline.run)])
    return Examined([*words], verdicts)


def ended(result: Result) -> Ended:
    """Look at a run at once, before another changes what the process shares."""
    unknown: list[str] = []
    return Ended(result, walk(result.trainer, unknown), unknown)


def digests(run: Path) -> dict[str, str | None]:
    """Return a digest of each part in a run's last checkpoint."""
    return inspection.checkpoints(run, digest=True)[-1].parts


def seeding(baseline: Ended, small: Callable[[int], Composed], folder: Path) -> list[Verdict]:
    """Train again with the same seed, and with another one."""
    same = ended(train(small(0), run_dir=folder / "same"))
    mismatches = differences(baseline.leaves, same.leaves)
    if mismatches or records(baseline.run) != records(same.run):
        text = f"the same seed gives another run: {several(mismatches) or 'its metrics differ'}"
        return [Verdict("seeding", "failed", text)]
    result = train(small(1), run_dir=folder / "other")
    if digests(baseline.run) == digests(result.run_dir):
        return [Verdict("seeding", "failed", "another seed gives the same run")]
    return [Verdict("seeding", "ok", "the same seed gives the same run, another one another")]


def resumed(baseline: Ended, folder: Path, *, trust: Sequence[str]) -> list[Verdict]:
    """Go on from a checkpoint on the way, as after a kill, and compare with the run that never stopped."""
    copy = folder / "resumed"
    leave(baseline.run, copy, at=AT)
    again = ended(resume(copy, trust=trust))
    about = json.loads((copy / "manifest.json").read_text())
    reasons = [reason for entry in about["resumed"] for reason in entry.get("approximate", ())]
    here, there = digests(baseline.run), digests(again.run)
    parts = [path for path in here if here[path] != there.get(path)]
    if parts or records(copy) != records(baseline.run) or about["resume"] != "exact":
        text = several([*reasons, *parts]) or "its metrics differ"
        exact = Verdict("exact resume", "failed", f"the resumed run is another one: {text}")
    else:
        exact = Verdict("exact resume", "ok", "the resumed run is the one that never stopped")
    return [exact, _complete(differences(baseline.leaves, again.leaves), baseline.unknown)]


def _trusted(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of code that the user typed; other texts can look like one, such as that of a file."""
    names = typed.names(settings)
    return [name for name in names if name.startswith("oc.") or projects.find(name.split(".")[0], [Path.cwd()])]


def _complete(forgotten: list[str], unknown: list[str]) -> Verdict:
    name = "checkpoints"
    if forgotten:
        return Verdict(name, "failed", f"no state_dict holds what differs after a resume: {several(forgotten)}")
    if unknown:
        return Verdict(name, "skipped", f"not all can be looked into: {several(unknown)}")
    return Verdict(name, "ok", "all that training changes is saved")


def export(run: Path) -> Verdict:
    """Export a run's policy, and compare."""
    try:
        exported = export_onnx(run, episodes=2)
    except MissingExtra as error:
        return Verdict("export", "skipped", str(error))
    return Verdict("export", "ok", f"as it acts, within {exported.about['parity']['largest']:.1e}")


def _tried(name: str, check: Callable[[], list[Verdict]]) -> list[Verdict]:
    """Return what a check says, or that it could not be made."""
    try:
        return check()
    except Exception as error:
        return [Verdict(name, "failed", explain(error))]
