"""Runs and sweeps from elsewhere that reach for files outside of the config folders, for code or for secrets.

Each attack is tried on every command that takes overrides or a config. The command must end with exit code 2 and one
line. No code of the run may run, no file outside may be read or written, and no secret may be told.
"""

import contextlib
import io
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tests.command import code_of

import rlrun
from rlrun.config import compose
from rlrun.config.expansion import Job, identity
from rlrun.core.errors import RlrunError
from rlrun.sweep.job_store import JOB_STORE, JobStore, Task
from rlrun.sweep.work import carry_out

COMMANDS = ("train --from", "resume", "resume SWEEP", "eval", "config", "check", "export-onnx")
FOREIGN = ("train --from", "resume SWEEP")  # compose overrides of somebody else
SECRET, VARIABLE, CANARY = "hunter2", "RLRUN_BENCHMARK_SECRET", "RLRUN_BENCHMARK_CANARY"
HONEST = (
    *("algorithm=dqn", "env=cartpole", "preset=null", "algorithm.hidden=[8]", "algorithm.batch_size=4"),
    *("algorithm.warmup_steps=20", "stop.env_steps=40", "evaluation.every=0", "checkpoint.every=20", "logger=[]"),
)
CODE = f"""
import os, pathlib
pathlib.Path(os.environ["{CANARY}"]).write_text("code of the run ran")
from rlrun.env.toys import Bandit as Env
"""
NAMES = "env: {id: null, target: runs.evil.payload.Env}"
SECRETS = f"env: {{kwargs: {{render_mode: '${{oc.env:{VARIABLE}}}'}}}}"
BAIT = "bait.yaml"  # a config file that nobody may read
OUTSIDE = f"# @package _global_\n{NAMES}\n"
PLUGIN = "benchmarked"  # the package of a plugin


class Attack(NamedTuple):
    """One way to reach for what is not the run's.

    Attributes:
        shape: what kind of way.
        overrides: of the run or the sweep; `FOLDER` stands for that of the project.
        plants: put files into the project, before.
        commands: on which it is tried.
        changed: the config of the run, for commands that read that.
    """

    shape: str
    overrides: tuple[str, ...] = ()
    plants: tuple[Callable[[Path], object], ...] = ()
    commands: tuple[str, ...] = COMMANDS
    changed: str = NAMES


def write(path: Path, text: str) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def linked(name: str, target: str, make: Callable[[Path, Path], None] = Path.symlink_to) -> Callable[[Path], None]:
    """Return what makes a link in the project, to a place that is counted from its folder."""

    def plant(project: Path) -> None:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path, project / target)

    return plant


def hard_linked(name: str) -> Callable[[Path], None]:
    """Return what makes a file of the run or the sweep a name of one of the user's."""
    return linked(name, "precious.txt", Path.hardlink_to)


def arrived(defaults: str, text: str = "") -> Callable[[Path], None]:
    """Return what unpacks a run into the conf folder, with a config file beside its own."""

    def plant(project: Path) -> None:
        folder = project / "conf" / "with" / "theirs"
        write(folder / "config.yaml", "")
        write(folder / "manifest.json", "{}")
        listing = f"defaults: [{defaults}]" if defaults else ""
        write(folder / "file.yaml", f"# @package _global_\n{listing}\n{text}\n")

    return plant


def owned(text: str) -> Callable[[Path], Path]:
    """Return what gives the user a config file that only the user may choose."""
    return lambda project: write(project / "conf" / "with" / "mine.yaml", f"# @package _global_\n{text}\n")


