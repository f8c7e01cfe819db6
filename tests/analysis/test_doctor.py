"""What `rlrun doctor` says of sound and of broken machines."""

import json
import os
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from tests.command import code_of

import rlrun
from rlrun.analysis import doctor as health
from rlrun.analysis.doctor.imports import Import, try_import, try_imports
from rlrun.core.errors import installing
from rlrun.runs import manifest

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
{fields}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that goes before all others, here and in processes of the doctor."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return tmp_path


@pytest.fixture
def install(site):
    """Install a package: its metadata, and code where there is some."""

    def install_package(name, version, *fields, code=None, origin=None):
        about = site / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(METADATA.format(name=name, version=version, fields="\n".join(fields)))
        if origin is not None:
            (about / "direct_url.json").write_text(json.dumps(origin))
        if code is not None:
            (site / f"{name}_code.py").write_text(code)
            (about / "top_level.txt").write_text(f"{name}_code\n")

    return install_package


def line(findings, name):
    (match,) = [finding for finding in findings if finding.name == name]
    return match.status, match.describe()


# --- packages


def test_packages_and_extras_are_those_of_the_metadata(install):
    install(
        *("rlrun", "9"),
        *("Requires-Python: >=3.11", "Provides-Extra: good", "Provides-Extra: odd", "Provides-Extra: deep"),
        *("Requires-Dist: sound<2,>=1", "Requires-Dist: elsewhere; sys_platform == 'none'"),
        *("Requires-Dist: sound; extra == 'good'", "Requires-Dist: olden>=2; extra == 'odd'"),
        *("Requires-Dist: nowhere>=3; extra == 'odd'", "Requires-Dist: sound[more]; extra == 'deep'"),
    )
    install("sound", "1.5", "Provides-Extra: more", 'Requires-Dist: failing>=1; extra == "more"', code="")
    install("olden", "1.0")
    install("failing", "1.0", code="print('hello')\nraise ImportError('first line\\nsecond line')\n")
    wanted = health.wanted()
    tried = try_imports(health.modules(wanted))
    findings = [*health.core(wanted, tried), *health.extras(wanted, tried)]
    assert [finding.name for finding in findings] == ["rlrun", "sound", "good", "odd", "deep"]
    assert line(findings, "sound") == ("ok", "1.5 (<2,>=1)")
    assert line(findings, "good") == ("ok", "sound 1.5")
    lacking = "olden 1.0 is installed, wanted >=2, nowhere is missing (wanted >=3): "
    assert line(findings, "odd") == ("note", lacking + installing("odd"))
    broken = "failing 1.0 is broken: ImportError: first line, sound 1.5: "
    assert line(findings, "deep") == ("note", broken + installing("deep", "--force-reinstall "))


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
def test_an_extra_is_installed_from_where_this_copy_came(install, monkeypatch, tmp_path, origin, command):
    root = Path(rlrun.__file__).parents[2]
    assert installing("video") == f"pip install -e '{root}[video]'"  # a checkout
    install("rlrun", "9", origin=origin)
    monkeypatch.setattr("rlrun.core.errors.__file__", str(tmp_path / "site" / "rlrun" / "errors.py"))
    assert installing("video") == command


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        (["Requires-Dist: gone>=1"], None, "is missing (wanted >=1): pip install 'gone>=1'"),
        (["Requires-Dist: gone>=1"], "", "0.5 is installed, wanted >=1: pip install 'gone>=1'"),
        (
            ["Requires-Dist: gone"],
            "raise SystemExit(3)",
            "0.5 is broken: SystemExit: 3: pip install --force-reinstall 'gone'",
        ),
    ],
)
def test_a_package_that_training_needs_is_a_problem(install, fields, code, text):
    install("rlrun", "9", *fields)
    if code is not None:
        install("gone", "0.5", code=code)
    wanted = health.wanted()
    tried = try_imports(health.modules(wanted))
    assert line(health.core(wanted, tried), "gone") == ("problem", text)


def test_a_package_that_takes_its_process_along_is_named_and_the_others_are_tried(site):
    for name, code in {"first": "", "killer": "import os; os._exit(7)", "last": "", "other": ""}.items():
        (site / f"the_{name}.py").write_text(code)
    tried = try_imports(["the_first", "the_other", "the_killer", "the_other", "the_last"])
    errors = {name: attempt.error for name, attempt in tried.items()}
    killed = {"the_killer": "importing it ends Python (exit code 7)"}
    assert errors == dict.fromkeys(["the_first", "the_other", "the_last"]) | killed


