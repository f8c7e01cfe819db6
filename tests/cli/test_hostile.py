"""Runs and files from elsewhere, hostile or damaged: refused in one line with exit code 2, and no code is run."""

import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import yaml
from tests.cli import attacks
from tests.cli.attacks import HONEST
from tests.identical import stamps

from rlrun.runs.directory import RunDir
from rlrun.runs.files import SHARED

from .conftest import refused as refused_in_one_line

EVIL = """
import os, pathlib
pathlib.Path(os.environ["CANARY"]).write_text("evil.py was imported")
import gymnasium
class Env(gymnasium.Env):
    pass
"""
COMMANDS = {"eval": ("eval", "run", "--episodes", "1"), "resume": ("resume", "run", "stop.env_steps=60")}


@pytest.fixture
def canary(tmp_path_factory, monkeypatch):
    """The file that every payload writes."""
    path = tmp_path_factory.mktemp("canary") / "canary"
    monkeypatch.setenv("CANARY", str(path))
    yield path
    assert not path.exists(), path.read_text()


@pytest.fixture
def run(honest, project, canary, tmp_path_factory):
    """A copy of the run, with a module that must not be imported wherever one might be looked for."""
    shutil.copytree(honest, project / "run")
    theirs = tmp_path_factory.mktemp("theirs")
    about = json.loads((project / "run" / "manifest.json").read_text())
    (project / "run" / "manifest.json").write_text(json.dumps({**about, "project": str(theirs)}))
    checkpoint = RunDir(project / "run").checkpoint("latest")
    for folder in (project / "run", project / "run" / "checkpoints", checkpoint, theirs):
        (folder / "evil.py").write_text(EVIL)
    return project / "run"


def refused(outcome, canary: Path, *parts: str) -> None:
    refused_in_one_line(outcome, parts)
    assert not canary.exists()


def turn(case: str) -> str:
    """Return the command for a case; both open a run in the same way, so they take turns."""
    return ("eval", "resume")[len(case) % 2]


def read_config(run: Path) -> dict:
    return yaml.load((run / "config.yaml").read_text(), yaml.CSafeLoader)


def write_config(run: Path, config: dict) -> None:
    (run / "config.yaml").write_text(json.dumps(config))  # which is YAML, too


ABSENT = object()


def change(run: Path, **values) -> None:
    """Set keys of the run's config, or take them out; `__` stands for a dot."""
    config = read_config(run)
    for key, value in values.items():
        *blocks, last = key.split("__")
        block = config
        for name in blocks:
            block = block[name]
        block.pop(last, None)
        rest = dict(block)
        block.clear()
        block.update(rest if value is ABSENT else {last: value, **rest})  # the first to be built
    write_config(run, config)


# --- what a config names

TOUCH = "touch $CANARY"
TARGETS = {  # one of each kind; all names are in tests/security/test_trust.py
    "builtins.exec": {"_args_": ["import evil"]},
    "hydra.utils.call": {"_args_": [{"_target_": "evil.Env"}]},
    "functools.partial": {"_args_": ["x"]},
    "torch.nn.Linear.__init__.__globals__": {},
    "evil.Env": {},
    "run.checkpoints.evil.Env": {},
    "..evil.Env": {},
}

NODE = {"_target_": "os.system", "command": TOUCH}
PLACES = {
    "env.wrappers": {"env__wrappers": [NODE]},
    "a wrapper's recipe": {"env__wrappers": [{**NODE, "_partial_": True}]},
    "an argument": {"agent__policy": {"_target_": "torch.nn.Sequential", "_args_": [NODE]}},
    "a list in a list": {"agent__policy": {"_target_": "torch.nn.Sequential", "_args_": [[[NODE]]]}},
    "a link": {"agent__policy": "${evil}", "evil": NODE},
    "a link to the target": {"agent__policy": {**NODE, "_target_": "${evil}"}, "evil": "os.system"},
    "a target in pieces": {"agent__policy": {**NODE, "_target_": "${evil}.system"}, "evil": "os"},
    "the environment": {"env": NODE},
    "spaces": {"spaces": NODE},
    "env.kwargs": {"env__kwargs": {"render_mode": NODE}},
    "a schedule": {"agent__epsilon": NODE},
}

ENVIRONMENTS = {
    "evil:Evil-v0": "id",
    "os:Evil-v0": "id",
    "torch.nn.modules:os:Evil-v0": "id",
    "../evil:Evil-v0": "id",
    "run.evil.Env": "target",
    "rlrun.memory.files.restore": "target",
}

