"""Everything that `rlrun` raises on purpose.

    RlrunError                 exit code 1: the run failed
    ├── DataError              the environment gave NaN, infinity or a wrong shape
    ├── WorkerError            a collecting worker is gone
    ├── LostRun                another process has taken the run over
    ├── RankError              one of torchrun's ranks is gone, or its networks differ from those of the rest
    └── RequestError           exit code 2: the request is wrong
        ├── ConfigError        a key, a choice, an interpolation or a value of the config
        ├── BuildError         a `_target_` or one of its arguments
        ├── WiringError        a callback requests a name that nobody provides
        ├── SpaceError         a space that a part cannot handle
        ├── MissingExtra       an optional package is not installed
        └── RunDirError        a run directory that cannot be made, read or used
            └── InProgress     another process works on the run

Messages are one line: the place, what was wanted, what there is, and the nearest match.
"""

import difflib
import json
import math
import numbers
import os
import shlex
import traceback
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

EXITS = ("<frozen _sitebuiltins>", os.path.join("wandb", "sdk", "lib", "exit_hooks.py"))  # call or replace `sys.exit`


class RlrunError(Exception):
    """A failure that `rlrun` can explain in one line."""

    exit_code = 1
    whole = False  # whether training stopped between two steps, in a state worth a checkpoint


class DataError(RlrunError):
    """The environment gave data that no algorithm can learn from."""


class WorkerError(RlrunError):
    """A collecting worker died or failed; training itself is between two steps."""

    whole = True


class LostRun(RlrunError):
    """Another process took over the run; this one must not write to it any more."""


class RankError(RlrunError):
    """One of torchrun's ranks died or failed, maybe during an update; without a message if that rank reports it."""


class RequestError(RlrunError):
    """The user's request cannot be carried out."""

    exit_code = 2


class ConfigError(RequestError):
    """A key, a choice, an interpolation or a value of the config is wrong."""


class BuildError(RequestError):
    """A part cannot be built from its config."""


class WiringError(RequestError):
    """The data flow between callbacks has a hole or a circle."""


class SpaceError(RequestError):
    """A part cannot handle the environment's observation or action space."""


class RunDirError(RequestError):
    """A run directory cannot be created, read or used."""


class InProgress(RunDirError):
    """Another process works on the run."""


class Left(KeyboardInterrupt):
    """A second signal, or one while the run ended, stopped a run that can be resumed."""


class MissingExtra(RequestError):
    """An optional package is needed and not installed."""

    def __init__(self, place: str, package: str, extra: str) -> None:
        super().__init__(f"{place} needs the package '{package}', which is not installed: {installing(extra)}")


