"""The documentation shows what the program makes of the runs that lie beside it."""

import re
from pathlib import Path

import pytest

import rlrun

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?")


def assert_alike(found, shown):
    """Compare texts; numbers may differ in their last digit, as they may between processors."""
    assert NUMBER.sub("#", found) == NUMBER.sub("#", shown)
    read = [
        [float(override.replace("−", "-").replace(",", "")) for override in NUMBER.findall(text)]
        for text in (found, shown)
    ]
    assert read[0] == pytest.approx(read[1], abs=0.11)


def test_the_report_in_the_documentation_is_that_of_the_committed_runs(tmp_path):
    report = rlrun.report(DOCS / "examples" / "cartpole", out=tmp_path / "report.html", svg=tmp_path / "svg")
    shown = re.search(r"<!-- report -->\n(.*?)<!-- /report -->", (DOCS / "reports.md").read_text(), re.DOTALL).group(1)
    assert_alike(report.markdown.strip(), shown.strip())
    figures = sorted((DOCS / "examples" / "figures").iterdir())
    assert [path.name for path in figures] == sorted(path.name for path in (tmp_path / "svg").iterdir())
    for path in figures:
        assert_alike((tmp_path / "svg" / path.name).read_text(), path.read_text())
        assert f"examples/figures/{path.name}" in (DOCS / "reports.md").read_text()
