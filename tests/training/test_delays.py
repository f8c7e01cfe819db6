"""Who reads a loss that learns in some updates only: it is called in these, or refused before the first."""

import pytest
import torch
from tests.compile.comparison import ADAM, Batches, Distance, layer, tensors
from tests.compile.conftest import interpreted, warnings  # noqa: F401, fixtures

import rlrun
from rlrun.callbacks import Schedule
from rlrun.commands.train import Experiment
from rlrun.compile import FusedUpdate
from rlrun.config import compose
from rlrun.core.errors import WiringError
from rlrun.training.callback import Callback
from rlrun.training.plan import explain
from rlrun.training.trainer import Trainer

SMALL = [
    *("algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=20", "preset=null"),
    *("logger=[]", "evaluation.every=0", "checkpoint.every=0", "stop.updates=6"),
]


def mean(value):
    return float(torch.as_tensor(value).mean())


class Gives(Distance):
    """Returns the number of the update."""

    provides = ("guess",)

    def loss(self, x, y, update):
        return super().loss(x, y), {"guess": torch.as_tensor(update) * torch.ones_like(y)}, {}


class Reads(Distance):
    """Needs the guess; returns another name."""

    provides = ("second",)

    def loss(self, x, y, guess):
        return super().loss(x, y + guess), {"second": 10.0 * guess}, {"seen": guess}


class MayRead(Distance):
    def loss(self, x, y, guess=None):
        return super().loss(x, y if guess is None else y + guess)


class Sees(Callback):
    """Notes the numbers of updates, and what it reads there."""

    data_group = "default"

    def __init__(self, cycle=0):
        self.seen, self.ends, self.maybe, self.cycle = [], [], [], cycle

    def end_batch(self, update, guess, second=None):
        self.seen.append(
            (
                update,
                mean(guess),
                None if second is None else mean(second),
            )
        )

    def end_cycle(self, update, second, x, other=None):
        self.ends.append((update, mean(second)))


class Always(Callback):
    data_group = "default"

    def __init__(self):
        self.seen = []

    def end_batch(self, update, guess=-1.0):
        self.seen.append(mean(guess))


def callbacks(**paces):
    options = {name: {"every": pace} for name, pace in paces.items()}
    losses = {"gives": Gives, "reads": Reads, "may": MayRead}
    made = {name: kind(layer(), ADAM, **options.get(name, {})) for name, kind in losses.items()}
    return {**made, "sees": Sees(cycle=1), "always": Always()}


