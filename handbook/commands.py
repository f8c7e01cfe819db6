"""The command line, as the commands themselves have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from handbook.markdown import block, code, table
from rlrun.cli.main import app


def page() -> str:
    """Return the page of all commands."""
    root = typer.main.get_command(app)
    parts = ["# Command line", "Generated from the commands. Each command accepts `--debug`.", *_own(root, [])]
    for path, command in _commands(root, []):
        parts += [f"## rlrun {' '.join(path)}", *_own(command, path)]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    for name, command in group.commands.items():
        here = [*path, name]
        if hasattr(command, "commands"):
            yield from _commands(command, here)
        else:
            yield here, command


def _own(command: Any, path: list[str]) -> Iterator[str]:
    context = command.make_context(" ".join(["rlrun", *path]), [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    yield block(f"rlrun {' '.join([*path, usage])}", "text")
    if command.help:
        yield command.help.replace("\b", "").strip()
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [(code(names), told) for names, told in filter(None, records)]
    if rows:
        yield table(("argument or option", "meaning"), rows)
