"""Pages show what the program prints, and keep their limits."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from rlrun.analysis import why as diagnosis
from rlrun.cli.main import main
from rlrun.commands import train as experiment
from rlrun.runs.directory import RunDir

from .alone import called
from .pages import ROOT, blocks, pages
from .small import small_runs

PAGES = {page.name: page.text for page in pages()}
NUMBER = re.compile(r"\d[\d,.]*(?<=\d)")


def shown(name):
    """Return what a page shows between `<!-- name -->` comments."""
    (content,) = [block.text for text in PAGES.values() for block in blocks(text) if block.name == name]
    return content


def masked(text):
    return NUMBER.sub("#", text)


@pytest.fixture
def rlrun(tmp_path):
    """Call the command in an empty folder, in small."""

    def call(*overrides):
        with small_runs():
            return called(main, ["rlrun", *overrides], tmp_path)

    return call


# --- what is shown


def test_first_run_is_shown_as_printed(rlrun):
    command, *progress, result, place = shown("first-run").splitlines()
    answer = rlrun(*command.split()[2:])
    printed = answer.out.splitlines()
    assert masked(printed[0]) == masked(result)
    assert masked(printed[1]).endswith(masked(place).lstrip("…"))
    learned = [line for line in progress if line != "…"]
    form = r"(preset: dqn_cartpole .*)?"
    form += r"|#/# steps #%(  return #)?(  evaluation #)?(  loss q_loss=#)?(  # steps/s)?(  #:# to go)?"
    form += r"(  #% \w+(, #% \w+)?)?"
    assert [line for line in [*learned, *answer.err.splitlines()] if not re.fullmatch(form, masked(line))] == []
    assert float(re.search(r"mean return ([\d.]+)", result)[1]) >= 475


def test_run_has_the_readmes_files(rlrun, tmp_path):
    text = re.search(r"The folder holds (.*?); `log.txt` appears with the first message", PAGES["README.md"], re.S)[1]
    assert rlrun("train", "algorithm=dqn", "env=cartpole", "preset=null", "--run-dir", "run").code == 0
    files = {path.name + "/" * path.is_dir() for path in (tmp_path / "run").iterdir()}
    assert files == set(re.findall(r"`([\w./]+)`", text))


def test_data_flow_is_shown_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line.rstrip() for line in shown("explain").splitlines()]
    assert lines == experiment.explain(["algorithm=dqn", "env=cartpole"]).splitlines()


def test_evaluation_is_shown_as_printed(rlrun):
    assert rlrun("train", "algorithm=dqn", "env=cartpole", "--run-dir", "run").code == 0
    printed, line = masked(rlrun("eval", "run").out), masked(shown("evaluation").rstrip("…)\n"))
    assert printed.startswith(line)


def test_refusal_is_shown_as_printed(rlrun, tmp_path):
    run = RunDir.claim(tmp_path / "RUN")
    run.start(config="", overrides=[], manifest={})
    run.config.write_text("changed: by hand\n")
    answer = rlrun("resume", "RUN")
    assert (answer.code, answer.err.replace(str(tmp_path), "…")) == (2, shown("refusal"))


def test_diagnosis_names_known_causes():
    causes = {rule.name for rule in diagnosis.RULES}
    *_, healthy = lines = shown("why").splitlines()
    names = [line.split(": ")[0] for line in lines if line[:1].isdigit()]
    assert [name.split(". ")[1] for name in names if name.split(". ")[1] not in causes] == []
    assert [name for name in healthy.removeprefix("ruled out: ").split(", ") if name not in {*causes, "…"}] == []


def test_every_shown_block_is_checked():
    names = [block.name for text in PAGES.values() for block in blocks(text) if block.kind == "shown"]
    source = Path(__file__).read_text()
    assert [name for name in names if f'shown("{name}")' not in source] == []
    assert len(set(names)) == len(names)


# --- text


def test_plain_text_holds_no_commands():
    texts = [(name, block) for name, text in PAGES.items() for block in blocks(text) if block.kind == "text"]
    assert [(name, block.line) for name, block in texts if re.search(r"^(\$|rlrun) ", block.text, re.MULTILINE)] == []
    assert [name for name, _ in texts if name == "README.md"] == []


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_pages_name_exist(page):
    named = re.findall(r"\b(?:benchmarks/)?tests/[\w./]*\w", PAGES[page])
    assert [path for path in named if not (ROOT / path).exists()] == []


# --- limits


@pytest.mark.parametrize(("page", "most"), [("README.md", 120), ("CONTRIBUTING.md", 60)])
def test_pages_are_short(page, most):
    assert len(PAGES[page].splitlines()) <= most


def test_new_algorithms_tests_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(PAGES["docs/new_algorithm.md"]):
        if block.name:
            (tmp_path / block.name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.name).write_text(block.text)
    monkeypatch.delitem(sys.modules, "mellow", raising=False)
    module = runpy.run_path(str(tmp_path / "test_mellow.py"))
    module["test_the_target_is_the_mellowmax_of_the_values"]()
    module["test_it_trains"](tmp_path)
