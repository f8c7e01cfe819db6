"""A new run that starts from another: what it takes over, bit for bit, what it does not, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.identical import stamps

import rlrun
from rlrun import checkpointing as storage
from rlrun.callbacks.loss import LossCallback
from rlrun.commands.fork.parents import matches, started
from rlrun.commands.fork.transfer import transfer
from rlrun.commands.train import Experiment
from rlrun.config.overrides import apply, parse
from rlrun.config.schema import check_kinds
from rlrun.core.errors import ConfigError, RequestError, RunDirError
from rlrun.runs.directory import RunDir
from rlrun.security import trust

from .conftest import TINY as SHORT
from .conftest import records

SAC = ("algorithm=sac", "env=pendulum", "preset=null", "num_envs=2")
DQN = ("algorithm=dqn", "env=cartpole", "preset=null")
TINY = (*SHORT, "checkpoint.every=40", "log.every=10", "memory.length=500", "device=cpu")
ROLLOUTS = (
    *("env=cartpole", "preset=null", "num_envs=2", "algorithm.horizon=8", "algorithm.hidden=[4]"),
    *("evaluation.every=0", "logger=[]", "device=cpu"),
)
MORE = "stop.env_steps=140"


@pytest.fixture(scope="module")
def sac(tmp_path_factory) -> Path:
    return rlrun.train([*SAC, *TINY], run_dir=tmp_path_factory.mktemp("runs") / "sac").run_dir


@pytest.fixture(scope="module")
def dqn(tmp_path_factory) -> Path:
    return rlrun.train([*DQN, *TINY], run_dir=tmp_path_factory.mktemp("runs") / "dqn").run_dir


def fork(start: Path | str, *overrides: str) -> Experiment:
    """Return a new run as it stands before its first step."""
    with started([MORE, *overrides], str(start)) as composed:
        experiment = Experiment(composed)
        experiment.load_parent()
    return experiment


def fresh(run: Path) -> Experiment:
    """Return the run as it was built."""
    return Experiment(rlrun.config.compose((run / "overrides.txt").read_text().splitlines()))


@pytest.fixture(scope="module")
def unforked(sac) -> Experiment:
    """The run as it was built; nobody changes it."""
    return fresh(sac)


@pytest.fixture(scope="module")
def ready(sac) -> Experiment:
    """A new run that could start from the first, and has not yet; nobody changes it."""
    with started([MORE], str(sac)) as composed:
        return Experiment(composed)


@pytest.fixture(scope="module")
def plain(sac) -> Experiment:
    """A new run that took over everything; nobody changes it."""
    return fork(sac)


def ask(ready: Experiment, override: str) -> None:
    """Let a new run that stands ready take over what this says; it is left as it was."""
    config = ready.config.copy()
    apply(config, parse([override])[0], [])
    check_kinds(config)
    transfer(replace(ready.composed, config=config), ready.parts, ready.trainer)


def states(run: Path, which: str = "latest") -> dict:
    return storage.load(RunDir(run).checkpoint(which))


def same(state: dict, other: dict) -> bool:
    return storage.digest(state) == storage.digest(other)


def digest_of(experiment: Experiment, part: str) -> str:
    return storage.digest(experiment.parts[part].state_dict())


def fates(experiment: Experiment) -> dict[str, str]:
    return {entry.name: entry.fate for entry in experiment.fork.report.entries}


def optimizer(experiment: Experiment, name: str = "q_loss") -> dict:
    return experiment.trainer.callbacks[name].optimizer.state_dict()


NETWORKS = ("networks.critics", "networks.policy", "networks.temperature")


def test_a_fork_holds_what_the_parent_held_bit_for_bit(sac):
    there, here = states(sac), fork(sac, "algorithm.lr=1e-5")
    for part in (*NETWORKS, "callbacks.q_target"):
        pair = [{**state, "metrics": None} for state in (here.parts[part].state_dict(), there[part])]
        assert same(*pair)
    for name in ("q_loss", "policy", "temperature"):
        before = there[f"callbacks.{name}"]["optimizer"]
        assert len(before["state"]) > 0
        assert same(optimizer(here, name)["state"], before["state"])
        assert optimizer(here, name)["param_groups"][0]["lr"] == 1e-5
        assert before["param_groups"][0]["lr"] != 1e-5
        assert here.trainer.callbacks[name].updates == there[f"callbacks.{name}"]["updates"] == 40
    collector = here.builder.get("collector")
    assert (collector.steps, here.trainer.state["update"]) == (100, 40)
    assert len(here.builder.get("memory")) == 98
    assert set(fates(here).values()) == {"loaded"}


def test_a_fork_of_a_run_left_amidst_a_rollout_begins_with_one_of_its_own(tmp_path):
    overrides = ["algorithm=ppo", *ROLLOUTS, "algorithm.batch_size=4", "stop.env_steps=16"]
    parent = rlrun.train(overrides, run_dir=tmp_path / "run").run_dir  # left after the first of its minibatches
    assert states(parent)["loader"]["served"] == 1
    request = [*overrides, "stop.env_steps=32", f"init.from={parent}"]
    state = rlrun.train(request, run_dir=tmp_path / "fork").trainer.state
    assert (state["step"], state["update"]) == (32, states(parent)["trainer"]["update"] + 1)


def test_random_numbers_are_those_of_the_new_seed(sac):
    there, here = states(sac), fork(sac, "seed=5")
    unforked = Experiment(rlrun.config.compose([*SAC, *TINY, "seed=5"]))
    drawn = [experiment.parts["collector"].state_dict()["random"] for experiment in (here, unforked)]
    assert same(*drawn)
    assert not same(drawn[0], there["collector"]["random"])
    assert here.parts["collector"].observation is None


@pytest.mark.parametrize(
    ("overrides", "kinds"),
    [
        (("load.weights=false",), ("optimizers", "numbers", "memory")),
        (("init.optimizers=reinit",), ("weights", "numbers", "memory")),
        (("load.numbers=false",), ("weights", "optimizers", "memory")),
        (("init.memory=skip",), ("weights", "optimizers", "numbers")),
        (("load.optimizers=false", "load.numbers=false", "init.memory=skip"), ("weights",)),
    ],
)
def test_each_switch_leaves_its_own_things_as_built(sac, unforked, overrides, kinds):
    there, here = states(sac), fork(sac, *overrides)
    weights = {part: digest_of(here, part) for part in NETWORKS}
    target = here.parts["callbacks.q_target"].target_network.state_dict()
    critics = here.parts["networks.critics"].state_dict()
    if "weights" in kinds:
        assert weights == {part: storage.digest(there[part]) for part in NETWORKS}
        assert same(target, there["callbacks.q_target"]["target"])
    else:
        assert weights == {part: digest_of(unforked, part) for part in NETWORKS}
        assert same(target, critics)
    moments = optimizer(here)["state"]
    if "optimizers" in kinds and "weights" in kinds:
        assert same(moments, there["callbacks.q_loss"]["optimizer"]["state"])
    else:
        assert moments == {}  # also where its parameters start again
    updates = here.trainer.state["update"], here.trainer.callbacks["q_loss"].updates
    assert (here.builder.get("collector").steps, *updates) == ((100, 40, 40) if "numbers" in kinds else (0, 0, 0))
    assert here.builder.get("loader").start == (100 if "numbers" in kinds else None)
    assert len(here.builder.get("memory")) == (98 if "memory" in kinds else 0)


def test_patterns_choose_and_the_last_that_matches_counts(sac, unforked):
    there = states(sac)
    here = fork(sac, "init.parts={*: skip, networks.policy.*: load, networks.policy.gaussian.layers.0.*: reinit}")
    policy, built = (run.parts["networks.policy"].state_dict() for run in (here, unforked))
    before = there["networks.policy"]
    for name in policy:
        assert torch.equal(policy[name], (built if ".layers.0." in name else before)[name]), name
    assert digest_of(here, "networks.critics") == digest_of(unforked, "networks.critics")
    assert len(here.builder.get("memory")) == here.trainer.state["update"] == 0
    assert not matches("networks.critics", "networks.critics2.weight")


def test_what_depends_on_a_tensor_starts_again(sac, unforked):
    here = fork(sac, "init.parts={networks.critics.*: reinit}")
    assert optimizer(here)["state"] == {}
    assert len(optimizer(here, "policy")["state"]) == len(list(here.parts["networks.policy"].parameters()))
    critics = here.parts["networks.critics"].state_dict()
    assert same(here.parts["callbacks.q_target"].target_network.state_dict(), critics)
    assert same(critics, unforked.parts["networks.critics"].state_dict())


def test_some_tensors_of_a_network_keep_their_moments(sac):
    here = fork(sac, "init.parts={networks.policy.gaussian.layers.0.*: reinit}")
    fate = fates(here)
    assert fate["callbacks.policy.optimizer.gaussian.layers.0.weight"] == "skipped"
    assert fate["callbacks.policy.optimizer.gaussian.layers.2.weight"] == "loaded"
    assert sorted(optimizer(here, "policy")["state"]) == [2, 3, 4, 5]


def test_a_weights_file_by_our_names_or_by_others(sac):
    whole = {f"{part}.{name}": value for part in NETWORKS for name, value in states(sac)[part].items()}
    safetensors.torch.save_file(whole, "whole.safetensors")
    body = {f"body.{name}": value for name, value in states(sac)["networks.policy"].items()}
    safetensors.torch.save_file(body, "body.safetensors")
    here = fork("whole.safetensors", *SAC, *TINY, MORE)
    assert all(same(here.parts[part].state_dict(), states(sac)[part]) for part in NETWORKS)
    target_network = here.parts["callbacks.q_target"].target_network
    assert same(target_network.state_dict(), states(sac)["networks.critics"])
    assert here.fork.lineage["env_steps"] is None
    assert len(here.fork.lineage["digest"]) == 64
    here = fork("body.safetensors", *SAC, *TINY, MORE, "init.rename={body: networks.policy}")
    assert same(here.parts["networks.policy"].state_dict(), states(sac)["networks.policy"])
    there, wanted = r"body\.gaussian\.layers\.0\..*", r"networks\.critics\.layers\.layers\.0\.weight.*"
    what = rf"loads nothing of .*body.safetensors.*it holds {there}wanted are {wanted}"
    with pytest.raises(ConfigError, match=rf"{what}; try 'init.rename=\{{body: networks.policy\}}'$"):
        fork("body.safetensors", *SAC, *TINY)


def test_a_single_network_is_renamed(dqn):
    safetensors.torch.save_file(states(dqn)["networks.q"], "q.safetensors")
    with pytest.raises(ConfigError, match=r"; try 'init.rename=\{\*: networks.q.\*\}'$") as refused:
        fork("q.safetensors", *DQN, *TINY)
    here = fork("q.safetensors", *DQN, *TINY, re.search(r"try '(.*)'", str(refused.value))[1])
    assert same(here.parts["networks.q"].state_dict(), states(dqn)["networks.q"])
    assert {entry.part for entry in here.fork.report.entries} == {"networks.q", "callbacks.q_target"}  # no counters


def test_the_tensors_of_a_checkpoint_are_weights_elsewhere_and_its_part_inside(dqn, tmp_path):
    tensors = RunDir(dqn).checkpoint() / "tensors.safetensors"
    with pytest.raises(RunDirError, match=rf"is a part of a checkpoint; name its folder, {tensors.parent}$"):
        fork(tensors, *DQN, *TINY)
    shutil.copy(tensors, tmp_path / "copy.safetensors")
    here = fork("copy.safetensors", *DQN, *TINY)
    assert same(here.parts["networks.q"].state_dict(), states(dqn)["networks.q"])


def test_unrelated_names_get_no_suggestion(dqn):
    safetensors.torch.save_file({"a": torch.zeros(3), "b": torch.zeros(2)}, "x.safetensors")
    with pytest.raises(ConfigError, match=r"it holds a, b, wanted are networks.q\S+, \S+, \S+ and 3 more$"):
        fork("x.safetensors", *DQN, *TINY)


def test_a_pickle_is_refused(tmp_path):
    class Canary:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    torch.save({"a": Canary()}, "weights.pt")
    with pytest.raises(RunDirError, match=r"pickle, which runs code.*safetensors.torch.save_file"):
        fork("weights.pt")
    Path("x.safetensors").write_bytes(b"\xff" * 7 + b"\x7f{")
    with pytest.raises(RunDirError, match=r"x.safetensors is damaged"):
        fork("x.safetensors", *SAC, *TINY)
    assert not (tmp_path / "ran").exists()


def test_one_network_out_of_another_algorithms_run(dqn):
    """A Q-network of DQN becomes a critic of SAC."""
    chosen = ("init.parts={*: skip, networks.critics.*: load}", "init.rename={networks.q: networks.critics}")
    overrides = ["algorithm=sac", "env=cartpole", "preset=null", *TINY, "algorithm.ensemble=1", f"init.from={dqn}"]
    here = Experiment(rlrun.config.compose([*overrides, *chosen]))
    here.load_parent()
    critics, q = here.parts["networks.critics"].state_dict(), states(dqn)["networks.q"]
    assert critics.keys() == q.keys()
    assert same(critics, q)
    assert {entry.part for entry in here.fork.report.of("loaded")} == {"networks.critics"}


@pytest.mark.parametrize("pattern", ["networks.policy", "networks.policy.*", "networks.poli*"])
def test_policies_without_numbers_name_what_has_some(dqn, pattern):
    message = "networks.policy has no numbers in this run; those of .*networks.critics.* can be loaded"
    overrides = ["algorithm=sac", "env=cartpole", "preset=null", *TINY, f"init.from={dqn}"]
    with pytest.raises(ConfigError, match=message):
        Experiment(rlrun.config.compose([*overrides, f"init.parts={{*: skip, {pattern}: load}}"])).load_parent()


def test_entries_of_another_shape_start_again(sac):
    here = fork(sac, "algorithm.hidden=[8,6]", "init.mismatch=skip", "memory.length=500")
    critics, there = here.parts["networks.critics"].state_dict(), states(sac)["networks.critics"]
    assert torch.equal(critics["layers.layers.0.weight"], there["layers.layers.0.weight"])
    assert fates(here)["networks.critics.layers.layers.1.weight"] == "misfit"
    assert sorted(optimizer(here)["state"]) == [0, 1, 5]  # the last bias has its old shape
    assert optimizer(fork(sac, "+optimizer.amsgrad=true", "init.optimizers=skip"))["state"] == {}


def test_a_loss_that_takes_no_keywords_keeps_the_moments_that_it_got(sac, monkeypatch):
    def load(self, state):
        self.optimizer.load_state_dict(state["optimizer"])

    monkeypatch.setattr(LossCallback, "load_state_dict", load)
    assert same(optimizer(fork(sac))["state"], states(sac)["callbacks.q_loss"]["optimizer"]["state"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init.parts={networks.critcs.*: skip}", r"'networks.critcs.\*' matches nothing.*mean 'networks.critics'"),
        (
            "init.rename={networks.plicy: networks.policy}",
            "holds nothing named 'networks.plicy' .did you mean 'networks",
        ),
        ("init.rename={networks.*: networks.policy}", "one . on both sides"),
        ("init.rename={networks.policy: networks.temperature, networks.critics: networks.temperature}", "would be"),
        ("init.rename={networks.policy: networks.polcy}", "nothing named 'networks.polcy' .did you mean 'networks.pol"),
        ("init.weights=lod", "init.weights: wanted one of load, skip, reinit, got 'lod' .did you mean 'load'"),
        ("init.parts={memory: load, trainer: laod}", "init.parts: 'trainer': wanted .*got 'laod' .did you mean 'load'"),
        ("init.foo=1", "init.foo: no such key; there are from, weights,"),
        ("stop.env_steps=100", "the parent has made 100 of them"),
        ("stop.updates=30", "the parent has made 40 of them"),
        ("init.parts={*: skip}", "loads nothing of"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(ready, override, message):
    with pytest.raises(RequestError, match=message):
        ask(ready, override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("init.weights=skip", "load.weights=true"), "contradict each other"),
        (("init.weights=load", "load.weights=false"), "contradict each other"),
        (("+init.wieghts=skip",), "did you mean 'init.weights'"),
        (("+load.memory=false",), "load.memory: no such key .did you mean 'init.memory=skip'..$"),
        (("init.from=x",), "give one of them"),
        (("+init.from.memory=x",), "give one of them"),
        (
            ("algorithm.hidden=[8,6]",),
            r"critics.layers.layers.1.weight \(\[2, 8, 8\] there, \[2, 8, 6\] here\).*init.mismatch=skip",
        ),
        (("algorithm.hidden=[8,8,8]",), r"networks.critics.layers.layers.3.weight \(not there\)"),
        (("algorithm.hidden=[8]",), "not here"),
        (("+optimizer.amsgrad=true",), "exp_avg_sq .* there, .*max_exp_avg_sq.* here"),
        (("env=hitthemiddle",), "init.mismatch=skip|init.memory=skip"),
        (("env=hitthemiddle", "init.mismatch=skip"), "init.from: memory does not fit: .*; init.memory=skip leaves it"),
    ],
)
def test_what_contradicts_or_does_not_fit_is_refused(sac, overrides, message):
    with pytest.raises(RequestError, match=message):
        fork(sac, *overrides)


def test_settings_without_a_source_are_refused():
    with pytest.raises(ConfigError, match=r"init.from: a value is needed"):
        Experiment(rlrun.config.compose([*SAC, *TINY, "init.parts={memory: skip}"])).load_parent()


def test_a_checkpoint_is_chosen_by_its_step_its_name_or_its_folder(sac):
    for which, steps in (("@40", 40), ("@latest", 100)):
        here = fork(f"{sac}{which}")
        assert (here.fork.lineage["env_steps"], here.builder.get("collector").steps) == (steps, steps)
        assert here.config.init["from"] == here.fork.lineage["checkpoint"] == str(RunDir(sac).checkpoint(steps))
    best = RunDir(sac).checkpoint("best")
    assert fork(f"{sac}@best").fork.lineage["checkpoint"] == str(best)
    assert fork(best).fork.lineage["run"] == str(sac)
    shutil.copytree(best, "alone")
    here = fork("alone", *SAC, *TINY, MORE, "init.memory=skip")  # rows lie beside it, in segments/
    assert here.fork.lineage["run"] is None
    assert digest_of(here, "networks.policy") == storage.digest(states(sac, "best")["networks.policy"])


def test_a_damaged_checkpoint_is_passed_over_unless_it_was_named(sac, tmp_path, caplog):
    shutil.copytree(sac, tmp_path / "run")
    newest = RunDir(tmp_path / "run").checkpoint()
    (newest / "tensors.safetensors").write_bytes(b"no")
    here = fork(tmp_path / "run")
    assert here.fork.lineage["env_steps"] == 80
    assert "starting from checkpoint 0000000080" in caplog.text
    with pytest.raises(RunDirError, match="damaged"):
        fork(f"{tmp_path / 'run'}@latest")


def test_a_run_in_progress_can_be_started_from(sac, tmp_path):
    shutil.copytree(sac, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    run.summary.unlink()
    run.write_status("running")
    before = stamps(run.path)
    assert fork(run.path).builder.get("collector").steps == 100
    assert stamps(run.path) == before


def test_the_parents_words_come_first_and_yours_win(sac):
    here = fork(sac, "seed=7", "algorithm.discount=0.5", "init.memory=skip")
    assert (here.config.seed, here.config.algorithm.discount, here.config.algorithm.batch_size) == (7, 0.5, 4)
    assert here.composed.overrides[-1] == f"init.from={RunDir(sac).checkpoint()}"


def test_errors_name_the_source_of_overrides(sac, tmp_path):
    for override in ("algorithm.lrr=1", "algorithm.lr=abc", "init.wieghts=skip"):
        with pytest.raises(ConfigError) as own:
            fork(sac, override)
        assert str(own.value).startswith(override.partition("=")[0] + ": ")
        assert "come before these" not in str(own.value)
    shutil.copytree(sac, tmp_path / "run")
    with (tmp_path / "run" / "overrides.txt").open("a") as file:
        file.write("algorithm.gone=3\n")
    with pytest.raises(ConfigError, match=r"algorithm.gone: no such key.* the overrides of .*run come before these"):
        fork(tmp_path / "run")
    (tmp_path / "run" / "overrides.txt").write_text("algorithm=sac\nenv=pendulum\nalgorithm.temperature.initial=2\n")
    with pytest.raises(ConfigError) as both:
        fork(tmp_path / "run", "algorithm=dqn", "env=cartpole")
    message = str(both.value)
    assert message.startswith("algorithm.temperature")
    way_out = "rlrun train stop.env_steps=140 algorithm=dqn env=cartpole init.from=/"
    assert f"run come before these; without them: {way_out}" in message


def test_another_environment_needs_no_memory_of_this_one(sac):
    here = fork(sac, "env=hitthemiddle", "init.mismatch=skip", "init.memory=skip")
    assert len(here.builder.get("memory")) == 0


@pytest.mark.parametrize("override", ["num_envs=3", "memory.length=60", "+with=prioritized"])
def test_another_table_takes_the_episodes(sac, plain, override):
    here = fork(sac, override)
    table, whole = here.builder.get("memory"), plain.builder.get("memory")
    why = next(entry.why for entry in here.fork.report.entries if entry.part == "memory")
    assert why == f"{len(table)} of 98 transitions, as new episodes"
    assert (len(table) == 98) == (override != "memory.length=60")
    rewards = [set(memory.storage.arrays["reward"][memory.index.used()].tolist()) for memory in (table, whole)]
    assert rewards[0] - {0.0} <= rewards[1]  # 0: of the observation after the last step
    assert {"reward", "observation"} <= table.sample(4).keys()


def test_a_memory_that_drops_episodes_is_forked_with_all_rows(tmp_path):
    run = rlrun.train([*DQN, *TINY, "memory=drop_any"], run_dir=tmp_path / "run").run_dir
    here = fork(run)
    (entry,) = [entry for entry in here.fork.report.entries if entry.part == "memory"]
    assert "as new episodes" not in (entry.why or "")
    assert len(here.builder.get("memory").index.used()) >= 100


def test_open_episodes_are_cut_off(sac, plain):
    table = plain.builder.get("memory")
    assert (table.index.newest()[table.index.open] <= 0).all()
    truncated = table.storage.arrays["truncated"][table.index.used()]
    assert int(truncated.sum()) == 2  # one an env: 50 steps of an episode of 200
    assert int(np.asarray(states(sac)["collector"]["length"]).sum()) == 100


def test_an_added_part_starts_as_built(sac):
    here = fork(sac, "+with=observation_norm")
    missing = {entry.name for entry in here.fork.report.of("missing")}
    assert "normalizers.observation.statistics.0.moments" in missing
    assert fates(here)["networks.policy.gaussian.layers.0.weight"] == "loaded"


def test_episodes_are_not_those_of_the_parent_again(sac, unforked):
    here = fork(sac)
    first = [experiment.builder.get("collector") for experiment in (here, fork(sac, "init.numbers=skip"), unforked)]
    for collector in first:
        collector.begin_training()
    assert not np.array_equal(first[0].observation, first[2].observation)
    assert np.array_equal(first[1].observation, first[2].observation)  # counted from 0, it is a run like any other


def test_updates_go_on_at_the_pace_of_the_new_config(sac):
    result = rlrun.train([MORE, "algorithm.updates_per_step=1"], start=sac, run_dir="fast")
    counts = result.summary["env_steps"], result.summary["updates"]
    assert counts == (140, 79)  # one a step, from the step after the parent's last


@pytest.fixture(scope="module")
def child(sac, tmp_path_factory):
    """A fork that ran to its end."""
    where = tmp_path_factory.mktemp("child") / "child"
    return rlrun.train([MORE, "algorithm.lr=1e-5", "checkpoint.keep_last=null"], start=f"{sac}@best", run_dir=where)


def test_a_fork_has_files_of_its_own(child, sac):
    run = RunDir(child.run_dir)
    best = RunDir(sac).checkpoint("best")
    about = json.loads(run.manifest.read_text())["parent"]
    assert (about["run"], about["checkpoint"]) == (str(sac), str(best))
    assert about["init"]["weights"] == "load"
    assert len(about["digest"]) == 64
    assert f"init.from={best}" in run.overrides.read_text().splitlines()
    steps = [record["env_steps"] for record in records(run.path)]
    begin = about["env_steps"]
    assert steps == sorted(steps)
    assert begin < steps[0] <= begin + 10
    assert child.summary["env_steps"] == 140
    assert child.summary["best"]["env_steps"] > begin
    assert run.checkpoint_dirs()[0].name.startswith(f"{begin:010}-")
    assert f"starts from {best}" in run.log.read_text()


def composed(*overrides: str) -> Experiment:
    experiment = Experiment(rlrun.config.compose([*SAC, *TINY, *overrides]))
    experiment.load_parent()
    return experiment


def test_parts_of_several_sources(child, sac, unforked, tmp_path):
    """Of two runs, one of them not the newest checkpoint, and of a file with other names."""
    safetensors.torch.save_file({"alpha/log": torch.tensor([-0.5])}, file := tmp_path / "a, b's.safetensors")
    parts = f"networks.policy.*: {sac}, networks.\\[c\\]ritics.*: {child.run_dir}@best, memory: {sac}"
    parts += f', networks.temperature.log: "{file}"'
    more = ("init.rename={alpha: networks.temperature}", "init.parts={networks.policy.gaussian.layers.0.bias: skip}")
    here = composed(f"init.from={{{parts}}}", *more)
    for name, value in here.parts["networks.policy"].state_dict().items():
        built = unforked.parts["networks.policy"].state_dict()
        assert torch.equal(value, (built if name.endswith("0.bias") else states(sac)["networks.policy"])[name]), name
    assert digest_of(here, "networks.critics") == storage.digest(states(child.run_dir, "best")["networks.critics"])
    assert here.parts["networks.temperature"].log.tolist() == [-0.5]
    assert (len(here.builder.get("memory")), here.trainer.state["update"]) == (98, 0)
    first, second, third = here.fork.lineage
    assert (first["run"], second["run"], third["run"]) == (str(sac), str(child.run_dir), None)
    assert second["checkpoint"] == str(RunDir(child.run_dir).checkpoint("best"))
    assert (third["init"]["rename"], first["init"]["rename"]) == ({"alpha": "networks.temperature"}, {})
    assert second["init"]["parts"].keys() == {"*", "networks.[c]ritics.*", "networks.policy.gaussian.layers.0.bias"}
    again = rlrun.config.compose(here.composed.overrides)  # as a resumed run reads them
    assert dict(again.config.init["from"]) == dict(here.config.init["from"])
    assert again.config.init["from"]["networks.[c]ritics.*"] == second["checkpoint"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("init.from={networks.critics: SAC, networks.*: DQN}",),
            r"^init.from: 'networks.critics' of \S*sac and 'networks.\*' of \S*dqn both give networks.critics.*narrow",
        ),
        (
            ("init.from={networks.polcy: SAC}",),
            "^init.from: 'networks.polcy' matches nothing .* mean 'networks.policy'",
        ),
        (
            ("init.from={networks.policy: SAC, networks.critics: DQN}",),
            r"^init.from: 'networks.critics: load' .* \S*dqn$",
        ),
        (("init.from={networks.policy: 3}",), "init.from: 'networks.policy': wanted a text"),
        (
            ("init.from={networks.policy: SAC}", "init.rename={x: networks.critics}"),
            "^init.rename: init.from names no run that gives 'networks.critics'",
        ),
        (("init.from={}", "init.parts={memory: load}"), "^init.from: a value is needed"),
    ],
)
def test_wrong_parts_of_several_sources_are_refused(sac, dqn, overrides, message):
    with pytest.raises(RequestError, match=message):
        composed(*(text.replace("SAC", str(sac)).replace("DQN", str(dqn)) for text in overrides))


def test_a_fork_that_was_killed_goes_on_without_its_parent(child, tmp_path):
    """From its very first checkpoint on, and to the same end."""
    shutil.copytree(child.run_dir, tmp_path / "again")
    run = RunDir(tmp_path / "again")
    for path in run.checkpoint_dirs()[1:]:
        shutil.rmtree(path)
    run.summary.unlink()
    run.write_status("stopped")
    overrides = run.overrides.read_text().replace("init.from=", "init.from=/gone")
    run.overrides.write_text(overrides)
    run.config.write_text(run.config.read_text().replace("from: /", "from: /gone/"))
    result = rlrun.resume(run.path)
    assert result.summary["env_steps"] == 140
    ends = [storage.load(RunDir(path).checkpoint()) for path in (child.run_dir, run.path)]
    differing = [part for part in ends[0] if not same(ends[0][part], ends[1][part])]
    assert set(differing) <= {"callbacks.logger", "callbacks.budget"}


def test_a_fork_of_a_fork_forgets_how_its_parent_started(child):
    first = fork(child.run_dir, "stop.env_steps=200")
    assert first.config.init.parts == {}
    assert first.fork.lineage["run"] == str(child.run_dir)
    start = f"init.from={RunDir(child.run_dir).checkpoint()}"
    assert [override for override in first.composed.overrides if override.startswith("init.")] == [start]


def test_a_memory_from_a_file_and_one_from_the_parent_are_one_too_many(sac, plain, tmp_path):
    table = plain.builder.get("memory")
    table.store(tmp_path / "memory.zip")
    override = f"memory.import={tmp_path / 'memory.zip'}"
    with pytest.raises(ConfigError, match=r"both fill the memory; init.memory=skip"):
        fork(sac, override)
    here = fork(sac, override, "init.memory=skip")
    here.part(rlrun.callbacks.MemoryImport).restore_state()
    assert len(here.builder.get("memory")) == 98


def test_only_what_is_typed_speaks_for_a_key(dqn, tmp_path):
    """A user's own file stands below the overrides of the parent, which may say otherwise."""
    (tmp_path / "conf" / "with").mkdir(parents=True)
    (tmp_path / "conf" / "with" / "mine.yaml").write_text("# @package _global_\nlogger: [jsonl]\n")
    with started([MORE, "+with=mine"], str(dqn)):
        assert trust.is_foreign("logger", "jsonl")
    with started([MORE, "logger=[jsonl]"], str(dqn)):
        assert [trust.is_foreign("logger", name) for name in ("jsonl", "wandb")] == [False, True]


def test_ppg_is_forked(tmp_path):
    request = ["algorithm=ppg", *ROLLOUTS, "stop.env_steps=32"]
    parent = rlrun.train(request, run_dir=tmp_path / "parent").run_dir
    child = Experiment(rlrun.config.compose([*request, "stop.env_steps=64", f"init.from={parent}"]))
    child.load_parent()
    assert not child.fork.report.of("misfit")
    network = child.parts["networks.actor_critic"].state_dict()
    assert storage.digest(network) == storage.digest(states(parent)["networks.actor_critic"])
