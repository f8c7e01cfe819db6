"""Jobs that a scheduler starts: Slurm by submitit, whose local twin is real, and Ray, where it is installed."""

import importlib.util
import json
import os
import pickle
import signal
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.processes import below

from rlrun.core.errors import RequestError, installing
from rlrun.core.processes import handled
from rlrun.runs import progress as watching
from rlrun.runs.directory import RunDir
from rlrun.sweep.command import JobCommand
from rlrun.sweep.launchers import Slurm, slurm
from rlrun.sweep.launchers.ray import connect
from rlrun.sweep.sweeping import with_saved_launcher

from .conftest import job
from .test_sweeps import TINY, logs, states, until

HERE = ("launcher=slurm", "launcher.cluster=local")
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray")
LONG = ("train", "-m", *TINY, "stop.env_steps=3_000", "checkpoint.every=100", "seed=0", "--sweep-dir", "s")


def only_run():
    folders = list(Path("s/jobs").glob("*")) if Path("s/jobs").is_dir() else []
    return RunDir(folders[0]) if folders else None


def saved():
    run = only_run()
    return run is not None and len(run.checkpoint_dirs()) > 0


def resumed():
    return [record["checkpoint"] for record in json.loads(only_run().manifest.read_text()).get("resumed", [])]


@pytest.mark.timeout(200)
def test_a_job_outlives_its_scheduler_is_preempted_and_goes_on(project, rlrun, forked):
    process = forked([*LONG, *HERE])
    process.until(saved)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    (submitted,) = Path("s/launches").glob("*/*_submitted.pkl")
    controller = int(submitted.name.partition("_")[0])
    os.kill(below(controller)[1], signal.SIGUSR2)  # as Slurm does before it takes a machine away
    until(lambda: len(resumed()) == 1, 60.0)
    assert resumed()[0] is not None

    outcome = rlrun("resume", "s")  # it waits for the end of the job
    assert (outcome.code, outcome.out.splitlines()[0]) == (0, "1 job: 1 completed")
    assert logs("s")[0].count("completed:") == 1
    assert len(resumed()) == 1
    assert not Path("s/launches").exists()


SLOW = """
import time
from pathlib import Path
from rlrun.env.toys import Bandit

class Slow(Bandit):
    def step(self, action):
        self.count = getattr(self, "count", 0) + 1
        if self.count > 150 and not Path(__file__).with_name("go").exists():  # it is not over before it is stopped
            time.sleep(0.02)
        return super().step(action)
"""


@pytest.mark.parametrize("launcher", [HERE, pytest.param(["launcher=ray"], marks=RAY)], ids=["slurm", "ray"])
def test_jobs_are_stopped_in_order_and_another_launcher_goes_on(launcher, project, rlrun, write, meanwhile):
    write("slow.py", SLOW)

    def stop():
        until(saved)
        os.kill(os.getpid(), signal.SIGTERM)

    meanwhile(stop)
    with handled(signal.SIG_IGN, signal.SIGINT):  # as `&` of a script leaves it
        assert rlrun(*LONG, "env.target=slow.Slow", *launcher).code == 75
    until(lambda: only_run().read_status()["status"] == "stopped", 10.0)
    assert states("s") == ["pending"]
    write("go", "")
    outcome = rlrun("resume", "s", "launcher=local")
    assert outcome.code == 0, outcome.err
    assert len(resumed()) == 1
    assert resumed()[0] is not None


def test_a_ray_of_this_machine_is_one_whatever_the_variables_say(monkeypatch):
    options = {}

    def init(**given):
        options.update(given, here=os.getcwd(), safe=os.environ.get("PYTHONSAFEPATH"))

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(importlib, "import_module", lambda name: ray)
    assert connect() == (ray, True)
    assert (options["address"], options["_node_ip_address"]) == ("local", "127.0.0.1")  # None is RAY_ADDRESS to Ray
    assert (options["here"], options["safe"]) == ("/", "rlrun")  # it imports nothing from the folder of a sweep


