"""`rlrun export-onnx`: the files of a run's policy, and who can use them."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tests.command import code_of

import rlrun
from rlrun.commands.schema import schema
from rlrun.core.errors import RequestError, RlrunError
from rlrun.devtools.init import init
from rlrun.export import making, play_onnx

onnx = pytest.importorskip("onnx")
WORDS = (
    *("algorithm=ppo", "env=pendulum", "algorithm.hidden=[8]", "algorithm.horizon=32", "num_envs=2"),
    *("+with=observation_norm", "stop.env_steps=128", "evaluation.every=0", "logger=[]", "evaluation.max_steps=50"),
)
ALONE = """
import sys
from contextlib import nullcontext
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rlrun", "torch", "onnx", "omegaconf"):
            raise ImportError("not here: " + name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    rlrun.train(WORDS, run_dir=folder)
    about = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**about, "git": None}))  # as outside of a repository
    return folder


@pytest.fixture(scope="module")
def made(run):
    return rlrun.export_onnx(run, seed=7)


def test_the_file_says_what_it_is(run, made):
    assert made.path == run / "exports" / "policy.onnx"
    proto = onnx.load(made.path)
    onnx.checker.check_model(proto)
    assert (proto.producer_name, proto.producer_version, proto.domain) == ("rlrun", rlrun.__version__, "rlrun")
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    about = json.loads((run / "exports" / "policy.onnx.json").read_text())
    assert proto.model_version == about["updates"] > 0
    for key in ("config_hash", "env_steps", "checkpoint", "training_seed"):
        assert metadata[key] == str(about[key])
    assert (about["commit"], "commit" in metadata, "None" in metadata.values()) == (None, False, False)
    assert [dim.dim_param or dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim] == ["envs", 3]
    assert about["inputs"][0] | {"low": None, "high": None} == {
        "name": "observation",
        "role": "observation",
        "shape": [3],
        "dtype": "float32",
        "kind": "Box",
        "low": None,
        "high": None,
        "env_dtype": "float32",
    }
    assert about["outputs"][0]["low"] == -2.0


def test_its_episodes_are_those_of_eval_of_the_run(run, made):
    policy, file = (rlrun.evaluate(place, episodes=3, seed=7) for place in (run, made.path))
    assert file.returns == pytest.approx(policy.returns, rel=1e-4)
    assert made.about["episode"] == {"seed": 7, "return": policy.returns[0], "length": 50}
    assert (made.about["parity"]["rows"], file.seeds, file.lengths) == (50, policy.seeds, [50, 50, 50])
    assert (file.lengths, file.checkpoint, file.env_steps) == (policy.lengths, policy.checkpoint, policy.env_steps)


def test_it_plays_where_nothing_else_is_installed(run, made):
    client = run / "exports" / "play_onnx.py"
    command = [sys.executable, "-c", ALONE, str(client), str(made.path), "--episodes", "3", "--seed", "7"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
    wanted = rlrun.evaluate(run, episodes=3, seed=7).returns
    assert [float(line.split()[5].strip(",")) for line in printed[:3]] == pytest.approx(wanted, rel=1e-4)
    assert printed[3].endswith("over 3 episodes")


def test_an_environment_that_is_nowhere_is_named(made, tmp_path, monkeypatch, capsys):
    file = Path(shutil.copy(made.path, tmp_path / "a.onnx"))
    about = {**made.about, "env": {**made.about["env"], "target": "nowhere_to_be_found.Env"}}
    file.with_suffix(".onnx.json").write_text(json.dumps(about))
    monkeypatch.setattr(sys, "argv", ["play_onnx.py", str(file)])
    with pytest.raises(SystemExit) as caught:
        play_onnx.main()
    message = "No module named 'nowhere_to_be_found': install it, or name the folder that it is in by PYTHONPATH\n"
    assert (caught.value.code, capsys.readouterr().err) == (2, message)


def test_what_disagrees_is_not_written(run, tmp_path, monkeypatch):
    def wrong(data, graph):
        return lambda inputs: {"action": np.zeros((len(inputs["observation"]), 1), np.float32)}

    monkeypatch.setattr(making, "running", wrong)
    with pytest.raises(RlrunError, match="the exported policy disagrees: 'action' is off by"):
        rlrun.export_onnx(run, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_slightly_other_policy_is_not_written(run, tmp_path, monkeypatch):
    make = making.onnx_bytes

    def slightly_other(graph, about, *, version):
        bias = graph.agent.policy.head.layer.bias.data
        bias += 1e-4
        data = make(graph, about, version=version)
        bias -= 1e-4
        return data

    monkeypatch.setattr(making, "onnx_bytes", slightly_other)
    with pytest.raises(RlrunError, match=r"disagrees: 'action' is off by \d\.\de-04"):
        rlrun.export_onnx(run, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "describe_error"),
    [
        ({"checkpoint": "3"}, "checkpoint"),
        ({"output": "."}, "is a folder; --output names the file"),
        ({"output": "no/such/policy.onnx"}, "is no folder; make it"),
    ],
)
def test_wrong_requests_are_refused(run, given, describe_error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError) as caught:
        rlrun.export_onnx(run, **given)
    assert describe_error in str(caught.value)


def test_a_disk_that_is_read_only_is_a_wrong_request(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    for request in (
        lambda: rlrun.export_onnx(run, tmp_path / "policy.onnx"),
        lambda: rlrun.report(run, out=tmp_path / "report.html"),
        lambda: init(tmp_path / "new"),
        lambda: schema(tmp_path),
    ):
        with pytest.raises(RequestError, match=r"cannot be written: Read-only file system"):
            request()
    assert list(tmp_path.iterdir()) == []


def read_only(**named):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_missing_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(RequestError, match=r"needs the package 'onnxscript'.*\[export\]'"):
        rlrun.export_onnx(run)


def test_the_command_prints_what_was_found(run, tmp_path, capsys):
    assert code_of("export-onnx", str(run), "--output", str(tmp_path / "a.onnx"), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(tmp_path / "a.onnx")
    assert report["parity"]["largest"] <= report["parity"]["tolerance"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.json", "play_onnx.py"]
