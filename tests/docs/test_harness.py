"""Mistakes that are planted in a page are reported, with its name and their line."""

import pytest

from .pages import Page
from .props import Store
from .story import Story
from .test_links import dead, misnamed

MISTAKES = {  # the page, the reported line, and a part of the report
    "a mistyped key": (
        "\n    rlrun train algorithm=dqn env=cartpole algorithm.lrr=1\n",
        2,
        "did you mean 'algorithm.lr'",
    ),
    "in a list": ("* one\n\n      rlrun train -m algorithm=dqnn,dqn env=cartpole\n", 3, "did you mean 'dqn'"),
    "an unknown command": ("```sh\nrlrun list\nrlrun trian algorithm=dqn\n```\n", 3, "trian"),
    "a program that nobody looks after": ("\n    python -m pip install rlrun\n    sphinx-build\n", 3, "not found"),
    "an extra that there is not": ("\n    pip install 'rlrun[vidoe]'\n", 2, "vidoe"),
    "python that raises": ("```python\nx = 1\nx.y\n```\n", 2, 'File "page.md", line 3'),
    "a wrong excerpt": (
        "Of `conf/algorithm/dqn.yaml`:\n\n```yaml\nalgorithm:\n  lr: 7.0\n```\n",
        4,
        "conf/algorithm/dqn.yaml does not have algorithm.lr: 7.0",
    ),
    "yaml that is none": ("`a.yaml`:\n\n```yaml\na: [1\n```\n", 4, "no yaml"),
    "a file that nobody uses": ("`conf/env/mine.yaml`:\n\n```yaml\ndefaults: [gym]\n```\n", 4, "no command"),
    "toml for no file": ("`gone.toml`:\n\n```toml\na = 1\n```\n", 4, "there is no gone.toml"),
    "a block of no kind": ("\n    a tree\n", 2, "a block of no known kind: 'a tree'"),
    "in what is shown": ("<!-- one -->\n```\n$ rlrun lst\nout\n```\n", 3, "lst"),
}


def faults(text, folder):
    folder.joinpath("store").mkdir()
    return Story(Page("page.md", text), folder, Store(folder / "store")).play()


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_reported(name, tmp_path):
    text, line, message = MISTAKES[name]
    (fault,) = faults(text, tmp_path)
    assert fault.startswith(f"page.md:{line}: ")
    assert message in fault


def test_dead_link_is_reported():
    text = (
        "# One\n\nSee [it](gone.md)\nor [this](#two),\n[that](/LICENSE), [those](http://x) and ![an image](no.svg);\n"
    )
    text += "[right](#one), [too](https://example.org/a#b), [all](LICENSE), [anchor](README.md#installation).\n"
    text += "`rlrun eval RUN --json`, `rlrun\nevaluate RUN` or\n`rlrun doctr` and `rlrun ls --short`.\n"
    page = Page("page.md", text)
    targets = ("gone.md", "#two", "/LICENSE", "http://x", "no.svg")
    assert [fault.split(": ")[:2] for fault in dead(page)] == [["page.md:3", target] for target in targets]
    assert [fault.split(": ")[:2] for fault in misnamed(page)] == [
        *(["page.md:3", f"`{command}`"] for command in ("rlrun evaluate RUN", "rlrun doctr", "rlrun ls --short"))
    ]
