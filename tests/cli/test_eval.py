"""`rlrun eval`: episode by episode, checkpoint by checkpoint, filmed; and training that is filmed."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from tests.identical import compare

import rlrun as package
from rlrun.commands.evaluate import EvaluationReport
from rlrun.runs.directory import RunDir

from .conftest import TINY, refused

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
EVERY = ("evaluation.every=20", "evaluation.episodes=1", "evaluation.max_steps=5", "checkpoint.every=20")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with checkpoints at 20, 40 and 60 steps."""
    overrides = [*TINY, "algorithm=sac", "env=pendulum", "algorithm.warmup_steps=10", *EVERY, "stop.env_steps=60"]
    return package.train(
        [*overrides, "checkpoint.keep_last=null"], run_dir=tmp_path_factory.mktemp("trained") / "run"
    ).run_dir


@pytest.fixture
def run(trained, project):
    return shutil.copytree(trained, project / "run")


def test_a_table_has_a_line_for_each_episode(run, rlrun):
    outcome = rlrun("eval", "run", "--episodes", "3", "--seed", "8", "--table")
    report = json.loads(rlrun("eval", "run", "--episodes", "3", "--seed", "8", "--json").out)
    first, empty, head, *rows = outcome.out.splitlines()
    assert first.startswith("mean return -")
    assert (empty, head.split()) == ("", ["seed", "return", "length", "ended", "succeeded"])
    cells = zip(report["seeds"], report["returns"], report["lengths"], strict=True)
    expected = [[str(seed), f"{value:.2f}", str(length)] for seed, value, length in cells]
    assert [row.split(maxsplit=3)[:3] for row in rows] == expected
    assert all(row.endswith("cut by evaluation.max_steps  -") for row in rows)
    assert report["endings"] == ["cut"] * 3
    assert "successes" not in report


def test_the_interval_is_told_and_printed(run, rlrun):
    report = json.loads(rlrun("eval", "run", "--episodes", "4", "--json").out)
    low, high = report["mean_interval"]
    assert (low + high) / 2 == pytest.approx(report["mean_return"])
    error = np.std(report["returns"], ddof=1) / 2
    assert high - low == pytest.approx(2 * 3.182446 * error, rel=1e-5)  # Student's t of 3 degrees of freedom
    assert f"(the mean {low:.2f} to {high:.2f} at 95 % by Student's t; " in rlrun("eval", "run", "--episodes", "4").out
    assert json.loads(rlrun("eval", "run", "--episodes", "1", "--json").out)["mean_interval"] is None


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["--checkpoint", "all"], [20, 40, 60]),
        (["--checkpoint", "latest,20", "--checkpoint", "40"], [60, 20, 40]),
        (["--checkpoint", "20,20"], [20, 20]),
    ],
)
def test_several_checkpoints_play_the_episodes_that_each_plays_alone(overrides, steps, run, rlrun):
    reports = json.loads(rlrun("eval", "run", *overrides, "--episodes", "3", "--json").out)
    assert [report["env_steps"] for report in reports] == steps
    for report in reports:
        alone = rlrun("eval", "run", "--checkpoint", report["checkpoint"], "--episodes", "3", "--json").out
        assert json.loads(alone) == report
    assert len({tuple(report["returns"]) for report in reports}) == len(set(steps))


def test_stochastic_episodes_do_not_depend_on_other_checkpoints(run):
    alone = package.evaluate(run, checkpoint="40", episodes=3, stochastic=True)
    _, among = package.evaluate(run, checkpoint=["20", "40"], episodes=3, stochastic=True)
    assert among == alone
    assert alone.returns != package.evaluate(run, checkpoint="40", episodes=3).returns


