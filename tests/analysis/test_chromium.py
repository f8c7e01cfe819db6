"""The page in a real browser: on a phone and on a desk, light and dark, without a script or a network."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import rlrun

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
)
VIEWS = {"phone light": ("light", 390), "phone dark": ("dark", 390), "desk dark": ("dark", 1100)}
MEASURE = (Path(__file__).parent / "measure.js").read_text()


@pytest.fixture(scope="module")
def browser():
    binary = next((path for path in map(shutil.which, NAMES) if path), None)
    return binary or pytest.skip("no Chromium on this machine: apt-get install chromium")


def views_of(page, folder, browser):
    """Return what the browser sees of a page in each view, and what it complained of."""
    styles = [f"color-scheme:{scheme};width:{width}px;height:900px;border:0" for scheme, width in VIEWS.values()]
    frames = "".join(f'<iframe style="{style}" srcdoc="{html.escape(page)}"></iframe>' for style in styles)
    stage = folder / "stage.html"
    stage.write_text(f'<!doctype html><meta charset="utf-8"><script>{MEASURE}</script>{frames}<pre id="found"></pre>')
    process = subprocess.run(
        [
            browser,
            *QUIET,
            f"--user-data-dir={folder / 'user'}",
            "--enable-logging=stderr",
            "--dump-dom",
            stage.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    text = re.search(r'<pre id="found">(.*?)</pre>', process.stdout, re.DOTALL).group(1)
    complaints = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    return dict(zip(VIEWS, json.loads(html.unescape(text)), strict=True)), complaints


def test_the_page_is_legible_everywhere_and_loads_nothing(make, tmp_path, browser):
    random = np.random.default_rng(0)
    names = ("ppo", "a2c", f"a-rather-long-name-of-an-algorithm-{'x' * 80}", "<b onclick=alert(1)>")
    for place, name in enumerate(names):
        for seed in range(6):
            curve = np.cumsum(random.normal(10.0, 3.0, 12 - seed * (name == "a2c")))
            status = "failed" if (name, seed) == ("ppo", 5) else "completed"
            make(f"{place}-{seed}", curve.tolist(), seed=seed, overrides=[f"algorithm={name}"], status=status)
    report = rlrun.report(tmp_path, resamples=200)
    assert report.path.stat().st_size < 3_000_000
    views, complaints = views_of(report.path.read_text(), tmp_path, browser)
    assert complaints == []
    for name, (scheme, width) in VIEWS.items():
        view = views[name]
        assert (sum(view["paper"]) > 3 * 128) is (scheme == "light")
        assert view["wide"] <= width, f"{name}: the page is wider than the screen"
        assert min(view["texts"], view["lines"]) > 10
        assert view["text"] >= 4.5, f"{name}: a text is too faint"
        assert view["line"] >= 3.0, f"{name}: a line is too faint"
        assert view["outside"] == [], f"{name}: overrides are cut off"
        assert view["letter"] >= 9.0, f"{name}: overrides in figures are too small"
        assert (view["scripts"], view["loaded"], view["unnamed"]) == (0, [], 0)
        assert "not distinguishable" in view["said"]
        assert "<b onclick=alert(1)>" in view["said"]
