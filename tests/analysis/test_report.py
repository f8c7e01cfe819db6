"""From the files of runs to a page: which runs count, what is said of the others, and which groups differ."""

import csv
import html
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from tests.command import code_of

import rlrun
from rlrun.analysis.report import figures
from rlrun.analysis.report.statistics import Scores, estimate, iqm
from rlrun.analysis.report.wording import notes
from rlrun.config.expansion import Job
from rlrun.core.errors import MissingExtra, RequestError
from rlrun.core.files import write_json
from rlrun.sweep.directory import SweepDir

QUICK = {"resamples": 200}
LEARNING = [10.0, 20.0, 30.0]


def lines(made):
    return list(csv.DictReader(io.StringIO(made.csv)))


def notes_of(made):
    return " ".join(notes(made.findings))


def text_of(made):
    return html.unescape(re.sub(r"<[^>]+>", " ", made.path.read_text()))


def group(make, name, finals, **options):
    for seed, value in enumerate(finals):
        make(f"{name}{seed}", [1.0, value], seed=seed, overrides=[f"algorithm={name}"], **options)


def test_runs_of_the_same_words_are_an_arm_whatever_their_seed_task_and_budget(make, tmp_path):
    for seed in range(2):
        make(f"a{seed}", LEARNING, seed=seed, overrides=["algorithm=ppo", "env=cartpole", "stop.env_steps=3_000"])
        make(f"b{seed}", LEARNING, seed=seed, overrides=["env=acrobot", "algorithm=ppo"], task="Acrobot-v1")
        make(f"c{seed}", LEARNING, seed=seed, overrides=["algorithm=ppo", "+with=rnd", "env=cartpole"])
    report = rlrun.report(tmp_path, **QUICK)
    labels = {result.group.label: len(result.group.fates) for result in report.findings.results}
    assert labels == {"algorithm=ppo": 4, "algorithm=ppo +with=rnd": 2}
    assert report.findings.common == ["CartPole-v1"]
    assert "leave out Acrobot-v1" in notes_of(report)
    assert report.path == tmp_path / "report.html"


def test_the_score_is_the_last_value_and_the_interval_that_of_the_statistics(make, tmp_path):
    group(make, "ppo", [3.0, 9.0, 5.0, 4.0])
    report = rlrun.report(tmp_path, seed=5, **QUICK)
    expected = estimate({"iqm": iqm}, Scores.of([[3.0, 9.0, 5.0, 4.0]]), resamples=200, seed=5)["iqm"]
    assert report.findings.results[0].aggregates["iqm"] == pytest.approx(expected)
    assert [float(line["score"]) for line in lines(report)] == [3.0, 9.0, 5.0, 4.0]


@pytest.mark.parametrize("status", ["failed", "stopped", "running", "interrupted"])
def test_a_run_that_is_not_completed_is_shown_and_does_not_count(status, make, tmp_path):
    group(make, "ppo", [1.0, 2.0])
    run = make("ppo9", [50.0, 60.0], seed=9, status="running" if status == "interrupted" else status)
    run.log.write_text(f"2026-11-22T09:00:00+00:00 failed\nDataError: the reward is NaN {'why ' * 4_000}\n")
    if status == "interrupted":
        write_json(
            run.status, {"status": "running", "host": "gone", "pid": 1, "heartbeat": "2026-01-01T00:00:00+00:00"}
        )
    elif status == "running":  # by a process that is alive: another one of this machine
        write_json(run.status, {**json.loads(run.status.read_text()), "pid": 1})
    report = rlrun.report(tmp_path, **QUICK)
    (line,) = [line for line in lines(report) if line["seed"] == "9"]
    assert (line["status"], line["counts"], line["score"]) == (status, "False", "")
    assert f"1 of 3 runs does not count in scores: 1 {status}" in notes_of(report)
    assert ("the reward is NaN" in line["why_not"]) is (status == "failed")
    assert len(line["why_not"]) < 400  # a reason may have no end
    assert report.findings.results[0].aggregates["mean"].value == pytest.approx(1.5)
    assert report.findings.curves["CartPole-v1"].runs["algorithm=ppo"].tolist() == [3, 3]  # but it was measured


