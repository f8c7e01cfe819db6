"""Messages about values that are refused, and about what is missing."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import rlrun
from rlrun.core import errors
from rlrun.core.errors import ConfigError, edits, installing, nearest, require_one_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Burst", "'Burst' (did you mean 'burst'?)"),
        ("episode", "'episode'"),
        (None, "null"),
        (3, "3"),
        (True, "true"),
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


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'rlrun[video]'"),
        ({"url": "file:///there"}, "pip install 'rlrun[video] @ file:///there'"),
        (
            {"url": "https://there/rlrun", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "pip install 'rlrun[video] @ git+https://there/rlrun@12ab'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_this_copy_came(monkeypatch, tmp_path, origin, command):
    root = Path(rlrun.__file__).parents[2]
    assert installing("video") == f"pip install -e '{root}[video]'"  # a checkout
    installed = SimpleNamespace(read_text=lambda name: origin and json.dumps(origin))
    monkeypatch.setattr(errors.metadata, "distribution", lambda name: installed)
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site" / "rlrun" / "errors.py"))
    assert installing("video") == command
