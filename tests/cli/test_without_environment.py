"""Runs that learn from data alone, from the command line: no environment, no agent, no returns."""

import json
import shutil
import sys

import jsonschema
import numpy as np
import pytest
import yaml
from tests.cli.conftest import refused
from tests.identical import compare, differing
from tests.resume.twins import copy_as_killed

import rlrun
from rlrun import checkpointing, load
from rlrun.config import compose
from rlrun.export.play_onnx import Policy
from rlrun.memory import Split, digits
from rlrun.runs.directory import RunDir

TINY = ("algorithm.hidden=[16]", "encoder=flat", "stop.updates=60", "evaluation.every=20", "logger=[]")
CLASSIFIER = ("algorithm=classifier", *TINY)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run with all of its checkpoints; nobody changes it."""
    overrides = [*CLASSIFIER, "algorithm.lr=3.0e-2", "checkpoint.every=10", "checkpoint.keep_last=null", "log.every=10"]
    return rlrun.train(overrides, run_dir=tmp_path_factory.mktemp("trained") / "run").run_dir


@pytest.mark.parametrize(
    ("overrides", "env"),
    [
        (["algorithm=classifier"], "none"),
        (["algorithm=mine"], "none"),
        (["algorithm=theirs"], "bandit"),
        (["algorithm=mine", "env=cartpole"], "cartpole"),
        (["algorithm=mine", "env.id=CartPole-v1"], "gym"),
        (["algorithm=sac", "env=cartpole"], "cartpole"),
        (["preset=chosen"], "chain"),
    ],
)
def test_algorithms_choose_their_environment(overrides, env, project, write):
    write("conf/algorithm/mine.yaml", "# @package _global_\ndefaults: [/rlrun/algorithm/classifier]\n")
    write("conf/algorithm/theirs.yaml", "# @package _global_\ndefaults: [mine, override /env: bandit]\n")
    chooses = "defaults: [override /algorithm: classifier, override /env: chain]\n"
    write("conf/preset/chosen.yaml", f"# @package _global_\n{chooses}")
    assert compose(overrides, check=False).choices["env"] == env


def test_other_algorithms_still_want_one(rlrun, write):
    refused(rlrun("train", "algorithm=dqn"), ["env: no environment is named", "env=NAME"])


def test_the_outcome_is_told_without_returns(trained, rlrun):
    summary = json.loads((trained / "summary.json").read_text())
    assert (summary["evaluation"], summary["updates"], summary["env_steps"]) == (None, 60, 0)
    assert summary["objective"] == summary["validation"]["accuracy"] > 0.8
    listed = json.loads(rlrun("ls", trained, "--json").out)[0]
    assert listed["objective"] == summary["objective"]
    rows = rlrun("checkpoints", trained).out.splitlines()
    assert f"{summary['objective']:.2f}" in next(row for row in rows if " latest" in row)
    outcome = rlrun("resume", trained)
    assert outcome.out.startswith(f"completed: accuracy {summary['objective']:.4g}, ")
    assert " on held-out data (60 updates, " in outcome.out
    assert outcome.err == "the run is finished at 60 updates; stop.updates=… beyond that extends it\n"


def test_rules_of_environments_are_omitted(trained, rlrun):
    diagnosis = json.loads(rlrun("why", trained, "--json").out)
    assert [*diagnosis["unmade"]] == ["learning rate too low"]  # 60 updates are few
    assert "dead units" in diagnosis["healthy"]


def test_particles_end_with_their_metrics(rlrun, project):
    outcome = rlrun("train", "algorithm=particles", "stop.updates=5", "logger=[]", "--run-dir", "run")
    newest = json.loads((project / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    numbers = f"particles/energy {newest['particles/energy']:.4g}, particles/spread {newest['particles/spread']:.4g}"
    assert outcome.out.startswith(f"completed: {numbers} (5 updates, ")


def test_intervals_count_updates(rlrun, project):
    shown = rlrun("explain", *CLASSIFIER, "checkpoint.every=30").out
    assert "every 30 updates" in shown
    assert " steps" not in shown
    assert "every 30 steps" in rlrun("explain", "algorithm=dqn", "env=bandit", "checkpoint.every=30").out


def test_progress_counts_updates_and_shows_metrics(rlrun, project):
    outcome = rlrun("train", *CLASSIFIER, "logger=[terminal]", "log.every=20", "--run-dir", "run")
    line = next(line for line in outcome.err.splitlines() if "60/60 updates 100%" in line)
    accuracy = json.loads((project / "run" / "summary.json").read_text())["validation"]["accuracy"]
    assert f"accuracy {accuracy:.4g} likelihood -" in line
    assert "return" not in line


def test_best_is_the_best_validation(trained):
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    validated = {record["updates"]: record["validation/accuracy"] for record in records if "validation/auroc" in record}
    assert [*validated] == [20, 40, 60]
    best = max(validated, key=lambda update: (validated[update], update))
    assert int(RunDir(trained).checkpoint("best").name.split("-")[1]) == best


def test_eval_measures_checkpoints_as_training(trained, rlrun):
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    logged = {record["updates"]: record["validation/accuracy"] for record in records if "validation/auroc" in record}
    results = json.loads(rlrun("eval", trained, "--checkpoint", "all", "--json").out)
    jsonschema.validate({"eval": results}, json.loads(rlrun("schema", "--outputs").out))
    measured = {int(result["checkpoint"][-10:]): result["metrics"]["accuracy"] for result in results}
    assert [*measured] == [10, 20, 30, 40, 50, 60]
    assert {update: measured[update] for update in logged} == logged
    text = rlrun("eval", trained, "--network", "networks.classifier").out
    assert text.startswith(f"accuracy {measured[60]:.6g}, likelihood ")
    assert "on 359 held-out rows (checkpoint 0000000060-0000000060)" in text


def test_killed_runs_end_with_the_same_bytes(trained, tmp_path):
    copy_as_killed(trained, tmp_path / "run", at=30)
    rlrun.resume(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["resume"] == "exact"
    same = compare(trained, tmp_path / "run")
    assert all(same.values()), (same, differing(trained, tmp_path / "run"))


def test_exported_networks_play_in_onnxruntime(trained, rlrun, tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "network.onnx"
    assert rlrun("export-onnx", trained, "--checkpoint", "best", "--output", path).code == 0
    measured = json.loads(rlrun("eval", trained, "--checkpoint", "best", "--json").out)["metrics"]
    split = Split(digits(), fraction=0.2, stratify="label")
    batch = split.held_out.batch(np.arange(len(split.held_out)))
    images, labels = batch["observation"].numpy(), batch["label"].numpy()
    scores = Policy(path).run({"observation": images})["action"]
    assert np.mean(scores.argmax(-1) == labels) == pytest.approx(measured["accuracy"])
    np.testing.assert_allclose(load(path).predict(images)[0], scores, atol=1e-4)
    refused(rlrun("eval", path), ["network.onnx is a network, no policy"])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A short run with a network of several parts, next to another network."""
    run_dir = tmp_path_factory.mktemp("encoder") / "run"
    return rlrun.train(["algorithm=vae", *TINY, "algorithm.condition=label"], run_dir=run_dir).run_dir