ATTRIBUTES = [
    *("${networks.q.__class__}", "${networks.q.__init__.__globals__}", "${networks.q.load_state_dict}"),
    *("${memory.store}", "${env.copier}", "${spaces.__module__}", "${networks.q._modules}", "${memory.index.__dict__}"),
]
IMPORTING = ["GymV21Environment-v0", "GymV26Environment-v0", "GymV26Environment"]  # what their arguments say

RESOLVERS = [
    *("${oc.env:HOME}", "${oc.env:HOME,x}", "${oc.decode:'[1]'}", "${oc.create:'a: 1'}", "${eval:'1'}"),
    *("${hydra:runtime.cwd}", "${evil:x}", "a ${ oc.env : HOME } b", "${${evil}:HOME}", "${oc.${evil}:HOME}"),
    "${networks.${oc.env:HOME}}",
]

KINDS = {
    "stop": 3,
    "evaluation": [],
    "seed": {"a": 1},
    "threads": "many",
    "precision": 3,
    "device": "evil",
    "env": 3,
    "agent": [],
    "networks": None,
    "num_envs": -1,
    "spaces": "${nowhere}",
    "stop__env_steps": "${seed.x}",
}
BLOCKS = ("seed", "device", "threads", "precision", "stop", "agent", "env", "networks")
CHANGES = {  # of the config, and what the message holds
    **{
        name: ({"env__id": None, "env__target": None, f"env__{key}": name}, ["env."])
        for name, key in ENVIRONMENTS.items()
    },
    **{name: ({"env__id": name, "env__kwargs": {"env_id": "evil:Evil-v0"}}, ["env.id", name]) for name in IMPORTING},
    **{text: ({"callbacks__budget__evaluator": text}, ["is code, not data"]) for text in ATTRIBUTES},
    **{text: ({"evil": {"deep": [{"er": text}]}}, ["evil.deep.0.er", "is not trusted; "]) for text in RESOLVERS},
    **{
        target: ({key: {"_target_": target, **arguments} for key in ("callbacks__evil", "agent__policy")}, [target])
        for target, arguments in TARGETS.items()
    },
    **{key: ({key: value}, []) for key, value in KINDS.items()},
    **{f"no {key}": ({key: ABSENT}, []) for key in BLOCKS},
    **{place: (changes, ["os.system can never be a `_target_`"]) for place, changes in PLACES.items()},
    "a resolver for a number": ({"threads": "${oc.select:precision}"}, []),
}


@pytest.mark.parametrize("case", CHANGES)
def test_hostile_value_is_refused(case, run, rlrun, canary):
    changes, parts = CHANGES[case]
    change(run, env__vectorization="async" if case.endswith("Env") else "sync")
    change(run, **changes)
    before = stamps(run)
    refused(rlrun(*COMMANDS["resume" if case in ATTRIBUTES else turn(case)]), canary, *parts)
    assert stamps(run) == before


