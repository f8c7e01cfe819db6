"""A new run that takes parts of others: what it takes, bit for bit, what it does not, and what it refuses."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.identical import stamps

import rlrun
from rlrun import checkpointing as storage
from rlrun.commands.fork.parents import started
from rlrun.commands.train import Experiment
from rlrun.core.errors import ConfigError, RequestError, RunDirError
from rlrun.runs.directory import RunDir

from .conftest import TINY as SHORT
from .conftest import records

SAC = ("algorithm=sac", "env=pendulum", "preset=null", "num_envs=2")
DQN = ("algorithm=dqn", "env=cartpole", "preset=null")
TINY = (*SHORT, "checkpoint.every=40", "log.every=10", "memory.length=500", "device=cpu")
NETWORKS = ("networks.critics", "networks.policy", "networks.temperature")


@pytest.fixture(scope="module")
def sac(tmp_path_factory) -> Path:
    return rlrun.train([*SAC, *TINY], run_dir=tmp_path_factory.mktemp("runs") / "sac").run_dir


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Another run of the same algorithm; its name has what a grammar reads otherwise."""
    return rlrun.train([*SAC, *TINY, "seed=9"], run_dir=tmp_path_factory.mktemp("runs") / "a, b").run_dir


@pytest.fixture(scope="module")
def dqn(tmp_path_factory) -> Path:
    return rlrun.train([*DQN, *TINY], run_dir=tmp_path_factory.mktemp("runs") / "dqn").run_dir


def fork(start: Path | str, *overrides: str) -> Experiment:
    """Return a new run of `--from` as it stands before its first step."""
    experiment = Experiment(started(overrides, str(start), trust=True))
    experiment.load_sources()
    return experiment


def begun(*overrides: str) -> Experiment:
    """Return a new run of SAC as it stands before its first step."""
    experiment = Experiment(rlrun.config.compose([*SAC, *TINY, *overrides]))
    experiment.load_sources()
    return experiment


@pytest.fixture(scope="module")
def unforked() -> Experiment:
    """A run as it was built; nobody changes it."""
    return begun()


@pytest.fixture(scope="module")
def whole(sac) -> Experiment:
    """A new run that took everything; nobody changes it."""
    return fork(sac, "algorithm.lr=1e-5", "seed=5")


def states(run: Path, which: str = "latest") -> dict:
    return storage.load(RunDir(run).checkpoint(which))


def same(state: dict, other: dict) -> bool:
    return storage.digest(state) == storage.digest(other)


def holds(experiment: Experiment, part: str, state: dict) -> bool:
    """Return True if a part of a run has this state."""
    return same(experiment.parts[part].state_dict(), state)


def is_initial(experiment: Experiment, unforked: Experiment, part: str) -> bool:
    return holds(experiment, part, unforked.parts[part].state_dict())


def optimizer(experiment: Experiment, name: str = "q_loss") -> dict:
    return experiment.trainer.callbacks[name].optimizer.state_dict()


def test_from_takes_networks_optimizers_targets_and_memory(sac, whole):
    there = states(sac)
    assert all(holds(whole, part, there[part]) for part in NETWORKS)
    assert same(whole.parts["callbacks.q_target"].target_network.state_dict(), there["callbacks.q_target"]["target"])
    assert not same(there["callbacks.q_target"]["target"], there["networks.critics"])
    for name in ("q_loss", "policy", "temperature"):
        before = there[f"callbacks.{name}"]["optimizer"]
        assert len(before["state"]) > 0
        assert same(optimizer(whole, name)["state"], before["state"])
        assert optimizer(whole, name)["param_groups"][0]["lr"] == 1e-5 != before["param_groups"][0]["lr"]
    table = whole.builder.get("memory")
    assert len(table) == 98
    assert (table.index.newest()[table.index.open] <= 0).all()
    truncated = table.storage.arrays["truncated"][table.index.used()]
    assert int(truncated.sum()) == 2  # the open episode of each env, which had more steps before it
    assert int(np.asarray(there["collector"]["length"]).sum()) == 100


