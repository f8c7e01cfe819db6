"""The documentation site: it builds without a warning, leads nowhere wrong, and leaves nothing unsaid."""

import functools
import logging
import re
from pathlib import Path

import pytest
from handbook import algorithms, commands, docstrings, hooks, markdown, metrics
from handbook.settings import CONF, settings

from rlrun.algorithms.value_based.dqn import QLoss
from rlrun.callbacks import LossCallback
from rlrun.commands import train as experiment
from rlrun.export.during import OnnxExport
from rlrun.runs.items import Items

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml") if path.parent.name != "preset")
LITERAL = re.compile(r'(?<!f)"([a-z_]+/[a-z_]+)"')


def build(folder, **changes):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), **changes))


@pytest.fixture(scope="module", autouse=True)
def made_once():
    """Make each page once, and let only SAC's and demonstrations train: tests/conf have a run of each algorithm."""
    train = experiment.train

    def begun(request, *, run_dir):
        if isinstance(request, list) or request.choices["algorithm"] == "sac":
            return train(request, run_dir=run_dir)
        run_dir.mkdir()
        return (run_dir / "metrics.jsonl").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "train", begun)
        for name in ("page", "page_of_addition"):
            patch.setattr(algorithms, name, functools.cache(getattr(algorithms, name)))
        yield


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; mkdocs is strict: a link or an anchor that is not there fails it."""
    folder = tmp_path_factory.mktemp("site")
    build(folder, plugins=[])  # without an index for searching, which takes seconds
    return folder


def test_site_loads_no_foreign_files(site):
    for page in site.rglob("*.html"):
        assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?:", page.read_text()) == []


def test_every_page_has_its_place(site):
    names = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    own = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    pages = {f"algorithms/{name}.html" for name in [*algorithms.names(), *algorithms.additions()]}
    added = ("index", "commands", "keys", "measured", "changelog", "contributing", "404")
    assert names == own | pages | {f"{name}.html" for name in added}


def test_dead_link_fails_the_build(tmp_path, monkeypatch, caplog):
    from mkdocs.exceptions import Abort

    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Start\n\nSee [there](there.md).\n")
    monkeypatch.setattr(hooks, "made", dict)
    with caplog.at_level(logging.WARNING), pytest.raises(Abort):
        build(tmp_path / "site", docs_dir=str(docs), nav=[{"Start": "index.md"}], hooks=[])
    assert "there.md" in caplog.text


@pytest.mark.parametrize("name", [*algorithms.names(), *algorithms.additions()])
def test_algorithm_page_is_complete(name):
    text = algorithms.page(name) if name in algorithms.names() else algorithms.page_of_addition(name)
    for title in ("## YAML", "## Keys", "## Data flow", "## Metrics"):
        assert f"\n{title}\n" in text
    assert "rlrun explain algorithm=" in text
    assert "loader " in text
    equations = re.findall(r"```text\n[^$]*? = .*?```", text.partition("## YAML")[0], re.DOTALL)
    assert bool(equations) == (name != "handcrafted")
    measured = re.findall(r"`rlrun train algorithm=(\w+) ", text.partition("## Measured")[2])
    assert set(measured) <= {name}


@pytest.mark.parametrize("file", FILES)
def test_every_key_has_a_meaning(file):
    assert [setting.path for setting in settings(CONF / file) if not setting.meaning] == []


def test_every_named_metric_has_a_meaning():
    """Those whose names are put together are met by the run of every config, tests/conf."""
    known = {pattern.partition("/")[0] for pattern in metrics.patterns()}
    for path in sorted((ROOT / "src" / "rlrun").rglob("*.py")):
        elsewhere = path.parent.name in ("why", "report")  # they read what others write
        for name in () if elsewhere else LITERAL.findall(path.read_text()):
            assert name.partition("/")[0] not in known or metrics.meaning(name), f"{path.name}: {name}"


def test_command_page_has_every_command():
    text = commands.page()
    for command in ("train", "export-onnx", "doctor"):
        assert f"\n## rlrun {command}\n" in text
    assert all(f"\n| `{option}" in text for option in ("--checkpoint", "--retry-failed", "--videos"))


def test_table_escapes_bars():
    assert markdown.table(["a"], [["x | y"]]).splitlines()[-1] == r"| x \| y |"


def test_arguments_are_read_off_docstrings():
    both = docstrings.arguments(Items)
    assert both["prefix"] == both["suffix"] == "of their names, such as `episode_` and `.json`."
    assert docstrings.arguments(OnnxExport)["every"].endswith("where there is always one, and when `export` is called.")
    assert docstrings.arguments(QLoss)["optimizer"] == docstrings.arguments(LossCallback)["optimizer"] != ""
