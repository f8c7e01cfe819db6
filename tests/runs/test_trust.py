"""What was made here is built without a question; of anything else nothing runs before `--trust`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.command import code_of, forget

from rlrun import export_onnx, load, train
from rlrun.core.errors import RequestError
from rlrun.runs import trust
from rlrun.runs.directory import RunDir

HONEST = (
    *("algorithm=dqn", "env=cartpole", "preset=null", "algorithm.hidden=[8]", "algorithm.batch_size=4"),
    *("algorithm.warmup_steps=20", "stop.env_steps=40", "evaluation.every=0", "checkpoint.every=20", "logger=[]"),
)
CODE = """
import os, pathlib
if "CANARY" in os.environ:
    pathlib.Path(os.environ["CANARY"]).touch()
from rlrun.env.toys import Bandit as Env
twice = launcher = Env
"""
NODE = {"_target_": "evil.Env"}
CONFIGS = {  # code in the config of a run: keys and their values
    "env.target": {"env.id": None, "env.target": "evil.Env"},
    "env.id": {"env.id": "evil:Evil-v0"},
    "env.wrappers": {"env.wrappers": [NODE]},
    "env.kwargs": {"env.kwargs": {"render_mode": NODE}},
    "env": {"env": NODE},
    "agent": {"agent.policy": NODE},
    "networks": {"networks.q": NODE},
    "a callback": {"callbacks.evil": NODE, "agent.epsilon": "${callbacks.evil}"},
    "a resolver": {"resolvers": {"twice": "evil.twice"}, "agent.epsilon": "${twice:1}"},
    "memory": {"memory": NODE},
    "memory.import": {"callbacks.memory_import": NODE},
    "an opponent": {"evaluation.opponents": {"it": NODE}},
    "data of a parent": {"init": {"networks": "elsewhere"}, "callbacks.evil": NODE},
}
LIVE = {"memory": "resume", "memory.import": "resume", "an opponent": "resume", "data of a parent": "resume"}
OVERRIDES = {  # code in its overrides
    "env.target in overrides": ["env.id=null", "env.target=evil.Env"],
    "a callback in overrides": ["+callbacks.evil._target_=evil.Env"],
    "a resolver in overrides": ["resolvers.twice=evil.twice"],
}
COMMANDS = {
    "resume": ("resume", "run", "stop.env_steps=60"),
    "eval": ("eval", "run", "--episodes", "1"),
    "export-onnx": ("export-onnx", "run"),
    "play": ("play", "run", "--episodes", "1"),
    "train --from": ("train", "--from", "run", "stop.env_steps=100", "--run-dir", "second"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A short run, in a folder of its own; nobody changes it."""
    return train(list(HONEST), run_dir=tmp_path_factory.mktemp("honest") / "run").run_dir