def test_counters_and_random_numbers_are_those_of_a_new_run(sac, whole):
    unforked = begun("seed=5")
    assert (whole.builder.get("collector").steps, whole.trainer.state["update"]) == (0, 0)
    assert whole.trainer.callbacks["q_loss"].updates == 0
    drawn = [experiment.parts["collector"].state_dict()["random"] for experiment in (whole, unforked)]
    assert same(*drawn)
    assert not same(drawn[0], states(sac)["collector"]["random"])


def test_samples_of_a_memory_follow_from_the_seed_of_the_new_run(sac, whole):
    forks = [whole, fork(sac, "seed=5"), fork(sac, "seed=6")]
    drawn = [experiment.parts["memory"].state_dict()["sampler"] for experiment in forks]
    assert same(*drawn[:2])
    unforked = begun("seed=5").parts["memory"].state_dict()["sampler"]
    assert all(same(drawn[0][name], unforked[name]) for name in ("generator", "stock"))
    for other in (drawn[2], states(sac)["memory"]["sampler"]):
        assert not any(same(drawn[0][name], other[name]) for name in ("generator", "stock"))


def test_the_overrides_of_the_parent_come_first_and_yours_win(sac, whole):
    config = whole.config
    assert (config.seed, config.algorithm.lr, config.algorithm.batch_size) == (5, 1e-5, 4)
    assert whole.composed.overrides[-3:] == [f"init.from={sac}", "algorithm.lr=1e-5", "seed=5"]
    here = fork(sac, "init.memory=null", "init.callbacks=null")
    assert (len(here.builder.get("memory")), optimizer(here)["state"]) == (0, {})


def test_networks_alone(sac, unforked):
    here = begun(f"init.networks={sac}")
    assert all(holds(here, part, states(sac)[part]) for part in NETWORKS)
    assert (len(here.builder.get("memory")), optimizer(here)["state"]) == (0, {})
    target = here.parts["callbacks.q_target"].target_network.state_dict()
    assert same(target, states(sac)["networks.critics"])
    assert here.builder.get("loader").start is None  # the warm-up comes first


def test_two_parents_and_the_longest_prefix_decides(sac, other, unforked):
    places = f"networks: {sac}@40, networks.policy: '{other}@80', networks.temperature: null, memory: '{other}'"
    here = begun(f"init={{{places}}}")
    assert holds(here, "networks.critics", states(sac, "40")["networks.critics"])
    assert holds(here, "networks.policy", states(other, "80")["networks.policy"])
    assert is_initial(here, unforked, "networks.temperature")
    assert len(here.builder.get("memory")) == 98
    parents = {(Path(parent["run"]).name, parent["env_steps"]): parent["init"] for parent in here.fork.lineage}
    assert parents["sac", 40] == {"networks": "networks"}
    assert parents["a, b", 100] == {"memory": "memory"}


def test_a_network_of_another_algorithm_under_its_name(dqn):
    overrides = ["algorithm=sac", "env=cartpole", "preset=null", *TINY, "algorithm.ensemble=1"]
    here = Experiment(rlrun.config.compose([*overrides, f"init.networks.critics={dqn}@best:networks.q"]))
    here.load_sources()
    assert holds(here, "networks.critics", states(dqn, "best")["networks.q"])
    assert here.fork.lines[0].endswith("networks.critics (networks.q there)")


def test_moments_and_targets_of_networks_that_are_not_taken_stay_initial(dqn):
    """The networks of another algorithm may have the same shapes."""
    one = ("algorithm=sac", "env=cartpole", "num_envs=1", "networks.critics.members=1")
    experiment = fork(dqn, *one)
    moments, target = optimizer(experiment)["state"], experiment.parts["callbacks.q_target"].state_dict()["target"]
    assert not moments
    assert same(target, experiment.parts["networks.critics"].state_dict())


