"""A run that was left goes on: what a checkpoint holds comes back, and the files tell one story."""

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
from tests.identical import stamps

import rlrun
from rlrun import checkpointing as storage
from rlrun.commands import resume as resuming
from rlrun.commands.resume import newest
from rlrun.config import compose
from rlrun.config import load as load_config
from rlrun.config.expansion import identity
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, Left, RequestError, RunDirError
from rlrun.loading.assembly import builder_of, shares
from rlrun.runs import lock as locks
from rlrun.runs import manifest
from rlrun.runs.directory import RunDir

from .conftest import TINY as SHORT
from .conftest import read, records

DQN = ("algorithm=dqn", "env=cartpole", "preset=null", "num_envs=2")
SAC = ("algorithm=sac", "env=pendulum", "preset=null")
TINY = (*SHORT, "checkpoint.every=20", "checkpoint.keep_last=null", "checkpoint.memory=true", "log.every=10")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of each algorithm that ended well."""
    base = tmp_path_factory.mktemp("whole")
    return {
        name: rlrun.train([*overrides, *TINY], run_dir=base / name) for name, overrides in (("dqn", DQN), ("sac", SAC))
    }


@pytest.fixture
def left(whole, tmp_path):
    """Make a copy of a run as it lies there when it was killed some steps after a checkpoint."""

    def leave(at: int = 60, name: str = "dqn") -> RunDir:
        shutil.copytree(whole[name].run_dir, tmp_path / "run")
        run = RunDir(tmp_path / "run")
        for path in run.checkpoint_dirs():
            if int(path.name.split("-")[0]) > at:
                shutil.rmtree(path)
        run.summary.unlink()
        run.status.write_text(json.dumps({**json.loads(run.status.read_text()), "status": "running"}))
        return run

    return leave


def axis(run: RunDir) -> list[tuple[int, bool]]:
    return [(record["env_steps"], "loss/q_loss" in record) for record in records(run.path)]


# --- what comes back


def test_run_without_rows_collects_first(tmp_path):
    overrides = [*SAC, *TINY, "checkpoint.memory=false", "stop.env_steps=60"]
    run = RunDir(rlrun.train(overrides, run_dir=tmp_path / "run").run_dir)
    assert "memory" not in storage.load(run.checkpoint())
    result = rlrun.resume(run.path, ["stop.env_steps=100", "checkpoint.memory=true"])
    assert len(result.trainer.loader.table) == 39  # of the steps since, one still waits for what follows it
    assert (result.summary["env_steps"], result.summary["updates"]) == (100, 20 + 10)  # 20 steps fill the memory again
    assert "memory" in storage.load(run.checkpoint())


def test_chosen_parts_are_saved_alone_for_forks(tmp_path):
    overrides = [*SAC, *TINY, "stop.env_steps=60", "checkpoint.parts=[networks,memory]"]
    with pytest.raises(ConfigError, match=r"checkpoint\.parts: this run has no part 'netwrks' .*mean 'networks'"):
        rlrun.train([*overrides, "checkpoint.parts=[netwrks]"], run_dir=tmp_path / "no")
    run = RunDir(rlrun.train(overrides, run_dir=tmp_path / "run").run_dir)
    assert {path.split(".")[0] for path in storage.load(run.checkpoint())} == {"networks", "memory"}
    with pytest.raises(RunDirError, match=r"checkpoint\.parts left it out.*rlrun train --from .*run$"):
        rlrun.resume(run.path, ["stop.env_steps=100"])
    rlrun.train(["stop.env_steps=40", "checkpoint.parts=null"], start=run.path, run_dir=tmp_path / "fork")


# --- where it begins


def test_killed_before_the_first_checkpoint_it_begins_anew(left, whole):
    run = left(0)
    (run.checkpoints / "latest").unlink()
    (run.checkpoints / "best").unlink()
    rlrun.resume(run.path)
    reference = RunDir(whole["dqn"].run_dir)
    assert axis(run) == axis(reference)
    names = ["networks.q", "memory"]
    assert storage.digest(storage.load(run.checkpoint(), names)) == storage.digest(
        storage.load(reference.checkpoint(), names)
    )
    assert "resume" not in read(run.manifest)


def test_killed_at_its_very_end_it_is_only_evaluated(left, whole):
    run = left(100)
    result = rlrun.resume(run.path)
    assert (result.summary["env_steps"], result.summary["updates"]) == (100, 40)
    assert result.summary["evaluation"] == whole["dqn"].summary["evaluation"]


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(left):
    with pytest.raises(RunDirError, match="no checkpoint left to resume from"):
        rlrun.resume(left(0).path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda states: states.pop("networks.q"), r"holds no part 'networks\.q' \(did you mean"),
        (lambda states: states["collector"].pop("steps"), "part 'collector' does not fit: KeyError: 'steps'"),
        (lambda states: states["networks.q"].popitem(), r"part 'networks\.q' does not fit: RuntimeError: Error"),
        (lambda states: states["env"].update(begun=5), "part 'env'"),
        (lambda states: states["env"]["episodes"][0].pop("seed"), "part 'env'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change, message, left):
    run = left(60)
    states = storage.load(run.checkpoint(60))
    change(states)
    storage.write(run.checkpoint(60), storage.snapshot(states))
    before = stamps(run.path)
    with pytest.raises(RunDirError, match=f"0000000060-0000000020.* {message}"):
        rlrun.resume(run.path)
    assert stamps(run.path) == before


# --- which checkpoint

OLDER, LATEST, BEYOND = "0000000040-0000000010", "0000000060-0000000020", "0000000080-0000000030"


def went_back(whole, tmp_path) -> RunDir:
    """Return a run that has gone on from an older checkpoint, and left those beyond it."""
    shutil.copytree(whole["dqn"].run_dir, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    shutil.rmtree(run.checkpoint(100))
    run.write_status("stopped")
    (run.checkpoints / "latest").write_text(f"{LATEST}\n")
    return run


@pytest.mark.parametrize(
    ("latest", "damaged", "taken"),
    [
        (LATEST, (), LATEST),
        (LATEST, (BEYOND,), LATEST),
        (LATEST, (LATEST,), OLDER),
        (LATEST, (LATEST, OLDER, "0000000022-0000000001"), BEYOND),
        *((text, (), BEYOND) for text in (None, "", "0000000070-0000000025", "../../x")),
    ],
)
def test_the_one_that_latest_names_goes_before_those_beyond_it(latest, damaged, taken, whole, tmp_path):
    run = went_back(whole, tmp_path)
    pointer = run.checkpoints / "latest"
    pointer.unlink() if latest is None else pointer.write_text(latest)
    for name in damaged:
        (run.checkpoints / name / "state.json").write_text("{}")
    assert newest(run)[0].name == taken


def test_killed_before_latest_names_the_newest_a_resume_makes_it_again(whole, tmp_path):
    run = went_back(whole, tmp_path)
    before = storage.digest(storage.load(run.checkpoint(80), ["memory", "networks.q", "trainer"]))
    rlrun.resume(run.path, ["stop.env_steps=80"])
    assert run.checkpoint().name == BEYOND
    assert storage.digest(storage.load(run.checkpoint(80), ["memory", "networks.q", "trainer"])) == before
    assert read(run.manifest)["resume"] == "exact"


def test_of_two_resumes_that_overlap_the_later_one_is_refused(left, monkeypatch):
    run = left(60)
    real, after = resuming.lock_run, []

    def late(directory, trace):
        monkeypatch.setattr(resuming, "lock_run", real)
        rlrun.resume(run.path, ["stop.env_steps=120"])
        after.extend(stamps(run.path))
        return real(directory, trace)

    monkeypatch.setattr(resuming, "lock_run", late)
    with pytest.raises(RunDirError, match="was continued by another process meanwhile; try again"):
        rlrun.resume(run.path, ["stop.env_steps=90"])
    assert stamps(run.path) == after
    assert [entry["overrides"] for entry in read(run.manifest)["resumed"]] == [["stop.env_steps=120"]]


# --- finished runs


def test_higher_budget_extends_a_finished_run(whole, tmp_path, monkeypatch):
    assert load_config(whole["sac"].run_dir / "config.yaml").memory.length == 1_000_000
    shutil.copytree(whole["sac"].run_dir, tmp_path / "run")
    monkeypatch.setattr("rlrun.memory.table.columns.main_memory", lambda: 1_000_000)  # of a smaller machine
    result = rlrun.resume(tmp_path / "run", ["stop.env_steps=140"])
    assert (result.summary["env_steps"], result.summary["updates"]) == (140, 60)
    table = result.trainer.loader.table
    assert (table.length, len(table)) == (1_000_000, 139)  # the newest row waits for its next
    assert load_config(tmp_path / "run" / "config.yaml").stop.env_steps == 140
    assert (tmp_path / "run" / "overrides.txt").read_text().splitlines()[-1] == "stop.env_steps=140"
    steps = [step for step, learned in axis(RunDir(tmp_path / "run")) if learned]
    assert steps == [22, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140]
    assert rlrun.resume(tmp_path / "run").trainer is None


def test_notes_are_added_to_a_finished_run_and_nothing_else_changes(whole, tmp_path):
    run = RunDir(shutil.copytree(whole["dqn"].run_dir, tmp_path / "run"))
    before = dict(load_config(run.config)), {path.name: text for path, *text in stamps(run.path)}
    rlrun.resume(run.path, ["notes.x=3", 'notes.at="${now:%H:%M}"', "evaluation.every=7"])
    after = dict(load_config(run.config)), {path.name: text for path, *text in stamps(run.path)}
    assert {key for key in after[0] if after[0][key] != before[0].get(key)} == {"notes"}
    assert {path for path in after[1] if after[1][path] != before[1].get(path)} == {"config.yaml", "overrides.txt"}
    assert re.fullmatch(r"{'x': 3, 'at': '\d\d:\d\d'}", str(after[0]["notes"]))
    assert rlrun.resume(run.path, ["stop.env_steps=120"]).summary["env_steps"] == 120
    assert load_config(run.config).notes.x == 3


PPO = ("algorithm=ppo", "env=cartpole", "preset=null", "num_envs=2", "algorithm.horizon=8", "algorithm.epochs=1")
RATE = "callbacks.learning_rate.value.steps reads stop.env_steps, and 40 became 60"


@pytest.mark.parametrize(
    ("overrides", "reasons"),
    [
        (PPO, [RATE]),
        ([*PPO, "callbacks.learning_rate=null"], []),
        ([*DQN, "algorithm.warmup_steps=20", "+with=anneal"], [RATE]),
        ([*DQN, "algorithm.warmup_steps=20"], []),
    ],
)
def test_an_extended_run_is_approximate_where_a_schedule_reads_the_budget(overrides, reasons, tmp_path):
    small = ("algorithm.hidden=[8,8]", "algorithm.batch_size=4", "stop.env_steps=40", "evaluation.every=0", "logger=[]")
    rlrun.train([*overrides, *small], run_dir=tmp_path / "run")
    rlrun.resume(tmp_path / "run", ["stop.env_steps=60"])
    about = read(tmp_path / "run" / "manifest.json")
    assert about["resumed"][0]["approximate"] == reasons
    assert about["resume"] == ("approximate" if reasons else "exact")


def test_ranks_share_the_memory_length_that_nobody_set(monkeypatch):
    monkeypatch.setattr(distributed, "_world_size", 2)
    config = compose([*DQN, "num_envs=2"]).config
    assert builder_of(config, device="cpu", **shares(config)).get("memory").length == 500_000


# --- what may change, and who may


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lr=0.1", "algorithm.lr cannot change when a run is resumed, only stop, .* can; a new run"),
        ("algorithm=sac", r"algorithm cannot change.*: rlrun train --from .* algorithm=sac$"),
        ("log.axis=samples", "log.axis cannot change from env_steps to samples when a run is resumed"),
        ("sttop=1", "sttop"),
        ("+callbacks.x=3", "callbacks.x cannot change"),
        ("+stop.x=3", r"'\+stop\.x=3': a resumed run takes KEY=VALUE"),
        ("~stop.updates", r"'~stop\.updates': a resumed run takes KEY=VALUE"),
        ("stop.env_step=3", r"stop\.env_step: no such key \(did you mean 'stop\.env_steps'\?\)"),
        ("stop={env_step: 3}", r"stop: no such key 'env_step' \(did you mean 'env_steps'\?\)"),
        ("notes.x=${nope:1}", r"notes\.x: Unsupported interpolation type nope"),
        ("notes.x=${nope}", r"notes\.x: '\$\{nope\}' leads nowhere"),
        ("stop.env_steps=soon", r"stop\.env_steps: wanted a whole number from 0 or null, got 'soon'"),
    ],
)
def test_only_a_few_keys_may_change(override, message, whole):
    before = stamps(whole["dqn"].run_dir)
    with pytest.raises(ConfigError, match=message):
        rlrun.resume(whole["dqn"].run_dir, [override])
    assert stamps(whole["dqn"].run_dir) == before


def test_watching_may_change_on_resume_and_manifest_and_log_say_it(left):
    run, overrides = left(60), ["evaluation.every=0", "log.every=20", "checkpoint.every=0"]
    created = read(run.manifest)["created"]
    rlrun.resume(run.path, overrides)
    assert [step for step, _ in axis(run) if step > 60] == [80, 100]
    assert [int(path.name.split("-")[0]) for path in run.checkpoint_dirs()] == [22, 40, 60, 100]
    manifest = read(run.manifest)
    (again,) = manifest["resumed"]
    assert (manifest["resume"], manifest["created"], again["approximate"]) == ("exact", created, [])
    assert (again["checkpoint"], again["overrides"]) == ("0000000060-0000000020", overrides)
    assert "resume: exact: from checkpoint 0000000060-0000000020" in run.log.read_text()


def test_what_numbers_depend_on_and_is_not_as_it_was_is_told(left, caplog):
    run = left(60)
    manifest = read(run.manifest)
    manifest["packages"]["torch"] = "1.0"
    run.manifest.write_text(json.dumps(manifest))
    with caplog.at_level(logging.WARNING, "rlrun"):
        rlrun.resume(run.path)
    about = read(run.manifest)
    assert (about["resume"], about["resumed"][-1]["approximate"][0][:17]) == ("approximate", "torch 1.0 became ")
    assert "the run does not continue exactly: torch 1.0 became" in caplog.text
    rlrun.resume(run.path, ["stop.env_steps=140"])
    assert read(run.manifest)["resume"] == "approximate"  # once is for ever


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cpu": "Abacus 3000, 2 cores"}, "cpu Abacus 3000 became "),
        ({"python": "2.7.18"}, "python 2.7 became 3."),
    ],
)
def test_another_process_is_told_by_what_numbers_depend_on(changes, why, left):
    run = left(60)
    run.manifest.write_text(json.dumps({**read(run.manifest), **changes}))
    rlrun.resume(run.path)
    (reason,) = read(run.manifest)["resumed"][-1]["approximate"]
    assert reason.startswith(why)


def test_what_numbers_do_not_depend_on_is_not_told():
    now = manifest.manifest([], seed=0, project=Path.cwd()) | {"device": "cpu", "threads": 1}
    name, _, cores = str(now["cpu"]).rpartition(", ")
    before = {**now, "git": None, "python": f"{now['python']}rc1", "cpu": f"{name}, 7{cores}", "code": {"a.py": "0"}}
    assert resuming.differences(before, {**now, "code": {"b.py": "1"}}) == []
    assert resuming.differences(before, {**now, "code": {"a.py": "1"}}) == ["your code differs (a.py)"]


@pytest.mark.parametrize("word", ["log.code=[net.py]", "+callbacks.own._target_=net.Own"])
def test_files_that_the_run_keeps_or_imports_are_compared(project, word):
    (project / "net.py").write_text("from rlrun.training.callback import Callback\n\nclass Own(Callback):\n    a = 1\n")
    words = [*ONCE, word, "checkpoint.every=10"]
    run = RunDir(rlrun.train(words, run_dir=project / "run").run_dir)
    rlrun.resume(run.path, ["stop.env_steps=40"])
    (project / "net.py").write_text((project / "net.py").read_text() + "\n")
    rlrun.resume(run.path, ["stop.env_steps=60"])
    whys = [entry["approximate"] for entry in read(run.manifest)["resumed"]]
    assert whys == [[], ["your code differs (net.py)"]]


def test_who_learns_from_evaluations_reads_their_settings():
    words = ["algorithm=sac", "env=constrainedbandit", "+with=lagrangian_evaluated", "lagrangian.thresholds=[null,0]"]
    for text, key in (
        ("evaluation.every=7", "every"),
        ("evaluation.episodes=7", "episodes"),
        ("evaluation.video=true", ""),
    ):
        before, after = (compose([*words, *more]).config for more in ((), (text,)))
        reason = f"callbacks.reward_weights.paid learns from evaluations, and evaluation.{key} changed"
        assert resuming.readers_of_evaluations(before, after) == ([reason] if key else [])
        before, after = (compose([*words[:2], *more]).config for more in ((), (text,)))
        assert resuming.readers_of_evaluations(before, after) == []


# --- train --continue


ONCE = (*DQN, *SHORT, "stop.env_steps=20", "evaluation.every=0")


LEFT = (  # by a start that was killed, of a run with parts of others
    *("config.yaml", "overrides.txt", ".overrides.txt.1-2.tmp", ".manifest.json.1-2.tmp", "log.txt"),
    *("checkpoints/latest", "checkpoints/.latest.1-2.tmp", "checkpoints/0000000000-0000000000/state.json"),
    *(
        "checkpoints/0000000000-0000000000/tensors.1.safetensors",
        "checkpoints/.0000000000-0000000000.1.tmp/manifest.json",
    ),
    *(f"checkpoints/segments/{'0a' * 32}.safetensors", "checkpoints/segments/.1-2.tmp"),
)
STATUS = {"status.json": '{"status": "failed"}'}
MINE = {  # files of the user's, where a run was started or not
    "a name that begins like a run's": {"config.yaml.bak": "n", **STATUS},
    "a folder that begins like a run's": {"checkpoints-2024/weights.pt": "precious", **STATUS},
    "a hidden file": {".config.yaml": "n", **STATUS},
    "among the checkpoints": {"checkpoints/epoch1.pt": "x", **STATUS},
    "in a checkpoint": {"checkpoints/0000000000-0000000000/weights.pt": "x", **STATUS},
    "among the segments": {"checkpoints/segments/mine.safetensors": "x", **STATUS},
    "a folder with the name of a file": {"log.txt/today": "l", **STATUS},
    "a run's names where none was started": {"config.yaml": "a: 1", "log.txt": "l"},
    "checkpoints where none was started": {"checkpoints/latest": "7"},
    "a status": {"status.json": '{"status": "fine"}'},
    "a lock": {"lock": "17"},
}


def test_a_run_of_the_same_overrides_is_resumed_in_its_folder(tmp_path):
    (tmp_path / "status.json").write_text('{"status": "failed", "attempts": 2}')  # of a job that could not start
    (tmp_path / "checkpoints").mkdir()  # of a start that was killed
    for name in LEFT:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    composed = compose(ONCE)
    first = resuming.proceed(composed, tmp_path, digest=identity(composed.config))
    before = stamps(tmp_path)
    assert resuming.proceed(compose(ONCE), tmp_path).trainer is None
    assert stamps(tmp_path) == before
    longer = resuming.proceed(compose([*ONCE, "stop.env_steps=40"]), tmp_path)
    assert (first.summary["env_steps"], longer.summary["env_steps"]) == (22, 40)


@pytest.mark.parametrize(
    ("overrides", "digest", "message"),
    [
        ([*ONCE, "seed=1"], None, "holds a run of other overrides; name another folder"),
        (ONCE, "0123456789ab", "not empty: it holds mine.txt"),
    ],
)
def test_another_folder_is_refused_and_stays_as_it_is(overrides, digest, message, whole, tmp_path):
    folder = tmp_path / "run"
    if digest is None:
        shutil.copytree(whole["dqn"].run_dir, folder)
    else:
        folder.mkdir()
        (folder / "mine.txt").touch()
    before = [path for path, _ in stamps(folder) if path.name != "lock"]
    with pytest.raises(RunDirError, match=message):
        resuming.proceed(compose(overrides), folder)
    assert [path for path, _ in stamps(folder) if path.name != "lock"] == before


@pytest.mark.parametrize("case", MINE)
@pytest.mark.parametrize("start", [rlrun.train, resuming.proceed])
def test_no_file_of_the_users_is_deleted(case, start, tmp_path):
    for name, content in MINE[case].items():
        place = tmp_path / "run" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    before = stamps(tmp_path)
    first = next(iter(MINE[case])).split("/")[0]
    with pytest.raises(RunDirError, match=rf"^run directory \S+ is not empty: it holds .*{first}[^;]*$"):
        start(compose(ONCE), run_dir=tmp_path / "run")
    assert stamps(tmp_path) == before


def test_a_link_is_the_users(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "latest").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").write_text(STATUS["status.json"])
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    with pytest.raises(RunDirError, match=r"is not empty: it holds checkpoints$"):
        resuming.proceed(compose(ONCE), tmp_path / "run")
    assert (tmp_path / "disk" / "latest").exists()


def test_a_start_that_fails_deletes_nothing(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "status.json").write_text(STATUS["status.json"])
    (tmp_path / "log.txt").write_text("what was loaded")
    (tmp_path / "lock").touch()
    before = stamps(tmp_path)
    with pytest.raises(RequestError):
        resuming.proceed(compose([*ONCE, "env.kwargs={nonsense: 1}"]), tmp_path)
    assert stamps(tmp_path) == before


def test_another_config_than_the_jobs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="another config than when the sweep began: conf/ has changed; undo that"):
        resuming.proceed(compose(ONCE), tmp_path / "run", digest="0123456789ab")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_process_that_finds_the_lock_taken_leaves_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.runs.heartbeat.ATTEMPTS", 1)
    lock = locks.locked(tmp_path / "lock")
    with pytest.raises(Left, match="is in progress"):
        resuming.proceed(compose(ONCE), tmp_path)
    locks.release(lock)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
