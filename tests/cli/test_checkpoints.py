"""`rlrun checkpoints` as a user calls it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.checkpointing import manifest as stored
from rlrun.commands import checkpoints as inspection
from rlrun.commands.resume import CHANGEABLE
from rlrun.config import compose
from rlrun.memory import Table
from rlrun.runs.directory import RunDir, checkpoint_name

EVALUATION = {"mean_return": 12.5, "std_return": 0.5, "episodes": 10, "env_steps": 1_000}
PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()


def save(run: RunDir, step: int, **about: object) -> Path:
    where = run.checkpoints / checkpoint_name(step, 7)
    note = {"env_steps": step, "updates": 7, "evaluation": None, "created": "2026-01-02T03:04:05+00:00", **about}
    storage.write(
        where, storage.snapshot({"networks.q": {"weight": torch.zeros(3)}, "loader": {"drawn": step}}, about=note)
    )
    return where


@pytest.fixture
def empty(project):
    """A run without checkpoints."""
    run = RunDir.claim(project / "run")
    run.start(config="seed: 0\n", overrides=[], manifest={})
    return run


@pytest.fixture
def run(empty):
    """A run with three checkpoints."""
    run = empty
    save(run, 20)
    best = save(run, 1_000, evaluation=EVALUATION)
    latest = save(run, 1_000_000)
    (run.checkpoints / "latest").write_text(f"{latest.name}\n")
    (run.checkpoints / "best").write_text(f"{best.name}\n")
    return run


def test_each_checkpoint_has_one_aligned_line(run, rlrun, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    outcome = rlrun("checkpoints", "run")
    head, first, second, third, total = outcome.out.splitlines()
    assert (outcome.code, outcome.err) == (0, "")
    assert head.split() == ["step", "updates", "return", "own", "whole", "made", "mark", "parts"]
    assert re.fullmatch(r" +20 +7 +- +\S+ k?B +\S+ k?B  2026-01-02 03:04:05 +2", first)
    assert re.fullmatch(r" +1_000 +7 +12\.50 .* best +2", second)
    assert re.fullmatch(r" *1_000_000 +7 +- .* latest +2", third)
    assert re.fullmatch(r"3 checkpoints, \S+ k?B on disk", total)
    assert len({line.index("2026-01-02") + len("2026-01-02 03:04:05") for line in (first, second, third)}) == 1
    verified = rlrun("checkpoints", "run", "--verify")
    assert (verified.code, verified.err) == (0, "")
    assert all(line.endswith("  ok") for line in verified.out.splitlines()[1:4])


def test_parts_are_named_on_request(run, rlrun, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")  # lines are never wrapped
    lines = rlrun("checkpoints", "run", "--parts").out.splitlines()
    assert len(lines) == 5
    assert all(line.endswith("  loader, networks.q") for line in lines[1:4])


def test_json_holds_what_the_twin_returns(run, rlrun):
    outcome = rlrun("checkpoints", "run", "--json")
    reports = json.loads(outcome.out)
    assert (outcome.code, outcome.err, len(reports)) == (0, "", 3)
    assert reports == [report.to_json() for report in inspection.checkpoints(run.path, digest=True)]
    digests = {part: storage.digest(state) for part, state in storage.load(run.checkpoint("best")).items()}
    assert reports[1] == {
        "name": "0000001000-0000000007",
        "path": str(run.checkpoint("best")),
        "env_steps": 1_000,
        "updates": 7,
        "created": "2026-01-02T03:04:05+00:00",
        "evaluation": EVALUATION,
        "size": reports[1]["size"],
        "size_with_shared": reports[1]["size"],
        "latest": False,
        "best": True,
        "parts": digests,
        "damage": [],
    }


@pytest.mark.parametrize(("overrides", "out"), [((), "run has no checkpoints\n"), (("--json",), "[]\n")])
def test_a_run_without_checkpoints_is_none_to_fail_for(overrides, out, rlrun, empty):
    assert rlrun("checkpoints", "run", "--verify", *overrides) == (0, out, "")
    assert inspection.disk_used(empty.path) == 0


@pytest.mark.parametrize("overrides", [(), ("--json",)])
def test_damage_is_told_with_what_a_resume_would_use(overrides, run, rlrun):
    (run.checkpoint("latest") / "state.json").write_text("{}")
    (run.checkpoint(20) / "manifest.json").unlink()
    outcome = rlrun("checkpoints", "run", "--verify", *overrides)
    assert outcome.code == 2
    assert outcome.err == (
        "rlrun: run: 2 of 3 checkpoints are damaged; resume takes the newest good one, 0000001000-0000000007\n"
    )
    first, second, third = json.loads(outcome.out) if overrides else outcome.out.splitlines()[1:4]
    if overrides:
        assert ("manifest.json" in first["damage"][0], second["damage"]) == (True, [])
        assert "state.json" in third["damage"][0]
    else:
        assert re.search(r"  damaged: 0000000020-0000000007/manifest\.json cannot be read: No such file", first)
        assert second.endswith("  ok")
        assert re.search(r"  damaged: 0001000000-0000000007/state\.json: ", third)


def test_without_verify_damage_is_told_and_nothing_fails(run, rlrun):
    (run.checkpoint("latest") / "state.json").write_text("{}")
    outcome = rlrun("checkpoints", "run", "--json")
    *good, newest = json.loads(outcome.out)
    assert (outcome.code, outcome.err, [report["damage"] for report in good]) == (0, "", [[], []])
    assert "state.json" in newest["damage"][0]
    assert set(newest["parts"].values()) == {None}
    for where in run.checkpoint_dirs():
        (where / "tensors.safetensors").unlink()
    unread = json.loads(rlrun("checkpoints", "run", "--json", "--no-digest").out)  # which reads manifests only
    assert [(entry["parts"], entry["damage"]) for entry in unread] == [({"loader": None, "networks.q": None}, [])] * 3


def test_further_damage_is_counted_and_damage_without_a_way_out_is_told(run, rlrun):
    for name in ("state.json", "tensors.safetensors"):
        (run.checkpoint("latest") / name).write_bytes(b"{}")
    outcome = rlrun("checkpoints", "run", "--verify")
    assert "1 of 3 checkpoints is damaged" in outcome.err
    assert outcome.out.splitlines()[3].endswith(" (and 1 more)")
    for where in run.checkpoint_dirs():
        (where / "manifest.json").write_text("{}")
    outcome = rlrun("checkpoints", "run", "--verify")
    assert outcome.err == "rlrun: run: 3 of 3 checkpoints are damaged; none is left to resume from\n"
    assert rlrun("checkpoints", "run").code == 0


def test_a_line_cannot_command_the_terminal(run, rlrun):
    where = run.checkpoints / checkpoint_name(30, 7)
    states = {"\x1b[2J": {}, "a\nb": {}}
    storage.write(where, storage.snapshot(states, about={"created": "\x1b[31mred"}))
    outcome = rlrun("checkpoints", "run", "--parts")
    assert (outcome.code, "\x1b" in outcome.out, len(outcome.out.splitlines())) == (0, False, 6)


@pytest.mark.parametrize(  # the last one is of an earlier checkpoint
    "about", [{"evaluation": {}}, {"evaluation": None}, {"created": "-"}, {"evaluation": EVALUATION}]
)
def test_what_a_manifest_does_not_say_is_a_dash(about, run, rlrun):
    save(run, 30, **about)
    assert re.fullmatch(
        r" +30 +7 +- +\S+ k?B +\S+ k?B +(-|2026-01-02 03:04:05) +2", rlrun("checkpoints", "run").out.splitlines()[2]
    )


def test_the_page_names_every_key(run, rlrun):
    keys = re.search(r"a list of objects: `([^`]+)`", PAGE.replace("\n", " ")).group(1).split()
    assert keys == list(json.loads(rlrun("checkpoints", "run", "--json", "--no-digest").out)[0])
    config = compose(["algorithm=dqn", "env=cartpole"]).config.checkpoint
    assert re.findall(r"^\| `checkpoint\.(\w+)` \|", PAGE, re.MULTILINE) == list(config)


def test_the_page_names_what_a_resume_may_change():
    rows = re.findall(r"^\| (`(?:stop|evaluation|device|env)\S*.*?) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", " ".join(rows))) == set(CHANGEABLE)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", '{"sha256": 1}', "\x00\xff", None])
def test_damaged_manifest_leaves_the_others(text, run):
    manifest = run.checkpoint(1_000) / "manifest.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    first, second, third = inspection.checkpoints(run.path)
    assert (first.damage, third.damage, second.created, second.parts) == ((), (), None, {})
    assert "manifest.json" in second.damage[0]
    assert second.best


# --- memories, whose rows are shared


@pytest.fixture
def growing(empty):
    """A run with three checkpoints of a memory that grows."""
    table = Table(length=200, columns={"observation": {"shape": (3,)}, "reward": {}})
    for step in (60, 80, 100):
        for _ in range(60 if step == 60 else 20):
            table.add(None, {"observation": np.random.rand(1, 3).astype(np.float32), "reward": np.ones(1, np.float32)})
        states = {"memory": table.checkpoint(storage.home_of(empty.checkpoints))}
        storage.write(empty.checkpoints / checkpoint_name(step, step), storage.snapshot(states, apart=["memory"]))
    return empty


def test_shared_rows_count_once_on_disk(growing):
    reports = inspection.checkpoints(growing.path)
    segments = [path.stat().st_size for path in (growing.checkpoints / "segments").iterdir()]
    shared = [report.size_with_shared - report.size for report in reports]
    assert (len(segments), shared[2]) == (3, sum(segments))
    assert 0 < shared[0] < shared[1] < shared[2]
    assert inspection.disk_used(growing.path) == sum(report.size for report in reports) + sum(segments)


# --- a run in progress


@pytest.mark.parametrize(("module", "name"), [(stored, "read_manifest"), (storage, "verify"), (storage, "load")])
def test_checkpoint_retired_meanwhile_is_left_out(module, name, run, monkeypatch):
    read = getattr(module, name)

    def late(where):
        if where.name.startswith("0000000020") and where.exists():
            storage.remove(where)
        return read(where)

    monkeypatch.setattr(module, name, late)
    reports = inspection.checkpoints(run.path, verify=True, digest=True)
    assert [(report.env_steps, report.damage) for report in reports] == [(1_000, ()), (1_000_000, ())]


def test_pointers_may_name_nothing(run):
    shutil.rmtree(run.checkpoint("latest"))
    (run.checkpoints / "best").write_bytes(b"\xff\xfe")
    assert [(report.latest, report.best) for report in inspection.checkpoints(run.path)] == [(False, False)] * 2