def test_curves_end_where_runs_end(make, tmp_path):
    make("long", [0.0, 1.0, 2.0, 3.0], seed=0)
    make("short", [2.0, 3.0], seed=1, status="failed")
    curves = rlrun.report(tmp_path, **QUICK).findings.curves["CartPole-v1"]
    assert curves.grid.tolist() == [1_000.0, 2_000.0, 3_000.0, 4_000.0]
    assert curves.runs["algorithm=ppo"].tolist() == [2, 2, 1, 1]
    assert curves.bands["algorithm=ppo"].value.tolist() == [1.0, 2.0, 2.0, 3.0]
    assert np.isfinite(curves.bands["algorithm=ppo"].low).tolist() == [True, True, False, False]


def test_jobs_of_a_sweep_that_have_no_run_are_missing_and_the_status_says_why_others_failed(make, tmp_path):
    overrides = ["algorithm=ppo", "env=cartpole"]
    make("sweep/jobs/aa", [1.0, 2.0], seed=0, overrides=overrides)
    make("sweep/jobs/bb", [1.0], seed=1, overrides=overrides, status="failed")
    write_json(tmp_path / "sweep" / "sweep.json", {})
    sweep = SweepDir(tmp_path / "sweep")
    sweep.add(Job(key, (*overrides, f"seed={seed}"), "") for seed, key in enumerate(("aa", "bb", "cc")))
    sweep.fail(sweep.jobs()[1], "killed: no memory")
    (tmp_path / "again").symlink_to(tmp_path / "sweep")
    report = rlrun.report(tmp_path / "sweep", tmp_path / "again", **QUICK)
    rows = {line["seed"]: (line["status"], line["why_not"], line["task"]) for line in lines(report)}
    assert len(lines(report)) == 3
    assert rows["1"] == ("failed", "killed: no memory", "CartPole-v1")
    assert rows["2"] == ("missing", "it was never started", "CartPole-v1")
    assert len(report.findings.results) == 1
    sweep.list.write_text("damaged")
    assert "jobs.jsonl is damaged" in notes_of(rlrun.report(tmp_path, **QUICK))


def test_the_same_seed_twice_counts_once_the_newest_one(make, tmp_path):
    make("old", [1.0, 5.0], seed=3)
    make("new", [1.0, 7.0], seed=3, created="2026-11-23T09:00:00+00:00")
    make("later", [9.0], seed=3, created="2026-11-24T09:00:00+00:00", status="stopped")
    report = rlrun.report(tmp_path, **QUICK)
    assert report.findings.results[0].group.scores("CartPole-v1") == [7.0]
    assert "another run of seed 3 counts" in report.csv
    assert "2 there twice" in notes_of(report)


def test_an_arm_of_which_nothing_counts_hinders_no_comparison_of_the_others(make, tmp_path):
    group(make, "ppo", [1.0, 2.0])
    group(make, "a2c", [1.0, 2.0])
    group(make, "sac", [1.0, 2.0], status="failed")
    report = rlrun.report(tmp_path, svg=tmp_path / "svg", **QUICK)
    assert [(pair.first, pair.second) for pair in report.findings.comparisons] == [("algorithm=a2c", "algorithm=ppo")]
    assert "for the one pair of groups" in re.sub(r"\s+", " ", text_of(report))
    assert "| algorithm=sac | 0 of 2 (2 failed) | — |" in report.markdown
    assert "leave out" not in notes_of(report)


ALIKE = {
    name: np.random.default_rng(place).normal(100.0, 10.0, 6).tolist() for place, name in enumerate(("a2c", "ppo"))
}
FAR = {"ppo": [100.0, 101.0, 102.0, 103.0, 104.0], "a2c": [1.0, 2.0, 3.0, 4.0, 5.0]}
FEW = ("Few seeds: algorithm=ppo (3 runs), algorithm=a2c (3 runs)",)


