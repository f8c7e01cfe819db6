"""Messages about values that are refused."""

import re

import pytest

from rlrun.core.errors import ConfigError, require_one_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Burst", "'Burst' (did you mean 'burst'?)"),
        ("episode", "'episode'"),
        (None, "null"),
        (3, "3"),
        (True, "True"),
        (["burst"], "['burst']"),  # which a mapping of choices cannot look up
    ],
)
@pytest.mark.parametrize("choices", [("update", "burst"), {"update": 1, "burst": 2}])
def test_what_is_no_choice_is_refused(value, shown, choices):
    with pytest.raises(ConfigError, match=re.escape(f"a.key: wanted one of update, burst, got {shown}") + "$"):
        require_one_of("a.key", value, choices)


def test_choice_is_taken():
    require_one_of("a.key", "burst", ("update", "burst"))