@pytest.fixture
def state(tmp_path_factory, monkeypatch):
    """Nothing is remembered yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder := tmp_path_factory.mktemp("state")))
    return folder / "rlrun"


@pytest.fixture
def canary(project, write, monkeypatch):
    """The file that code of a foreign run writes; the code itself can be imported."""
    monkeypatch.setenv("CANARY", str(project / "canary"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(project)])
    write("evil.py", CODE)
    return project / "canary"


def refused(outcome, what="run", files=None):
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith(f"rlrun: this {what} was not made here; read "), outcome
    assert outcome.err.endswith(", then say --trust\n"), outcome
    assert outcome.err.count("\n") == 1, outcome
    if files is not None:
        assert outcome.err.partition("; read ")[2] == f"{' and '.join(map(str, files))}, then say --trust\n"


@pytest.mark.parametrize("case", [*CONFIGS, *OVERRIDES])
def test_nothing_of_a_foreign_run_runs_unasked(case, honest, project, canary, rlrun):
    shutil.copytree(honest, project / "run")
    changed = project / "run" / ("config.yaml" if case in CONFIGS else "overrides.txt")
    if case in CONFIGS:
        config = yaml.safe_load((project / "run" / "config.yaml").read_text())
        for key, value in CONFIGS[case].items():
            *above, last = key.split(".")
            block = config
            for name in above:
                block = block[name]
            block[last] = value
        changed.write_text(json.dumps(config))
    else:
        with changed.open("a") as file:
            file.write("\n".join([*OVERRIDES[case], ""]))
    for words in COMMANDS.values():
        refused(rlrun(*words), files=[changed])
    with pytest.raises(RequestError, match=rf"; read {changed}, then say --trust"):
        load(project / "run")
    for words in (("ls",), ("checkpoints", "run"), ("diff", "run", str(honest)), ("why", "run")):
        assert rlrun(*words).code == 0
    assert not canary.exists()
    rlrun(*COMMANDS["train --from" if case in OVERRIDES else LIVE.get(case, "eval")], "--trust")
    assert canary.exists()  # so it would have run


NAMING = {  # commands of one's own that name a foreign run, and whether they are refused; a fork takes numbers alone
    "parts of it": ((*HONEST, "init.networks=run"), None),
    "its memory": ((*HONEST, "init.memory=run"), None),
    "an expert": (("algorithm=handcrafted", "env=cartpole", "+with=expert", "expert=run"), "agent.policy: "),
    "an opponent": (("algorithm=ppo", "env=tictactoe", "evaluation.opponents={it: run}"), "opponent it: "),
}


@pytest.mark.parametrize("case", NAMING)
def test_nothing_of_a_foreign_run_runs_that_an_own_one_names(case, honest, project, canary, rlrun):
    shutil.copytree(honest, project / "run")
    config = yaml.safe_load((project / "run" / "config.yaml").read_text())
    config["env"], config["networks"]["q"], config["memory"] = NODE, NODE, NODE
    (project / "run" / "config.yaml").write_text(json.dumps(config))
    words, message = NAMING[case]
    outcome = rlrun("train", *words, "--run-dir", "own")
    if message is None:
        assert outcome.code == 0, outcome
    else:
        assert outcome.code == 2
        why = f"{message}this run was not made here; read {project}/run/config.yaml, then say --trust in rlrun eval "
        assert outcome.err.endswith(f"{why}{project}/run\n")
        assert outcome.err.count("\n") == 1
    assert not canary.exists()


SWEEPS = {  # what a stranger changes in a sweep
    "its jobs": None,
    "the folder of a job": ("jobs.jsonl", lambda text: text.replace('"label"', '"subdir": "other", "label"', 1)),
    "the label of a job": ("jobs.jsonl", lambda text: text.replace('"label": "', '"label": "other ', 1)),
    "the launcher": ("sweep.json", lambda text: text.replace('"launcher": []', '"launcher": ["launcher=evil"]')),
    "the config of a job": ("jobs/*/config.yaml", lambda text: text + "# changed\n"),
    "the overrides of a job": ("jobs/*/overrides.txt", lambda text: text + "env.target=evil.Env\n"),
}


@pytest.fixture(scope="module")
def own_sweep(tmp_path_factory):
    """A sweep with code in its jobs; nobody changes it."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        (folder / "evil.py").write_text(CODE)
        words = [*HONEST, "env.id=null", "env.target=evil.Env", "seed=0,1"]
        assert code_of("train", "-m", *words, "--sweep-dir", "sweep", "--workers", "1") == 0
    return folder / "sweep"


@pytest.mark.parametrize("case", SWEEPS)
def test_nothing_of_a_foreign_sweep_runs_unasked(case, own_sweep, canary, project, rlrun, request):
    shutil.copytree(own_sweep, project / "sweep")
    files = None  # more than are named
    if SWEEPS[case] is None:
        request.getfixturevalue("state")
    else:
        assert rlrun("resume", "sweep").code == 0  # before the change it is one that was made here
        canary.unlink(missing_ok=True)
        pattern, change = SWEEPS[case]
        path = next((project / "sweep").glob(pattern))
        files = [path]
        before = path.read_text()
        path.write_text(change(before))
        assert path.read_text() != before
    add = ("train", "-m", *HONEST, "seed=0,1", "--sweep-dir", "sweep")
    for words in (("resume", "sweep"), ("resume", "sweep", "--retry-failed"), add):
        refused(rlrun(*words), "sweep", files)
    assert not canary.exists()


def test_a_job_whose_folder_is_a_link_to_elsewhere_is_asked_for(own_sweep, project, rlrun):
    shutil.copytree(own_sweep, project / "sweep")
    run = min((project / "sweep" / "jobs").iterdir())
    run.rename(project / "victim")
    run.symlink_to(project / "victim")
    refused(rlrun("resume", "sweep"), "sweep", [run])
    assert rlrun("resume", "sweep", "--trust").code == 0
    assert rlrun("resume", "sweep").code == 0