@pytest.mark.parametrize(
    ("finals", "verdict", "apart", "texts"),
    [
        (ALIKE, "not distinguishable", False, ()),
        (FAR, "algorithm=ppo scores higher", True, ("algorithm=ppo scores higher than algorithm=a2c",)),
        ({name: values[:3] for name, values in FAR.items()}, "not distinguishable", True, FEW),
        ({"ppo": [30.0], "a2c": [500.0]}, "not distinguishable", None, ("(no interval)",)),
    ],
    ids=["alike", "far apart", "far apart but few", "one run each"],
)
def test_arms_are_told_apart_if_they_differ_and_there_are_enough_seeds(finals, verdict, apart, texts, make, tmp_path):
    for name, values in finals.items():
        group(make, name, values)
    report = rlrun.report(tmp_path, **QUICK)
    (comparison,) = report.findings.comparisons
    assert comparison.verdict == verdict
    assert verdict in report.markdown
    text = re.sub(" +", " ", text_of(report))
    assert verdict in text.split("Final scores")[0]
    assert all(sentence in text for sentence in texts)
    first, second = (result.aggregates["iqm"] for result in report.findings.results)
    assert bool(comparison.difference.low > 0) is (apart is True)
    assert bool(max(first.low, second.low) < min(first.high, second.high)) is (apart is False)
    if apart:
        assert comparison.first == "algorithm=ppo"
        assert comparison.improvement == pytest.approx((1.0, 1.0, 1.0))


MINIMIZED = "callbacks:\n  validation:\n    objective: error\n    direction: minimize\n"


@pytest.mark.parametrize(("options", "top"), [({}, 3.0), ({"bounds": {"CartPole-v1": (0.0, 200.0)}}, 0.985)])
def test_lower_is_better_where_minimized(options, top, make, tmp_path):
    for name, values in FAR.items():
        group(make, name, values, metric="validation/error", settings=MINIMIZED)
    report = rlrun.report(tmp_path, **QUICK, **options)
    better = "higher" if options else "lower"  # normalized scores are 1 where the error is smallest
    (comparison,) = report.findings.comparisons
    assert (comparison.first, comparison.verdict) == ("algorithm=a2c", f"algorithm=a2c scores {better}")
    assert comparison.improvement == pytest.approx((1.0, 1.0, 1.0))
    first, second = report.findings.results
    assert first.aggregates["iqm"].value == pytest.approx(top)
    assert first.profile.value[50] == 1.0
    assert second.profile.value[50] == 0.0
    text = re.sub(r"\s+", " ", text_of(report))
    assert f"algorithm=a2c scores {better} than algorithm=ppo" in text
    assert f"runs with a {'normalized score above' if options else 'score below'} τ" in text
    assert ("lower is better" in report.verdict) is ("lower is better" in text) is (not options)


def test_the_verdict_tells_runs_without_a_score_from_arms_without_a_common_task(make, tmp_path):
    make("a", [1.0], task="Acrobot-v1", status="failed")
    assert rlrun.report(tmp_path, **QUICK).verdict == "no run has a score"
    make("b", [1.0], overrides=["algorithm=ppo"])
    make("c", [1.0], overrides=["algorithm=dqn"], task="Pendulum-v1")
    report = rlrun.report(tmp_path, **QUICK)
    assert report.verdict == "no task is common to all groups: nothing is compared"
    assert "no task on which every group has a run that counts" in notes_of(report)


def test_p_is_corrected_for_all_pairs_of_groups(make, tmp_path):
    for name, base in (("a", 0.0), ("b", 50.0), ("c", 100.0)):
        group(make, name, [base + offset for offset in range(4)])
    corrected = rlrun.report(tmp_path, **QUICK).findings.comparisons
    assert {pair.chance > 0.05 for pair in corrected} == {True}  # of 70 assignments 2 differ as much: p < 0.05 alone
    assert {pair.verdict for pair in corrected} == {"not distinguishable"}


