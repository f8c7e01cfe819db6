"""`rlrun.load(…).predict`: it acts as `rlrun eval` and the exported file do, and names what does not fit."""

import functools
import json
import shutil
import time

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from tests.export.made import SPACES
from tests.pace import within

import rlrun
from rlrun.collect.agents import initial_state
from rlrun.core.errors import RequestError, RunDirError
from rlrun.core.spaces import Spaces
from rlrun.env.descriptions import RecordedSpaces, describe_env
from rlrun.env.make import Recipe
from rlrun.env.spaces import from_gymnasium

TINY = (
    *("algorithm.hidden=[8,8]", "~preset", "logger=[]", "evaluation.every=0", "log.every=0"),
    *("stop.env_steps=48", "algorithm.lr=0.05", "num_envs=1", "evaluation.max_steps=12"),
)
REPLAY = ("algorithm.batch_size=8", "algorithm.warmup_steps=16")
ROLLOUT = ("algorithm.horizon=16", "algorithm.batch_size=16", "algorithm.recurrent=gru", "algorithm.core_size=5")
CORE = ("algorithm.recurrent=gru", "algorithm.core_size=5", "algorithm.unroll=4", "algorithm.burn_in=1")
ALGORITHMS = {
    "sac": ("algorithm=sac", *REPLAY, *CORE),
    "dqn": ("algorithm=dqn", *REPLAY),
    "ppo": ("algorithm=ppo", *ROLLOUT),
}
EPISODES = 19  # more than envs, so that these begin anew


class Tap(gymnasium.Wrapper):
    """Keep what an environment gives and takes, in its own units."""

    def __init__(self, env, log):
        super().__init__(env)
        self.log = log

    def reset(self, **options):
        self.current, self.start = self.env.reset(**options), True
        return self.current

    def step(self, action):
        self.log.append((self.current[0], action, self.start))
        observation, *rest = self.env.step(action)
        self.current, self.start = (observation, {}), False
        return observation, *rest


def stacked(values):
    first = values[0]
    if isinstance(first, dict):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(parts) for parts in zip(*values, strict=True))
    return np.stack(values)


def flat(value):
    if isinstance(value, dict | tuple):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in flat(part)]
    return [np.asarray(value)]


