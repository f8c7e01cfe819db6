"""Policies exported while they are trained."""

import json
import threading
from pathlib import Path

import pytest

import rlrun
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.export.during import OnnxExport
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer

pytest.importorskip("onnx")
WORDS = (
    *("algorithm=dqn", "env=cartpole", "+with=export_onnx", "algorithm.hidden=[8]", "algorithm.warmup_steps=20"),
    *("evaluation.every=0", "logger=[]", "log.every=0"),
)


class Ender(Callback):
    """Asks for files, of which the first two cannot be written; ends training once another thread has one, too."""

    def __init__(self, export):
        self.export = export
        self.found, self.failed = [], []
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        self.found.append(self.export.export_threadsafe({"asked": "yes"}))

    def fail(self):
        with pytest.raises(RlrunError) as error:
            self.export.export()
        self.failed.append(str(error.value))

    def end_batch(self, update):
        if update == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self.export.agent.policy, "own", lambda: None, raising=False)
                self.fail()
            self.export.items.path_of(2).mkdir()
            self.fail()
            self.export.export({"asked": "third"})
            self.thread.start()
        if update > 100 and self.found:
            raise Stop("enough")


def test_files_are_written_now_and_then_on_request_and_for_other_threads(tmp_path, caplog):
    experiment = Experiment(compose([*WORDS, "export.every=60", "export.keep=2", "stop.env_steps=1_000_000"]))
    export = experiment.part(OnnxExport)
    ender = Ender(export)
    experiment.trainer = Trainer({**experiment.trainer.callbacks, "ender": ender}, experiment.trainer.loader)
    run = RunDir.claim(tmp_path / "run")
    with experiment.begin(run):
        assert experiment.train(run)["status"] == "completed"
    ender.thread.join(20)
    assert "Can't pickle" in ender.failed[0]
    assert "Is a directory" in ender.failed[1]
    assert [f"export {number} failed" in caplog.text for number in (1, 2, 3)] == [True, True, False]
    assert ender.found[0].handle == 4  # the third one was asked for by the thread that trains
    assert export.count >= 6  # those, one at 60 and at 120 steps
    assert [item.handle for item in export.items.items()] == [export.count - 1, export.count]
    newest = export.items.latest().path
    about = json.loads(newest.with_name(f"{newest.name}.json").read_text())
    assert about["model_version"] == export.count
    assert about["env_steps"] >= 120
    assert about["parity"]["largest_at_edges"] == 0.0
    assert about["env"]["id"] == "CartPole-v1"
    newer = sorted(path.name for path in run.exports.iterdir() if not path.name.startswith("policy_000002"))
    assert [Path(name).suffix for name in newer] == [".onnx", ".json"] * 2
    with pytest.raises(RlrunError, match="nothing is being trained"):
        export.export_threadsafe()


def test_training_stays_the_same(tmp_path):
    alone = [override for override in WORDS if "export" not in override]
    for name, overrides in (("alone", alone), ("exporting", [*WORDS, "export.every=30", "export.stochastic=true"])):
        rlrun.train([*overrides, "stop.env_steps=60"], run_dir=tmp_path / name)
    own, exporting = (checkpoint_digests(tmp_path / name) for name in ("alone", "exporting"))
    assert len(own) > 5
    assert own == {part: digest for part, digest in exporting.items() if part != "callbacks.export"}


def checkpoint_digests(run):
    return rlrun.checkpoints(run, digest=True)[-1].parts


@pytest.mark.parametrize(
    ("override", "describe_error"), [("export.every=-1", "wanted every >= 0"), ("export.keep=0", "keep >= 1")]
)
def test_wrong_numbers_are_refused(override, describe_error):
    with pytest.raises(ConfigError, match=describe_error):
        Experiment(compose([*WORDS, override]))


def exporting(tmp_path, run, *overrides):
    where = f"export.directory={tmp_path / 'models'}"
    return rlrun.train([*WORDS, where, "export.prefix=mine_", "stop.env_steps=30", *overrides], run_dir=tmp_path / run)


def test_files_of_a_folder_and_prefix_of_ones_own(tmp_path):
    exporting(tmp_path, "one")
    models = tmp_path / "models"
    assert sorted(path.name for path in models.iterdir()) == ["mine_000001.onnx", "mine_000001.onnx.json"]
    assert not (tmp_path / "one" / "exports").exists()
    before = (models / "mine_000001.onnx").read_bytes()
    with pytest.raises(RlrunError, match=r"mine_000001.onnx was not written by this run; another export.directory"):
        exporting(tmp_path, "other")
    assert (models / "mine_000001.onnx").read_bytes() == before
    exporting(tmp_path, "third", "export.prefix=third_")
    rlrun.resume(tmp_path / "one", ["stop.env_steps=40"])
    assert sorted(path.name for path in models.glob("*.onnx")) == ["mine_000001.onnx", "third_000001.onnx"]
    assert (models / "mine_000001.onnx").read_bytes() != before  # written again, 10 steps later


@pytest.mark.parametrize("prefix", ["''", "a/b", "../x"])
def test_prefix_is_the_beginning_of_a_name(prefix, tmp_path):
    with pytest.raises(ConfigError, match=r"export.prefix: wanted the beginning"):
        exporting(tmp_path, "run", f"export.prefix={prefix}")