def test_scores_of_several_tasks_are_normalized_by_what_was_measured_or_as_asked_for(make, tmp_path):
    for seed in range(2):
        make(f"x{seed}", [0.0, 400.0 + 100.0 * seed], seed=seed)
        make(f"y{seed}", [-200.0, -100.0], seed=seed, task="Acrobot-v1")
    report = rlrun.report(tmp_path, **QUICK)
    assert report.findings.bounds == {"Acrobot-v1": (-200.0, -100.0), "CartPole-v1": (0.0, 500.0)}
    assert report.findings.results[0].aggregates["mean"].value == pytest.approx((1.0 + 0.9) / 2)
    bounded = rlrun.report(tmp_path, bounds={"CartPole-v1": (0.0, 1000.0)}, **QUICK)
    assert bounded.findings.results[0].aggregates["mean"].value == pytest.approx((1.0 + 0.45) / 2)
    assert "0 to 1 on each task" in notes_of(bounded)


def test_arms_by_a_key_or_by_folder(make, tmp_path):
    for seed in range(2):
        make(f"one/a{seed}", LEARNING, seed=seed, settings="algorithm:\n  lr: 0.1\n")
        make(f"two/b{seed}", LEARNING, seed=seed, settings="algorithm:\n  lr: 0.2\n")
    labels = {result.group.label for result in rlrun.report(tmp_path, by=["algorithm.lr"], **QUICK).findings.results}
    assert labels == {"algorithm.lr=0.1", "algorithm.lr=0.2"}
    folders = rlrun.report(tmp_path / "one", tmp_path / "two", by=["folder"], **QUICK).findings
    assert {result.group.label for result in folders.results} == {"folder=one", "folder=two"}
    assert folders.differing == {"algorithm.lr": ["0.1", "0.2"]}
    long = "x" * 100
    for end in "ab":
        make(f"far/{end}", LEARNING, overrides=["algorithm=ppo", f"name={long}{end}"], settings=f"name: {long}{end}\n")
    findings = rlrun.report(tmp_path / "far", by=["name"], **QUICK).findings  # they differ far behind
    assert (len(findings.results), list(findings.differing)) == (2, ["name"])


def test_seeds_that_others_have_and_runs_of_an_arm_that_are_not_alike_are_told(make, tmp_path):
    make("a", LEARNING, seed=0)
    make("b", [*LEARNING, 40.0, 50.0], seed=1, settings="algorithm:\n  lr: 0.5\n")
    group(make, "a2c", [1.0, 2.0, 3.0, 4.0])
    text = notes_of(rlrun.report(tmp_path, **QUICK))
    assert "algorithm=ppo has no run on CartPole-v1 of seed 2, 3, which others have" in text
    assert "different configs: algorithm.lr: 0.001 | 0.5" in text
    assert "2,000 to 5,000 steps" in text


def test_returns_of_training_stand_in_only_where_nobody_was_evaluated(make, tmp_path):
    make("a", LEARNING, seed=0, metric="episode/return")
    report = rlrun.report(tmp_path, **QUICK)
    assert report.findings.options.metric == "episode/return"
    assert "No evaluation is shown" in notes_of(report)
    make("b", LEARNING, seed=1)
    again = rlrun.report(tmp_path, **QUICK)
    assert [line["why_not"] for line in lines(again)] == ["evaluation/mean_return was never measured", ""]


HOSTILE = "<img src=x onerror=alert(1)>"


