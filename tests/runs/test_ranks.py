"""Ranks of torchrun train together: each on its share, and what comes out is what one process comes to."""

import importlib
import json
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.training.test_rates import overrides

import rlrun
import rlrun.commands.checkpoints
from rlrun import checkpointing as storage
from rlrun.callbacks import Interrupt, Interrupted
from rlrun.commands.check import check
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RankError
from rlrun.core.seeds import EpisodeSeeds, Seeds
from rlrun.ops.distributions import given
from rlrun.runs.directory import RunDir, rank_folder

QUIET = ("logger=[]", "log.every=0", "evaluation.episodes=2", "evaluation.max_steps=20", "preset=null")
A2C = ("algorithm=a2c", "env=cartpole", "num_envs=4", "algorithm.hidden=[8]", "algorithm.horizon=4")
SAC = (
    *("algorithm=sac", "env=pendulum", "num_envs=2", "algorithm.hidden=[8]", "algorithm.batch_size=8"),
    *("algorithm.warmup_steps=20", "algorithm.updates_per_step=0.5", "stop.env_steps=72"),
    *("evaluation.every=40", "checkpoint.every=20", "checkpoint.keep_last=2"),
)


@pytest.fixture(scope="module")
def together():
    return importlib.import_module("tests.together")


@pytest.fixture(scope="module")
def whole(together, tmp_path_factory):
    """A run of two ranks that ended well; nobody changes it."""
    return together.train([*SAC, *QUIET], tmp_path_factory.mktemp("whole") / "run").run_dir


@pytest.fixture
def run(whole, tmp_path):
    return RunDir(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture(scope="module")
def found(together, tmp_path_factory):
    """What one process comes to, and what each of two ranks does."""
    return together.all_of_it(), *together.both(tmp_path_factory.mktemp("both"))


def test_epochs_of_unequal_shares_have_as_many_batches(tmp_path, together):
    hold_out = "hold_out: 0.3, seed: '${seeds.memory}'"  # ranks hold out different rows, and different numbers
    loader = f"{{_target_: rlrun.memory.DatasetLoader, dataset: '${{memory}}', batch: 2, {hold_out}}}"
    chosen = overrides("times: 1", "every_steps: 8, epochs: 2", "num_envs=2", "stop.updates=12", loader=loader)
    result = together.train(chosen, tmp_path / "run")
    counts = result.trainer.state["group_updates"]
    assert (counts["default"], result.trainer.loader.parts["twin"].batch) == (12, 1)
    assert counts["twin"] >= 2 * 2 * 6  # epochs after 20 and after 28 steps, of most of 10 rows or more
    first, second = (states(result.run_dir, number) for number in (0, 1))
    assert first["networks.twin"] == second["networks.twin"]


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "td3", "dqn", "recurrent_sac", "taac"])
def test_two_ranks_take_the_steps_of_one_process_on_the_whole_batch(found, algorithm, together):
    single, first, second = (process[algorithm] for process in found)
    begun = [name for name in single if "weight" in name]
    assert len(begun) > 2
    assert algorithm not in together.STATES or any("core" in name for name in begun)
    for name, value in single.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], value, rtol=1e-5, atol=1e-6), name
        if algorithm == "td3":
            assert (first[name] - value).norm() <= 1e-5 * value.norm(), name


def test_what_is_told_of_a_batch_is_told_of_all_shares(found):
    single, first, second = (process["measured"] for process in found)
    for name in ("moments", "entropy", "normalized", "valid", "weights"):
        assert torch.allclose(first[name], single[name], atol=1e-6), name
    assert torch.equal(first["moments"], second["moments"])
    assert first["weight"].unique().tolist() == [1.5]  # of 1 and 2, in tensors that lie apart
    assert second["bias"].tolist() == [1.5]  # of 0 and 3


def test_networks_that_have_become_different_are_told_of(found):
    assert [rank["differing"] for rank in found] == ["", *["networks.q is not the same in all 2 ranks"] * 2]


def states(run: Path, number: int = 0, name: str = "latest") -> dict[str, str]:
    """Return an override for each part of a rank's checkpoint."""
    where = RunDir(run).checkpoint(name)
    own = rank_folder(where.parent, number) / where.name
    return {part: storage.digest(state) for part, state in storage.load(own).items()}


