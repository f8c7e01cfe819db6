"""Every code block of the documentation does what its page says."""

import pytest

from rlrun.core import worker

from .pages import pages
from .props import Store
from .story import Story

PAGES = pages()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def quick_processes(children, monkeypatch):
    """Let other processes of a run have imported everything already."""
    monkeypatch.setattr(worker, "start", children.worker)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_page_does_what_it_says(page, store, tmp_path):
    assert Story(page, tmp_path, store).play() == []
