"""What commands print beside their result, on standard error."""

from __future__ import annotations

import logging
import sys

import typer


def show(*names: str) -> None:
    """Print what loggers say, as it is."""
    for name in names:
        messages, handler = logging.getLogger(name), logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        messages.handlers, messages.propagate = [handler], False
        messages.setLevel(logging.INFO)


def tell_presets(*names: str | None) -> None:
    """Name the presets that apply, if any does."""
    from rlrun.config.layering import describe_presets

    if line := describe_presets(names):
        typer.echo(line, err=True)
