"""Names of rlrun's own code in the documentation exist."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOTTED = re.compile(r"`(rlrun(?:\.\w+)+)[(`]")
FILES = re.compile(r"`((?:src|tests|benchmarks|handbook)/[\w/.-]+\.(?:py|yaml))`")
OWN = {"src/rlrun/algorithms/mellow.py"}  # that a page builds
NOT_CODE = {"rlrun.plugins"}  # a group of entry points


def exists(name):
    """Return True if a dotted name is a module, or an attribute below one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            part = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or " "):
                raise
            continue
        for attribute in parts[end:]:
            if not hasattr(part, attribute):
                return attribute in getattr(part, "__annotations__", {})
            part = getattr(part, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_files_exist(page):
    text = page.read_text()
    names = {*DOTTED.findall(text)} - NOT_CODE
    assert sorted(name for name in names if not exists(name)) == []
    assert sorted(file for file in {*FILES.findall(text)} - OWN if not (ROOT / file).is_file()) == []


def test_a_wrong_name_is_found():
    assert exists("rlrun.core.distributed.mean_")
    assert not exists("rlrun.core.distributed.told")
    assert not exists("rlrun.nowhere.told")


def test_lines_that_mutations_change_are_there():
    faults = []
    for case in yaml.safe_load((ROOT / "benchmarks" / "mutations.yaml").read_text()):
        change = {**(case["before"] or {}), **(case.get("after") or {})}
        count = (ROOT / "src" / "rlrun" / change["path"]).read_text().count(change["old"])
        faults += [] if count == 1 else [f"{case['id']}: {count} times"]
        missing = [name for name in change["tests"] if not [*(ROOT / "tests").glob(name)]]
        faults += [f"{case['id']}: no {name}" for name in missing]
    assert faults == []
