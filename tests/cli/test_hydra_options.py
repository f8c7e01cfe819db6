"""Options of Hydra applications."""

import json
import sqlite3
from contextlib import closing
from datetime import datetime

import pytest
from omegaconf import OmegaConf

from .conftest import TINY, refused

LINE = ("algorithm=dqn", "env=cartpole")


MINE = "defaults: [/rlrun/train, _self_, override /algorithm: dqn, override /env: cartpole]\nseed: 7\n"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--cfg", "hydra"), ["--cfg hydra: a run has no config of Hydra's own; --cfg job"]),
        (("--info", "plugins"), ["--info plugins: there are defaults and defaults-tree"]),
        (("-cn", "nowhere"), ["--config-name nowhere: there is no file nowhere.yaml in"]),
        (("--resolve",), ["--package and --resolve go with --cfg job"]),
        (("-m", "--cfg", "job"), ["--cfg is for a single run"]),
        (("-m", "hydra.run.dir=x"), ["hydra.run.dir is for a single run", "hydra.sweep.dir"]),
        (("-m", "seed=1,2", "hydra.sweep.dir=x/${seed}"), ["hydra.sweep.dir=x/${seed}: a sweep has one folder"]),
        (("hydra.sweep.subdir=x",), ["hydra.sweep.subdir is for a sweep: rlrun train -m"]),
        (("hydra.sweeper.params.seed=3",), ["hydra.sweeper.params.seed: it is for a sweep: rlrun train -m"]),
        (("-m", "seed=1,2", "hydra.sweep.subdir=x"), ["seed=1 and seed=2 would share x; put ${hydra:job.num} into it"]),
        (
            ("-m", "seed=1,2", "hydra.sweep.subdir=${algorithm}/${seed}"),
            ["'algorithm' is a block of keys; ${hydra:runtime.choices.algorithm} is the name that was chosen"],
        ),
        (("-m", "seed=1,2", "hydra.sweep.subdir=x/../../${seed}"), ["wanted a folder below the sweep's own, got"]),
        (("-m", "seed=1,2", "hydra.sweep.subdir=logs/${seed}"), ["wanted a folder below the sweep's own, got logs/1"]),
        (("-m", "+sweep=optuna", "algorithm.lr=1,2", "hydra.sweep.subdir=${seed}"), ["would share 0"]),
        (("--config-path", "x"), ["there is no option --config-path", "--config-dir names a folder of yours"]),
    ],
)
def test_an_option_of_hydra_is_refused_with_the_way_out(options, parts, rlrun):
    refused(rlrun("train", *LINE, *options), parts)


def test_a_config_is_printed_as_by_a_hydra_application(rlrun):
    whole = rlrun("config", *LINE)
    assert whole.code == 0
    assert rlrun("train", *LINE, "--cfg", "job").out == rlrun("train", *LINE, "-c", "job").out == whole.out
    part = ("--package", "algorithm", "--resolve")
    assert rlrun("train", *LINE, "--cfg", "job", *part).out == rlrun("config", *LINE, *part).out


def test_the_files_are_listed_in_the_order_of_merging(rlrun, write):
    own = write("conf/mine.yaml", MINE)
    assert rlrun("config", "-cn", "mine.yaml").out == rlrun("config", "-cn", "mine").out
    lines = rlrun("train", "-cn", "mine", "--info", "defaults-tree", "seed=3").out.splitlines()
    assert lines[0] == "rlrun/train.yaml"
    assert lines[-2:] == [str(own), "override"]
    assert lines.index("rlrun/env/gym.yaml") < lines.index("rlrun/env/cartpole.yaml")
    assert rlrun("config", "-cn", "mine", "--info", "defaults", "seed=3", "--json").out == json.dumps(lines) + "\n"