def plugged(text: str = "", link: str | None = None) -> Callable[[Path], None]:
    """Return what installs a plugin with a config file, in place of the user's own folder."""

    def plant(project: Path) -> None:
        shutil.rmtree(project / "conf")
        package = project / "site" / PLUGIN
        write(package / "__init__.py", "")
        path = package / "conf" / "with" / "plugged.yaml"
        write(path, f"# @package _global_\n{text}\n")
        if link is not None:
            path.unlink()
            path.symlink_to(project / link)
        about = project / "site" / f"{PLUGIN}-1.0.dist-info"
        write(about / "METADATA", f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1.0\n")
        write(about / "entry_points.txt", f"[rlrun.plugins]\n{PLUGIN} = {PLUGIN}\n")

    return plant


def without_conf(project: Path) -> None:
    """Take the conf folder away, and put one into the run."""
    shutil.rmtree(project / "conf")
    write(project / "runs/evil/conf/with/own.yaml", OUTSIDE)


def a_job(project: Path) -> None:
    """Let a job of the sweep have begun."""
    job = project / "sweeps/evil/jobs/job"
    shutil.copytree(project / "runs/evil", job)
    write(job / "overrides.txt", "\n".join(HONEST))


HERE = "runs/evil/bait"  # from the project
UP = f"../../{HERE}"  # from a group of its conf folder
ATTACKS = {
    # the folder above
    "parent": Attack("..", (f"+with={UP}",)),
    "parent in a list": Attack("..", (f"+with=[{UP}]",)),
    "parent of a group that is not there": Attack("..", (f"+with=nowhere/../{UP}",)),
    "parent at another package": Attack("..", (f"+env@env.kwargs={UP}",)),
    "parent as environment": Attack("..", (f"env={UP}",)),
    "parent as group": Attack("..", ("+../runs/evil@_global_=bait",)),
    "parent at a package that moves": Attack("..", (f"env@env:_global_={UP}",)),
    "parent by another choice": Attack("..", (f"+with=${{env}}/../{UP}", "env=kept")),
    "parent by backslashes": Attack("..", (r"+with='..\\..\\runs\\evil\\bait'",)),
    "parent in other letters": Attack("..", ("+with=\u2025/\u2025/runs/evil/bait",)),
    # absolute paths
    "absolute": Attack("absolute", (f"+with=FOLDER/{HERE}",)),
    "absolute as environment": Attack("absolute", (f"env=FOLDER/{HERE}",)),
    "absolute as group": Attack("absolute", ("+FOLDER/runs/evil@_global_=bait",)),
    "the root by parents": Attack("absolute", ("+with=" + "../" * 40 + f"FOLDER/{HERE}",)),
    "absolute in a defaults list": Attack("absolute", ("+with=theirs/file",), (arrived(f"FOLDER/{HERE}"),), FOREIGN),
    # what means the packaged folder
    "rlrun and up": Attack("rlrun/../", (f"+with=rlrun/{UP}",)),
    "rlrun and an absolute path": Attack("rlrun/../", (f"+with=rlrun//FOLDER/{HERE}",)),
    # symbolic links in the conf folder
    "a link to a file": Attack("symlink", ("+with=link",), (linked("conf/with/link.yaml", f"{HERE}.yaml"),)),
    "a link to a folder": Attack("symlink", ("+with=link/bait",), (linked("conf/with/link", "runs/evil"),)),
    "a link that is a group": Attack("symlink", ("+link@_global_=bait",), (linked("conf/link", "runs/evil"),)),
    "a link to itself": Attack("symlink", ("+with=link",), (linked("conf/with/link.yaml", "conf/with/link.yaml"),)),
    "the conf folder is in the run": Attack(
        "symlink", ("+with=own",), (without_conf, linked("conf", "runs/evil/conf")), FOREIGN
    ),
    "the folder of exports": Attack(
        "symlink", (), (linked("runs/evil/exports", "conf"),), ("resume", "export-onnx"), "{}"
    ),
    # hard links among the files of a run and a sweep
    "a video": Attack("hard link", (), (hard_linked("runs/evil/videos/1.mp4"),), ("resume",), "{}"),
    "a pointer": Attack("hard link", (), (hard_linked("runs/evil/checkpoints/latest"),), ("resume",), "{}"),
    "a job's lock": Attack("hard link", (), (hard_linked("sweeps/evil/logs/job.lock"),), ("resume SWEEP",)),
    "a job's metrics": Attack(
        "hard link",
        ("stop.env_steps=60",),
        (a_job, hard_linked("sweeps/evil/jobs/job/metrics.jsonl")),
        ("resume SWEEP",),
        "{}",
    ),
    "a secret in what a job is resumed with": Attack(
        "own", ("stop.env_steps=60", f"device=${{oc.env:{VARIABLE}}}"), (a_job,), ("resume SWEEP",), "{}"
    ),
    # plugins
    "up from a plugin": Attack("plugin", (f"+with=../../../../{HERE}",), (plugged(),)),
    "a link in a plugin": Attack("plugin", ("+with=plugged",), (plugged(link=f"{HERE}.yaml"),)),
    "a plugin's file names a run": Attack("plugin", ("+with=plugged",), (plugged(NAMES),), FOREIGN),
    "a plugin's file asks for a secret": Attack("plugin", ("+with=plugged",), (plugged(SECRETS),), FOREIGN),
    # defaults lists, of files of a run in the conf folder
    "defaults go up": Attack("defaults", ("+with=theirs/file",), (arrived(f"../../{UP}"),)),
    "defaults of a group go up": Attack("defaults", ("+with=theirs/file",), (arrived(f"/with@_global_: {UP}"),)),
    "defaults override a group": Attack("defaults", ("+with=theirs/file",), (arrived(f"override /memory: {UP}"),)),
    "defaults in a list go up": Attack("defaults", ("+with=theirs/file",), (arrived(f"/with: [{UP}]"),)),
    "defaults by a choice": Attack(
        "defaults", ("+with=theirs/file", f"+up={UP}"), (arrived("/with: '${up}'"),), FOREIGN
    ),
    "defaults ask for a secret": Attack(
        "defaults", ("+with=theirs/file",), (arrived(f"/with: '${{oc.env:{VARIABLE}}}'"),), FOREIGN
    ),
    # what lies in the conf folder, and is not the user's or not for others
    "a run in the conf folder": Attack("own", ("+with=theirs/file",), (arrived("", NAMES),), FOREIGN),
    "a secret of a run there": Attack("own", ("+with=theirs/file",), (arrived("", SECRETS),), FOREIGN, SECRETS),
    "a secret of the user's": Attack("own", ("+with=mine",), (owned(SECRETS),), FOREIGN, SECRETS),
    "a secret in an override": Attack("own", (f"+env.kwargs.render_mode=${{oc.env:{VARIABLE}}}",), (), FOREIGN),
    "a secret of the user's by its key": Attack(
        "own",
        ("+with=mine", "+env.kwargs.render_mode=${secret.key}"),
        (owned(f"secret: {{key: '${{oc.env:{VARIABLE}}}'}}"),),
        FOREIGN,
        SECRETS,
    ),
    "a secret within another resolver": Attack(
        "own", (f"+env.kwargs.render_mode='${{oc.select:nowhere,${{oc.env:{VARIABLE}}}}}'",), (), FOREIGN, SECRETS
    ),
    "a secret whose resolver is computed": Attack(
        "own", (f"+data='oc.env:{VARIABLE}'", "+env.kwargs.render_mode='${${data}}'"), (), FOREIGN, SECRETS
    ),
    "code of the run": Attack("own", ("env.id=null", "env.target=runs.evil.payload.Env"), (), FOREIGN),
    "a search path": Attack("own", ("+hydra.searchpath=[file://FOLDER/runs/evil]", "+with=bait")),
    "a group of Hydra's": Attack("own", ("+hydra/launcher=bait", f"+with={UP}")),
}
SHAPES = tuple(dict.fromkeys(attack.shape for attack in ATTACKS.values()))


class Trial(NamedTuple):
    """What a command came to, and what is wrong with that; nothing where it held."""

    code: int
    line: str
    faults: list[str]


_opened: list[str] = []
_watching: list[Path] = []  # the project of the trial at work


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Note which files outside of the config folders are opened."""
    if event == "open" and _watching and isinstance(arguments[0], str | os.PathLike):
        path = Path(os.path.realpath(arguments[0]))
        if path.name == BAIT and path.is_relative_to(os.path.realpath(_watching[0])):
            _opened.append(str(path))


def listen() -> None:
    """Hear of every file that this process opens from now on; that cannot be taken back."""
    if not listen.__dict__.setdefault("begun", False):
        listen.__dict__["begun"] = True
        sys.addaudithook(_hear)


def train(folder: Path) -> Path:
    """Train the run that each attack starts from."""
    return rlrun.train(list(HONEST), run_dir=folder / "honest").run_dir


def prepare(project: Path, attack: Attack, honest: Path) -> None:
    """Fill an empty folder with a project, a run and a sweep from elsewhere, and what the attack plants."""
    write(project / "conf" / "with" / "kept.yaml", "# Nothing\n")
    write(project / "conf" / "env" / "kept.yaml", "id: CartPole-v1\n")
    write(project / "precious.txt", "precious\n")
    run, sweep = project / "runs" / "evil", project / "sweeps" / "evil"
    shutil.copytree(honest, run)
    write(run / "payload.py", CODE)
    for folder in (run, sweep):
        write(folder / BAIT, OUTSIDE)
    for name in ("jobs", "logs"):
        (sweep / name).mkdir()
    write(sweep / "sweep.json", "{}")
    config = yaml.safe_load((run / "config.yaml").read_text())
    for block, values in yaml.safe_load(attack.changed).items():
        config[block] |= values
    write(run / "config.yaml", json.dumps(config))
    overrides = _overrides(project, attack)
    write(run / "overrides.txt", "\n".join([*HONEST, *overrides, ""]))
    for plant in attack.plants:
        plant(project)
    for path in (project / "conf").rglob("theirs/file.yaml") if (project / "conf").is_dir() else ():
        path.write_text(path.read_text().replace("FOLDER", str(project)))
    key = _key([*HONEST, *overrides])
    JobStore(sweep / JOB_STORE).add([Job(key, (*HONEST, *overrides), "")])
    for path in [*sweep.glob("jobs/job"), *sweep.glob("logs/job.lock")]:
        path.rename(path.with_name(path.name.replace("job", key)))


def _key(overrides: list[str]) -> str:
    """Return what names a job, which whoever sends it knows; anything where the overrides are refused to everybody."""
    os.environ[VARIABLE] = SECRET
    with _imports(), contextlib.suppress(RlrunError):
        return identity(compose(overrides, check=False).config)
    return "job"


def _overrides(project: Path, attack: Attack) -> list[str]:
    return [text.replace("FOLDER", str(project)) for text in attack.overrides]


def attempt(attack: Attack, command: str, project: Path) -> Trial:
    """Try an attack on a command, in this process; the project is prepared, and is where it stands."""
    precious, canary = (project / "precious.txt").read_bytes(), project / "canary"
    os.environ[VARIABLE], os.environ[CANARY] = SECRET, str(canary)
    listen()
    _opened.clear()
    _watching[:] = [project]
    output = io.StringIO()
    try:
        with _imports(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = _called(command, _overrides(project, attack), project)
    finally:
        _watching.clear()
        del os.environ[VARIABLE], os.environ[CANARY]
    lines = output.getvalue().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("plugin "))  # a warning that it is left out
    faults = [f"it exited with {code}"] if code != 2 else []
    plain = text.startswith("rlrun: ") and text.count("\n") == 1
    faults += [] if plain else [f"it printed {len(lines)} lines"]
    faults += [canary.read_text()] if canary.exists() else []
    faults += [f"it read {path}" for path in dict.fromkeys(_opened)]
    faults += ["it wrote into a folder of the user's"] if list((project / "conf").glob("*.*")) else []
    faults += ["it changed a file of the user's"] if (project / "precious.txt").read_bytes() != precious else []
    faults += ["it told a secret"] if SECRET in text or _kept(project) else []
    return Trial(code, text.strip(), faults)


def _called(command: str, overrides: list[str], project: Path) -> int:
    if command == "resume SWEEP":
        sweep = project / "sweeps" / "evil"
        with contextlib.closing(sqlite3.connect(sweep / JOB_STORE)) as job_store, job_store:
            job_store.execute("UPDATE jobs SET state = 'running', owner = 'me'")
        (entry,) = JobStore(sweep / JOB_STORE).entries()
        return carry_out(Task(sweep, entry.key, sweep / "jobs" / entry.key, entry.overrides, owner="me"))
    calls = {
        "train --from": ["train", "--from", "runs/evil", "stop.env_steps=60", "--run-dir", "runs/second"],
        "resume": ["resume", "runs/evil", "stop.env_steps=60"],
        "eval": ["eval", "runs/evil", "--episodes", "1"],
        "config": ["config", *HONEST, *overrides, "--resolve"],
        "check": ["check", *HONEST, *overrides],
        "export-onnx": ["export-onnx", "runs/evil"],
    }
    return code_of(*calls[command])


@contextlib.contextmanager
def _imports() -> Iterator[None]:
    """Let the packages of the project be installed for a while; afterwards none of its modules is known."""
    known, paths, where = set(sys.modules), list(sys.path), str(Path.cwd())
    sys.path.insert(0, str(Path.cwd() / "site"))
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - known:
            place = str(getattr(sys.modules[name], "__file__", ""))
            if name.split(".")[0] in ("runs", "sweeps", PLUGIN) or where in place:
                del sys.modules[name]


def _kept(project: Path) -> bool:
    """Tell whether a secret stands in any file of the project."""
    return any(SECRET.encode() in path.read_bytes() for path in project.rglob("*") if path.is_file())


def one_of_each_shape() -> list[tuple[str, str]]:
    """Return an attack of each shape for each command, another one each time, by name."""
    chosen = []
    for shape in SHAPES:
        for number, command in enumerate(COMMANDS):
            names = [name for name, attack in ATTACKS.items() if attack.shape == shape and command in attack.commands]
            chosen += [(names[number % len(names)], command)] if names else []
    return chosen