@pytest.mark.parametrize(
    ("overrides", "absent", "message"),
    [
        (["launcher=slurm"], None, "needs the commands sbatch, srun, scancel, and this machine lacks them"),
        pytest.param(["launcher=ray", "launcher.address=127.0.0.1:1"], None, "nobody answers there", marks=RAY),
        (["launcher=slurm", "launcher.cluster=lokal"], None, "got 'lokal' (did you mean 'local'?)"),
        (["launcher=slurm"], "submitit", "the package 'submitit', which is not installed: " + installing("slurm")),
        (["launcher=ray"], "ray", "the package 'ray', which is not installed: " + installing("ray")),
    ],
)
def test_where_jobs_cannot_be_submitted_nothing_is_made(overrides, absent, message, project, rlrun, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    monkeypatch.setenv("PATH", "")
    outcome = rlrun("train", "-m", *TINY, "seed=0", "--sweep-dir", "s", *overrides)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert list(project.iterdir()) == []


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Commands of Slurm that only write down what they are asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, does in {
        "sbatch": f'(cat "$1"; echo "#$PYTHONSAFEPATH") > {tmp_path}/script; echo Submitted batch job 7',
        "scancel": f'echo "$@" >> {tmp_path}/cancelled',
        "sacct": f"cat {tmp_path}/states 2> /dev/null || true",
        "srun": "true",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    Slurm.require()
    return tmp_path


def submitted(place, **options):
    """Return a launcher and two jobs that it has submitted."""
    (place / "logs").mkdir()
    launcher = Slurm(place, **options)
    commands = [JobCommand(job("a", "threads=3"), place / "a", place / "logs" / "a.txt")]
    commands += [JobCommand(job("b"), place / "b", place / "logs" / "b.txt")]
    with launcher.batch():
        jobs = [launcher.start(command, 0) for command in commands]
        assert jobs[0].poll() is None
    return launcher, jobs


def test_jobs_are_one_array_with_what_was_asked_for(played):
    options = {"time": 90, "memory": 1.5, "gpus": 2, "partition": "long", "parallel": 1, "setup": ["module load x"]}
    launcher, jobs = submitted(played, **options, sbatch={"mail-type": "END"}, signal_delay=45)
    script = (played / "script").read_text().splitlines()
    for line in (
        *("--array=0-1%1", "--time=90", "--mem=1536M", "--gpus-per-node=2", "--partition=long", "--requeue"),
        *("--cpus-per-task=3", "--mail-type=END", "--signal=USR2@45"),
    ):
        assert f"#SBATCH {line}" in script
    assert "module load x" in script
    assert script[-1] == "#rlrun"  # its Python imports nothing from the current folder
    assert [job.submitted.job_id for job in jobs] == ["7_0", "7_1"]
    assert launcher.workers([job(str(number)) for number in range(500)]) == 500


def test_a_search_has_to_say_how_many_jobs_slurm_has_at_a_time(played):
    with pytest.raises(RequestError, match="--workers N"):
        Slurm.require(endless=True)
    Slurm.require(endless=True, parallel=4)
    assert Slurm(played, parallel=4).workers([job("a")]) == 4


def test_a_job_has_the_exit_code_of_its_command(played):
    _, (one, _) = submitted(played)
    assert one.poll() is None
    one.submitted.paths.result_pickle.write_bytes(pickle.dumps(("success", 2)))
    one._looked = 0.0
    assert one.poll() == 2


def test_jobs_are_stopped_and_killed_by_scancel(played):
    _, (one, other) = submitted(played)
    one.terminate()
    other.kill()
    assert (played / "cancelled").read_text() == "7_0\n--signal=KILL 7_1\n"


@pytest.mark.parametrize(
    ("asked", "state", "code"),
    [(False, "CANCELLED by 0", 1), (False, "NODE_FAIL", 1), (True, "CANCELLED by 0", 75), (False, "RUNNING", None)],
)
def test_a_job_that_slurm_has_no_more_failed_unless_it_was_stopped(asked, state, code, played, monkeypatch):
    monkeypatch.setattr(slurm, "LATE", 0.1)
    monkeypatch.setattr(slurm, "LOOK", 0.0)
    _, (one, _) = submitted(played)
    if asked:
        one.terminate()
    (played / "states").write_text(f"JobID|State|NodeList\n7_0|{state}|n\n7_1|PENDING|n\n")
    one.submitted.watcher.clear()  # ask Slurm, whenever it was asked last
    assert one.poll() is None  # its result may be on its way
    time.sleep(0.1)
    assert one.poll() == code
    line = watching.last_line(played / "logs" / "a.txt")
    assert line == (f"Slurm no longer has it: {state.split()[0]}" if code == 1 else None)


def test_what_slurm_refuses_is_told_in_a_line(played, project, rlrun):
    (played / "bin" / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition >&2; exit 1\n")
    outcome = rlrun("train", "-m", *TINY, "seed=0,1", "--sweep-dir", "s", "launcher=slurm")
    assert outcome.code == 2
    assert "rlrun: launcher=slurm: the jobs cannot be submitted: " in outcome.err
    assert "invalid partition" in outcome.err


@pytest.fixture
def asked(tmp_path):
    """A command with a process that has its exit code, and what was asked of that one."""
    calls, command = [], JobCommand(job("a"), tmp_path / "a", tmp_path / "a.txt")
    command._child = SimpleNamespace(
        terminate=lambda: calls.append("stop"), kill=lambda: calls.append("kill"), wait=lambda: command.code
    )
    return command, calls


@pytest.mark.parametrize(("code", "again"), [(75, True), (0, False)])
def test_a_job_that_saves_is_submitted_again_and_not_interrupted(code, again, asked):
    command, calls = asked
    command.code = code
    assert (command.checkpoint() is not None) == again
    command._ask()  # as Slurm does at the end of its time
    assert calls == ["stop"]


def test_a_job_is_killed_that_is_asked_twice(asked):
    command, calls = asked
    command._ask()
    command._ask()
    assert calls == ["stop", "kill"]


@pytest.mark.parametrize(
    ("noted", "given", "expected"),
    [
        (["launcher=slurm", "launcher.time=90"], [], ["launcher=slurm", "launcher.time=90"]),
        (["launcher=slurm"], ["launcher=local"], ["launcher=local"]),
        (["launcher=ray"], ["sweep.trials=3"], ["launcher=ray", "sweep.trials=3"]),
        ([], [], []),
    ],
)
def test_the_launcher_is_remembered_unless_another_is_named(noted, given, expected, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"launcher": noted}))
    assert with_saved_launcher(given, tmp_path / "sweep.json") == expected