def test_whatever_stands_in_files_is_text(make, tmp_path):
    run = make(
        "a", LEARNING, overrides=[f"algorithm={HOSTILE}", "+x=\x1b[31m\u202e"], task=f"{HOSTILE}|`*[a](javascript:b)"
    )
    make("b", LEARNING, overrides=["algorithm=ppo", "=cmd|' /C calc'!A0"], seed=1, settings=f"x: '{HOSTILE}'\n")
    run.videos.mkdir()
    (run.videos / 'javascript:"><b>.mp4').write_text("")
    report = rlrun.report(tmp_path, title=f"</title>{HOSTILE}", svg=tmp_path / "svg", **QUICK)
    page = report.path.read_text()
    assert "<img" not in page
    assert page.count("<b>") == page.count("</b>")
    assert "\x1b" not in page
    assert "\u202e" not in page
    links = re.findall(r'href="([^"]*)"', page)
    assert all(link.startswith("./") and ":" not in link for link in links)
    assert {(tmp_path / unquote(link)).exists() for link in links} == {True}
    assert any(link.endswith(".mp4") for link in links)
    assert not any("<img" in path.read_text() for path in (tmp_path / "svg").iterdir())
    assert "<img" not in report.markdown.replace("\\<", "")
    assert not any(cell.startswith(("=", "+")) for line in lines(report) for cell in line.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json\n",
        '{"env_steps": 1000, "evaluation/mean_return": NaN}\n',
        '{"env_steps": 1000, "evaluation/mean_return": null}\n',
        '{"env_steps": 1000, "evaluation/mean_return": 1e999}\n',
        '{"env_steps": 1000, "evaluation/mean_return": 1e200}\n',
        '{"env_steps": 1000, "evaluation/mean_return": "much"}\n',
        '{"env_steps": "x", "evaluation/mean_return": 1.0}\n',
        '["evaluation/mean_return"]\n' + "[" * 100_000 + '"evaluation/mean_return"\n',
        f'{{"env_steps": 1000, "evaluation/mean_return": {"9" * 5000}}}\n',
    ],
)
def test_a_value_that_is_no_number_is_no_score(text, make, tmp_path):
    make("good", LEARNING, seed=0)
    make("bad", seed=1).metrics.write_text(text)
    report = rlrun.report(tmp_path, **QUICK)
    assert [line["counts"] for line in lines(report)] == ["True", "False"]


def test_a_line_that_was_cut_off_does_not_hide_those_before(make, tmp_path):
    run = make("a", LEARNING)
    run.summary.unlink()
    with open(run.metrics, "a") as file:
        file.write('{"env_steps": 4000, "evaluation/mean_ret')
    findings = rlrun.report(tmp_path, **QUICK).findings
    assert findings.results[0].group.scores("CartPole-v1") == [30.0]
    assert findings.curves["CartPole-v1"].axis == "environment steps"


def test_damaged_configs_are_told(make, tmp_path):
    make("a", LEARNING, seed=0)
    make("b", LEARNING, seed=1).config.write_text("algorithm: [1,\n")
    rows = lines(rlrun.report(tmp_path, **QUICK))
    assert {line["status"] for line in rows} == {"completed", "damaged"}
    assert any("not valid YAML" in line["why_not"] for line in rows)


def test_many_arms_make_no_large_page(make, tmp_path):
    for number in range(30):
        make(f"r{number}", LEARNING, overrides=["algorithm=ppo", f"algorithm.lr={number}e-4"])
    report = rlrun.report(tmp_path, **QUICK)
    assert len(report.findings.comparisons) == 8 * 7 // 2
    assert "Of 28 pairs none can be distinguished" in text_of(report)
    assert "the best 8 of 30 groups" in notes_of(report)
    assert report.path.stat().st_size < 200_000


def test_the_same_runs_give_the_same_page_where_the_user_stands(make, tmp_path, monkeypatch):
    group(make, "ppo", [1.0, 2.0])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = rlrun.report(tmp_path, **QUICK).path
    assert path == tmp_path / "elsewhere" / "report.html"
    first = path.read_bytes()
    assert rlrun.report(tmp_path, **QUICK).path.read_bytes() == first
    assert rlrun.report(tmp_path, seed=1, **QUICK).path.read_bytes() != first