@pytest.mark.parametrize(
    "overrides",
    [
        ("init.from=SAC", "init.networks.critics='OTHER'"),
        ("init.from=SAC", "init.networks.critics=SAC@40"),
        ("init.from=SAC", "init.networks.critics.layers.layers.0.weight='OTHER'"),
        ("init.from=SAC", "init.networks.critics.layers.layers.0.weight=null"),
        ("init.from=SAC", "init.networks.critics=SAC:callbacks.q_target.target"),
        ("init.networks=SAC", "init.callbacks='OTHER'"),
        ("init.networks=SAC", "init.callbacks=SAC@40"),
    ],
)
def test_moments_and_targets_of_another_network_stay_initial(sac, other, overrides):
    """Of the same shapes: one of another run, another checkpoint or another name."""
    here = begun(*(text.replace("SAC", str(sac)).replace("OTHER", str(other)) for text in overrides))
    assert not optimizer(here)["state"]
    assert holds(here, "networks.critics", here.parts["callbacks.q_target"].target_network.state_dict())
    assert "callbacks.q_loss (networks.critics" in here.fork.lines[-2]
    assert here.fork.lines[-1].startswith("target networks that equal their networks: callbacks.q_target (networks.cr")


def test_moments_and_targets_of_the_same_checkpoint_by_another_text(sac, whole):
    here = begun(f"init.networks={sac}", f"init.callbacks={sac.parent}/../{sac.parent.name}/sac@100")
    for part in ("q_loss", "policy"):
        assert same(optimizer(here, part)["state"], optimizer(whole, part)["state"])
    assert same(*(experiment.parts["callbacks.q_target"].target_network.state_dict() for experiment in (here, whole)))


def test_a_target_depends_on_no_network_but_the_one_it_follows(sac):
    here = fork(sac, "init.networks.policy=null")
    target = here.parts["callbacks.q_target"].target_network.state_dict()
    assert same(target, states(sac)["callbacks.q_target"]["target"])
    assert here.fork.lines[1:] == ["initial values: callbacks.policy (networks.policy has initial values)"]


def test_a_network_from_the_target_network_of_another_run(sac):
    here = begun(f"init.networks.critics={sac}:callbacks.q_target.target")
    assert holds(here, "networks.critics", states(sac)["callbacks.q_target"]["target"])
    assert here.fork.lines[0].endswith("networks.critics (callbacks.q_target.target there)")
    with pytest.raises(ConfigError, match=r"layers.layers.2.weight \(not here\)"):
        begun(f"init.networks.critics={sac}:callbacks.q_target.target", "algorithm.hidden=[8]")


def test_a_piece_of_a_network_under_another_name(sac):
    prior = ("networks.prior._target_=rlrun.nn.SquashedGaussian", "~networks.prior.spread")
    here = begun(
        "+with=policy_prior", "~callbacks.prior", *prior, f"init.networks.prior={sac}:networks.policy.gaussian"
    )
    policy = states(sac)["networks.policy"]
    assert holds(here, "networks.prior", {name.removeprefix("gaussian."): value for name, value in policy.items()})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("init.networks.critics=SAC:networks.critics.layers",),
            "networks.critics.layers of .* it has layers.0.weight",
        ),
        (("init.networks.critics.layers=SAC", "algorithm.hidden=[8]"), r"critics.layers.layers.2.weight \(not here\)"),
    ],
)
def test_a_piece_of_a_network_is_named_in_errors(sac, overrides, message):
    with pytest.raises(ConfigError, match=message):
        begun(*(text.replace("SAC", str(sac)) for text in overrides))


def test_a_policy_without_numbers_is_taken(tmp_path):
    overrides = ["algorithm=sac", "env=cartpole", "preset=null", *TINY]
    run = rlrun.train(overrides, run_dir=tmp_path / "run").run_dir
    here = Experiment(rlrun.config.compose([*overrides, f"init.networks.policy={run}"]))
    here.load_sources()
    assert "networks.policy" in here.fork.lines[0]


def test_other_shapes_are_refused_with_both(sac):
    message = r"init.networks: .*networks.critics.layers.layers.1.weight \(\[2, 8, 8\] there, \[2, 8, 6\] here\)"
    with pytest.raises(ConfigError, match=rf"{message}.*init.strict=false") as refused:
        begun(f"init.networks={sac}", "algorithm.hidden=[8,6]")
    assert "\n" not in str(refused.value)


