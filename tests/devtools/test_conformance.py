"""What `rlrun plugin test` finds in parts that break a promise; each is right but for that."""

import json
import sys
from types import SimpleNamespace

import pytest

from rlrun.devtools.conformance import ConformanceReport, Examined, Verdict, checks, command_of
from rlrun.devtools.conformance.checks import examine, truncation

MINE = '''
import itertools
import gymnasium, numpy, torch
from rlrun.algorithms.dqn import QTarget
from rlrun.training.callback import Callback

class Forgets(Callback):
    data_group = "default"

    def __init__(self):
        self.seen, self.inner = 0, {"chance": [numpy.random.default_rng(0)], "sum": torch.zeros(2)}

    def end_batch(self, update):
        self.seen += 1
        self.inner["sum"] += self.inner["chance"][0].random()

class Passing(Forgets):
    momentary = ("seen", "inner")

class EndsAlike(QTarget):
    """Bootstraps from whatever ends an episode."""
    def target(self, next_observation, reward, terminated, discount=None):
        return super().target(next_observation, reward, torch.zeros_like(terminated), discount)

class CutIsOver(QTarget):
    """Takes truncation for termination."""
    def target(self, next_observation, reward, terminated, truncated, discount=None):
        return super().target(next_observation, reward, terminated | truncated, discount)

class Restless(gymnasium.Env):
    """Has chance of its own."""
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    starts = itertools.count()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.own = numpy.random.default_rng(next(self.starts))
        return self.own.uniform(-1, 1, 2).astype(numpy.float32), {}

    def step(self, action):
        self.steps += 1
        return self.own.uniform(-1, 1, 2).astype(numpy.float32), 1.0, False, self.steps == 9, {}
'''
DQN = ("algorithm=dqn", "env=cartpole", "preset=null")


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Stand in a project with these parts."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine", None)


def outcomes(overrides, folder, **options):
    return {
        verdict.check: (verdict.outcome, verdict.text) for verdict in examine(overrides, folder, **options).verdicts
    }


def test_what_a_part_forgets_is_named_unless_it_says_that_it_may(tmp_path, monkeypatch):
    exported = SimpleNamespace(about={"parity": {"largest": 1e-7}})  # exporting takes seconds, and has its own tests
    monkeypatch.setattr(checks, "export_onnx", lambda run, episodes: exported)
    monkeypatch.setattr(checks, "truncation", lambda *request: Verdict("truncation", "ok"))  # tested below
    parts = [f"+callbacks.{part.lower()}._target_=mine.{part}" for part in ("Forgets", "Passing")]
    verdicts = outcomes([*DQN, *parts], tmp_path / "runs")
    assert {name: verdict[0] for name, verdict in verdicts.items()} == {
        **dict.fromkeys(["training", "seeding", "exact resume", "truncation", "export"], "ok"),
        "checkpoints": "failed",
    }
    for text in (".seen: int 24 -> int 20", ".inner['chance'][0]: generator", ".inner['sum']: torch.float32 [2]"):
        assert f"trainer.callbacks['forgets']{text}" in verdicts["checkpoints"][1]
    assert "passing" not in verdicts["checkpoints"][1]


def test_chance_that_no_seed_rules_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "export", lambda run: Verdict("export", "skipped"))  # which takes seconds
    overrides = ["algorithm=dqn", "env.target=mine.Restless"]
    verdicts = outcomes(overrides, tmp_path / "runs", own=overrides, of_environment=True)
    assert verdicts["seeding"][0] == "failed"
    assert "the same seed gives another run" in verdicts["seeding"][1]
    assert verdicts["exact resume"][0] == "failed"
    assert "truncation" not in verdicts


def test_a_command_that_does_not_train_is_told_and_nothing_else_is_tried(tmp_path):
    verdicts = outcomes([*DQN, "+callbacks.mine._target_=mine.Missing"], tmp_path / "runs")
    assert list(verdicts) == ["training"]
    assert verdicts["training"][0] == "failed"
    assert "mine" in verdicts["training"][1]


# --- truncation


@pytest.mark.parametrize(
    ("overrides", "outcome", "text"),
    [
        ([*DQN, "callbacks.q_target._target_=mine.EndsAlike"], "failed", "by termination is bootstrapped from, as one"),
        ([*DQN, "callbacks.q_target._target_=mine.CutIsOver"], "failed", "by truncation is not bootstrapped from"),
        (["algorithm=sac", "env=pendulum"], "ok", "bootstraps where episodes are truncated"),
        ([*DQN, "+with=icm"], "skipped", "as a model or statistics do"),
    ],
)
def test_how_episodes_end_is_told_apart(overrides, outcome, text, tmp_path):
    verdict = truncation(overrides, tmp_path / "runs", None, {})
    assert (verdict.outcome, text in verdict.text) == (outcome, True), verdict.text


# --- which commands are tried


@pytest.mark.parametrize(
    ("file", "overrides", "command"),
    [
        ("algorithm/mine", [], ["algorithm=mine", "env=cartpole"]),
        ("algorithm/mine", ["env=hill"], ["algorithm=mine", "env=hill"]),
        ("algorithm/mine", ["algorithm=other"], None),
        ("env/hill", ["algorithm=mine"], ["env=hill", "algorithm=mine"]),
        ("with/bonus", [], ["+with=bonus", "algorithm=ppo", "env=hill"]),
        ("with/bonus", ["+with=more", "seed=3"], ["+with=bonus", "algorithm=ppo", "env=hill", "+with=more", "seed=3"]),
    ],
)
def test_a_file_is_tried_in_a_command_of_its_own(file, overrides, command, tmp_path):
    texts = dict.fromkeys(["algorithm/mine", "env/hill"], "# Mine\n")
    texts["with/bonus"] = "# A bonus\n# rlrun train algorithm=ppo env=hill +with=bonus  # cheap\na: 1\n"
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(text)
    assert command_of(tmp_path, file, overrides) == command


def test_a_report_is_plain_data():
    report = ConformanceReport(
        "hill", [Examined(["env=hill"], [Verdict("training", "ok"), Verdict("seeding", "failed", "x")])]
    )
    assert json.loads(json.dumps(report.to_json()))["passed"] is False
    assert ConformanceReport("hill", [Examined(["env=hill"], [Verdict("export", "skipped")])]).passed