def test_a_sweep_without_a_job_is_damaged(own_sweep, project, rlrun):
    shutil.copytree(own_sweep, project / "sweep")
    (project / "sweep" / "jobs.jsonl").write_text("")
    outcome = rlrun("resume", "sweep", "--trust")
    assert (outcome.code, outcome.err) == (2, f"rlrun: {project}/sweep/jobs.jsonl is damaged: it has no job\n")


def test_a_foreign_sweep_asks_once(own_sweep, canary, project, rlrun):
    shutil.copytree(own_sweep, project / "sweep")
    shutil.rmtree(next((project / "sweep" / "jobs").iterdir()))
    with (project / "sweep" / "sweep.json").open("a") as file:
        file.write("\n")
    refused(rlrun("resume", "sweep"), "sweep")
    assert rlrun("resume", "sweep", "--trust").code == 0
    assert rlrun("resume", "sweep").code == 0


def test_a_run_asks_once_and_a_copy_of_an_own_run_never(honest, project, state, rlrun):
    shutil.copytree(honest, project / "run")
    refused(rlrun(*COMMANDS["eval"]), files=[project / "run" / "config.yaml", project / "run" / "overrides.txt"])
    assert rlrun(*COMMANDS["eval"], "--trust").code == 0
    assert rlrun(*COMMANDS["eval"]).code == 0
    shutil.copytree(project / "run", project / "copy")
    assert rlrun("eval", "copy", "--episodes", "1").code == 0
    with (project / "copy" / "config.yaml").open("a") as file:
        file.write("# by hand\n")
    refused(rlrun("eval", "copy", "--episodes", "1"))


def test_a_run_of_here_never_asks(project, state, rlrun):
    assert rlrun("train", *HONEST, "--run-dir", "run").code == 0
    for name in ("eval", "resume", "train --from"):
        assert rlrun(*COMMANDS[name]).code == 0
    assert rlrun("resume", "run", "stop.env_steps=80").code == 0  # its overrides have changed
    assert rlrun("eval", "second", "--episodes", "1").code == 0
    assert load("second").predict([0.0] * 4)[1] is None


@pytest.mark.parametrize("name", ["config.yaml", "overrides.txt", "status.json"])
def test_a_run_that_is_killed_while_it_is_written_stays_trusted(name, project, state, monkeypatch):
    run = RunDir.claim(project / "run")
    run.start(config="a: 1\n", overrides=["a=1"], manifest={})
    replace = os.replace

    def killed(source, target):
        if Path(target).name == name:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run.start(config="a: 2\n", overrides=["a=1", "a=2"], manifest={})
    trust.require_trusted(run)


def test_a_folder_is_trusted_with_all_below_it(honest, project, state, rlrun, monkeypatch):
    shutil.copytree(honest, project / "theirs" / "run")
    (project / "beside").symlink_to("theirs")
    words = ("eval", "beside/run", "--episodes", "1")
    monkeypatch.setenv("RLRUN_TRUST", os.pathsep.join([str(project / "theirs" / "ru"), ""]))
    refused(rlrun(*words))
    monkeypatch.setenv("RLRUN_TRUST", os.pathsep.join(["/nowhere", str(project / "theirs")]))
    assert rlrun(*words).code == 0
    monkeypatch.delenv("RLRUN_TRUST")
    refused(rlrun(*words))
    assert rlrun("trust", "theirs").out == f"{project / 'theirs'}\n"
    assert rlrun(*words).code == 0
    assert json.loads(rlrun("trust", "beside", "--json").out) == {"folders": [str(project / "theirs")]}
    for folder in ("nowhere", "", "a\nb"):
        outcome = rlrun("trust", folder)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "is no folder that can be trusted" in outcome.err
    shutil.move(project / "theirs", project / "moved")
    refused(rlrun("eval", "moved/run", "--episodes", "1"))


def test_a_run_trains_where_nothing_can_be_remembered(project, rlrun, monkeypatch, caplog):
    (project / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "file"))
    assert rlrun("train", *HONEST, "--run-dir", "run").code == 0
    assert "what is made here cannot be remembered" in caplog.text
    refused(rlrun(*COMMANDS["eval"]))
    assert rlrun(*COMMANDS["eval"], "--trust").code == 0
    outcome = rlrun("trust", ".")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_who_has_no_home_is_asked(honest, project, rlrun, monkeypatch):
    def homeless(*words, **named):
        raise RuntimeError("could not determine the home directory")

    shutil.copytree(honest, project / "run")
    monkeypatch.setattr(trust, "user_state_path", homeless)
    refused(rlrun(*COMMANDS["eval"]))
    assert rlrun(*COMMANDS["eval"], "--trust").code == 0
    outcome = rlrun("trust", ".")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


