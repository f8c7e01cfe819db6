"""Messages about values that are refused."""

import re

import pytest

from rlrun.core.errors import ConfigError, edits, nearest, require_one_of


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


@pytest.mark.parametrize(
    ("name", "choices", "expected"),
    [
        ("vectriaztion", ("id", "vectorization", "kwargs"), "vectorization"),
        ("adma", ("adam", "adamw", "adma_x"), "adam"),
        ("gpu", ("auto", "cpu", "cuda", "mps", "xpu"), None),
        ("cup", ("auto", "cpu", "cuda", "xpu"), "cpu"),
        ("sca", ("sac", "sarsa"), "sac"),
        ("SAC", ("sarsa", "sac"), "sac"),
        ("nonsense", ("sac",), None),
    ],
)
def test_swapped_letters_are_one_slip_and_short_names_begin_right(name, choices, expected):
    assert nearest(name, choices) == expected


def test_edits_are_counted():
    pairs = (("", "abc"), ("abc", "abc"), ("abc", "acb"), ("abcd", "badc"), ("kitten", "sitting"))
    assert [edits(*pair) for pair in pairs] == [3, 0, 1, 2, 3]