@pytest.mark.parametrize(
    ("options", "inputs", "width"),
    [
        ((), 2, 64),
        (("--network", "networks.vae.encoder"), 2, 16),
        (("--network", "networks.vae.decoder"), 1, 64),
    ],
)
def test_parts_of_networks_are_exported(options, inputs, width, encoder, rlrun, tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "part.onnx"
    assert rlrun("export-onnx", encoder, *options, "--output", path).code == 0
    about = json.loads((tmp_path / "part.onnx.json").read_text())
    assert (len(about["inputs"]), about["outputs"][0]["shape"][-1]) == (inputs, width)


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """A short run that divides images among slots."""
    small = ("stop.updates=3", "data.dataset.rows=50", "algorithm.hidden=[4]", "evaluation.every=2", "logger=[]")
    return rlrun.train(["algorithm=monet", *small], run_dir=tmp_path_factory.mktemp("divided") / "run").run_dir


@pytest.mark.parametrize(
    ("part", "input", "outputs"),
    [
        ("", [32, 32, 3], {"action.image": [3072], "action.masks": [3, 32, 32]}),
        (".encoder", [4, 32, 32], {"action": [32]}),
        (".decoder", [16], {"action": [4096]}),
    ],
    ids=["whole", "encoder", "decoder"],
)
def test_slots_are_exported(part, input, outputs, divided, rlrun, tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "part.onnx"
    outcome = rlrun("export-onnx", divided, "--network", f"networks.monet{part}", "--output", path)
    assert (outcome.code, outcome.err) == (0, "")
    about = json.loads((tmp_path / "part.onnx.json").read_text())
    assert [port["shape"] for port in about["inputs"]] == [input]
    assert {port["name"]: port["shape"] for port in about["outputs"]} == outputs


def test_data_without_segments_are_no_loss(rlrun, project):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    np.savez(project / "images.npz", observation=images)
    file = ("algorithm=monet", "data=file", "data.dataset=images.npz", "stop.updates=1", "algorithm.hidden=[4]")
    left_out = "callbacks.validation.metrics.ari=null"
    refused(rlrun("train", *file), ["the held-out data have no 'segmentation'", f"; {left_out} leaves the metric out"])
    assert rlrun("train", *file, left_out, "--run-dir", "run").code == 0


def test_generators_are_exported(rlrun, project):
    pytest.importorskip("onnx")
    small = ("algorithm.hidden=[4]", "algorithm.noise=1", "algorithm.scale=0.5", "stop.updates=3", "logger=[]")
    assert rlrun("train", "algorithm=generator", *small, "--run-dir", "run").code == 0
    assert rlrun("export-onnx", "run", "--network", "networks.particles", "--output", "noise.onnx").code == 0
    noise = np.random.default_rng(0).standard_normal((5, 2), np.float32)
    weights = checkpointing.load(RunDir.open("run").checkpoint("latest"), ["networks.particles"])["networks.particles"]
    first, second = (weights[f"layers.{layer}.weight"].numpy() for layer in (0, 2))
    hidden = noise[:, :1] @ first.T + weights["layers.0.bias"].numpy()
    wanted = np.maximum(hidden, 0.0) @ second.T + weights["layers.2.bias"].numpy() + 0.5 * noise
    np.testing.assert_allclose(load("noise.onnx").predict(noise)[0], wanted, atol=1e-5)
    refused(rlrun("eval", "run", "--network", "networks.particles"), ["no callbacks.validation judges"])
    refused(rlrun("export-onnx", "run", "--network", "networks.particles.layers"), ["no callbacks.validation judges"])


def test_networks_of_several_columns_stay(rlrun, project):
    small = ("data.dataset.rows=100", "algorithm.hidden=[4]", "stop.updates=2", "evaluation.every=2", "logger=[]")
    assert rlrun("train", "algorithm=mutual_information", *small, "--run-dir", "run").code == 0
    parts = ["networks.mutual_information: this network reads the columns x and y, and is not exported"]
    refused(rlrun("export-onnx", "run"), parts)


def test_missing_parts_are_named(encoder, rlrun):
    parts = [
        "--network networks.vae.encodr: VAE has no attribute",
        "networks.vae has the parts encoder, prior, decoder",
    ]
    refused(rlrun("eval", encoder, "--network", "networks.vae.encodr"), parts)


def edited(trained, folder, change):
    """Return a copy of a run with another config."""
    shutil.copytree(trained, folder / "run")
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text())
    change(config)
    (folder / "run" / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    return folder / "run"


@pytest.mark.parametrize("command", ["eval", "export-onnx"])
@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda config: config["callbacks"].update(validation="text"), "no callbacks.validation judges"),
        (lambda config: config.update(callbacks=[]), "callbacks"),
    ],
)
def test_wrong_configs_are_refused(change, part, command, trained, rlrun, tmp_path):
    run = edited(trained, tmp_path, change)
    before = sorted(tmp_path.rglob("*"))
    refused(rlrun(command, run, "--trust"), [part])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_name_of_a_network_is_refused(trained, rlrun):
    refused(rlrun("export-onnx", trained, "--network", "networks.classifier."), ["--network networks.classifier."])