def test_an_exported_file_is_data_and_its_environment_code(honest, project, state, rlrun):
    export_onnx(honest, project / "policy.onnx", trust=True)
    assert rlrun("eval", "policy.onnx", "--episodes", "1").code == 0
    shutil.rmtree(state)
    assert load(project / "policy.onnx").predict([0.0] * 4)[1] is None
    outcome = rlrun("eval", "policy.onnx", "--episodes", "1")
    assert outcome.code == 2
    assert outcome.err.endswith("policy.onnx.json, then say --trust, or name another one: env=NAME\n")
    assert rlrun("eval", "policy.onnx", "env=cartpole", "--episodes", "1").code == 0
    assert rlrun("eval", "policy.onnx", "--episodes", "1", "--trust").code == 0
    assert rlrun("eval", "policy.onnx", "--episodes", "1").code == 0


def test_code_in_a_run_or_a_sweep_is_never_on_the_path(honest, project, state, canary, rlrun, monkeypatch):
    shutil.copytree(honest, project / "run")
    shutil.copy(project / "evil.py", project / "run" / "typer.py")
    command = [sys.executable, "-m", "rlrun", "--version"]
    assert subprocess.run(command, cwd=project / "run", capture_output=True, check=True).stdout.startswith(b"rlrun ")
    assert not canary.exists()
    (project / "sweep" / "conf").mkdir(parents=True)
    (project / "sweep" / "sweep.json").write_text("{}")
    for folder in (project / "run", project / "run" / "checkpoints", project / "sweep"):
        monkeypatch.chdir(folder)
        assert rlrun("config", "algorithm=dqn", "env=cartpole").code == 0
        assert rlrun("eval", str(project / "run"), "--episodes", "1", "--trust").code == 0
        assert not any(str(folder) in place for place in sys.path)


def test_no_config_file_in_a_run_or_a_sweep_is_read(honest, project, canary, write, rlrun, monkeypatch, caplog):
    shutil.copytree(honest, project / "run")
    (project / "sweep").mkdir()
    (project / "sweep" / "sweep.json").write_text("{}")
    folders = ["run", "run/code", "run/checkpoints", "sweep", "sweep/jobs/a"]
    for folder in folders:
        write(f"{folder}/conf/env/cartpole.yaml", "defaults: [/rlrun/env/cartpole]\nid: null\ntarget: evil.Env\n")
        monkeypatch.chdir(project / folder)
        assert rlrun("config", "algorithm=dqn", "env=cartpole").out.count("evil") == 0
        assert rlrun("check", "algorithm=dqn", "env=cartpole").code == 0
        assert rlrun("train", "--from", str(project / "run"), "--dry-run").code == 0
        assert f"{project / folder}/conf is not read, as it lies in a run or a sweep" in caplog.text
    assert not canary.exists()
    rlrun("check", "algorithm=dqn", "env=cartpole", "--config-dir", "conf")
    assert canary.exists()


def test_no_launcher_in_a_sweep_is_used(own_sweep, project, canary, write, rlrun, monkeypatch):
    shutil.copytree(own_sweep, project / "sweep")
    write("sweep/conf/launcher/local.yaml", "_target_: evil.Env\n_partial_: true\n")
    monkeypatch.chdir(project / "sweep")
    assert rlrun("resume", ".").code == 0
    assert not canary.exists()


def test_a_run_whose_project_is_elsewhere_says_where_it_was_started(project, state, write, rlrun, monkeypatch):
    write("mine.py", "from rlrun.env.toys import Bandit as Mine\n")
    known = {*sys.modules}
    assert rlrun("train", *HONEST, "env.id=null", "env.target=mine.Mine", "--run-dir", "run").code == 0
    assert rlrun("eval", "run", "--episodes", "1").code == 0
    forget(known)
    sys.path.remove(str(project))
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    outcome = rlrun("eval", str(project / "run"), "--episodes", "1")
    assert outcome.err.endswith(f"No module named 'mine'; the run was started in {project}\n")