def test_a_run_of_two_ranks_is_that_of_one_process(tmp_path, together):
    overrides = [*A2C, *QUIET, "+with=observation_norm", "stop.updates=12", "evaluation.every=100"]
    with given(together.still):
        single = rlrun.train(overrides, run_dir=tmp_path / "one")
        pair = together.train(overrides, tmp_path / "two")
    assert [pair.summary[name] for name in ("env_steps", "updates")] == [192, 12]
    assert single.summary["evaluation"] == pair.summary["evaluation"]
    networks = [result.trainer.state["parts"] for result in (single, pair)]
    for path in ("networks.actor_critic", "normalizers.observation"):
        ours, theirs = (parts[path].state_dict() for parts in networks)
        for name, value in ours.items():
            if isinstance(value, torch.Tensor):
                assert torch.allclose(value, theirs[name], atol=1e-6), name
    first, second = (states(pair.run_dir, number) for number in (0, 1))
    same = [part for part in first if first[part] == second[part]]
    assert {"networks.actor_critic", "callbacks.evaluation", "trainer"} <= {*same}
    assert first["env"] != second["env"]


def test_envs_are_those_of_one_process():
    first, second = Seeds(5), Seeds(5, rank=1, first_env=4)
    assert (second.envs, second.evaluation, second.process) == (first.envs, first.evaluation, first.process)
    assert EpisodeSeeds(5, 4, first_env=second.first_env).every() == EpisodeSeeds(5, 8).every()[4:]
    third = Seeds(5, rank=2, first_env=8)
    drawn = [(seed.memory, seed.agent, seed.warm_up, getattr(seed, "acting", 0)) for seed in (first, second, third)]
    assert len({number for numbers in drawn for number in numbers}) == 12


def test_a_signal_to_one_rank_stops_all_and_the_run_continues_exactly(whole, tmp_path, together):
    stopped = together.train([*SAC, *QUIET], tmp_path / "left", together.terminated)
    assert (stopped.summary["status"], stopped.summary["stopped_by"]) == ("stopped", "SIGTERM")
    assert stopped.summary["updates"] == 15
    run = RunDir(stopped.run_dir)
    with pytest.raises(
        ConfigError, match="was begun with 2 processes, not 1; continue it by torchrun --nproc-per-node 2"
    ):
        rlrun.resume(run.path)
    again = together.resume(run.path, [])
    assert json.loads(run.manifest.read_text())["resume"] == "exact"
    for number in (0, 1):
        assert states(whole, number) == states(again.run_dir, number)
    assert len(run.checkpoint_dirs()) <= 3
    beside = {path.name for path in rank_folder(run.checkpoints, 1).iterdir()}
    assert beside == {path.name for path in run.checkpoint_dirs()} | {"segments"}


def test_a_checkpoint_that_a_rank_lacks_is_none(run, together):
    newest = run.checkpoint()
    used = rlrun.commands.checkpoints.disk_used(run.path)
    (rank_folder(run.checkpoints, 1) / newest.name / "manifest.json").unlink()
    assert rlrun.commands.checkpoints.disk_used(run.path) < used
    assert [report.name for report in rlrun.checkpoints(run.path, verify=True) if report.damage] == [newest.name]
    names = [path.name for path in run.newest_first() if path != newest]
    again = together.resume(run.path, ["stop.env_steps=80"])
    assert f"from checkpoint {names[0]}" in run.log.read_text()
    assert again.summary["env_steps"] == 80


def test_a_checkpoint_that_the_first_one_never_wrote_is_deleted(run, together):
    beside = rank_folder(run.checkpoints, 1)
    shutil.copytree(beside / run.checkpoint().name, beside / "0000000073-0000000027")  # the process died then
    together.resume(run.path, ["stop.env_steps=120"])
    assert {path.name for path in beside.iterdir()} == {*(path.name for path in run.checkpoint_dirs()), "segments"}


def test_a_rank_that_is_killed_ends_the_run_which_continues_exactly(whole, tmp_path, together):
    with pytest.raises(RankError, match=r"^another rank is gone; torchrun says which, and how it ended$"):
        together.train([*SAC, *QUIET], tmp_path / "run", together.killed)
    run = RunDir(tmp_path / "run")
    assert run.read_status()["status"] == "failed"
    assert distributed.world_size() == 1
    for number in (0, 1):
        place = rank_folder(run.checkpoints, number)
        assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []
    together.resume(run.path, [])
    assert [states(whole, number) for number in (0, 1)] == [states(run.path, number) for number in (0, 1)]