def test_evaluations_with_epsilon_sample_and_leave_training_alone(run, project, rlrun):
    small = ["algorithm=sac", "env=pendulum", "algorithm.warmup_steps=10", *EVERY, "stop.env_steps=60"]
    run_dir = package.train([*TINY, *small, "evaluation.epsilon=0.5"], run_dir=project / "sampling").run_dir
    weights = [RunDir(where).checkpoint() / "tensors.safetensors" for where in (run, run_dir)]
    assert weights[0].read_bytes() == weights[1].read_bytes()

    def returns(where, *options):
        return json.loads(rlrun("eval", where, "--episodes", "3", "--json", *options).out)["returns"]

    assert returns(run) == returns("sampling", "--epsilon", "0") != returns("sampling")
    assert returns("sampling") == returns(run, "--epsilon", "0.5") != returns(run, "--epsilon", "1")
    assert returns(run, "--stochastic") == returns("sampling", "--stochastic")  # as in training, which has no epsilon


def test_damaged_checkpoint_names_newest_good_one(run, rlrun):
    (RunDir(run).checkpoint("latest") / "state.json").write_text("{}")
    outcome = rlrun("eval", "run", "--episodes", "1")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "state.json is damaged" in outcome.err
    assert outcome.err.endswith("; --checkpoint 40 is the newest good one\n")


def test_several_checkpoints_are_a_line_each(run, rlrun):
    outcome = rlrun("eval", "run", "--checkpoint", "all,best", "--episodes", "2", "--table")
    summary, episodes = outcome.out.split("\n\n")
    head, *rows = summary.splitlines()
    best = str(int(RunDir(run).checkpoint("best").name.split("-")[0]))
    assert head.startswith("checkpoint  return")
    assert [row.split()[0] for row in rows] == ["20", "40", "60"]
    assert {row.split()[0] for row in rows if row.endswith("best")} == {best}
    assert [row.split()[0] for row in rows if " latest" in row] == ["60"]
    assert [row.split()[:2] for row in episodes.splitlines()[1:]] == [
        [step, seed] for step in ("20", "40", "60") for seed in "01"
    ]


def test_a_damaged_checkpoint_among_several_is_told_and_the_others_play(run, rlrun):
    damaged = RunDir(run).checkpoint("40")
    (damaged / "state.json").write_text("{}")
    outcome = rlrun("eval", "run", "--checkpoint", "all", "--episodes", "2")
    assert outcome.code == 2
    assert [row.split()[0] for row in outcome.out.splitlines()[1:]] == ["20", "60"]
    warning, end = outcome.err.splitlines()
    assert warning.startswith(f"{damaged / 'state.json'} is damaged: ")
    assert end == "rlrun: run: 1 of 3 checkpoints is damaged"
    answer = rlrun("eval", "run", "--checkpoint", "all", "--episodes", "2", "--json")
    first, second, third = json.loads(answer.out)
    assert (answer.code, set(second)) == (2, {"run", "checkpoint", "env_steps", "latest", "best", "damage"})
    assert "is damaged" in second["damage"]
    assert (len(first["returns"]), len(third["returns"])) == (2, 2)


def test_a_checkpoint_that_is_not_there_is_refused_before_any_plays(run, rlrun):
    outcome = rlrun("eval", "run", "--checkpoint", "20,lates")
    assert (outcome.code, outcome.out) == (2, "")
    assert "has no checkpoint 'lates'; it has latest, best, 20, 40, 60" in outcome.err


def test_the_folder_of_videos_is_printed(run, rlrun):
    options = ("--episodes", "2", "--video", "films", "--format", "gif")
    assert rlrun("eval", "run", *options).out.splitlines()[-1] == "videos: films"


def test_videos_of_several_checkpoints_have_a_folder_each(run, rlrun, project):
    overrides = ("--episodes", "3", "--video", "films", "--videos", "1", "--format", "gif", "--json")
    reports = json.loads(rlrun("eval", "run", "--checkpoint", "20,60", *overrides).out)
    written = sorted(str(path.relative_to(project)) for path in (project / "films").rglob("*.gif"))
    assert [report["videos"] for report in reports] == [[path] for path in written]
    assert written == [f"films/{report['checkpoint']}/episode_000_seed_0.gif" for report in reports]
    assert [len(report["returns"]) for report in reports] == [3, 3]


