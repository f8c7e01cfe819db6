"""The memory's benchmark compares equal batches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import memory, process
from benchmarks.rivals import case, client, worker


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A case that takes a moment, and a cache of its own."""
    monkeypatch.setenv("RLRUN_BENCH_CACHE", str(tmp_path))
    return {"sample256": memory.CASES["sample256"]._replace(capacity=1_000)}


def test_sides_give_equal_batches_and_a_missing_rival_misses_its_bar(small, monkeypatch):
    def refuse(rival):
        raise process.Failed("no such package")

    monkeypatch.setattr(client, "interpreter", refuse)
    result = memory.measure_cases(small, rivals=["cpprb"], rounds=2)["sample256"]
    assert set(result["thousands"]) == {"rlrun", "numpy by column", "numpy packed rows"}
    assert result["bytes"]["rlrun"] == result["bytes"]["numpy by column"] == 256 * (4 * (17 + 17 + 6 + 1) + 2)
    assert len(result["rounds"]) == 2
    assert (result["absent"]["cpprb"], result["missed"]) == ("no such package", ["cpprb"])
    assert result["absent"]["tianshou"] == memory.NOT_ASKED


@pytest.mark.parametrize(
    ("name", "rlrun", "missed"), [("sample256", 16.0, []), ("sample256", 12.0, ["stable-baselines3"])]
)
def test_memory_is_held_to_its_ratios(name, rlrun, missed):
    rounds = [{"rlrun": rlrun * noise, "stable-baselines3": 3.0 * noise, "cpprb": 10.0} for noise in (1.0, 2.0, 3.0)]
    absent = dict.fromkeys(("torchrl", "tianshou", "sheeprl"), memory.NOT_ASKED)
    summary = memory.summary(name, rounds, absent)
    assert summary["ratio"]["stable-baselines3"]["most"] == pytest.approx(rlrun / 3)
    assert (summary["missed"], summary["passed"]) == (missed, not missed)


@pytest.mark.parametrize(("speed", "missed"), [(200.0, []), (160.0, ["rlrun"])])
def test_insertion_is_held_to_its_time(speed, missed):
    summary = memory.summary("insert1", [{"rlrun": speed}], {})
    assert summary["microseconds"]["median"] == 1_000 / speed
    assert summary["missed"] == missed


COUNT = """
import json
from benchmarks import memory_bytes as sizes
sizes.CASES["peak"] = sizes.CASES["peak"]._replace(capacity=300_000)
print(json.dumps(sizes.growth("peak")))
"""


def test_memory_of_full_tables_is_counted():
    # in a process of its own: the peak of this one may be of a test before
    done = subprocess.run(
        [sys.executable, "-c", COUNT], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    sizes = json.loads(done.stdout)
    assert sizes["stored"] == 300_000 * 98
    assert sizes["grown"] >= 0.9 * sizes["stored"]


def test_calls_of_a_case_are_counted_again(monkeypatch):
    side, timed = worker.Worker("columns"), []
    monkeypatch.setattr(side, "time", lambda: timed.append(side.calls) or 0.01 * side.calls)
    for _ in range(2):
        side.prepare(case.CASES["sample256"]._replace(capacity=1_000))
        assert side.calls == round(worker.SECONDS / 0.01)
    assert timed == [1, 2, 4, 8] * 2


def test_bytes_of_any_batch_are_counted():
    batch = {"observation": torch.zeros(3, 2), "next": ({"reward": torch.zeros(3)}, [torch.zeros(3, dtype=torch.bool)])}
    assert worker.nbytes(batch) == 24 + 12 + 3
    assert worker.nbytes(None) == 0


def test_transitions_follow_one_another():
    episode = case.episode(case.CASES["insert64"])
    flat = episode.flat()
    assert flat["observation"].shape == (200 * 64, 17)
    assert (flat["next_observation"][:-64] == flat["observation"][64:]).all()
    assert episode.truncated.sum() == episode.truncated[-1].sum() == 64


def test_page_names_missing_figures(page_of):
    part = memory.summary("per256", [{"rlrun": 2.0, "cpprb": 1.0}], {"tianshou": "broken", "sheeprl": "no priorities"})
    about = {"transitions": 256, "what": "sample", "bytes": {"rlrun": 512, "cpprb": 512}, "load": [0.5]}
    about |= {"how": {"rlrun": "Table", "cpprb": "ReplayBuffer"}, "versions": {"rlrun": {}, "cpprb": {}}}
    size = {"what": "peak", "error": "out of memory", "bar": 1.1, "passed": False}
    text = page_of("memory", {"per256": {**part, **about}, "peak": size})
    assert "| per256 | cpprb | 1 (1–1) | 2.00 (2.00–2.00) | ≥ 1: met | 2 |" in text
    assert "| per256 | tianshou | none |  | ≥ 1: missed |  |" in text
    assert "without tianshou (broken); sheeprl (no priorities)" in text
    assert "| peak | out of memory | ≤ 1.1: missed |" in text