def test_a_rank_that_fails_says_why_and_no_other_one_does(tmp_path, together):
    with pytest.raises(RankError) as raised:
        together.train([*SAC, *QUIET], tmp_path / "run", together.failing)
    assert str(raised.value) == ""  # a command prints nothing
    run = RunDir(tmp_path / "run")
    assert json.loads(run.status.read_text())["error"] == "rank 1 failed: the reward of env 3 is nan"
    assert "in fail\n    raise DataError" in run.log.read_text()  # of the other process


def test_ranks_that_do_not_meet_say_so(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(RankError, match=r"the ranks of torchrun do not find each other: .*MASTER_PORT"):
        rlrun.train([*SAC])


def test_ranks_meet_by_a_new_name_after_a_restart():
    store = torch.distributed.HashStore()
    store.set("rlrun/rank-1", "rlrun/killed")  # torchrun keeps what its ranks have stored
    names = []
    for _ in range(2):
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(partial(distributed._meet, store), (0, 1), (2, 2))
        assert first == second
        names.append(first)
    assert names[0] != names[1]
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(RuntimeError, match="one of them does not come"):
        distributed._meet(store, 0, 2)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("num_envs=3",), r"^2 ranks: num_envs=3 cannot be shared evenly; num_envs=2 can$"),
        (("num_envs=1",), "num_envs=2 can"),
        (("algorithm.batch_size=5",), r"loader\.batch=5 cannot be shared evenly; loader\.batch=4 can"),
        (("compile=true",), "compile=false"),
        (("init.networks=elsewhere",), "a run from another .init.networks. has one; start it without torchrun"),
        (("+with=prioritized",), r"memory\.sampler \(Prioritized\) wants one rank: its priorities"),
        (("+with=imagination",), r"\(DynamicsLoss\) wants one rank: its statistics are of the rows of its own batches"),
        (("+with=predictive", "predictive.decoders.reward.normalize=true"), r"wants one rank: .*\(normalize\)"),
        (("+with=prefetch",), "the loader is a Prefetch; ranks share that of ReplayLoader"),
        (("+with=async",), "the collector is a AsyncCollector"),
        (
            (
                "+joint={_target_: rlrun.memory.JointLoader, default: '${loader}', x: {loader: {_target_: "
                "rlrun.memory.DatasetLoader, dataset: {x: [1, 2]}, batch: 2}, times: 2}}",
                "trainer.loader=${joint}",
            ),
            "the loader is a DatasetLoader; ranks share that of ReplayLoader",
        ),
        (("memory.import=file.zip",), r"\(memory\.import\)"),
        (("memory.export.every=0",), r"\(memory\.export\)"),
    ],
)
def test_what_would_be_decided_by_a_share_is_refused(overrides, told, monkeypatch):
    monkeypatch.setattr(distributed, "_world_size", 2)
    with pytest.raises(ConfigError, match=told):
        check([*SAC, *QUIET, *overrides])


def test_envs_that_reset_by_themselves_are_refused(monkeypatch):
    monkeypatch.setattr(distributed, "_world_size", 2)
    with pytest.raises(ConfigError, match=r"envs of cartpole that reset by themselves \(env.vectorization=native\)"):
        check([*A2C, *QUIET, "env.vectorization=native"])


def test_a_signal_before_the_first_update_waits_until_ranks_meet(monkeypatch):
    monkeypatch.setattr(distributed, "_world_size", 2)
    monkeypatch.setattr(distributed, "largest", lambda number: number)
    interrupt = Interrupt()
    interrupt.restore_state()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="SIGTERM"):
        interrupt.begin_training()
    signal.raise_signal(signal.SIGTERM)  # as torchrun sends it to all
    interrupt.end_training(None)


def test_signals_are_heard_while_another_rank_is_stuck(together, monkeypatch):
    monkeypatch.setattr(distributed, "PAUSE", timedelta(seconds=0.05))
    before = signal.signal(signal.SIGALRM, lambda number, frame: 1 / 0)
    begun = []  # the other one has joined by then, however long that took

    def signal_soon():
        begun.append(time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    try:
        with pytest.raises(ZeroDivisionError):
            together.interrupted(signal_soon)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun[0] < 5.0