def test_the_command_writes_what_was_asked_for(make, tmp_path, capsys):
    group(make, "ppo", [1.0, 2.0, 3.0])
    files = [tmp_path / "out" / name for name in ("page.html", "runs.csv", "tables.md")]
    options = ["--out", files[0], "--csv", files[1], "--markdown", files[2], "--svg", tmp_path / "svg"]
    overrides = ["report", tmp_path, *options, "--resamples", 200, "--bounds", "CartPole-v1=0,10"]
    assert code_of(*map(str, overrides)) == 0
    verdict = "algorithm=ppo: interquartile mean 0.200 [0.100, 0.300]\n"
    assert capsys.readouterr() == (f"{files[0]}\n", verdict)
    assert all(path.stat().st_size for path in files)
    assert sorted(path.name for path in (tmp_path / "svg").iterdir()) == [
        "curves-1.svg",
        "final-scores.svg",
        "performance-profiles.svg",
    ]
    assert code_of("report", str(tmp_path), "--markdown", "-", "--resamples", "200") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("**Final scores**")
    verdict = "algorithm=ppo: interquartile mean 2.00 [1.00, 3.00]\n"  # without bounds
    assert captured.err == f"{verdict}{tmp_path / 'report.html'}\n"
    group(make, "dqn", [11.0, 12.0, 13.0])
    assert code_of("report", str(tmp_path), "--resamples", "200") == 0
    best, pairs = capsys.readouterr().err.split("; ")
    assert best.startswith("algorithm=dqn: interquartile mean 12.0")
    assert pairs == "0 of 1 pair can be distinguished\n"  # three runs each: p is at least 0.1


def test_pictures_are_drawn_by_the_same_svg(make, tmp_path):
    group(make, "ppo", [1.0, 2.0, 3.0])
    try:
        figures.renderer()
    except MissingExtra:  # it comes with the tests
        raise
    except RequestError as error:  # no fonts
        pytest.skip(str(error))
    rlrun.report(tmp_path, png=tmp_path / "png", **QUICK)
    paths = sorted((tmp_path / "png").iterdir())
    assert [path.read_bytes()[:8] for path in paths] == [b"\x89PNG\r\n\x1a\n"] * 3


def test_without_the_library_pictures_are_refused_and_nothing_is_written(make, tmp_path, monkeypatch):
    make("a", LEARNING)
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(MissingExtra, match=r"--png needs the package 'resvg-py'.*\[plots\]"):
        rlrun.report(tmp_path, png=tmp_path / "png")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "evaluation/mean_retrun"}, "no run has a value of it.*did you mean 'evaluation/mean_return'"),
        ({"by": ["algorithm.lx"]}, "no run has this key.*did you mean 'algorithm.lr'"),
        ({"bounds": {"CartPole-v0": (0.0, 1.0)}}, "no run is on this task.*did you mean 'CartPole-v1'"),
        ({"bounds": {"CartPole-v1": (1.0, 1.0)}}, "the lower one first"),
        ({"resamples": 1}, "--resamples 1: wanted a number from 100"),
        ({"seed": -1}, "--seed -1: wanted a number from 0"),
    ],
)
def test_what_cannot_be_is_named(options, message, make, tmp_path):
    make("a", LEARNING)
    with pytest.raises(RequestError, match=message):
        rlrun.report(tmp_path, **options)
    assert not (tmp_path / "report.html").exists()


# --- the example of the documentation

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


def test_the_curve_of_models_is_that_of_the_committed_runs(tmp_path):
    rlrun.report(DOCS / "examples" / "pendulum", out=tmp_path / "report.html", svg=tmp_path / "svg")
    assert_alike((tmp_path / "svg" / "curves-1.svg").read_text(), (DOCS / "examples" / "mbpo_and_sac.svg").read_text())


def test_the_report_in_the_documentation_is_that_of_the_committed_runs(tmp_path):
    report = rlrun.report(DOCS / "examples" / "cartpole", out=tmp_path / "report.html", svg=tmp_path / "svg")
    shown = re.search(r"<!-- report -->\n(.*?)<!-- /report -->", (DOCS / "reports.md").read_text(), re.DOTALL).group(1)
    assert_alike(report.markdown.strip(), shown.strip())
    figures = sorted((DOCS / "examples" / "figures").iterdir())
    assert [path.name for path in figures] == sorted(path.name for path in (tmp_path / "svg").iterdir())
    for path in figures:
        assert_alike((tmp_path / "svg" / path.name).read_text(), path.read_text())
        assert f"examples/figures/{path.name}" in (DOCS / "reports.md").read_text()
