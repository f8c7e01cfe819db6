"""What a person sees of a sweep."""

import pytest

from rlrun.runs.directory import RunDir
from rlrun.sweep.directory import SweepDir
from rlrun.sweep.launchers.local import threads
from rlrun.sweep.progress import Show, rows

from .conftest import job, status

ENTRIES = [status("a", "running"), status("b", "failed", "the arm broke"), status("c"), status("d", "completed")]


def begun(folder, *records):
    run = RunDir(folder / "jobs" / "a")
    run.path.mkdir(parents=True)
    run.config.write_text("stop: {env_steps: 1000, updates: null}\n")
    run.metrics.write_text("\n".join(records))


def test_lines_tell_what_changed_once(tmp_path, capsys):
    show = Show(SweepDir(tmp_path))
    show(ENTRIES)
    show(ENTRIES)
    assert capsys.readouterr().err.splitlines() == [
        "[1/4] a seed=a: running",
        "[2/4] b seed=b: failed: the arm broke",
        "[4/4] d seed=d: completed",
    ]


def test_a_job_that_ends_is_told_with_its_return_and_the_time_to_go(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    begun(tmp_path, '{"env_steps": 1000, "evaluation/mean_return": 7.125, "episode/return": 5.0}')
    lines = []
    for grows in (False, True):
        show = Show(SweepDir(tmp_path), grows=grows)
        show([status("a", "running"), *(status(key, "running" if key == "b" else "pending") for key in "bcde")])
        now[0] += 60.0
        show([status("a", "completed"), *(status(key, "running" if key == "b" else "pending") for key in "bcde")])
        now[0] += 30.0
        show([status("a", "completed"), status("b", "failed", "broke"), *(status(key, "completed") for key in "cde")])
        lines.append(capsys.readouterr().err.splitlines()[2:])
    assert lines[0] == [
        "[1/5] a seed=a: completed, return 7.12, 1:30 to go",  # three of 60 s in two places
        "[2/5] b seed=b: failed: broke",
        *(f"[{number}/5] {key} seed={key}: completed" for number, key in enumerate("cde", start=3)),
    ]
    assert lines[1][0] == "[1/5] a seed=a: completed, return 7.12"  # a search adds more


def test_the_last_table_has_overrides_return_and_state(tmp_path):
    begun(tmp_path, '{"env_steps": 1000, "episode/return": 5.0}')
    jobs = [status("a", "completed"), status("b", "failed", "the arm broke"), status("c", overrides=["x=1", "y=2"])]
    jobs[2] = jobs[2]._replace(job=job("c", "x=1", "y=2", label=""))
    assert rows(SweepDir(tmp_path), jobs) == [
        ("job", "overrides", "state", "steps", "return", "why"),
        ("a", "seed=a", "completed", "1,000", "5.00", ""),
        ("b", "seed=b", "failed", "", "", "the arm broke"),
        ("c", "x=1 y=2", "pending", "", "", ""),
    ]


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        ('"validation/squared_error": 0.048814, "validation/perplexity": 3.0', "squared_error", "0.04881"),
        ('"episode/return": 5.0', "return", "5.00"),
        ('"loss/particles": 5.0', "return", ""),
    ],
)
def test_objectives_have_their_names(record, name, value, tmp_path, capsys):
    begun(tmp_path, f'{{"env_steps": 0, "updates": 200, {record}}}')
    jobs = [status("a", "completed"), status("b")]
    assert rows(SweepDir(tmp_path), jobs)[0][4] == name
    assert rows(SweepDir(tmp_path), jobs)[1][3:5] == ("200", value)
    Show(SweepDir(tmp_path))(jobs)
    ending = f", {name} {value}" if value else ""
    assert capsys.readouterr().err == f"[1/2] a seed=a: completed{ending}\n"


def test_jobs_that_use_several_threads_are_fewer_at_a_time():
    assert threads([job("a"), job("b", "threads=4"), job("c", "threads=2")]) == 4
    assert threads([job("a")]) == 1
