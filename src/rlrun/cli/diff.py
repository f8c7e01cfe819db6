"""`rlrun diff`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json
from rlrun.core.errors import printable

if TYPE_CHECKING:
    from rlrun.commands.diff import Pair, Side


def diff(
    left: Annotated[Path, typer.Argument(help="A run directory.")],
    right: Annotated[Path, typer.Argument(help="Another run directory.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs: config and which file or override set it, versions, source, machine, outcome."""
    delta = rlrun.diff(left, right)
    if as_json:
        print_json(delta.as_dict())
        return
    if delta.empty:
        typer.echo("no difference" + (" but the time that it took" if delta.outcome else ""))
    else:
        for title, pairs in (("config", delta.config), ("made with", delta.circumstances), ("outcome", delta.outcome)):
            _show(title, pairs)


def _show(title: str, pairs: Mapping[str, Pair]) -> None:
    if pairs:
        typer.echo(title)
    width = max(map(len, pairs), default=0)
    for name, pair in pairs.items():
        typer.echo(f"  {printable(name).ljust(width)}  {_text(pair.first)} | {_text(pair.second)}")


def _text(side: Side) -> str:
    value = side.value if isinstance(side.value, str) else json.dumps(side.value)
    set_by = "override" if side.set_by == "word" else side.set_by
    return printable(f"{value} ({set_by})" if isinstance(set_by, str) else value)