def test_what_differs_keeps_its_initial_values_where_that_is_asked_for(sac):
    overrides = ("algorithm.hidden=[8,6]", "memory.length=300")
    here, initial = fork(sac, "init.strict=false", *overrides), begun(*overrides)
    critics, there = here.parts["networks.critics"].state_dict(), states(sac)["networks.critics"]
    first, second = "layers.layers.0.weight", "layers.layers.1.weight"
    assert torch.equal(critics[first], there[first])
    assert torch.equal(critics[second], initial.parts["networks.critics"].state_dict()[second])
    assert same(here.parts["callbacks.q_target"].target_network.state_dict(), critics)
    assert (optimizer(here)["state"], len(here.builder.get("memory"))) == ({}, 0)
    assert len(optimizer(here, "temperature")["state"]) > 0
    assert "networks.critics (3 of 6)" in here.fork.lines[0]
    for part in (
        f"networks.critics.{second} (",
        f"callbacks.q_loss (networks.critics.{second} has initial values)",
        "memory (",
    ):
        assert part in here.fork.lines[1], part
    target = f"callbacks.q_target (networks.critics.{second} has initial values)"
    assert here.fork.lines[2] == f"target networks that equal their networks: {target}"


NORMALIZED = ("+with=observation_norm",)
NORMALIZER = "normalizers.observation"


@pytest.fixture(scope="module")
def normalized(tmp_path_factory) -> Path:
    return rlrun.train([*SAC, *TINY, *NORMALIZED], run_dir=tmp_path_factory.mktemp("runs") / "normalized").run_dir


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=mountaincarcontinuous",),
        ("normalizers.observation.mode=window", "+normalizers.observation.window=5"),
        ("init.normalizers.observation.statistics.0._extra_state=null",),
        ("init.normalizers.observation.statistics.0.moments=SAC@40",),
    ],
)
def test_statistics_are_taken_as_a_whole_or_not_at_all(normalized, overrides):
    words = [text.replace("SAC", str(normalized)) for text in overrides]
    given = (*NORMALIZED, f"init.normalizers={normalized}", *words)
    here, initial = begun(*given, "init.strict=false"), begun(*(text for text in given if not text.startswith("init")))
    assert is_initial(here, initial, NORMALIZER)
    assert f"{NORMALIZER}.statistics.0._extra_state" in here.fork.lines[-1] or "=null" in words[0]
    with pytest.raises(ConfigError, match=r"init.strict=false leaves"):
        begun(*given)


def test_a_normalizer_of_another_form_takes_the_moments(normalized):
    here = begun(*NORMALIZED, f"init.normalizers={normalized}", f"+{NORMALIZER}.form=deviation").parts[NORMALIZER]
    there = states(normalized)[NORMALIZER]
    statistics = here.statistics[0]
    assert torch.equal(statistics.moments, there["statistics.0.moments"])
    assert there["statistics.0.shift"].any()
    assert not statistics.shift.any()


def test_a_part_that_the_parent_lacks_starts_as_built(sac):
    here = fork(sac, "+with=observation_norm")
    assert here.fork.lines[1] == "initial values: normalizers.observation (not there)"
    assert holds(here, "networks.policy", states(sac)["networks.policy"])