def test_a_run_brings_no_plugin_along(run, rlrun, canary, monkeypatch):
    """Also where the user stands in it."""
    (run / "plugged").mkdir()
    (run / "plugged" / "__init__.py").write_text(EVIL)
    (run / "plugged-1.0.dist-info").mkdir()
    (run / "plugged-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (run / "plugged-1.0.dist-info" / "entry_points.txt").write_text("[rlrun.plugins]\nplugged = plugged\n")
    with (run / "overrides.txt").open("a") as file:
        file.write("env.id=null\nenv.target=plugged.Env\n")
    change(run, env__id=None, env__target="plugged.Env")
    monkeypatch.chdir(run)
    refused(rlrun("train", "--from", ".", "stop.env_steps=60"), canary, "plugged.Env", "not trusted")
    refused(rlrun("resume", ".", "stop.env_steps=60"), canary, "plugged.Env", "not trusted")


# --- the files of a run

BOMB = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
CONFIGS = {
    "a tag that calls": "a: !!python/object/apply:os.system ['touch $CANARY']\n",
    "a tag that imports": "a: !!python/name:evil.Env\n",
    "a tag that makes": "a: !!python/object/new:evil.Env []\n",
    "an unknown tag": "a: !evil x\n",
    "a bomb of aliases": BOMB,
    "an alias to itself": "a: &a [*a]\n",
    "a merge of itself": "a: &a\n  <<: *a\n",
    "deep lists": "a: " + "[" * 100_000,
    "deep lists, closed": "a: " + "[" * 900 + "]" * 900,
    "deep blocks": "".join(" " * depth + "a:\n" for depth in range(1000)),
    "a deep text": "a: '${oc.select:" + "[" * 5000 + "'\nseed: 0\n",
    "nested interpolations": "a: '" + "${a." * 3000 + "}" * 3000 + "'\n",
    "an endless number": "a: " + "9" * 100_000 + "\n",
    "keys that are lists": "? [a, b]\n: 1\n",
    "a set": "a: !!set {x}\n",
    "two documents": "a: 1\n---\na: 2\n",
    "a list": "- 1\n",
    "a word": "evil\n",
    "nothing": "",
    "no text": b"\xff\xfe\x00\x01",
    "zeros": bytes(1000),
    "a pickle": pickle.dumps({"a": 1}),
    "too much": "a: " + "x" * (2 << 20),
}

MANIFESTS = ["[]", "3", "null", "", "{", "NaN", '{"a": NaN}', "[" * 100_000, "\x00", '"' + "x" * 100 + '"']
SUMMARIES = ["[]", "{}", "", '{"env_steps": "many"}', "[" * 100_000, '{"evaluation": 3}']
CONTENTS = {  # of a file: its name, its content, and what the message holds
    **{case: ("config.yaml", text, "config.yaml") for case, text in CONFIGS.items()},
    "nested interpolations": ("config.yaml", CONFIGS["nested interpolations"], "a:"),
    **{f"manifest {text[:10]}": ("manifest.json", text, "manifest.json") for text in MANIFESTS},
    **{f"summary {text[:20]}": ("summary.json", text, "summary.json") for text in SUMMARIES},
}


@pytest.mark.parametrize("case", CONTENTS)
def test_hostile_file_is_refused(case, run, rlrun, canary):
    name, text, part = CONTENTS[case]
    (run / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(rlrun(*(("resume", "run") if name == "summary.json" else COMMANDS[turn(case)])), canary, part)


ABOUTS = [{"resumed": 3}, {"resumed": [3]}, {"packages": []}, {"resumed": [{"packages": "x"}]}]


@pytest.mark.parametrize("about", ABOUTS, ids=str)
def test_a_manifest_that_says_nonsense_is_refused(about, run, rlrun, canary):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, **about}))
    before = stamps(run)
    refused(rlrun(*COMMANDS["resume"]), canary, "manifest.json is damaged")
    assert stamps(run) == before


@pytest.mark.parametrize("overrides", [b"\xff\xfe", b"evil", b"env.target=evil.Env\n" * 3, b"a=" + b"[" * 100_000])
def test_words_of_a_run_are_not_obeyed(overrides, run, rlrun, canary):
    (run / "overrides.txt").write_bytes(overrides)
    outcome = rlrun(*COMMANDS["resume"])
    assert outcome.code in (0, 2)
    assert outcome.err.count("\n") == 1  # why not, or from where


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def too_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 33)  # takes no room on a disk


def link_to(target: str | Path, make: Callable[[Path, Path], None] = Path.symlink_to) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path, Path(target))

    return replace


OTHER_FILES = {
    "a pipe": fifo,
    "a folder": folder,
    "a device": link_to("/dev/zero"),
    "nowhere": link_to("/nowhere/x"),
    "too large": too_large,
}


@pytest.mark.parametrize("kind", OTHER_FILES)
@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_something_else_in_place_of_a_file_is_refused(name, kind, run, rlrun, canary):
    OTHER_FILES[kind](run / name)
    refused(rlrun(*COMMANDS[turn(name + kind)]), canary, "run")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(("metrics.jsonl", "log.txt"), ("a link", "a hard link", "a pipe")),
        ("overrides.txt", "a link"),  # which a service gets
    ],
)
def test_a_run_does_not_use_files_of_the_user(name, kind, run, rlrun, canary, project):
    mine = project / "mine.txt"
    mine.write_text("mine\n" * 1000)
    {"a link": link_to(mine), "a hard link": link_to(mine, Path.hardlink_to), "a pipe": fifo}[kind](run / name)
    refused(rlrun(*COMMANDS["resume"]), canary, name, "files of its own")
    assert mine.read_text() == "mine\n" * 1000


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(("status.json", "overrides.txt", "checkpoints/latest", "checkpoints/best"), ("a pipe", "too large")),
        *(("overrides.txt", "a device"), ("checkpoints/latest", "nowhere")),
    ],
)
def test_what_is_never_read_to_its_end_is_not_read(name, kind, run, rlrun, canary, monkeypatch):
    """Some of these a run can do without; it neither waits for them nor fills the memory."""
    read = Path.open

    def open_file(path: Path, *arguments, **options):
        assert path != run / name, "it would be read without end"
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_file)
    OTHER_FILES[kind](run / name)
    for command in ("eval", "resume"):
        outcome = rlrun(*COMMANDS[command])
        assert outcome.code in (0, 2), outcome
        assert outcome.err.count("\n") <= 2, outcome
    assert rlrun("train", "--from", "run", "stop.env_steps=60", "--run-dir", "second", "--dry-run").code in (0, 2)