def installing(extra: str = "") -> str:
    """Return the pip command that installs this copy of rlrun with an extra.

    A checkout is named by its path, another origin by its URL: on a package index, anybody may own the bare name.
    """
    wanted, checkout = f"[{extra}]" if extra else "", Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{checkout}{wanted}')}"
    try:
        origin = json.loads(metadata.distribution("rlrun").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    vcs = origin.get("vcs_info")
    url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin.get("url")
    return f"pip install {shlex.quote(f'rlrun{wanted}' + (f' @ {url}' if url else ''))}"


SHORT = 3  # letters of a short name, at most


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like `name`, first one that differs in case alone; None if all are too different."""
    choices = [str(choice) for choice in choices]
    for choice in choices:
        if choice.lower() == name.lower():
            return choice
    matches = difflib.get_close_matches(name, choices, n=8, cutoff=0.6)
    # A short name with another first letter is another name: gpu and xpu.
    matches = [match for match in matches if len(name) > SHORT or match[0] == name[0] or sorted(match) == sorted(name)]

    def order(choice: str) -> tuple[float, ...]:
        alike = difflib.SequenceMatcher(None, choice, name).ratio()
        # Mistyped names usually begin right, so the longest common beginning decides.
        return edits(choice, name), -alike, -sum(name.startswith(choice[: end + 1]) for end in range(len(choice)))

    return min(matches, key=order, default=None)


def edits(name: str, other: str) -> int:
    """Return the fewest letters to insert, delete, replace or swap that turn one name into the other."""
    rows: list[list[int]] = [[*range(len(other) + 1)]]
    for i, letter in enumerate(name, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(row[-1] + 1, rows[-1][j] + 1, rows[-1][j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and (letter, name[i - 2]) == (other[j - 2], wanted):
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def did_you_mean(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """Return ` (did you mean 'x'?)` for the nearest choice, or an empty string."""
    match = nearest(name, choices)
    return f" (did you mean '{prefix}{match}'?)" if match else ""


def beginnings(names: Iterable[str]) -> list[str]:
    """Return dotted names and all their beginnings: for `networks.q` also `networks`."""
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(".".join(own[:end]) for own in parts for end in range(1, len(own) + 1)))


def require_one_of(place: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value outside the choices.

    Raises:
        ConfigError: naming all choices, and the nearest.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{place}: wanted one of {', '.join(choices)}, got {shown(value)}")
    if value not in choices:
        raise ConfigError(f"{place}: wanted one of {', '.join(choices)}, got '{value}'{did_you_mean(value, choices)}")


def require_known(place: str, entry: Iterable[str], known: Collection[str]) -> None:
    """Refuse the settings of an entry if one is unknown.

    Raises:
        ConfigError: naming it, and the nearest known one.
    """
    for key in entry:
        if key not in known:
            raise ConfigError(f"{place}: no setting '{key}'{did_you_mean(key, known)}")


def require_at_least(place: str, value: Any, least: float) -> None:
    """Refuse a number that is too small, NaN, and values of other types.

    Raises:
        ConfigError: naming the smallest allowed number.
    """
    if not (is_number(value) and value >= least):
        raise ConfigError(f"{place} must be at least {least}, not {shown(value)}")


def require_number(
    place: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Refuse a number out of range, infinity, NaN, and values of other types.

    Raises:
        ConfigError: naming the range.
    """
    if not (is_number(value) and math.isfinite(value) and least <= value <= most and above < value < below):
        parts = {"from": least, "above": above, "to": most, "to below": below}
        span = "".join(f" {word} {bound:g}" for word, bound in parts.items() if math.isfinite(bound))
        raise ConfigError(f"{place}: wanted a number{span}, got {shown(value)}")


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false do not count."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def require_whole(place: str, value: Any, least: int) -> None:
    """Refuse a whole number that is too small, and values of other types.

    Raises:
        ConfigError: naming the smallest allowed number.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{place}: wanted a whole number from {least}, got {shown(value)}")


def require_counts(counts: Mapping[str, Any]) -> None:
    """Refuse saved counts, by name, that are not whole numbers of 64 bits from 0.

    Raises:
        RlrunError: naming the entry.
    """
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count < 2**63:
            raise RlrunError(f"'{name}' is {printable(f'{count}'[:40])}, wanted a whole number from 0")


def shown(value: Any) -> str:
    """Return a value as YAML writes it."""
    return repr(value) if isinstance(value, str) else "null" if value is None else str(value).lower()


def printable(text: str) -> str:
    """Return a text with `?` for control characters: it may come from another person."""
    return "".join(char if char.isprintable() else "?" for char in text)


def describe_error(error: BaseException) -> str:
    """Return an error as one line; for `sys.exit`, with the line of code that called it."""
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)
        caller = ([frame for frame in frames if not frame.filename.endswith(EXITS)] or frames)[-1]
        where = f"{caller.filename}:{caller.lineno} in {caller.name}"
        return f"{where} called sys.exit({error.code or 0}) before the work was complete"
    notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))  # which hook raised it
    text = str(error) if isinstance(error, RlrunError) else f"{notes}{type(error).__name__}: {error}"
    return " ".join(text.split()).removesuffix(":")
