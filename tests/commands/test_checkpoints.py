"""Looking at a run's checkpoints: everything there is to know, any damage, and nothing touched."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import rlrun
from rlrun import checkpointing as storage
from rlrun.commands.checkpoints import disk_used
from rlrun.memory import Table
from rlrun.runs import checkpoint_manifest as stored
from rlrun.runs.directory import RunDir, checkpoint_name

CREATED = "2026-01-02T03:04:05+00:00"
BETTER = {"mean_return": 12.5, "std_return": 0.5, "episodes": 10, "env_steps": 200}


def states(number: int = 0) -> dict:
    return {
        "networks.q": {"weight": torch.full((4, 3), float(number)), "bias": torch.zeros(4)},
        "callbacks.logger": {"step": 7, "seconds": 1.5 + number},
    }


def save(run: RunDir, step: int, *, evaluation: dict | None = None, number: int = 0) -> Path:
    where = run.checkpoints / checkpoint_name(step, step // 2)
    about = {"env_steps": step, "updates": step // 2, "evaluation": evaluation, "created": CREATED}
    storage.save(where, states(number), about=about)
    return where


@pytest.fixture
def empty(tmp_path):
    run = RunDir.claim(tmp_path / "run")
    run.start(config="seed: 0\n", overrides=[], manifest={})
    return run


@pytest.fixture
def run(empty):
    """A run with three checkpoints, the second of them the best."""
    save(empty, 100)
    best = save(empty, 200, evaluation=BETTER, number=1)
    latest = save(empty, 300, evaluation={**BETTER, "mean_return": 3.0}, number=2)
    (empty.checkpoints / "latest").write_text(f"{latest.name}\n")
    (empty.checkpoints / "best").write_text(f"{best.name}\n")
    return empty


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = {path for path in folder.rglob("*") if path.is_file()}
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def damaged(run: RunDir, **options: bool) -> list[int]:
    return [report.env_steps for report in rlrun.checkpoints(run.path, **options) if report.damage]


def test_all_is_told_oldest_first(run):
    first, second, third = rlrun.checkpoints(run.path)
    assert [report.env_steps for report in (first, second, third)] == [100, 200, 300]
    assert (second.name, second.path, second.updates) == (
        "0000000200-0000000100",
        run.checkpoints / "0000000200-0000000100",
        100,
    )
    assert (second.created, second.evaluation, first.evaluation) == (CREATED, BETTER, None)
    assert [(report.latest, report.best) for report in (first, second, third)] == [
        (False, False),
        (False, True),
        (True, False),
    ]
    assert second.parts == {"callbacks.logger": None, "networks.q": None}
    assert second.size == second.size_with_shared == sum(path.stat().st_size for path in second.path.iterdir())
    assert second.damage == ()


def test_the_folders_of_all_are_the_disk_used(run):
    names = sum((run.checkpoints / name).stat().st_size for name in ("latest", "best"))
    assert disk_used(run.path) == sum(report.size for report in rlrun.checkpoints(run.path)) + names


def test_a_run_without_checkpoints_has_none(empty):
    assert (rlrun.checkpoints(empty.path, verify=True, digest=True), disk_used(empty.path)) == ([], 0)


# --- damage


def places(path: Path) -> list[int]:
    """Return bytes that stand for all of a file."""
    size = path.stat().st_size
    return sorted({0, 7, size // 3, size // 2, size - 1})


def test_any_damaged_byte_of_any_file_is_found(run):
    where = run.checkpoints / "0000000200-0000000100"
    assert damaged(run, verify=True) == []
    for path in where.iterdir():
        whole = path.read_bytes()
        for place in places(path):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert damaged(run, verify=True) == [200], (path.name, place)
        path.write_bytes(whole[:-1])
        assert damaged(run, verify=True) == [200], path.name
        path.unlink()
        assert damaged(run, verify=True) == [200], path.name
        path.write_bytes(whole)
    assert damaged(run, verify=True) == []


def test_only_verification_reads_more_than_manifests(run):
    (run.checkpoints / "0000000100-0000000050" / "tensors.safetensors").unlink()
    assert damaged(run) == []
    assert damaged(run, digest=True) == damaged(run, verify=True) == [100]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", '{"sha256": 1}', "\x00\xff", None])
def test_a_damaged_manifest_is_told_and_the_others_shown(text, run):
    manifest = run.checkpoints / "0000000200-0000000100" / "manifest.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    first, second, third = rlrun.checkpoints(run.path)
    assert (first.damage, third.damage, second.created, second.parts) == ((), (), None, {})
    assert "manifest.json" in second.damage[0]
    assert second.best


def test_damaged_part_has_no_digest(run):
    (run.checkpoints / "0000000200-0000000100" / "state.json").write_text("{}")
    before = content(run.path)
    first, second, _ = rlrun.checkpoints(run.path, verify=True, digest=True)
    assert None not in first.parts.values()
    assert second.parts == {"callbacks.logger": None, "networks.q": None}
    assert content(run.path) == before  # looking changes nothing


# --- memories, whose rows are shared

COLUMNS = {"observation": {"shape": (3,)}, "reward": {}}


def extend(table: Table, count: int) -> None:
    for _ in range(count):
        table.add(None, {"observation": np.random.rand(1, 3).astype(np.float32), "reward": np.ones(1, np.float32)})


def save_memory(run: RunDir, step: int, table: Table) -> Path:
    where = run.checkpoints / checkpoint_name(step, step)
    taken = storage.snapshot({"memory": table.checkpoint(storage.home_of(run.checkpoints))}, apart=["memory"])
    storage.write(where, taken)
    return where


@pytest.fixture
def growing(empty):
    """A run with three checkpoints of a memory that grows, and the memory."""
    table = Table(length=200, columns=COLUMNS)
    for step in (60, 80, 100):
        extend(table, 60 if step == 60 else 20)
        save_memory(empty, step, table)
    return empty, table


def test_shared_rows_count_for_each_checkpoint_and_once_on_disk(growing):
    run, _ = growing
    reports = rlrun.checkpoints(run.path)
    segments = [path.stat().st_size for path in (run.checkpoints / "segments").iterdir()]
    shared = [report.size_with_shared - report.size for report in reports]
    assert (len(segments), shared[2]) == (3, sum(segments))
    assert 0 < shared[0] < shared[1] < shared[2]
    assert disk_used(run.path) == sum(report.size for report in reports) + sum(segments)


def test_damaged_rows_damage_every_checkpoint_that_shares_them(growing):
    run, _ = growing
    assert damaged(run, verify=True) == []
    segments = [stored.read_manifest(where)["segments"].keys() for where in run.checkpoint_dirs()]
    for begin, old, new in ((60, set(), segments[0]), (80, segments[0], segments[1]), (100, segments[1], segments[2])):
        (name,) = new - old
        path = run.checkpoints / "segments" / name
        whole = path.read_bytes()
        for place in places(path):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :])
            assert damaged(run, verify=True) == [step for step in (60, 80, 100) if step >= begin]
        path.unlink()
        assert damaged(run, digest=True) == [step for step in (60, 80, 100) if step >= begin]
        path.write_bytes(whole)


def test_a_memory_has_one_digest_however_its_rows_are_kept(growing, tmp_path):
    run, table = growing
    digest = rlrun.checkpoints(run.path, digest=True)[-1].parts["memory"]
    copy = RunDir.claim(tmp_path / "other")
    copy.start(config="", overrides=[], manifest={})
    save_memory(copy, 100, table)
    assert len(list((copy.checkpoints / "segments").iterdir())) == 1
    assert digest == rlrun.checkpoints(copy.path, digest=True)[0].parts["memory"]
    assert digest == storage.digest(table.state_dict())


# --- digests


def test_digests_tell_equal_parts_from_others(run):
    first, second, third = (report.parts for report in rlrun.checkpoints(run.path, digest=True))
    assert len({parts["networks.q"] for parts in (first, second, third)}) == 3
    assert len({parts["callbacks.logger"] for parts in (first, second, third)}) == 1  # clocks do not count
    save(run, 400, number=1)
    assert rlrun.checkpoints(run.path, digest=True)[3].parts == second


# --- a run in progress


def test_what_is_retired_meanwhile_is_left_out(run, monkeypatch):
    def read(where):
        if where.name.startswith("0000000100"):
            storage.remove(where)
        return read_manifest(where)

    read_manifest = stored.read_manifest
    monkeypatch.setattr(stored, "read_manifest", read)
    assert [(report.env_steps, report.damage) for report in rlrun.checkpoints(run.path)] == [(200, ()), (300, ())]


def test_what_is_replaced_meanwhile_is_looked_at_again(run, monkeypatch):
    replaced = []

    def read(where):
        note = read_manifest(where)
        if where.name.startswith("0000000200") and not replaced:
            replaced.append(where)
            save(run, 200, evaluation={**BETTER, "mean_return": 99.0})
        return note

    read_manifest = stored.read_manifest
    monkeypatch.setattr(stored, "read_manifest", read)
    assert rlrun.checkpoints(run.path, verify=True)[1].evaluation["mean_return"] == 99.0
    assert replaced


def test_a_run_that_saves_and_retires_all_the_time_can_be_looked_at(run):
    over, seen = threading.Event(), set()

    def work():
        step = 400
        while not over.is_set():
            save(run, step, number=step)
            storage.remove(run.checkpoint_dirs()[0])
            step += 100

    worker = threading.Thread(target=work)
    worker.start()
    try:
        while len(seen) < 20:
            reports = rlrun.checkpoints(run.path, verify=True, digest=True)
            assert [report.damage for report in reports if report.damage] == []
            seen |= {report.env_steps for report in reports}
    finally:
        over.set()
        worker.join()


def test_pointers_may_name_nothing(run):
    shutil.rmtree(run.checkpoints / "0000000300-0000000150")
    (run.checkpoints / "best").write_bytes(b"\xff\xfe")
    assert [(report.latest, report.best) for report in rlrun.checkpoints(run.path)] == [(False, False)] * 2