def test_a_pipe_in_place_of_the_checkpoints_is_not_waited_for(run, rlrun, canary):
    shutil.rmtree(run / "checkpoints")
    fifo(run / "checkpoints")
    refused(rlrun(*COMMANDS["resume"]), canary, "checkpoints")


FOLDERS = [
    *("checkpoints", "exports", "videos", "tensorboard", "wandb", "mlflow"),
    *("checkpoints/segments", "checkpoints/learner-1/segments"),
    *("tensorboard/x", "exports/memory.zip", "wandb/settings"),
]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_run_does_not_write_into_folders_of_the_user(name, run, rlrun, canary, project):
    mine = project / "mine"
    (run / name).parent.mkdir(exist_ok=True)
    if (run / name).exists():
        (run / name).rename(mine)
    mine.mkdir(exist_ok=True)
    (run / name).symlink_to(mine)
    before = stamps(project)
    refused(rlrun(*COMMANDS["resume"], "logger=[]"), canary, name, *(["files of its own"] if "/" not in name else []))
    assert stamps(project) == before
    if name == "checkpoints":  # a fork only reads it
        assert rlrun("train", "--from", "run", "stop.env_steps=60", "--run-dir", "second").code == 0
        assert [entry for entry in stamps(project) if "/second" not in str(entry[0])][1:] == before[1:]


def test_a_journal_beside_its_database_names_no_file(run, rlrun, canary):
    (run / "mlflow").mkdir()
    (run / "mlflow" / "mlflow.db-journal").write_bytes(b"journal" + SHARED)
    refused(rlrun(*COMMANDS["resume"]), canary, "mlflow.db-journal", "it names another file; delete the journal")


# --- memories


class Payload:
    def __reduce__(self):
        return os.system, (TOUCH,)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload()))


@pytest.mark.parametrize("make", [pickled, fifo, Path.mkdir], ids=["a pickle", "a pipe", "a folder"])
def test_a_hostile_memory_is_refused(make, project, rlrun, canary):
    make(project / "theirs.zip")
    refused(rlrun("train", *HONEST, "memory.import=theirs.zip"), canary, "theirs.zip")


@pytest.mark.parametrize("name", ["mine.txt", "/nowhere.txt", "../mine.txt", "mine.zip"])
def test_a_run_from_elsewhere_overwrites_nothing(name, run, rlrun, canary, project):
    mine = project / name
    before = mine.write_text("mine") if name.startswith("mine") else None
    change(run, memory__export__path=name)
    files = stamps(run)
    refused(rlrun(*COMMANDS["resume"]), canary, "memory.export.path", name)
    assert stamps(run) == files
    assert mine.exists() == (before is not None)


def test_a_run_from_elsewhere_fills_no_folder_that_nobody_named(run, rlrun, canary, project):
    (project / "mine").mkdir()
    change(run, memory__storage="disk", memory__directory=f"{project}/mine")
    files = stamps(run)
    refused(rlrun(*COMMANDS["resume"]), canary, "memory.directory", f"--trust {project}/mine allows it")
    assert stamps(run) == files
    assert rlrun(*COMMANDS["resume"], "--trust", f"{project}/mine/").code == 0


def test_a_run_from_elsewhere_reads_no_memory_that_nobody_named(run, rlrun, canary, project):
    assert rlrun("train", *HONEST, "memory.export.every=20", "--run-dir", "own").code == 0
    mine = project / "own" / "exports" / "memory.zip"
    start = ("train", "--from", "run", "init.memory=null", "stop.env_steps=60", "--run-dir", "second")
    with (run / "overrides.txt").open("a") as file:
        file.write("memory.import=own/exports/memory.zip\n")
    outcome = rlrun(*start)
    assert outcome.code == 2
    assert f"rlrun: memory.import: {mine} lies outside of the run that names it; --trust {mine}" in outcome.err
    assert not (project / "second").exists()
    assert rlrun(*start, "memory.import=own/exports/memory.zip").code == 0
    shutil.copy(mine, run / "exports.zip")
    with (run / "overrides.txt").open("a") as file:
        file.write("memory.import=run/exports.zip\n")
    assert rlrun(*start[:-1], "third").code == 0  # what lies in the run is the run's


