"""The share of the budget that is used up: for hooks by name, for agents and adaptors by a link."""

import sys
from types import ModuleType

import pytest
from tests.identical import compare
from tests.short import copy_as_killed

import rlrun
from rlrun.commands.check import check
from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.files import read_json
from rlrun.core.progress import Progress
from rlrun.core.schedules import Constant, Linear, OverBudget, Staircase, Step
from rlrun.training.callback import Callback

SHORT = [
    *("algorithm=dqn", "env=cartpole", "preset=null", "num_envs=2", "stop.env_steps=60", "algorithm.hidden=[4]"),
    *("algorithm.batch_size=4", "algorithm.warmup_steps=20", "memory.length=60", "evaluation.every=0"),
    *("checkpoint.every=20", "checkpoint.keep_last=null", "log.every=20"),
]
SHOWN = [*SHORT, "+callbacks.shows._target_=rlrun_tests_progress.Shows"]
OVER = "{_target_: rlrun.core.schedules.OverBudget, progress: '${progress}', value: %s}"
FALLING = OVER % "{_target_: rlrun.core.schedules.Linear, first: 1.0, last: 0.0, steps: 1}"


class Shows(Callback):
    """Keeps what it saw."""

    data_group = "default"

    def __init__(self):
        self.seen = []

    def end_batch(self, progress):
        self.seen.append(progress)

    def state_dict(self):
        return {"seen": [*self.seen]}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Scales:
    """An adaptor that reads the share when it makes a batch."""

    provides = ("reward",)
    replaces = removes = ()
    learns = True

    def __init__(self, progress):
        self.progress, self.seen = progress, []

    def __call__(self, batch, rows):
        self.seen.append(self.progress())
        return {**batch, "reward": batch["reward"] * (1.0 - self.progress())}

    def state_dict(self):
        return {"seen": [*self.seen]}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.fixture(autouse=True)
def module(monkeypatch, tmp_path):
    module = ModuleType("rlrun_tests_progress")
    module.Shows, module.Scales = Shows, Scales
    monkeypatch.setitem(sys.modules, "rlrun_tests_progress", module)
    monkeypatch.chdir(tmp_path)


def test_the_larger_share_counts():
    both = Progress(100, 10)
    assert [both.at(step, update) for step, update in ((0, 0), (50, 1), (50, 8), (300, 8))] == [0.0, 0.5, 0.8, 1.0]
    assert Progress(None, 4).at(1_000, 1) == 0.25
    assert Progress(0).at(0, 0) == 1.0


def test_schedules_run_over_it():
    progress = Progress(200)
    values = Linear(1.0, 0.0, 1), Staircase(1.0, 0.0, 1, 0.5), Step([3.0, 4.0], [0.25])
    schedules = [OverBudget(progress, value) for value in values]
    assert [schedule(77) for schedule in schedules] == [1.0, 1.0, 3.0]
    progress.step = 120
    assert [schedule(77) for schedule in schedules] == pytest.approx([0.4, 0.5, 4.0])


def test_hooks_agents_and_adaptors_read_it_and_a_resume_is_exact(tmp_path):
    request = [*SHOWN, f"agent.epsilon={FALLING}", "algorithm.updates_per_step=0.25"]
    request += ["+memory.adaptors.scales={_target_: rlrun_tests_progress.Scales, progress: '${progress}'}"]
    run = rlrun.train(request, run_dir=tmp_path / "run")
    callbacks = run.trainer.callbacks
    shares = [step / 60 for step in range(22, 61, 2)]
    assert callbacks["shows"].seen == [share for share in shares if share in callbacks["shows"].seen]
    assert callbacks["shows"].seen[-1] > 0.9
    agent, adaptor = callbacks["collector"].agent, callbacks["collector"].table.adaptors[-1]
    assert adaptor.seen == callbacks["shows"].seen, "both are of the steps before the update"
    assert agent.epsilon(0) == 0.0
    killed = tmp_path / "killed"
    copy_as_killed(run.run_dir, killed, at=40)
    rlrun.resume(killed)
    assert all(compare(run.run_dir, killed).values())
    rlrun.resume(killed, ["stop.env_steps=80"])
    why = read_json(killed / "manifest.json")["resumed"][-1]["approximate"]
    readers = "callbacks.shows", "agent.epsilon.progress", "memory.adaptors.scales.progress"
    assert sorted(why) == sorted(f"{reader} reads stop.env_steps, and 60 became 80" for reader in readers)


def test_updates_are_a_budget(tmp_path):
    run = rlrun.train([*SHOWN, "stop.env_steps=null", "stop.updates=4"], run_dir=tmp_path / "run")
    assert run.trainer.callbacks["shows"].seen == [0.25, 0.5, 0.75, 1.0]
    assert "progress" not in str(rlrun.commands.train.explain(SHORT))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0.5, Constant(1.0)), "progress: wanted .*, got 0.5"),
        ((Progress(9), 0.5), "value: wanted a schedule .* got 0.5"),
    ],
)
def test_budget_schedules_want_functions(given, message):
    with pytest.raises(ConfigError, match=message):
        OverBudget(*given)


@pytest.mark.parametrize("request_of", [SHOWN, [*SHORT, f"agent.epsilon={FALLING}"]])
def test_without_a_budget_it_is_refused(request_of):
    with pytest.raises(RequestError, match=r"(shows|epsilon).* share of stop.env_steps or stop.updates, and neither"):
        check([*request_of, "stop.env_steps=null", "stop.seconds=9"])