def test_filming_changes_no_number(run, rlrun):
    plain = json.loads(rlrun("eval", "run", "--episodes", "3", "--seed", "3", "--json").out)
    filmed = json.loads(rlrun("eval", "run", "--episodes", "3", "--seed", "3", "--json", "--video", "films").out)
    assert filmed["videos"] == [f"films/episode_00{number}_seed_{3 + number}.mp4" for number in range(3)]
    for path, length in zip(filmed["videos"], filmed["lengths"], strict=True):
        assert imageio_ffmpeg.count_frames_and_secs(path)[0] == length + 1
    assert filmed["returns"] == pytest.approx(plain["returns"], rel=1e-6)  # sums of matrix products of other sizes


REFUSED = {
    ("--videos", "2"): "--videos goes with --video FOLDER",
    ("--format", "gif"): "--format goes with --video FOLDER",
    ("--video", "films", "--format", "mp5"): "--format mp5: wanted one of mp4, gif (did you mean 'mp4'?)",
    ("--video", "run/config.yaml"): "--video run/config.yaml cannot be made: File exists",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_videos_that_cannot_be_are_refused_before_the_first_step(overrides, run, rlrun, monkeypatch):
    monkeypatch.setattr("rlrun.env.sync.SyncEnv.step", None)
    assert rlrun("eval", "run", *overrides) == (2, "", f"rlrun: {REFUSED[overrides]}\n")


DRAWN = """
import gymnasium, numpy
from rlrun.env.toys import Chain


class Drawn(Chain):
    metadata = {"render_modes": ["rgb_array"]}
    left = 1_000_000  # pictures

    def __init__(self, render_mode=None):
        super().__init__()

    def render(self):
        Drawn.left -= 1
        if Drawn.left < 0:
            raise RuntimeError("the paint is gone\\nfor good")
        return numpy.zeros((16, 16, 3), numpy.uint8)


class Blind(Chain):
    metadata = {"render_modes": ["rgb_array"]}
"""
FILMED = ("evaluation.every=10", "evaluation.episodes=1", "evaluation.video=true")


def weights(run):
    return {report.name: report.parts for report in package.checkpoints(run, digest=True)}


def test_rendering_that_fails_amidst_a_run_is_told_once_and_changes_nothing(tiny_run, write, project):
    write("drawing.py", DRAWN)
    overrides = ("algorithm=dqn", "env.target=drawing.Drawn", "checkpoint.keep_last=null", *FILMED)
    assert tiny_run(*overrides, "--run-dir", "whole").code == 0
    import drawing

    drawing.Drawn.left = 10  # for the look before the run, and one film of six pictures
    outcome = tiny_run(*overrides, "--run-dir", "run")
    assert outcome.code == 0
    warnings = [line for line in outcome.err.splitlines() if "no video" in line]
    assert len(warnings) == 1
    assert "the paint is gone; training continues" in warnings[0]
    assert warnings[0] in (project / "run" / "log.txt").read_text()
    assert [path.suffix for path in (project / "whole" / "videos").iterdir()] == [".mp4"] * 3
    assert len(list((project / "run" / "videos").iterdir())) == 1
    assert weights("whole") == weights("run")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("env.target=drawing.Blind",),
            "cannot be drawn: its class takes no render_mode; add it: def __init__(self, render_mode=None)",
        ),
        (("env.target=drawing.Drawn",), "cannot be drawn: RuntimeError: the paint is gone"),
        (("env=bandit",), "environment 'bandit' draws no pictures (rgb_array), it renders nothing"),
    ],
)
def test_filming_that_cannot_be_is_refused_before_the_first_step(overrides, message, tiny_run, rlrun, write, project):
    write("drawing.py", DRAWN.replace("1_000_000", "0"))
    outcome = tiny_run("algorithm=dqn", *overrides, *FILMED, "--run-dir", "run")
    assert (outcome.code, outcome.err.count("\n"), (project / "run").exists()) == (2, 1, False)
    assert message in outcome.err
    assert tiny_run("algorithm=dqn", *overrides, "--run-dir", "run").code == 0
    outcome = rlrun("eval", "run", "--video", "films")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


