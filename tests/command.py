"""The `rlrun` command, called in this process; and what it imported, forgotten."""

import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest

from rlrun.cli.main import main


def code_of(*arguments: str) -> int:
    """Run the command; return its exit code."""
    arguments_now = mock.patch.object(sys, "argv", ["rlrun", *arguments])
    with arguments_now, warnings.catch_warnings(), pytest.raises(SystemExit) as leaving:
        main()
    return leaving.value.code


def forget(known: set[str]) -> None:
    """Forget modules beside the known ones that are of no library and not of this repository."""
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    for name in sorted(sys.modules.keys() - known, reverse=True):  # a namespace package asks for its parent
        namespace = getattr(sys.modules[name], "__dict__", {})  # some modules answer to any attribute
        places = [namespace.get("__file__"), *(namespace.get("__path__") or [])]
        if not all(place is None or str(place).startswith(libraries) for place in places):
            del sys.modules[name]