@pytest.mark.parametrize("options", [(), ("--checkpoint", "0000000060-0000000060,best")])
def test_names_of_metrics_are_printed_without_control_characters(options, trained, rlrun, tmp_path):
    def change(config):
        metrics = config["callbacks"]["validation"]["metrics"]
        metrics["a\x07b"] = metrics["accuracy"]

    outcome = rlrun("eval", edited(trained, tmp_path, change), "--trust", *options)
    assert (outcome.code, "a?b" in outcome.out, "\x07" in outcome.out) == (0, True, False)


def test_the_validated_network_is_the_default(rlrun, project):
    small = ("algorithm.hidden=[4]", "algorithm.network.hidden=[4]", "algorithm.members=3", "algorithm.particles=2")
    overrides = ("algorithm=hypernetwork", "encoder=flat", *small, "stop.updates=3", "evaluation.every=3", "logger=[]")
    assert rlrun("train", *overrides, "--run-dir", "run").code == 0
    judged = json.loads((project / "run" / "summary.json").read_text())["validation"]
    assert json.loads(rlrun("eval", "run", "--json").out)["metrics"] == pytest.approx(judged)
    refused(rlrun("eval", "run", "--network", "networks.vote"), ["did you mean 'networks.votes'"])


def test_exports_that_differ_are_refused(trained, rlrun, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    from rlrun.export import making

    own = making.running

    def other(*arguments):
        run = own(*arguments)
        return lambda inputs: {name: value * 1.001 for name, value in run(inputs).items()}

    monkeypatch.setattr(making, "running", other)
    outcome = rlrun("export-onnx", trained, "--output", tmp_path / "network.onnx")
    assert (outcome.code, "'action' is off by" in outcome.err, list(tmp_path.iterdir())) == (1, True, [])


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (
            ("eval", "--network", "networks.clasifier"),
            ["--network networks.clasifier: there are", "did you mean 'networks.classifier'"],
        ),
        (("eval", "--epsilon", "0.1"), ["--epsilon", "go with episodes"]),
        (("eval", "--stochastic"), ["--stochastic"]),
        (("eval", "--video", "videos"), ["--video", "go with episodes"]),
        (("export-onnx", "--stochastic"), ["--stochastic goes with a policy"]),
        (("play",), ["this run has no agent that plays"]),
    ],
)
def test_commands_of_agents_are_refused(command, parts, trained, rlrun, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    refused(rlrun(command[0], trained, *command[1:]), parts)


def test_runs_with_agents_have_no_network(tiny_run, rlrun, monkeypatch):
    folder = tiny_run("algorithm=dqn", "env=bandit").out.splitlines()[-1]
    refused(rlrun("eval", folder, "--network", "networks.critics"), ["networks.critics: this run has an agent"])
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    refused(rlrun("eval", folder, "--video", "films"), ["--video", "[video]'"])


@pytest.mark.parametrize("env", ["env=cartpole", "env.id=CartPole-v1"])
def test_environments_are_refused(env, rlrun):
    refused(rlrun("check", "algorithm=vae", env), ["algorithm=vae learns from data alone; leave env= out"])


FALLING = "algorithm.temperature={_target_: rlrun.core.schedules.Linear, first: 1.0, last: 0.0, steps: 2}"


@pytest.mark.parametrize("temperature", ["algorithm.temperature=0", "algorithm.temperature=-1", FALLING])
def test_temperatures_are_above_zero(temperature, rlrun):
    outcome = rlrun("train", "algorithm=discrete_vae", "algorithm.mode=st-gumbel", *TINY, temperature)
    refused(outcome, ["temperature: wanted a number above 0, got"])


def test_columns_of_files_are_named(rlrun, project):
    np.savez(project / "names.npz", pixels=np.zeros((9, 4), np.float32), kind=np.zeros(9, int))
    file = ("data=file", "data.dataset=names.npz")
    refused(rlrun("check", *CLASSIFIER, *file), ["'data.spaces' (dict) has no 'observation'; there are pixels, kind"])


def test_texts_are_no_archives(rlrun, project):
    (project / "text.npz").write_text("observation,label")
    outcome = rlrun("check", *CLASSIFIER, "data=file", "data.dataset=text.npz")
    refused(outcome, ["text.npz is damaged or holds something else than arrays"])
    assert "allow_pickle" not in outcome.err


def test_limits_end_the_run(rlrun, project):
    outcome = rlrun("train", *CLASSIFIER, "stop.validation=0.3", "algorithm.lr=1e-2", "--run-dir", "run")
    assert outcome.code == 0
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert summary["stopped_by"].startswith("validation reached accuracy")
    assert summary["updates"] in (20, 40)


def test_promises_may_be_of_validations(rlrun, project):
    for bound, code in ((0.2, 0), (1.5, 1)):
        promise = f"+expect.metrics={{validation/accuracy: {{at_least: {bound}}}}}"
        assert rlrun("train", *CLASSIFIER, promise, "--expect", "--run-dir", f"run{bound}").code == code


def test_searches_go_by_the_validation(rlrun, project):
    pytest.importorskip("optuna")
    lr = "algorithm.lr=tag(log,interval(1e-4,1e-2))"
    overrides = (*CLASSIFIER, "stop.updates=20", lr, "+sweep=optuna", "sweep.trials=2", "sweep.top=0")
    assert rlrun("train", "-m", *overrides, "--sweep-dir", "sweep").code == 0
    answer = json.loads((project / "sweep" / "best.json").read_text())
    assert (answer["objective"], answer["direction"]) == (["validation/accuracy"], ["maximize"])
    report = rlrun("report", "sweep", "--json").out
    assert json.loads(report)["metric"] == "validation/accuracy"


def test_runs_without_any_limit_say_so(rlrun, project):
    outcome = rlrun("check", *CLASSIFIER, "stop.updates=null")
    assert "no limit is set in stop" in outcome.out + outcome.err
