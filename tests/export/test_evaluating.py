"""`rlrun eval FILE.onnx`: an exported policy plays what the policy itself plays, and what does not fit is refused."""

import json
import sys

import gymnasium
import numpy as np
import pytest
from tests.command import code_of
from tests.export.made import SMALL, SPACES, file_of, make

import rlrun
from rlrun.collect.video import Stage
from rlrun.config import compose
from rlrun.core.errors import RequestError, RlrunError
from rlrun.export.making import environment, interface, write_about
from rlrun.export.opening import exported

onnx = pytest.importorskip("onnx")
EPISODES = 19  # more than envs, so that envs begin a second one
RECURRENT = ("algorithm.recurrent=gru", "algorithm.core_size=5")
EVIL = """
import pathlib
pathlib.Path("canary").write_text("evil.py was imported")
"""
WALKER = """
from gymnasium.envs.classic_control import CartPoleEnv
class Mine(CartPoleEnv):
    pass
"""


class Narrow(gymnasium.Env):
    """Takes numbers of two bytes and flags, each a Box; the reward is their sum."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Tuple(
        (gymnasium.spaces.Box(-3, 1, (2,), np.float16), gymnasium.spaces.Box(0, 1, (2,), np.bool_))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), {}

    def step(self, action):
        assert [part.dtype for part in action] == [np.float16, np.bool_]
        self.steps += 1
        reward = float(sum(part.astype(np.float64).sum() for part in action))
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), reward, False, self.steps == 5, {}


def test_narrow_actions_are_those_of_the_run(tmp_path):
    tiny = ["stop.env_steps=4", "evaluation.every=0", "logger=[]", "algorithm.hidden=[8]"]
    overrides = ["algorithm=sac", "env.target=tests.export.test_evaluating.Narrow", *tiny]
    rlrun.train(overrides, run_dir=tmp_path / "run")
    rlrun.export_onnx(tmp_path / "run", output=tmp_path / "policy.onnx")
    played = [rlrun.evaluate(policy, episodes=3).returns for policy in (tmp_path / "run", tmp_path / "policy.onnx")]
    assert played[0] == pytest.approx(played[1], abs=0.05)
    assert len({number % 1 for number in played[0]}) > 1  # fractions are not rounded away


class Exports:
    """Policies that nobody trained, with all that an export has."""

    def __init__(self, folder):
        self.folder = folder
        self.held = {}

    def get(self, name, *overrides, stochastic=False):
        """Return how a policy and its environment were built, and the file."""
        if name not in self.held:
            setup, path = make(*overrides, *SMALL), self.folder / f"{name}.onnx"
            for parameter in setup.agent.policy.parameters():
                parameter.data.normal_(0.0, 0.8)  # so that it matters what is seen
            graph = setup.graph(stochastic=stochastic)
            path.write_bytes(file_of(graph))
            about = {**interface(graph), "env": environment(compose([*overrides, *SMALL]).config), "env_steps": 12}
            write_about(path, about)
            self.held[name] = setup, path
        return self.held[name]

    def cartpole(self):
        return self.get("cartpole", "algorithm=dqn", "env=cartpole")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return Exports(tmp_path_factory.mktemp("exports"))


@pytest.fixture
def lone(exports, tmp_path, monkeypatch):
    """A copy of a file that may be spoilt, beside what describes it; one stands in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, path = exports.cartpole()
    for suffix in ("", ".json"):
        (tmp_path / f"policy.onnx{suffix}").write_bytes(path.with_name(path.name + suffix).read_bytes())
    return tmp_path / "policy.onnx"


def metadata_of(path):
    return json.loads(path.with_name(f"{path.name}.json").read_text())


def tell(path, about):
    write_about(path, about)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("cartpole", ("algorithm=dqn", "env=cartpole")),
        ("image", ("algorithm=dqn", SPACES["image"])),
        ("start", ("algorithm=dqn", SPACES["start"])),
        ("recurrent", ("algorithm=ppo", SPACES["dict"], *RECURRENT)),
    ],
)
def test_a_file_plays_the_episodes_of_its_policy(exports, name, overrides):
    setup, path = exports.get(name, *overrides)
    report = rlrun.evaluate(path, episodes=EPISODES, seed=3)
    with Stage(setup.env, episodes=EPISODES, seed=3, max_steps=10_000) as stage:
        wanted, _ = stage.play(setup.agent)
    assert report.returns == pytest.approx(wanted.returns, rel=1e-5)
    assert (report.lengths, report.seeds, report.endings) == (wanted.lengths, wanted.seeds, wanted.endings)
    assert len({*report.lengths, *report.returns}) > 2
    assert (report.run, report.checkpoint, report.env_steps) == (path, path.name, 12)


