"""The `rlrun` command, called in this process."""

import sys
import warnings
from unittest import mock

import pytest

from rlrun.cli.main import main


def code_of(*arguments: str) -> int:
    """Run the command; return its exit code."""
    arguments_now = mock.patch.object(sys, "argv", ["rlrun", *arguments])
    with arguments_now, warnings.catch_warnings(), pytest.raises(SystemExit) as leaving:
        main()
    return leaving.value.code