def test_a_run_starts_from_another_file_and_so_do_its_forks_and_sweeps(project, rlrun, write):
    write("conf/mine.yaml", MINE)
    assert rlrun("train", "-cn", "mine", *TINY, "--run-dir", "r").code == 0
    assert rlrun("train", "--from", "r", "--cfg", "job", "--package", "seed").out == "7\n"
    assert rlrun("train", "-m", "-cn", "mine", *TINY, "algorithm.n_step=1,2", "hydra.sweep.dir=s").code == 0
    assert rlrun("resume", "s").code == 0
    assert {(run / "config.yaml").read_text().count("seed: 7") for run in (project / "s/jobs").iterdir()} == {1}


def test_the_folder_of_a_run_follows_a_pattern(project, rlrun, write):
    pattern = "hydra.run.dir='runs/${hydra:runtime.choices.algorithm}/${now:%Y}-${seed}-${hydra:job.override_dirname}'"
    assert rlrun("train", *LINE, *TINY, "seed=4", pattern).code == 0
    (run,) = (project / "runs/dqn").iterdir()
    assert run.name.startswith(f"{datetime.now():%Y}-4-algorithm.batch_size=4,")
    assert "hydra" not in rlrun("ls", "runs", "--json").out  # so a fork gets a folder of its own
    write("conf/train.yaml", "defaults: [/rlrun/train, _self_]\nhydra: {run: {dir: 'here/${seed}'}}\n")
    assert rlrun("train", *LINE, *TINY).code == 0
    assert (project / "here/0/config.yaml").is_file()
    write("conf/train.yaml", "defaults: [/rlrun/train, _self_]\nhydra: {job: {chdir: true}}\n")
    refused(rlrun("config", *LINE), ["conf/train.yaml: hydra.job.chdir: Hydra's own settings play no part"])


@pytest.mark.parametrize(
    "grid",
    [
        "sweep: {params: {algorithm.lr: '1e-3,1e-4', seed: range(3)}}",
        "hydra: {sweeper: {params: {algorithm.lr: '1e-3,1e-4', seed: range(3)}}}",
        "sweep: {params: {algorithm: {lr: [1e-3, 1e-4]}, seed: [0, 1, 2]}}",
    ],
)
def test_a_grid_is_written_in_a_file(grid, rlrun, write):
    write("conf/preset/grid.yaml", f"# @package _global_\n{grid}\n")

    def jobs(*overrides):
        outcome = rlrun("train", "-m", *LINE, "preset=grid", *overrides, "--dry-run", "--json")
        return {job["job"] for job in json.loads(outcome.out)["jobs"]}

    write("conf/preset/plain.yaml", "# @package _global_\nseed: 0\n")
    typed = json.loads(
        rlrun(
            "train", "-m", *LINE, "preset=plain", "algorithm.lr=1e-3,1e-4", "seed=range(3)", "--dry-run", "--json"
        ).out
    )
    assert jobs() == {job["job"] for job in typed["jobs"]}
    assert len(jobs()) == 6
    assert len(jobs("seed=5")) == 2  # the command line wins
    assert len(jobs("hydra.sweeper.params.seed=1,2")) == 4
    assert "seed: 0" in rlrun("config", *LINE, "preset=grid").out  # a single run has none


@pytest.mark.parametrize(
    "grid",
    [
        ("hydra.sweeper.params={algorithm.lr: '1e-3,1e-4', seed: 'range(3)'}",),
        ("+hydra.sweeper.params={algorithm: {lr: [1e-3, 1e-4]}}", "hydra.sweeper.params.seed=range(3)"),
        ("hydra.sweeper.params.algorithm.lr='1e-3,1e-4'", "hydra.sweeper.params.seed=0,1", "seed=range(3)"),
        ("sweep.params.algorithm.lr=1e-3,1e-4", "+sweep.params.seed=range(3)"),
    ],
)
def test_a_grid_is_typed_as_for_hydra(grid, rlrun):
    def jobs(*overrides):
        outcome = rlrun("train", "-m", *LINE, *overrides, "--dry-run", "--json")
        return {job["job"] for job in json.loads(outcome.out)["jobs"]}

    assert jobs(*grid) == jobs("algorithm.lr=1e-3,1e-4", "seed=range(3)")