@pytest.mark.parametrize(
    ("paces", "gave", "read"),
    [
        ({}, range(1, 9), range(1, 9)),
        ({"gives": 2}, [2, 4, 6, 8], [2, 4, 6, 8]),
        ({"gives": 2, "reads": 4}, [2, 4, 6, 8], [4, 8]),
        ({"gives": 3}, [3, 6], [3, 6]),
        ({"reads": 3}, range(1, 9), [3, 6]),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("interpreted")
def test_readers_learn_in_the_updates_in_which_they_have_data(paces, gave, read, compiled):
    parts = callbacks(**paces)
    Trainer(parts, Batches(*(4,) * 8), fuse=FusedUpdate(compiled, "cpu")).train()
    gives, reads, may, sees, always = parts.values()
    assert (gives.updates, reads.updates, may.updates) == (len(gave), len(read), 8)
    assert {loss.turns for loss in (gives, reads, may)} == {8}
    assert sees.seen == [(n, float(n), 10.0 * n if n in read else None) for n in gave]
    assert sees.ends == [(n, 10.0 * n) for n in read]
    assert always.seen == [float(n) if n in gave else -1.0 for n in range(1, 9)]


@pytest.mark.usefixtures("interpreted")
def test_compiled_updates_equal_plain_ones_also_where_a_hook_is_called_as_it_is(warnings):  # noqa: F811
    class Branching(Reads):
        def loss(self, x, y, guess):
            elements, outputs, metrics = super().loss(x, y, guess)
            return elements if float(elements.detach().mean()) > 0.1 else 2.0 * elements, outputs, metrics

    def trained(compiled, kind):
        parts = {**callbacks(gives=2), "reads": kind(layer(), ADAM)}
        Trainer(parts, Batches(*(4,) * 8), fuse=FusedUpdate(compiled, "cpu")).train()
        return parts

    for kind in (Reads, Branching):
        plain, fused = (trained(compiled, kind) for compiled in (False, True))
        for name in ("gives", "reads", "may"):
            assert fused[name].updates == plain[name].updates
            for ours, theirs in zip(tensors(fused[name]), tensors(plain[name]), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert fused["sees"].seen == plain["sees"].seen
    assert [line for line in warnings() if "callbacks.reads.loss" in line]


def test_a_name_that_the_state_keeps_is_always_there():
    parts = {"rate": Schedule("guess", 0.5), **callbacks(gives=2)}
    Trainer(parts, Batches(*(4,) * 4)).train()
    assert parts["reads"].updates == 4
    assert parts["always"].seen == [0.5, 2.0, 0.5, 4.0]


def test_explain_says_when_readers_learn():
    lines = explain(Trainer(callbacks(gives=2), Batches(4)).plan).splitlines()
    (reads,) = [line for line in lines if " reads  " in line]
    assert reads.endswith("(adam, 4 parameters); in updates in which gives learns")
    (gives,) = [line for line in lines if " gives  " in line]
    assert gives.endswith("(adam, 4 parameters), every 2 updates")


def test_paces_that_rarely_meet_are_refused():
    message = r"callbacks\.reads\.every=3: it reads 'guess', which callbacks\.gives returns in every 2 updates; wanted"
    with pytest.raises(WiringError, match=message):
        Trainer(callbacks(gives=2, reads=3), Batches(4))
    overrides = ["algorithm=sac", "env=pendulum", *SMALL, "algorithm.policy_every=2", "callbacks.temperature.every=3"]
    with pytest.raises(WiringError, match=r"callbacks\.temperature\.every=3"):
        _ = Experiment(compose(overrides)).trainer


AVERAGED = "entropy_target"
RUNS = {  # overrides -> updates of callbacks
    "sac": (["algorithm=sac", "algorithm.policy_every=2"], {"policy": 3, "temperature": 3}),
    "each update": (
        ["algorithm=sac", "algorithm.policy_every=3", "callbacks.temperature.every=1"],
        {"policy": 2, "temperature": 2},
    ),
    "stages": (["algorithm=sac", "+with=entropy_target", "algorithm.policy_every=2"], {"policy": 3, AVERAGED: 3}),
    "gradients": (["algorithm=sac", "+with=entropy_target_sgd", "algorithm.policy_every=2"], {AVERAGED: 3}),
    "optimism": (["algorithm=doac", "+with=entropy_target", "algorithm.policy_every=3"], {"policy": 2, AVERAGED: 2}),
    "discrete": (
        ["algorithm=sac", "env=cartpole", "+with=[entropy_target,prioritized,value_bias]", "algorithm.policy_every=2"],
        {"q_loss": 6, AVERAGED: 3},
    ),
    "critics": (
        ["algorithm=sac", "+with=prioritized", "+callbacks.q_loss.every=2", "+with=entropy_target"],
        {"q_loss": 3, "policy": 6, AVERAGED: 6},
    ),
    "two policies": (
        [
            "algorithm=seditor",
            "env=constrainedbandit",
            "lagrangian.thresholds=[null,-0.25]",
            "+callbacks.editor.every=2",
        ],
        {"utility": 6, "editor": 3, "temperatures": 3},
    ),
    "rollouts": (
        [*("algorithm=ppo", "env=cartpole", "+with=entropy_target_sgd", "+callbacks.ppo.every=2")],
        {"ppo": 3, AVERAGED: 3},
    ),
    "deterministic": (["algorithm=td3", "+with=[value_bias,prioritized]"], {"policy": 3}),
}


@pytest.mark.parametrize("case", RUNS)
def test_algorithms_train(case, tmp_path):
    overrides, updates = RUNS[case]
    small = [text for text in SMALL if "ppo" not in overrides[0] or "warmup" not in text]
    result = rlrun.train(["env=pendulum", *small, *overrides], run_dir=tmp_path / "run")
    parts = result.trainer.callbacks
    made = {name: int(getattr(parts[name], "average", parts[name]).updates) for name in updates}
    assert made == updates


def test_a_resumed_run_keeps_the_pace(tmp_path):
    overrides = ["env=pendulum", *SMALL, "algorithm=sac", "+with=entropy_target", "algorithm.policy_every=2"]
    whole = rlrun.train([*overrides, "stop.updates=9"], run_dir=tmp_path / "whole")
    rlrun.train([*overrides, "stop.updates=5"], run_dir=tmp_path / "run")
    resumed = rlrun.resume(tmp_path / "run", ["stop.updates=9"])
    states = [result.trainer.callbacks["entropy_target"].state_dict() for result in (whole, resumed)]
    assert states[0]["average"]["updates"] == states[1]["average"]["updates"] == 4
    torch.testing.assert_close(*[state["log"] for state in states], rtol=0, atol=0)
