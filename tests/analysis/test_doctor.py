"""What `rlrun doctor` says of sound and of broken machines."""

import json
import os
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from tests.command import code_of

from rlrun.analysis import doctor as health
from rlrun.core.errors import installing

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
{fields}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that goes before all others, here and in other processes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return tmp_path


@pytest.fixture
def install(site):
    """Install the metadata of a package."""

    def install_package(name, version, *fields):
        about = site / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(METADATA.format(name=name, version=version, fields="\n".join(fields)))

    return install_package


def lines(findings):
    return {finding.name: (finding.status, finding.describe()) for finding in findings}


# --- packages


def test_packages_and_extras_are_compared_with_the_metadata(install):
    install(
        *("rlrun", "9"),
        *("Requires-Python: >=4", "Provides-Extra: good", "Provides-Extra: odd", "Provides-Extra: deep"),
        *("Provides-Extra: all", "Requires-Dist: olden; extra == 'all'"),
        *("Requires-Dist: sound<2,>=1", "Requires-Dist: elsewhere; sys_platform == 'none'", "Requires-Dist: gone>=1"),
        *("Requires-Dist: sound; extra == 'good'", "Requires-Dist: olden>=2; extra == 'odd'"),
        *("Requires-Dist: nowhere; extra == 'odd'", "Requires-Dist: sound[more]; extra == 'deep'"),
    )
    install("sound", "1.5", "Provides-Extra: more", 'Requires-Dist: inner>=1; extra == "more"')
    install("olden", "1.0")
    install("inner", "0.5")
    found = lines(health.packages())
    status, text = found.pop("python")
    assert (status, text.endswith("install Python >=4")) == ("problem", True)
    assert found.pop("rlrun")[0] == "ok"
    lacking = "olden 1.0 is installed (wanted >=2), nowhere is missing: "
    assert found == {
        "sound": ("ok", "1.5"),
        "gone": ("problem", "is missing (wanted >=1): pip install 'gone>=1'"),
        "good": ("ok", "sound 1.5"),
        "odd": ("note", lacking + installing("odd")),
        "deep": ("note", f"inner 0.5 is installed (wanted >=1): {installing('deep')}"),
    }


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("", None),
        ("print('hello')\nraise ImportError('first line\\nsecond line')", "fails: ImportError: first line"),
        ("raise SystemExit(3)", "fails: exit code 3"),
        ("import os; os._exit(7)", "fails: exit code 7"),
    ],
)
def test_a_broken_package_does_no_harm(code, fault, site, tmp_path, monkeypatch):
    (site / "the_module.py").write_text(code)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "the_module.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path / "here")
    assert health.import_fault("the_module") == fault
    monkeypatch.setattr(health, "MODULES", {"the_module": "the-package", "not_there": "absent"})
    ((status, text),) = lines(health.imports()).values()
    if fault is None:
        assert status == "ok"
    else:
        assert (status, text) == ("problem", f"{fault}: pip install --force-reinstall the-package")


# --- machine


@pytest.mark.parametrize(
    ("built", "count", "driver", "status", "text"),
    [
        ("12.8", 1, True, "ok", "A Card (torch is built for 12.8)"),
        ("12.8", 0, True, "note", "torch is built for 12.8 and finds none, though there is a driver"),
        (None, 0, True, "note", "torch is built for the CPU alone and finds none"),
        (None, 0, False, "ok", "none"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_told(built, count, driver, status, text, monkeypatch, tmp_path):
    monkeypatch.setattr(health, "DRIVERS", (tmp_path if driver else tmp_path / "none",))
    monkeypatch.setattr(health.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "A Card")
    finding = health.gpu()
    assert (finding.status, finding.text.startswith(text)) == (status, True)


@pytest.mark.parametrize(("given", "status"), [(None, "ok"), ("1", "ok"), ("100000", "note"), ("many", "note")])
def test_more_threads_than_cores_are_told(given, status, monkeypatch):
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert lines(health.processor())["threads"][0] == status


def test_a_full_disk_is_a_problem(tmp_path, monkeypatch):
    new = tmp_path / "new" / "one"  # not there yet, and judged by the folder above
    assert lines(health.disk(new))["runs/"] == ("ok", "can be written")
    usage = namedtuple("usage", "total used free")
    for free, status in ((10, "problem"), (health.MIN_DISK, "note"), (health.LOW_DISK, "ok")):
        monkeypatch.setattr(health.shutil, "disk_usage", lambda place, free=free: usage(10**12, 0, free))
        assert lines(health.disk(tmp_path))["space"][0] == status


# --- the command


def test_a_machine_that_trains_is_healthy_and_one_that_cannot_write_is_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(health, "MODULES", {})  # no package is imported again
    code, out = code_of("doctor"), capsys.readouterr().out
    assert code == 0
    assert {text.split()[0] for text in out.splitlines()} <= {"ok", "note"}
    assert "can be written" in out
    assert list(tmp_path.iterdir()) == []
    Path(tmp_path / "runs").write_text("a file in its place")
    code, report = code_of("doctor", "--json"), json.loads(capsys.readouterr().out)
    assert (code, report["ok"]) == (1, False)
    (problem,) = [finding for finding in report["findings"] if finding["status"] == "problem"]
    assert problem["name"] == "runs/"
    assert "cannot be written: Not a directory" in problem["text"]
    assert "--run-dir" in problem["remedy"]
