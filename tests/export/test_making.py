"""`rlrun export-onnx`: the files of a run's policy, and who can use them."""

import json
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from tests.command import code_of

import rlrun
from rlrun.core.errors import RequestError, RlrunError
from rlrun.export import making
from rlrun.export.checking import Parity, action_difference

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


@pytest.fixture(autouse=True)
def _quick():
    making.keep_operators()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    rlrun.train(WORDS, run_dir=folder)
    about = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**about, "git": None}))  # as outside of a repository
    return folder


@pytest.fixture(scope="module")
def made(run):
    making.keep_operators()
    return rlrun.export_onnx(run, episodes=3, seed=7)


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
    for seeds, lengths, returns in (
        (file.seeds, file.lengths, file.returns),
        [made.about["episodes"][name] for name in ("seeds", "lengths", "returns")],
    ):
        assert (seeds, lengths) == (policy.seeds, [50, 50, 50])
        assert returns == pytest.approx(policy.returns, rel=1e-4)
    assert (file.lengths, file.checkpoint, file.env_steps) == (policy.lengths, policy.checkpoint, policy.env_steps)


def test_it_plays_where_nothing_else_is_installed(run, made):
    client = run / "exports" / "play_onnx.py"
    command = [sys.executable, "-c", ALONE, str(client), str(made.path), "--episodes", "3", "--seed", "7"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
    mean = np.mean(made.about["episodes"]["returns"])
    assert printed[-1] == f"mean return {mean:.6g} over 3 episodes"


def test_what_disagrees_is_not_written(run, tmp_path, monkeypatch):
    def wrong(data, graph, format):
        return lambda inputs: {"action": np.zeros((len(inputs["observation"]), 1), np.float32)}

    monkeypatch.setattr(making, "running", wrong)
    with pytest.raises(RlrunError, match="the exported policy disagrees: 'action' is off by"):
        rlrun.export_onnx(run, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_action_that_differs_in_an_episode_is_found(run, tmp_path, monkeypatch):
    monkeypatch.setattr(making, "compare", lambda *args, **named: Parity(0, 0.0))
    monkeypatch.setattr(making, "_file_bytes", slightly_other(making._file_bytes))
    with pytest.raises(RlrunError, match="disagrees in an episode: 'action' is"):
        rlrun.export_onnx(run, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("position", "accepted"), [(0.0, True), (2.0e-6, False), (0.5, False)])
def test_a_choice_may_differ_in_ties(position, accepted):
    def policy(inputs):
        return {"action": (inputs["observation"][:, 0] > 5.0e-7).astype(np.int64)}

    inputs = {"observation": np.array([[position]], np.float32)}
    expectation = nullcontext() if accepted else pytest.raises(RlrunError, match="disagrees in an episode")
    with expectation:
        action = {"action": 1 - policy(inputs)["action"]}
        assert action_difference(action, inputs, policy, np.random.default_rng(0)) == 0.0


def slightly_other(make):
    """Return what makes the file of a policy that is not quite the one."""

    def wrapped(graph, about):
        layer = graph.agent.policy.head.layer
        layer.bias.data += 0.01
        try:
            return make(graph, about)
        finally:
            layer.bias.data -= 0.01

    return wrapped


@pytest.mark.parametrize(
    ("given", "describe_error"),
    [
        ({"format": "onx"}, "--format onx: there are onnx, pt2 (did you mean 'onnx'?)"),
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


def test_a_missing_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(RequestError, match=r"needs the package 'onnxscript'.*\[export\]'"):
        rlrun.export_onnx(run)


def test_the_command_prints_what_was_found(run, tmp_path, capsys):
    assert code_of("export-onnx", str(run), "--output", str(tmp_path / "a.onnx"), "--episodes", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(tmp_path / "a.onnx")
    assert report["parity"]["largest"] <= report["parity"]["tolerance"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.json", "play_onnx.py"]