def test_a_file_that_draws_acts_as_in_training_and_the_same_again(exports):
    setup, path = exports.get(
        "drawing",
        "algorithm=sac",
        SPACES["box"],
        "env.wrappers=[{_target_: gymnasium.wrappers.TimeLimit, max_episode_steps: 40}]",
        stochastic=True,
    )
    first, again, third = (rlrun.evaluate(path, episodes=EPISODES, seed=seed, stochastic=True) for seed in (3, 3, 4))
    with Stage(setup.env, episodes=EPISODES, seed=3, max_steps=10_000, explore=True) as stage:
        wanted, _ = stage.play(setup.agent)
    assert first.returns == again.returns
    assert first.returns[1:] != third.returns[:-1]  # of the same seeds of episodes
    assert first.returns == pytest.approx(wanted.returns, rel=1e-5)


def test_actions_reach_the_environment_as_the_file_gives_them(exports):
    _, path = exports.get("tuple", "algorithm=sac", SPACES["tuple"], stochastic=True)
    with exported(path) as policy:
        taken = []
        (env,) = policy.env.envs
        step = env.step
        policy.env._step_functions[0] = lambda action: (taken.append(action), step(action))[1]
        response = policy.agent(policy.env.reset(0))
        policy.env.step(response["action"])
        assert policy.env.outer[1].contains(taken[0])
        for value, reached in zip(response["action"], taken[0], strict=True):
            assert np.array_equal(value[0], reached)


def test_the_command_tells_episodes_and_films_them(lone, capsys):
    pytest.importorskip("imageio_ffmpeg")
    overrides = ["evaluation.max_steps=4", "--episodes", "3", "--video", "films", "--videos", "1", "--format", "gif"]
    assert code_of("eval", lone.name, *overrides, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run"], report["env_steps"], report["lengths"]) == (str(lone), 12, [4, 4, 4])
    assert report["videos"] == ["films/episode_000_seed_0.gif"]
    assert (lone.parent / report["videos"][0]).read_bytes()[:3] == b"GIF"
    assert code_of("eval", lone.name, *overrides[:3], "--table") == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:3] for row in rows[3:]] == [[str(seed), "4.00", "4"] for seed in range(3)]


def test_a_file_is_looked_on_as_a_run_is(exports, capsys, monkeypatch):
    _, path = exports.cartpole()
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert code_of("play", str(path)) == 2
    assert "environment 'cartpole' renders no text" in capsys.readouterr().err
    assert code_of("play", str(path), "env.target=rlrun.env.toys.TMaze") == 2
    assert "'observation' was made for shape [4]" in capsys.readouterr().err


def test_a_file_needs_what_describes_it(lone):
    (lone.parent / "policy.onnx.json").unlink()
    with pytest.raises(RequestError, match=r"policy.onnx.json is missing, which describes the policy"):
        rlrun.evaluate(lone, overrides=["env=cartpole"])


@pytest.mark.parametrize(
    ("given", "describe_error"),
    [
        (
            {"overrides": ["env=acrobot"]},
            r"'observation' was made for shape \[4\], but the observation space of the environment has \[6\]",
        ),
        ({"overrides": [SPACES["dict"]]}, "is for 'observation'; the environment has 'observation.level',"),
        ({"overrides": ["env=pendulum"]}, r"'observation' was made for shape \[4\], but .* has \[3\]"),
        ({"overrides": ["env.kwargs.level=3"]}, "env.kwargs.level: env.id 'CartPole-v1' takes no such argument"),
        ({"overrides": ["env.kwrgs.level=3"]}, "env.kwrgs.level: no such key"),
        ({"overrides": ["env=none"]}, "wanted an environment"),
        ({"overrides": ["algorithm.lr=3"]}, "algorithm.lr=3: an exported policy takes env=NAME"),
        ({"checkpoint": "best"}, "--checkpoint goes with a run directory"),
        ({"checkpoint": ["all"]}, "--checkpoint goes with a run directory"),
        ({"stochastic": True}, "--stochastic: cartpole.onnx knows its best actions only"),
    ],
)
def test_what_does_not_fit_a_file_is_refused(exports, given, describe_error):
    with pytest.raises(RequestError, match=describe_error):
        rlrun.evaluate(exports.cartpole()[1], **given)