def test_a_memory_with_another_sampler_inside_stays_empty(tmp_path):
    recent = (*SAC, *TINY, "memory=recent")
    run = rlrun.train(recent, run_dir=tmp_path / "run").run_dir
    inner = ("memory.sampler.sampler._target_=rlrun.memory.Prioritized", "init.strict=false")
    here = fork(run, *inner)
    assert len(here.builder.get("memory")) == 0
    assert here.fork.lines[1] == "initial values: memory (it has another sampler there)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("init.networks.polcy=SAC",), "init.networks.polcy: this run has no part .* mean 'networks.policy'"),
        (("init.network=SAC",), "init.network: this run has no part .* mean 'networks'"),
        (("init.trainer=SAC",), "init.trainer: this run has no part 'trainer' .*there are callbacks.policy"),
        (("init.networks.policy=SAC:networks.polcy",), "has no networks.polcy .did you mean 'networks.policy'"),
        (("init.networks=DQN",), "init.networks: .*dqn.* has no networks.critics.*it has networks.q; RUN:NAME takes"),
        (("init.networks=nowhere",), "init.networks: .*/nowhere does not exist"),
        (("init.networks=SAC@77",), "init.networks: .*has no checkpoint '77'; it has latest, best, 40, 80, 100"),
        (("init.memory=SAC:networks.policy",), "init.memory: .*memory .it is no memory there"),
        (("init.networks.policy=SAC:memory",), "memory of .* has no gaussian.layers.0.weight.* it has columns"),
        (("init.networks.policy=SAC:networks.critics", "init.strict=false"), "it has layers.layers.0.weight"),
        (("init.from=SAC", "memory.length=300"), "room for 500 transitions; this one has 2 and room for 300"),
        (("init.from=SAC", "num_envs=3"), "memory .the saved table has 2 envs"),
        (("init.from=SAC", "+with=prioritized"), "memory .it has another sampler there"),
        (
            ("init.from=SAC", "algorithm.hidden=[8,8,8]"),
            "networks.critics.layers.layers.2.weight .*1. there, .*8. here",
        ),
        (("init.from=SAC", "algorithm.hidden=[8]"), r"networks.critics.layers.layers.2.weight \(not here\)"),
        (("init.from=SAC", "+optimizer.amsgrad=true"), "exp_avg_sq there, .*max_exp_avg_sq here"),
        (("init.from=SAC", "optimizer=sgd"), "callbacks.policy.optimizer .it remembers .* there, nothing here"),
        (("init.from=SAC", "env=hitthemiddle"), r"\[2, 4, 8\] there, \[2, 3, 8\] here"),
    ],
)
def test_a_wrong_request_is_refused_in_a_line(sac, dqn, tmp_path, overrides, message):
    words = [text.replace("SAC", str(sac)).replace("DQN", str(dqn)) for text in overrides]
    with pytest.raises(RequestError, match=message) as refused:
        rlrun.train([*SAC, *TINY, *words], run_dir=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init.networks=3", r"init: 'networks': wanted a run \(RUN, RUN@STEP, RUN@best, RUN:PART\) or null, got 3"),
        ("init.networks={policy: x}", "init: 'networks': a name keeps its dots: wanted {networks.policy: RUN}"),
        ("init.networks=", "init: 'networks': wanted a run .* or null, got ''"),
        ("init=x", "init: wanted parts with the run of each"),
        ("init.strict=maybe", "init.strict: wanted true or false, got 'maybe'"),
        ("load.weights=false", "load.weights: no such key"),
    ],
)
def test_a_wrong_value_is_refused_when_composing(override, message):
    with pytest.raises(ConfigError, match=message):
        rlrun.config.compose([*SAC, override])


def test_from_and_init_from_are_one_too_many(sac):
    with pytest.raises(ConfigError, match=r"^--from and init.from both name the run"):
        fork(sac, "init.from=x")


def test_errors_name_the_source_of_overrides(sac, tmp_path):
    with pytest.raises(ConfigError, match=r"^algorithm.lrr: ") as own:
        fork(sac, "algorithm.lrr=1")
    assert "come before these" not in str(own.value)
    shutil.copytree(sac, tmp_path / "run")
    (tmp_path / "run" / "overrides.txt").write_text("algorithm=sac\nenv=pendulum\nalgorithm.temperature.initial=2\n")
    with pytest.raises(ConfigError, match=r"^algorithm.temperature") as both:
        fork(tmp_path / "run", "algorithm=dqn", "env=cartpole")
    way_out = f"rlrun train init.from={tmp_path}/run algorithm=dqn env=cartpole"
    assert f"run come before these; without them: {way_out}" in str(both.value)


def test_the_way_out_of_overrides_that_do_not_compose_composes(sac, tmp_path):
    shutil.copytree(sac, tmp_path / "run")
    with (tmp_path / "run" / "overrides.txt").open("a") as file:
        file.write("algorithm.gone=1\n")
    with pytest.raises(ConfigError, match=r"^algorithm.gone: ") as error:
        started(["seed=3"], str(tmp_path / "run"), trust=True)
    way_out = shlex.split(str(error.value).partition("; without them: rlrun train ")[2])
    assert rlrun.config.compose(way_out).choices["algorithm"] == "sac"


