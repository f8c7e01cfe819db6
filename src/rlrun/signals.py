"""Signals that came before a run had handlers of its own."""

from __future__ import annotations

# The interrupt that a handler raises is lost where python swallows what is raised, in a finaliser for one;
# so whoever takes over looks here, too.
received: list[int] = []