def test_another_number_of_choices_is_found(lone):
    about = metadata_of(lone)
    about["outputs"][0]["n"] = 3
    tell(lone, about)
    with pytest.raises(RequestError, match="'action' was made for n 3, but the action space of the environment has 2"):
        rlrun.evaluate(lone)
    about["outputs"][0]["n"] = "3" * 1_000_000
    tell(lone, about)
    with pytest.raises(RequestError, match="'action' was made for n '3333") as refused:
        rlrun.evaluate(lone)
    assert len(str(refused.value)) < 500


def edited(change):
    """Return the change of a file that changes what it says."""

    def apply(data):
        proto = onnx.load_from_string(data)
        change(proto)
        return proto.SerializeToString()

    return apply


@edited
def later(proto):
    proto.opset_import[0].version = 99


@edited
def for_one_lane(proto):
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


@edited
def failing(proto):
    """Let a node with a name that commands terminals fail as soon as the file acts."""
    proto.graph.node[-1].output[0] = "found"
    proto.graph.initializer.append(onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1]))
    node = onnx.helper.make_node
    proto.graph.node.extend([node("Shape", ["found"], ["size"]), node("Add", ["size", "one"], ["larger"])])
    proto.graph.node.append(node("Reshape", ["found", "larger"], ["action"], name="\x1b]0;title\x07"))


@pytest.mark.parametrize(
    ("change", "describe_error"),
    [
        (lambda data: b"", "is no ONNX file, or is damaged"),
        (lambda data: b"no graph" * 9, "is no ONNX file, or is damaged"),
        (lambda data: data[: len(data) // 2], "is no ONNX file, or is damaged"),
        (later, "is for a newer onnxruntime than"),
    ],
)
def test_files_that_cannot_be_played_are_refused(lone, change, describe_error):
    lone.write_bytes(change(lone.read_bytes()))
    with pytest.raises(RequestError, match=describe_error):
        rlrun.evaluate(lone)


@pytest.mark.parametrize("change", [for_one_lane, failing])
def test_a_file_that_fails_says_so_and_nothing_else(lone, change, capfd):
    lone.write_bytes(change(lone.read_bytes()))
    with pytest.raises(RlrunError, match=r"policy.onnx cannot act: "):
        rlrun.evaluate(lone)
    assert capfd.readouterr() == ("", "")


def test_a_missing_file_is_named(lone):
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        rlrun.evaluate("none.onnx")


def test_a_missing_runtime_is_named(exports, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RequestError, match=r"needs the package 'onnxruntime'.*\[export\]'"):
        rlrun.evaluate(exports.cartpole()[1])


@pytest.mark.parametrize("damage", [{"initial": "x"}, {"dtype": "text"}, {"shape": 3.5}])
def test_what_does_not_describe_a_file_is_refused(exports, tmp_path, damage):
    _, path = exports.get("recurrent", "algorithm=ppo", SPACES["dict"], *RECURRENT)
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(path.read_bytes())
    about = metadata_of(path)
    about["inputs"][-1] |= damage
    tell(alone, about)
    with pytest.raises(RequestError, match=r"alone.onnx.json is damaged: it does not describe inputs and outputs"):
        rlrun.evaluate(alone)


@pytest.mark.parametrize("text", ["[]", "{", '{"env": 3}', '{"env": {"id": NaN}}'])
def test_damaged_words_about_a_file_are_refused(lone, text):
    lone.with_name("policy.onnx.json").write_text(text)
    with pytest.raises(RequestError, match=r"policy.onnx.json is damaged"):
        rlrun.evaluate(lone)


def test_a_class_of_the_users_own_project_plays(lone, monkeypatch):
    (lone.parent / "walker.py").write_text(WALKER)
    tell(lone, metadata_of(lone) | {"env": {"target": "walker.Mine", "max_steps": 5}})
    assert rlrun.evaluate(lone, episodes=1).lengths == [5]
    sys.modules.pop("walker")
