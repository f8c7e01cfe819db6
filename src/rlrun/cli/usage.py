"""Tell in one line what is wrong with the options and arguments of a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlrun.core.errors import did_you_mean


def explain(error: Any, overrides: Sequence[str] = ()) -> str:
    """Return a usage error of typer's as one line: the command, what is wrong, the nearest match.

    overrides: the command line, of which options that other libraries have are written as overrides.

    Told apart by what they carry: the module these classes live in differs between versions of typer.
    """
    context = error.ctx
    path = "rlrun" if context is None else context.command_path
    command = path.removeprefix("rlrun").strip()
    place = f"{command}: " if command else ""
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        flag = error.option_name
        known = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        overrides = (
            _overrides(overrides, known) if any(item.name == "overrides" for item in context.command.params) else ""
        )
        near = overrides or did_you_mean(flag, known) or f"; there are {_list(known)}"
        return f"{place}there is no option {flag}{near}"
    return f"{place}{error.format_message()} ({path} --help)"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _overrides(overrides: Sequence[str], known: list[str]) -> str:
    """Return a hint with the hints that unknown options such as `--algo ppo` stand for."""
    from rlrun.config.peers import override_of

    hints = []
    pairs = [text.partition("=") for text in overrides]
    algorithm = next((value for name, _, value in pairs if name == "algorithm"), None)
    for (name, equals, value), after in zip(pairs, (*overrides[1:], ""), strict=True):
        value = value if equals else "" if after.startswith("-") or "=" in after else after
        if name.startswith("--") and name not in known and (hint := override_of(name, value, algorithm)):
            hints.append(hint)
    return f": overrides have no dashes (did you mean '{' '.join(hints)}'?)" if hints else ""