def test_a_damaged_checkpoint_is_passed_over_unless_it_was_named(sac, tmp_path, caplog):
    shutil.copytree(sac, tmp_path / "run")
    newest = RunDir(tmp_path / "run").checkpoint()
    (newest / "tensors.safetensors").write_bytes(b"no")
    assert fork(tmp_path / "run").fork.lineage["env_steps"] == 80
    assert "starting from the checkpoint before it" in caplog.text
    with pytest.raises(RunDirError, match=r"init.from: .*damaged"):
        fork(f"{tmp_path / 'run'}@latest")


def test_a_run_in_progress_can_be_a_parent(sac, tmp_path):
    shutil.copytree(sac, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    run.summary.unlink()
    run.write_status("running")
    before = stamps(run.path)
    assert fork(run.path).fork.lineage["env_steps"] == 100
    assert stamps(run.path) == before


@pytest.fixture(scope="module")
def child(sac, tmp_path_factory):
    """A fork that ran to its end."""
    where = tmp_path_factory.mktemp("child") / "child"
    return rlrun.train(["algorithm.lr=1e-5", "checkpoint.keep_last=null"], start=f"{sac}@best", run_dir=where)


def test_a_fork_has_files_of_its_own(child, sac):
    run, best = RunDir(child.run_dir), RunDir(sac).checkpoint("best")
    about = json.loads(run.manifest.read_text())["parent"]
    assert (about["run"], about["checkpoint"], about["init"]) == (str(sac), str(best), {"from": ""})
    assert (about["env_steps"], len(about["digest"])) == (int(best.name[:10]), 64)
    steps = [record["env_steps"] for record in records(run.path)]
    assert (steps[0], steps[-1], child.summary["env_steps"]) == (10, 100, 100)
    assert run.checkpoint_dirs()[0].name == f"{0:010}-{0:010}"
    assert f"starts from {best}" in run.log.read_text()


def test_a_fork_that_was_killed_goes_on_without_its_parent(child, tmp_path):
    """From its very first checkpoint on, and to the same end."""
    shutil.copytree(child.run_dir, tmp_path / "again")
    run = RunDir(tmp_path / "again")
    for path in run.checkpoint_dirs()[1:]:
        shutil.rmtree(path)
    run.summary.unlink()
    run.write_status("stopped")
    run.overrides.write_text(run.overrides.read_text().replace("init.from=", "init.from=/gone"))
    run.config.write_text(run.config.read_text().replace("from: /", "from: /gone/"))
    assert rlrun.resume(run.path, trust=True).summary["env_steps"] == 100
    ends = [storage.load(RunDir(path).checkpoint()) for path in (child.run_dir, run.path)]
    differing = [part for part in ends[0] if not same(ends[0][part], ends[1][part])]
    assert set(differing) <= {"callbacks.logger", "callbacks.budget"}


def test_a_fork_of_a_fork_forgets_what_its_parent_started_from(child):
    here = fork(child.run_dir, "seed=3")
    assert dict(here.config.init) == {"from": str(child.run_dir), "strict": True}
    assert here.fork.lineage["run"] == str(child.run_dir)
    assert [override for override in here.composed.overrides if override.startswith("init.")] == [
        f"init.from={child.run_dir}"
    ]


def test_offline_then_online(sac, tmp_path):
    whole = fork(sac)
    whole.builder.get("memory").store(tmp_path / "memory.zip")
    offline = ("+with=offline", f"dataset={tmp_path / 'memory.zip'}", "stop.updates=20", "stop.env_steps=null")
    parent = rlrun.train([*SAC, *TINY, *offline], run_dir=tmp_path / "offline").run_dir
    online = begun(f"init.from={parent}")
    assert all(holds(online, part, states(parent)[part]) for part in NETWORKS)
    assert len(online.builder.get("memory")) == 98
    both = fork(parent)  # whose memory came from the file, as that of the fork would
    assert len(both.builder.get("memory")) == 98
    assert "memory.import (the memory is that of another run)" in both.fork.lines[1]
    assert both.part(rlrun.callbacks.MemoryImport).state_dict()["taken_in"]