def test_a_module_of_the_working_directory_replaces_none(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('mine')\n")
    monkeypatch.chdir(tmp_path)
    assert try_imports(["colorsys"]) == {"colorsys": Import()}


def test_python_is_compared_with_what_rlrun_asks_for(install):
    install("rlrun", "9", "Requires-Python: >=4")
    assert health.python().status == "problem"
    assert health.python().remedy == "install Python >=4"


# --- machine


BUILT = Import(about={"cuda": "12.8", "gpus": ["A Card"], "threads": 8})


@pytest.mark.parametrize(
    ("torch", "driver", "status", "text"),
    [
        (BUILT, True, "ok", "A Card (torch is built for 12.8)"),
        (Import(about={"cuda": "12.8", "gpus": []}), True, "note", "torch is built for 12.8 and finds no GPU"),
        (Import(about={"cuda": None, "gpus": []}), True, "note", "torch is built for the CPU alone"),
        (Import(about={"cuda": None, "gpus": []}), False, "ok", "none"),
        (Import(error="ImportError: x"), True, "note", "not known"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_told(torch, driver, status, text, monkeypatch, tmp_path):
    monkeypatch.setattr(health, "DRIVERS", (tmp_path if driver else tmp_path / "none",))
    monkeypatch.setattr(health.shutil, "which", lambda name: None)
    finding = health.gpu({"torch": torch})
    assert finding.status == status
    assert text in finding.text


def test_what_torch_says_of_itself_is_read():
    import torch

    about = try_import("torch").about
    assert (about["cuda"], about["threads"]) == (torch.version.cuda, torch.get_num_threads())
    assert about["bfloat16"] is manifest.has_bfloat16("cpu")


@pytest.mark.parametrize(
    ("told", "has"),
    [
        ({"avx512_bf16": True}, True),
        ({"avx512_bw": True, "avx512_bf16": False}, False),  # torch computes in bfloat16 there, by float32
        ({"amx_bf16": True}, True),
        ({"architecture": "arm64", "bf16": True}, True),
        ({"architecture": "arm64", "neon": True}, False),
    ],
)
def test_bfloat16_is_told_by_its_instructions(told, has, monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: told, raising=False)
    assert manifest.has_bfloat16("cpu") is has
    assert manifest.has_bfloat16("mps") is False
    text = "precision=bf16 trains" if has else "precision=bf16 is refused"
    assert text in line(health.processor({"torch": Import(about={"bfloat16": has})}), "bfloat16")[1]
    assert "bfloat16" not in [finding.name for finding in health.processor({})]


@pytest.mark.parametrize(("given", "status"), [(None, "ok"), ("1", "ok"), ("100000", "note"), ("many", "note")])
def test_more_threads_than_cores_are_told(given, status, monkeypatch):
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert line(health.processor({"torch": BUILT}), "OMP_NUM_THREADS")[0] == status


@pytest.mark.parametrize(
    ("chosen", "display", "libraries", "remedy"),
    [
        ("", "", ["EGL"], None),
        ("", "", ["GL"], "apt-get install libegl1"),
        ("osmesa", "", ["EGL"], "apt-get install libosmesa6"),
        ("glfw", "", ["GL"], "export MUJOCO_GL=egl"),
        ("glfw", ":0", ["GL"], None),
        ("disabled", "", [], None),
    ],
)
def test_what_mujoco_needs_for_pictures_is_named(chosen, display, libraries, remedy, monkeypatch):
    monkeypatch.setattr(health.sys, "platform", "linux")
    monkeypatch.setattr(health, "find_library", lambda name: name if name in libraries else None)
    for name, value in {"MUJOCO_GL": chosen, "DISPLAY": display, "WAYLAND_DISPLAY": ""}.items():
        monkeypatch.setenv(name, value)
    status, text = line(health.pictures({}), "mujoco")
    assert (status, text.endswith(f": {remedy}")) == ("note" if remedy else "ok", bool(remedy))


def test_a_full_disk_is_a_problem(tmp_path, monkeypatch):
    new = tmp_path / "new" / "one"  # not there yet, and judged by the folder above
    assert line(health.disk(new), str(tmp_path))[0] in ("ok", "note")
    assert line(health.disk(new), "runs/") == ("ok", "can be written")
    usage = namedtuple("usage", "total used free")
    for free, status in ((10, "problem"), (health.MIN_DISK, "note"), (health.LOW_DISK, "ok")):
        monkeypatch.setattr(health.shutil, "disk_usage", lambda place, free=free: usage(10**12, 0, free))
        assert line(health.disk(tmp_path), str(tmp_path))[0] == status


def test_what_videos_lack_is_named():
    assert line(health.pictures({}), "ffmpeg") == ("note", f"no videos: is missing: {installing('video')}")
    status, text = line(health.pictures({"imageio_ffmpeg": Import("RuntimeError: No ffmpeg exe")}), "ffmpeg")
    assert (status, text.endswith(": set IMAGEIO_FFMPEG_EXE to the path of an ffmpeg")) == ("note", True)


# --- the command


def test_a_machine_that_trains_is_healthy_and_one_that_cannot_write_is_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(health, "_module", lambda installed: None)  # no package is imported again
    monkeypatch.setattr(health, "try_imports", lambda modules: {})
    monkeypatch.setattr(health, "find_library", lambda name: None)  # which asks a linker
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