def test_the_folders_of_jobs_follow_a_pattern(project, rlrun, write):
    write("conf/train.yaml", "defaults: [/rlrun/train, _self_]\nhydra: {sweep: {subdir: 'x/${hydra:job.num}'}}\n")
    quick = ("train", "-m", *LINE, *TINY, "preset=null", "hydra.sweep.dir=s")
    assert rlrun(*quick, "seed=1,2").code == 0
    own = 'hydra.sweep.subdir="of-${seed}-${hydra:job.num}"'
    assert rlrun(*quick, "seed=2,3", own).code == 0  # what was begun keeps its folder
    places = {"s/x/0", "s/x/1", "s/of-3-2"}
    assert {str(path.parent) for path in project.glob("s/**/summary.json")} == {str(project / at) for at in places}
    assert rlrun("resume", "s").out.startswith("3 jobs: 3 completed")
    assert {run["path"] for run in json.loads(rlrun("ls", "s", "--json").out)} == {str(project / at) for at in places}


def test_a_config_folder_is_named_as_for_hydra(rlrun, write):
    write("settings/env/mine.yaml", "defaults: [gym, _self_]\nid: Mine-v0\n")
    outcome = rlrun("config", "-cd", "settings", "algorithm=dqn", "env=mine")
    assert "id: Mine-v0" in outcome.out


def test_notes_are_free_and_found_by_a_query_and_by_mlflow(project, rlrun):
    notes = ("notes.paper.figure=3", "notes.tags=[a,b]", "notes.day='on ${now:%Y}'", "logger=[mlflow]")
    assert rlrun("train", *LINE, *TINY, *notes, "--run-dir", "r").code == 0
    day = f"on {datetime.now():%Y}"
    rows = rlrun("query", "SELECT key, value FROM config WHERE key LIKE 'notes.%'", "r", "--json").out
    assert {row["key"]: row["value"] for row in json.loads(rows)} == {
        "notes.paper.figure": "3",
        "notes.tags": '["a", "b"]',
        "notes.day": day,  # as of the start, which a resume keeps
    }
    with closing(sqlite3.connect(project / "r/mlflow/mlflow.db")) as database:
        tags = dict(database.execute("SELECT key, value FROM tags"))
    assert (tags["paper.figure"], tags["tags"], tags["day"]) == ("3", "['a', 'b']", day)
    assert rlrun("resume", "r", "notes.seen=true", "stop.env_steps=60").code == 0
    assert "seen: true" in (project / "r/config.yaml").read_text()


def test_a_function_of_the_user_is_a_resolver_of_the_run_and_of_all_that_is_done_with_it(project, rlrun, write):
    write("mine.py", "def twice(number):\n    return 2 * int(number)\n")
    text = "defaults: [/rlrun/train, _self_]\nresolvers: {twice: mine.twice}\nalgorithm: {n_step: '${twice:2}'}\n"
    write("conf/train.yaml", text)
    assert "n_step: 4" in rlrun("config", *LINE, "preset=null", "--resolve").out
    quick = (*LINE, *TINY, "preset=null")
    assert rlrun("train", *quick, "--run-dir", "r").code == 0
    assert rlrun("resume", "r", "stop.env_steps=60").code == 0
    assert rlrun("eval", "r", "--episodes", "1").code == 0


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("resolvers.twice=mine.thrice",), ["resolvers.twice: mine.thrice: mine", "has no 'thrice'"]),
        (("resolvers.now=mine.twice",), ["resolvers.now: ${now:…} is a resolver of Hydra"]),
        (("algorithm.n_step=${twice:x}", "resolvers.twice=mine.twice"), ["algorithm.n_step: ValueError", "'x'"]),
        (("algorithm.n_step=${twice:2}",), ["algorithm.n_step: Unsupported interpolation type twice"]),
        (("notes=3",), ["notes: wanted keys with values, got 3"]),
    ],
)
def test_a_wrong_resolver_is_refused(overrides, parts, rlrun, write):
    OmegaConf.clear_resolver("twice")
    write("mine.py", "def twice(number):\n    return 2 * int(number)\n")
    refused(rlrun("config", *LINE, *overrides), parts)
