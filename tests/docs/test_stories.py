"""Every code block of the documentation does what its page says."""

import re

import pytest

from rlrun.collect import links

from .pages import blocks, commands, pages
from .programs import EXCUSES, PROGRAMS
from .props import ABOUT, PLACES, Store
from .story import IN_A_PROJECT, Story
from .trusting import PAGE

PAGES = pages()
LINES = [line for page in PAGES for block in blocks(page.text) for _, line in commands(block)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def quick_processes(children, monkeypatch):
    """Let other processes of a run have imported everything already."""
    monkeypatch.setattr(links, "_start", children.worker)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_page_does_what_it_says(page, store, tmp_path):
    assert Story(page, tmp_path, store).play() == []


# --- nothing is prepared that no page needs


NEEDED = [
    *(excuse.pattern for excuse in EXCUSES),
    *(rf"(?<![\w./-]){place}(?![\w.-])" for place in PLACES),
    *(rf"\b{program}\b" for program in PROGRAMS),
]


@pytest.mark.parametrize("pattern", NEEDED)
def test_every_preparation_is_needed(pattern):
    assert [line for line in LINES if re.search(pattern, line)]


def test_pages_with_special_setup_exist():
    assert {*ABOUT, *IN_A_PROJECT, PAGE} <= {page.name for page in PAGES}