def test_a_run_from_elsewhere_may_write_a_memory_again(run, rlrun, canary, project):
    change(run, memory__export__path="mine.zip")
    for steps in (60, 80):
        assert rlrun("resume", "run", f"stop.env_steps={steps}").code == 0
        assert (project / "mine.zip").is_file()
    assert rlrun("resume", "run", "stop.env_steps=100", "memory.export.path=mine.memory").code == 0
    assert (project / "mine.memory").is_file()


def test_a_run_from_elsewhere_writes_no_dataset_that_nobody_asked_for(run, rlrun, canary, project, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(project / "datasets"))
    name = f"minari:{project}/deep/x-v0"
    change(run, memory__export__path=name)
    before = stamps(run)
    refused(rlrun(*COMMANDS["resume"]), canary, f"memory.export.path: {name}", f"say memory.export.path={name}")
    assert stamps(run) == before
    assert not (project / "deep").exists()
    outcome = rlrun(*COMMANDS["resume"], f"'memory.export.path={name}'".strip("'"))
    assert "comes with a run" not in outcome.err


def test_a_repository_runs_no_program_when_its_state_is_noted(run, rlrun, canary, project):
    def git(*overrides: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *overrides], cwd=project, check=True, capture_output=True)

    (project / "x").write_text("before")
    (project / ".gitattributes").write_text("x filter=evil\n")
    git("init")
    git("add", "x", ".gitattributes")
    git("commit", "-m", "x")
    git("config", "filter.evil.clean", TOUCH)
    git("config", "filter.evil.required", "true")
    git("config", "core.fsmonitor", TOUCH)
    (project / "x").write_text("afterwards")
    assert rlrun(*COMMANDS["resume"]).code == 0
    assert json.loads((run / "manifest.json").read_text())["resumed"][0]["git"]["dirty"]


# --- what training is told


@pytest.mark.parametrize(
    ("command", "target"), [("train", "os.system"), ("check", "numpy.load"), ("explain", "builtins.exec")]
)
def test_no_word_and_no_file_may_name_what_is_never_a_part(command, target, write, rlrun, canary):
    overrides = (command, *HONEST)
    refused(rlrun(*overrides, f"+callbacks.evil._target_={target}"), canary, f"{target} can never be a `_target_`")
    refused(rlrun(*overrides, f"env.target={target}", "env.id=null"), canary, f"{target} can never be a `_target_`")
    write("conf/with/evil.yaml", f"# @package _global_\ncallbacks:\n  evil:\n    _target_: {target}\n")
    refused(rlrun(*overrides, "+with=evil"), canary, f"{target} can never be a `_target_`")


@pytest.mark.parametrize("content", ["a tag that calls", "a bomb of aliases", "no text"])
def test_a_hostile_file_in_a_folder_of_configs_is_refused(content, write, rlrun, canary):
    text = CONFIGS[content]
    write("theirs/with/evil.yaml", "").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(rlrun("config", *HONEST, "+with=evil", "--config-dir", "theirs"), canary)


# --- who says so


def test_a_run_is_at_home_in_its_project(run, rlrun, write, project, monkeypatch):
    write("mine.py", "from rlrun.env.toys import Chain\n\n\nclass Mine(Chain):\n    pass\n")
    assert rlrun("train", *HONEST, "env.id=null", "env.target=mine.Mine", "--run-dir", "own").code == 0
    assert rlrun("eval", "own", "--episodes", "1").code == 0
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    outcome = rlrun("eval", str(project / "own"), "--episodes", "1")
    assert outcome.err.endswith(f"stand in its project ({project}) or say --trust mine\n")
    assert rlrun("eval", str(project / "own"), "--episodes", "1", "--trust", "mine").code == 0
    outcome = rlrun("eval", str(project / "own"), "--trust", "nonesuch")
    assert outcome.err.startswith("rlrun: --trust nonesuch: there is no module 'nonesuch' here")


# --- all shapes of attacks on all commands; every attack: `python -m benchmarks resilience attacks`


@pytest.mark.parametrize(("name", "command"), attacks.one_of_each_shape())
def test_an_attack_is_refused(name, command, honest, project):
    attacks.prepare(project, attacks.ATTACKS[name], honest)
    trial = attacks.attempt(attacks.ATTACKS[name], command, project)
    assert trial.faults == [], trial.line


def test_a_run_without_an_attack_passes_each_command(honest, project):
    """Else a project that nobody can use would pass for one that is safe."""
    nobody = attacks.Attack("none", changed="{}")
    for number, command in enumerate(attacks.COMMANDS[:-1]):  # exporting takes seconds, and begins as eval does
        (project / f"{number}").mkdir()
        os.chdir(project / f"{number}")
        attacks.prepare(Path.cwd(), nobody, honest)
        assert attacks.attempt(nobody, command, Path.cwd()).code == 0, command
