"""Environments of the user's own class, all in one object: trained, evaluated, resumed, played and exported."""

import sys

import pytest
from tests.docs.pages import ROOT, blocks
from tests.identical import compare
from tests.short import copy_as_killed

import rlrun
from rlrun.collect.evaluate import stage
from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.core.errors import RequestError
from rlrun.core.seeds import Seeds
from rlrun.loading.assembly import builder_of

BLOCKS = {block.name: block.text for block in blocks((ROOT / "docs" / "extending.md").read_text())}
SHORT = [
    *("algorithm=dqn", "env=line", "num_envs=3", "stop.env_steps=120", "algorithm.hidden=[4]"),
    *("algorithm.batch_size=4", "algorithm.warmup_steps=30", "log.every=30", "checkpoint.every=30"),
    *("checkpoint.keep_last=null", "evaluation.every=60", "evaluation.episodes=2", "memory.length=60"),
]
LINKED = BLOCKS["line.py"].replace("length=4):", "length=4, goal=None):\n        self.goal = goal")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Begin in a folder that holds what the page shows."""
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "line.py").write_text(LINKED)
    (tmp_path / "conf" / "env" / "line.yaml").write_text(BLOCKS["conf/env/line.yaml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("line", None)


def built(*overrides):
    return builder_of(compose([*SHORT, *overrides]).config)


def test_a_run_is_evaluated_and_resumes_exactly(folder):
    run = rlrun.train(SHORT, run_dir=folder / "run")
    assert rlrun.evaluate(run, episodes=3).lengths == rlrun.evaluate(run, episodes=3).lengths
    killed = folder / "killed"
    copy_as_killed(run.run_dir, killed, at=60)
    rlrun.resume(killed)
    assert all(compare(run.run_dir, killed).values())


def test_copies_have_their_number_of_envs_and_arguments_of_evaluations():
    env = built("evaluation.env.kwargs.length=2").get("env")
    copy = stage(env, 5)
    assert (env.num_envs, env.length, copy.num_envs, copy.length) == (3, 5, 5, 2)
    assert copy.copy(2).num_envs == 2
    assert env.maker().num_envs == 3


def test_eval_takes_other_arguments(folder):
    run = rlrun.train([*SHORT, "stop.env_steps=30", "evaluation.every=0"], run_dir=folder / "run")
    played = rlrun.evaluate(run, episodes=9, stochastic=True, overrides=["env.kwargs.length=1"])
    assert min(played.lengths) < 5, "the line of training takes five steps"
    with pytest.raises(RequestError, match=r"^env.size: line.Line takes no argument 'size'"):
        rlrun.evaluate(run, overrides=["env.kwargs.size=2"])
    with pytest.raises(RequestError, match=r"evaluation.env: line.Line takes no argument 'size'; it takes num_envs, "):
        check([*SHORT, "+evaluation.env.kwargs.size=2"])


def test_parts_elsewhere_are_shared_and_those_with_a_state_stay_in_this_process():
    goal = "+goal={_target_: torch.nn.Linear, in_features: 1, out_features: 1}"
    builder = built(goal, "+env.goal=${goal}")
    env = builder.get("env")
    assert env.copy().goal is env.goal is builder.get("goal")
    assert env.maker is None
    seeded = built("+env.goal=${seeds}").get("env")
    assert isinstance(seeded.copy().goal, Seeds)
    assert seeded.maker is not None


def test_a_vector_environment_of_gymnasium_is_an_argument(folder):
    kind = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
    node = f"_target_: rlrun.env.BatchedEnv\nvector: {{_target_: {kind}, num_envs: '${{num_envs}}'}}\n"
    (folder / "conf" / "env" / "poles.yaml").write_text(node)
    assert stage(built("env=poles").get("env"), 2).num_envs == 1  # as it cannot seed one env of several
    with pytest.raises(RequestError, match=r"num_envs: environment .* has 4 envs, and the memory stores 3; both want"):
        check(
            [*SHORT, "env=gym", "env._target_=rlrun.env.BatchedEnv", f"+env.vector={{_target_: {kind}, num_envs: 4}}"]
        )
    with pytest.raises(RequestError, match=r"CartPoleVectorEnv is no rlrun.env.Env; its node belongs into"):
        check([*SHORT, "env=gym", f"env._target_={kind}"])
