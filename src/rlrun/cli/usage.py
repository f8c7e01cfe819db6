"""Tell in one line what is wrong with the options and arguments of a command."""

from __future__ import annotations

from typing import Any

from rlrun.errors import did_you_mean


def explain(error: Any) -> str:
    """Return a usage error of typer's as one line: the command, what is wrong, the nearest match.

    Told apart by what they carry: the module these classes live in differs between versions of typer.
    """
    context = error.ctx
    path = "rlrun" if context is None else context.command_path
    command = path.removeprefix("rlrun").strip()
    place = f"{command}: " if command else ""
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        given = error.option_name
        known = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        return f"{place}there is no option {given}{did_you_mean(given, known) or f'; there are {_list(known)}'}"
    return f"{place}{error.format_message()} ({path} --help)"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