def test_the_page_names_every_key():
    listed = set(re.findall(r"`([a-z_]+)`", " ".join(re.findall(r"^\| (`.*?)\|", PAGE, re.MULTILINE))))
    report = EvaluationReport([1.0], [1], [0], [[1.0, 2.0]], ["cut"], [True], [1.0], ["first"], ["random"])
    keys = {*report.to_json(), *replace(report, damage="it is damaged").to_json()}
    assert listed | {"latest", "best"} == keys


def test_success_is_counted_where_it_is_told():
    report = EvaluationReport([1.0, 2.0, 3.0], [1, 1, 1], [0, 1, 2], successes=[True, None, False])
    assert (report.to_json()["successes"], report.to_json()["success_rate"]) == ([True, None, False], 0.5)
    assert "; 1 of 2 succeeded; " in report.describe()


VARIED = """
import gymnasium, numpy

class Varied(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, bonus=0.0, size=2):
        self.bonus = bonus
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), numpy.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.more = 0, (options or {}).get("more", 0.0)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        return numpy.zeros(2, numpy.float32), 1.0 + self.bonus + self.more, False, self.steps >= 5, {}
"""


def test_a_run_plays_with_other_arguments_of_its_environment(rlrun, project, write):
    write("varied.py", VARIED)
    trained = rlrun("train", *TINY, "algorithm=dqn", "env.target=varied.Varied", "--run-dir", "varied_run")
    assert trained.code == 0, trained.err
    for override, mean in ((), 5.0), (("env.kwargs.bonus=2",), 15.0), (("env.reset_options.more=1",), 10.0):
        answer = json.loads(rlrun("eval", "varied_run", *override, "--episodes", "1", "--json").out)
        assert answer["mean_return"] == mean
    wrong = rlrun("eval", "varied_run", "env.kwargs.bonsu=2")
    assert (wrong.code, "env.kwargs.bonsu" in wrong.err) == (2, True)


def test_evaluations_may_differ_from_training(rlrun, project, write):
    write("varied.py", VARIED)
    line = (*TINY, "algorithm=dqn", "env.target=varied.Varied", "evaluation.every=30", "evaluation.episodes=1")
    other = ("evaluation.env.kwargs.bonus=2", "evaluation.env.reset_options.more=1")

    for run, more in ("own", ()), ("other", other), ("apart", (*other, "evaluation.async=true")):
        assert rlrun("train", *line, *more, "--run-dir", run).code == 0
        summary = json.loads((project / run / "summary.json").read_text())
        assert summary["evaluation"]["mean_return"] == (20.0 if more else 5.0)
    assert all(compare(project / "own", project / "other", watched=False).values())

    def played(*arguments):
        return json.loads(rlrun("eval", *arguments, "--episodes", "1", "--json").out)["mean_return"]

    assert (played("other"), played("other", "env.kwargs.bonus=4")) == (20.0, 30.0)
    assert rlrun("resume", "other", "stop.env_steps=60", "evaluation.env.kwargs.bonus=1").code == 0
    assert played("other") == 15.0
    assert rlrun("export-onnx", "other").code == 0
    assert played("other/exports/policy.onnx") == 15.0
    for override, part in (
        ("evaluation.env.kwargs.bonsu=2", "evaluation.env: env.kwargs.bonsu: env.target 'varied.Varied' takes no such"),
        ("evaluation.env.kwargs.size=3", "evaluation.env: observations or actions differ from those of training"),
        ("+evaluation.env.id=Pendulum-v1", "evaluation.env.id: no such key; there are kwargs and reset_options"),
        ("+env@evaluation.env=cartpole", "evaluation.env._target_: no such key"),
        ("evaluation.env=3", "evaluation.env: wanted keys with values, got 3"),
    ):
        refused(rlrun("check", *line, override), [part])
