"""`--json`: every command prints one value, which its schema holds; a kept validator checks it."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import jsonschema
import pytest
import typer.main
from tests.cli import agent
from tests.command import code_of

import rlrun
from rlrun.analysis import doctor
from rlrun.cli.main import app

from .conftest import TINY

TALKATIVE = """
import os
import gymnasium


def make():
    print("made")
    os.write(1, b"by file descriptor\\n")
    return gymnasium.make("CartPole-v1")
"""
RUN = ("algorithm=dqn", *TINY, "evaluation.episodes=2", "evaluation.max_steps=9", "preset=null")
DQN = (*RUN, "env.target=talking.make")
SWEEP = ("-m", *RUN, "env=cartpole", "seed=0,1")
WITHOUT = {  # commands that print no result, and why
    "play": "it shows episodes to a person; eval has their numbers",
    "watch": "it draws on a terminal until a person leaves; ls and query have the same numbers",
}
CALLS = [  # a command, its arguments, and a part of what it prints
    (("train", *DQN, "--run-dir", "new"), "stopped_by"),
    (("train", *DQN, "--run-dir", "new", "+expect.return=0", "--expect"), "promises"),
    (("train", *DQN, "--dry-run"), "hooks"),
    (("train", *SWEEP), "state"),
    (("train", *SWEEP, "--dry-run"), "jobs"),
    (
        ("train", "-m", *SWEEP[1:-1], "+sweep=optuna", "algorithm.lr=1e-4,1e-3", "evaluation.every=20", "--dry-run"),
        "search",
    ),
    (("resume", "run", "stop.env_steps=60"), "stopped_by"),
    (("eval", "run", "--episodes", "2"), "mean_return"),
    (("eval", "run", "--episodes", "2", "--checkpoint", "all"), "mean_return"),
    (("export-onnx", "run"), "outputs"),
    (("checkpoints", "run"), "networks.q"),
    (("ls",), "stopped_by"),
    (("query", "SELECT run, objective, 'nan'::DOUBLE AS odd FROM runs"), "odd"),
    (("diff", "run", "other"), "seed"),
    (("report", "run", "other", "--by", "folder"), "difference"),
    (("why", "run"), "checks"),
    (("check", *DQN), "wiring"),
    (("config", *DQN), "stop"),
    (("config", *DQN, "--package", "stop", "--provenance"), "set_by"),
    (("explain", *DQN), "q_loss"),
    (("explain", *DQN, "--update"), "def update"),
    (("explain", *DQN, "--networks"), "Linear("),
    (("schema", "--config-dir", "conf"), "train.json"),
    (("schema", "--outputs"), "definitions"),
    (("list",), "cartpole"),
    (("doctor",), "findings"),
    (("trust", "conf"), "conf"),
    (("init", "catching"), "catching"),
    (("upload", "run", "--to", "mlflow"), "records"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short runs."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("run", 0), ("other", 1)):
        rlrun.train([*RUN, "env=cartpole", f"seed={seed}"], run_dir=folder / name)
    return folder


@pytest.fixture(scope="module")
def schemas() -> dict:
    with redirect_stdout(io.StringIO()) as out:
        assert code_of("schema", "--outputs") == 0
    return json.loads(out.getvalue())


def commands(group=None, path=()):
    """Yield each command and its options."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), {option for parameter in command.params for option in parameter.opts}


def test_every_command_that_prints_a_result_has_the_option_a_schema_and_a_call(schemas):
    options = dict(commands())
    assert {name for name in options if "--json" not in options[name]} == set(WITHOUT)
    named = {call[0] for call, _ in CALLS}
    assert named == set(schemas["properties"]) == set(options) - set(WITHOUT)
    jsonschema.Draft7Validator.check_schema(schemas)


@pytest.mark.parametrize(("call", "part"), CALLS, ids=[" ".join(call)[:40] for call, _ in CALLS])
def test_the_output_is_one_value_that_the_schema_holds(call, part, runs, schemas, project, write, monkeypatch, capfd):
    write("talking.py", TALKATIVE)
    write("conf/env/mine.yaml", "target: talking.make\n")
    for path in runs.iterdir():
        shutil.copytree(path, project / path.name)
    health = doctor.HealthReport([*doctor.processor(), *doctor.disk(project)])
    monkeypatch.setattr(doctor, "doctor", lambda: health)  # the whole of it imports large packages
    capfd.readouterr()
    code = code_of(*call, "--json")
    out, err = capfd.readouterr()
    assert (code, len(out.splitlines())) == (0, 1), err
    assert part in out
    jsonschema.validate({call[0]: json.loads(out)}, schemas)
    if call[0] == "train" and DQN[-1] in call:
        assert "made" in err
        assert "by file descriptor" in err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("train", "algorithm=dqnn"), "there is no 'dqnn'"),
        (("report", "."), "there is no run"),
        (("check", "--jsn"), "there is no option --jsn"),
    ],
)
def test_errors_stay_one_line_on_standard_error(call, message, rlrun):
    outcome = rlrun(*call, "--json")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


def test_a_damaged_checkpoint_is_in_the_value_and_in_the_exit_code(runs, schemas, project, rlrun):
    shutil.copytree(runs / "run", project / "run")
    for path in (project / "run" / "checkpoints").rglob("*.safetensors"):
        path.write_bytes(b"")
    outcome = rlrun("eval", "run", "--checkpoint", "all", "--json")
    assert (outcome.code, outcome.out.count("\n")) == (2, 1)
    jsonschema.validate({"eval": json.loads(outcome.out)}, schemas)
    assert "damage" in outcome.out


def test_a_process_beneath_prints_beside_the_value(write, forked):
    write("talking.py", TALKATIVE)
    out, err = forked(["train", *DQN, "env.vectorization=async", "num_envs=2", "--json"]).communicate(timeout=60)
    assert json.loads(out)["status"] == "completed"
    assert err.count("by file descriptor") >= 2


@pytest.mark.slow
def test_a_program_that_knows_help_and_json_compares_two_configurations(rlrun, monkeypatch):
    script = Path(agent.__file__).read_text()
    assert set(re.findall(r"--[a-z-]+", script)) == {"--help", "--json"}  # the latter in its docstring

    def run(*arguments):
        outcome = rlrun(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    monkeypatch.setattr(agent, "run", run)  # else each command would import everything again
    result = agent.main()
    assert {*result} == {"verdict", "comparison", "page", "best", "exported"}
    assert Path(result["page"]).is_file()