class Runs:
    """Small runs, each trained once."""

    def __init__(self, folder):
        self.folder, self.known = folder, {}

    def file(self, algorithm, spaces):
        """Return the exported policy of a run."""
        path = self.get(algorithm, spaces) / "exports" / "policy.onnx"
        return path if path.exists() else rlrun.export_onnx(path.parents[1]).path

    def get(self, algorithm, spaces):
        name = f"{algorithm}-{spaces}"
        if name not in self.known:
            normalized = algorithm == "ppo" and spaces not in ("image", "tuple")  # which have no numbers
            overrides = [*ALGORITHMS[algorithm], SPACES[spaces], *TINY, *["+with=observation_norm"] * normalized]
            self.known[name] = rlrun.train(overrides, run_dir=self.folder / name).run_dir
        return self.known[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def tapped(monkeypatch):
    """Return the steps that `rlrun eval` takes: observations [N], actions [N] and flags [N] of episode starts."""
    logs = []
    build = Recipe.build

    def build_tapped(recipe):
        logs.append([])
        return Tap(build(recipe), logs[-1])

    def steps(run):
        with monkeypatch.context() as patch:
            patch.setattr(Recipe, "build", build_tapped)
            rlrun.evaluate(run, episodes=EPISODES, seed=3)
        batches = zip(*(log for log in logs if log), strict=True)
        return [tuple(stacked(part) for part in zip(*rows, strict=True)) for rows in batches]

    return steps


@pytest.fixture
def no_env(monkeypatch):
    """Let nobody make an environment."""

    def refuse(recipe):
        raise AssertionError("an environment is made")

    return lambda: monkeypatch.setattr(Recipe, "build", refuse)


CASES = pytest.mark.parametrize(
    ("algorithm", "spaces"),
    [
        *(("sac", name) for name in ("dict", "image", "mixed", "tuple", "box")),
        *(("ppo", name) for name in ("dict", "tuple", "box")),  # with a state, the first normalized
        ("dqn", "start"),
    ],
)


def require_same(policy, steps, require):
    """Compare the actions of `predict` with those that were taken."""
    state = None
    for observation, taken, starts in steps:
        action, state = policy.predict(observation, state, episode_start=starts)
        assert type(action) is type(taken)
        for part, expected in zip(flat(action), flat(taken), strict=True):
            require(part, expected)


@CASES
def test_predict_acts_as_eval_does(runs, tapped, no_env, algorithm, spaces):
    run = runs.get(algorithm, spaces)
    steps = tapped(run)
    no_env()
    policy = rlrun.load(run)
    assert policy.recurrent is (algorithm != "dqn")
    require_same(policy, steps, np.testing.assert_array_equal)
    assert {(len(starts), part.dtype) for _, taken, starts in steps for part in flat(taken)[:1]} == {
        (16, flat(policy.action_space.sample())[0].dtype)
    }
    assert sum(starts.any() for *_, starts in steps) > 1


@pytest.mark.slow
def test_predict_of_a_file_acts_as_eval_does(runs, tapped, no_env):
    """tests/export compare files with policies in every space."""
    steps, path = tapped(runs.get("ppo", "tuple")), runs.file("ppo", "tuple")
    no_env()
    require_same(rlrun.load(path), steps, lambda part, taken: np.testing.assert_allclose(part, taken, 1e-5, 1e-6))


@pytest.mark.parametrize(("algorithm", "spaces"), [("sac", "mixed"), ("ppo", "tuple"), ("dqn", "start")])
def test_one_observation_gives_one_action_of_the_space(runs, algorithm, spaces):
    policy = rlrun.load(runs.get(algorithm, spaces))
    policy.observation_space.seed(1)
    observations = [policy.observation_space.sample() for _ in range(4)]
    batch, after = policy.predict(stacked(observations))
    for index, observation in enumerate(observations):
        action, state = policy.predict(observation)
        assert policy.action_space.contains(action)
        for part, expected in zip(flat(action), flat(batch), strict=True):
            assert np.allclose(part, expected[index], rtol=1e-5, atol=1e-6)
        if after is not None:
            assert np.allclose(state, after[index : index + 1], atol=1e-6)


def test_the_state_counts_and_begins_anew_where_an_episode_starts(runs):
    policy = rlrun.load(runs.get("ppo", "box"))
    observation = np.array([[1.0, 0.0, 3.0], [0.0, 1.0, -3.0]], np.float32)
    fresh, state = policy.predict(observation)
    later, _ = policy.predict(observation, state)
    mixed, _ = policy.predict(observation, state, episode_start=[True, False])
    assert not np.array_equal(later, fresh)
    assert np.array_equal(mixed, np.stack([fresh[0], later[1]]))
    with pytest.raises(RequestError, match=r"the state is not one that `predict` returned for as many: \[1, "):
        policy.predict(observation[0], state)
    assert np.array_equal(policy.predict(observation, state.tolist())[0], later)
    for flags in ([True] * 3, "no"):
        with pytest.raises(RequestError, match="episode_start is a flag, or 2 of them"):
            policy.predict(observation, state, episode_start=flags)


def test_drawn_actions_differ_and_best_ones_do_not(runs):
    policy = rlrun.load(runs.get("sac", "box"))
    observation = np.ones(3, np.float32)
    best = {policy.predict(observation)[0].tobytes() for _ in range(4)}
    drawn = {policy.predict(observation, deterministic=False)[0].tobytes() for _ in range(4)}
    assert (len(best), len(drawn)) == (1, 4)
    with pytest.raises(RequestError, match="deterministic is True or False, got 'no'"):
        policy.predict(observation, deterministic="no")
    with pytest.raises(RequestError, match=r"the state is not one that `predict` returned for as many: \[1, 10\]"):
        policy.predict(observation, np.zeros(3))
    stateless = rlrun.load(runs.get("dqn", "start"))
    with pytest.raises(RequestError, match="the policy has no state"):
        stateless.predict(stateless.observation_space.sample(), np.zeros(3))


@pytest.mark.slow
def test_a_file_acts_in_its_own_way_only(runs, tmp_path):
    observation = np.ones(3, np.float32)
    deep = functools.reduce(lambda form, _: [form], range(600), None)
    best = rlrun.load(runs.file("ppo", "tuple"))
    with pytest.raises(RequestError, match=r"policy.onnx knows its best actions only: predict\(…, deterministic=True"):
        best.predict(best.observation_space.sample(), deterministic=False)
    path = tmp_path / "policy.onnx"
    rlrun.export_onnx(runs.get("sac", "box"), path, stochastic=True)
    file = rlrun.load(path)
    with pytest.raises(RequestError, match=r"policy.onnx draws its actions: predict\(…, deterministic=False"):
        file.predict(observation)
    assert len({file.predict(observation, deterministic=False)[0].tobytes() for _ in range(4)}) == 4
    with pytest.raises(RequestError, match="leave out device"):
        rlrun.load(path, device="cpu")
    about = path.with_name("policy.onnx.json")
    for forms in ([], [{}], {}, deep):
        about.write_text(json.dumps({**json.loads(about.read_text()), "action": forms}))
        with pytest.raises(RequestError, match=r"policy.onnx.json is damaged"):
            rlrun.load(path)
    path.unlink()
    with pytest.raises(RequestError, match=r"policy.onnx cannot be read: No such file"):
        rlrun.load(path)


@pytest.mark.parametrize(
    ("spaces", "observation", "message"),
    [
        (
            "box",
            np.zeros(4),
            r"the observation has shape \[4\]; the policy expects an observation Box\[3\] float32, or a",
        ),
        ("box", np.zeros((0, 3)), r"has shape \[0, 3\]"),
        ("box", ["a", "b", "c"], "the observation is <U1; "),
        ("box", [[1.0], [1.0, 2.0]], "the observation is no array"),
        ("image", np.full((8, 8, 1), 0.5), "the observation is float64; "),
        ("image", np.full((8, 8, 1), 256), "values from 256 to 256"),
        ("dict", {"level": np.zeros(2)}, "there is no observation's part 'side'"),
        ("dict", {"level": np.zeros(2), "side": 0, "more": 1}, "the observation has a part 'more'"),
        ("box", (np.zeros(3), {}), r"got what env.reset\(\) returns, pass its first part"),
        ("box", None, "the observation is None"),
        ("box", {"a": np.zeros(3)}, "the observation is a dict"),
        ("dict", np.zeros(2), "there is no observation's part '"),
        ("tuple", (3, np.zeros(2, np.int8)), "part '0' has values from 3 to 3"),
        ("tuple", (1, np.full(2, 2, np.int8)), "part '1' has values from 2 to 2"),
        ("tuple", (np.zeros(2, int), np.zeros((3, 2), np.int8)), "its parts differ in the number of observations"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(runs, spaces, observation, message):
    policy = rlrun.load(runs.get("sac", spaces))
    if spaces == "image":
        observation = np.broadcast_to(observation.flat[0], policy.observation_space.shape)
    with pytest.raises(RequestError, match=message) as refusal:
        policy.predict(observation)
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_is_named_as_forks_name_it(tmp_path):
    overrides = [*ALGORITHMS["sac"], SPACES["box"], *TINY, "checkpoint.every=24", "checkpoint.keep_last=null"]
    result = rlrun.train([*overrides, "evaluation.every=24", "evaluation.episodes=1"], run_dir=tmp_path / "run")
    run = result.run_dir
    names = {text: rlrun.load(text).name for text in (f"{run}@24", f"{run}@latest", str(run), f"{run}@best")}
    assert names[f"{run}@24"].startswith("run@0000000024-")
    assert names[str(run)] == names[f"{run}@latest"] == rlrun.load(result).name != names[f"{run}@24"]
    observation = np.ones(3, np.float32)
    actions = [rlrun.load(text).predict(observation)[0] for text in (f"{run}@24", str(run))]
    assert not np.array_equal(*actions)
    with pytest.raises(RunDirError, match="has no checkpoint '7'; it has"):
        rlrun.load(f"{run}@7")
    with pytest.raises(RunDirError, match="is inside a run, not a run itself"):
        rlrun.load(run / "checkpoints")
    (tmp_path / "policy.zip").write_bytes(b"PK")
    with pytest.raises(RequestError, match=r"policy.zip: wanted RUN, RUN@best, RUN@STEP, or a FILE.onnx"):
        rlrun.load(tmp_path / "policy.zip")


def test_a_run_without_recorded_spaces_makes_its_environment(runs, tmp_path):
    run = shutil.copytree(runs.get("sac", "tuple"), tmp_path / "run")
    about = json.loads((run / "manifest.json").read_text())
    observation = (1, np.zeros(2, np.int8))
    expected, _ = rlrun.load(run).predict(observation)
    spaces = about.pop("spaces")
    (run / "manifest.json").write_text(json.dumps(about))
    action, _ = rlrun.load(run).predict(observation)
    assert all(np.array_equal(*parts) for parts in zip(flat(action), flat(expected), strict=True))
    spaces["action"]["parts"]["1"]["shape"] = "wide"
    (run / "manifest.json").write_text(json.dumps({**about, "spaces": spaces}))
    with pytest.raises(RunDirError, match=r"manifest.json is damaged: it does not describe the spaces"):
        rlrun.load(run)


def test_a_part_that_reads_more_than_spaces_has_the_environment_made(runs, tmp_path, no_env):
    run = shutil.copytree(runs.get("sac", "box"), tmp_path / "run")
    expected, _ = rlrun.load(run).predict(np.ones(3))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["agent"]["log_prob"] = "${env.resets_itself}"
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert np.array_equal(rlrun.load(run, trust=True).predict(np.ones(3))[0], expected)
    no_env()
    with pytest.raises(RequestError, match="an environment is made"):
        rlrun.load(run)


@pytest.mark.parametrize(
    "space",
    [
        Dict([("z", Discrete(3, start=-1)), ("a", Tuple((MultiBinary((2, 2)), MultiDiscrete([2, 3], start=[1, 0]))))]),
        Box(np.array([-np.inf, 0.1, -2.0], np.float32), np.array([1.0, np.inf, 0.3], np.float32)),
        Box(0, 255, (8, 8, 3), np.uint8),
        Box(-np.inf, np.inf, (2,), np.float64),
        Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
        Box(0, np.iinfo(np.uint64).max, (2,), np.uint64),
        Discrete(3, dtype=np.int32),
    ],
)
def test_recorded_spaces_are_those_of_the_environment(space):
    class Choice(Discrete):
        pass

    class Spaced:
        outer = (space, Choice(2))
        spaces = Spaces(from_gymnasium(space, "seen"), from_gymnasium(Discrete(2), "action"), 2)

    recorded = RecordedSpaces(json.loads(json.dumps(describe_env(Spaced()))), "manifest.json")
    assert recorded.outer == (space, Discrete(2))
    assert (recorded.spaces.rewards, recorded.outer[0].dtype) == (2, space.dtype)
    if isinstance(space, Dict):
        assert list(recorded.outer[0]) == ["z", "a"]
    assert describe_env(None) is None


@pytest.mark.speed
@pytest.mark.parametrize(("algorithm", "spaces"), [("sac", "box"), ("sac", "mixed"), ("dqn", "start"), ("ppo", "dict")])
def test_predict_of_one_observation_takes_60_microseconds_beyond_its_network(runs, algorithm, spaces):
    policy = rlrun.load(runs.get(algorithm, spaces))
    agent, observation, state = policy.agent, policy.observation_space.sample(), initial_state(policy.agent, 1)

    def median(act):
        times = [time.perf_counter()]
        for _ in range(500):
            act()
            times.append(time.perf_counter())
        return float(np.median(np.diff(times)))

    def predict():
        policy.predict(observation, state)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole, act, responses = median(predict), agent._act, []
        agent._act = lambda *inputs: responses.append(act(*inputs)) or responses[0]
        predict()
        agent._act = lambda *_: responses[0]  # a network that takes no time
        print(f"{algorithm} {spaces}: predict {whole * 1e6:.0f} µs, without its network {median(predict) * 1e6:.0f} µs")
        assert within(lambda: median(predict), 60e-6)
    finally:
        torch.set_num_threads(threads)
