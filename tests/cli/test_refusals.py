"""A broken request: exit code 2, one line with place and nearest match, nothing left behind."""

import sys

import numpy as np
import pytest

from .conftest import refused

DQN = ("train", "algorithm=dqn", "env=cartpole", "stop.updates=1")
SAC = ("train", "algorithm=sac", "env=pendulum", "stop.updates=1")

# What is asked for -> what the one line must say.
KEYS = {
    (*DQN, "algorithm.discont=0.9"): ["algorithm.discont:", "did you mean 'algorithm.discount'?"],
    (*DQN, "sed=3"): ["sed:", "did you mean 'seed'?"],
    (*DQN, "+algorithm.typo=1"): ["algorithm.typo: no part reads this key"],
    (*DQN, "+stop.env_stepss=1"): ["stop.env_stepss:", "did you mean 'stop.env_steps'?"],
    (*DQN, "~callbacks.q_los"): ["callbacks.q_los:", "did you mean 'callbacks.q_loss'?"],
    ("train", "algoritm=dqn", "env=cartpole"): ["algoritm: no such key or group", "did you mean 'algorithm'?"],
    ("train", "algorithm=dqm", "env=cartpole"): ["algorithm: there is no 'dqm'", "did you mean 'dqn'?"],
    ("train", "algorithm=DQN", "env=cartpole"): ["algorithm: there is no 'DQN'", "did you mean 'dqn'?"],
    ("train", "algorithm=dqn.yaml", "env=cartpole"): ["a config file is named without its ending: algorithm=dqn"],
    ("train", "algorithm=dqn", "env=cartpole.yaml"): ["a config file is named without its ending: env=cartpole"],
    ("train", "-m", "algorithm=dqn.yaml,dqn", "env=cartpole"): ["named without its ending: algorithm=dqn"],
    (*DQN, "+with=rnd.yaml"): ["a config file is named without its ending: with=rnd"],
    ("train", "algorithm=dqn", "env=null"): ["env: nothing is chosen: env=NAME"],
    ("train", "algorithm=dqn", "~env"): ["env: nothing is chosen: env=NAME"],
    ("train", "algorithm=null", "env=cartpole"): ["algorithm: nothing is chosen: algorithm=NAME"],
    (*DQN, "optimizer=null"): ["optimizer: nothing is chosen: optimizer=NAME"],
    ("train", "algorithm=[dqn,sac]", "env=cartpole"): ["one run has one algorithm; rlrun train -m algorithm=dqn,sac"],
    ("train", "algorithm=dqn", "env=[cartpole]"): ["env=[cartpole]: one run has one env; rlrun train -m env=cartpole"],
    ("train", "-m", *DQN[1:], "sweep.trials=3", "seed=1,2"): ["sweep.trials: no such key", ": +sweep=optuna"],
    (*DQN, "+callback.mine._target_=parts.Mine"): ["callback: no part reads this key (did you mean 'callbacks'?)"],
    (*DQN, "+network.mine._target_=parts.Mine"): ["network: no part reads this key (did you mean 'networks'?)"],
    ("train", "algorithm=dqn", "env=cartpol"): ["env: there is no 'cartpol'", "did you mean 'cartpole'?"],
    (*DQN, "hydra.sweep.dir=x"): ["hydra.sweep.dir is for a sweep: rlrun train -m"],
    (*DQN, "hydra.run.dir=x/${seeed}"): ["hydra.run.dir=x/${seeed}:", "'seeed' not found"],
    (*DQN, "hydra.job.chdir=true"): ["hydra.job.chdir:", "hydra.sweep.subdir and hydra.sweeper.params"],
    (*DQN, "hydra/launcher=submitit_slurm"): ["hydra/launcher:", "launcher=slurm", "+sweep=optuna"],
    (*DQN, "algorithm.lr='${algorithm.batchsize}'"): ["algorithm.lr:", "did you mean 'algorithm.batch_size'?"],
    (*DQN, "algorithm.lr='${algorithm.huber}'", "algorithm.huber='${algorithm.lr}'"): ["circle", "algorithm.huber ->"],
    (*DQN, "networks.q.hidden='${callbacks.q_loss}'"): ["need each other in a circle", "networks.q ->"],
    (*DQN, "evaluation=null"): ["evaluation: wanted keys with values, got null; evaluation.every=0 turns it off"],
    (*DQN, "+with=[rnd,scal]"): ["with:", "there is no 'scal'"],
    (*DQN, "algorithm.lr='${a.'"): ["algorithm.lr:"],
    (*DQN, "loader.table.length=3"): ["loader.table.length:", "${memory}"],
    (*DQN, "stop={env_stepss:1}"): ["stop:", "no such key 'env_stepss'", "did you mean 'env_steps'?"],
    (*DQN, f"algorithm.lr={'[' * 1000}{']' * 1000}"): ["algorithm.lr: nested too deeply"],
    (*DQN, f"algorithm.lr={'x' * 30_000}"): ["an override has at most 20,000 letters"],
    (*DQN, "callbacks.q_loss._target_=torch.nn.functional.mse_loss"): [
        "mse_loss needs the argument 'input'",
        "it is '+callbacks.q_loss.distance={_target_: torch.nn.functional.mse_loss, _partial_: true}'",
    ],
    (*DQN, "callbacks.q_loss.optimizer.lr=1"): [
        "change that instead, or give callbacks.q_loss.optimizer={…} of its own"
    ],
    (*DQN, "optimizer=torch.optim.SGD"): [
        "no 'torch.optim.SGD'; a class is given by optimizer._target_=torch.optim.SGD"
    ],
    (*DQN, "optimizer._target_=torch.nn.ReLU"): ["optimizer: wanted a torch.optim.Optimizer, got a ReLU"],
    (*DQN, "env.size=3"): ["env.size: no such key; an argument of the environment is env.kwargs.size=…"],
    (*DQN, "env=my.Grid"): ["env: there is no 'my.Grid'; a class is given by env.target=my.Grid"],
    ("train", "algorithm=dqn", "env.id=my.Grid"): ["'my.Grid' is registered; a class is env.target=my.Grid"],
    **{
        ("train", "algorithm=ppo", "env=cartpole", f"memory.sampler.{key}=1"): ["on-policy algorithms have no replay"]
        for key in ("alpha", "_target_")
    },
    ("train", "algorithm=ppo", "env=cartpole", "memory.export.path=x.zip"): ["memory.export: this run keeps no memory"],
    (*DQN, "callbacks=[]"): ["callbacks: wanted keys with values, got a list"],
    (*DQN, "callbacks.loss._target_=my.Loss"): ["no such key (did you mean 'callbacks.q_loss'?)"],
    (*DQN, "+callbacks.mine.size=3"): ["callbacks.mine is of type dict; it has no `_target_`"],
    (*DQN, "callbacks.q_loss._target_=torch.nn.MSELoss"): [
        "MSELoss; it is no callback: derive it",
        "of values and targets alone, it is '+callbacks.q_loss.distance={_target_: torch.nn.MSELoss, reduction: none}'",
    ],
    (*DQN, "nowhere/group@x=1"): ["nowhere/group@x: no such group"],
    (*DQN, "env.wrappers.0._target_=my.Wrapper"): ["env.wrappers: a list of 0 has no '0'", "env.wrappers=[…]"],
    (*DQN, "env@env2=pendulum"): ["env2: no part reads this key (did you mean 'env'?)"],
    (*DQN, "+optimizer@a.b.c=sgd"): ["a: no part reads this key"],
    (*DQN, "+env@evaluation=pendulum"): ["evaluation._target_: no part reads this key"],
    (*DQN, "+evaluation.episode=3"): [
        "evaluation.episode: no part reads this key",
        "did you mean 'evaluation.episodes'?",
    ],
    (*DQN, "seed=${hydra:job.num}"): ["seed: ${hydra:…} has a value in hydra.run.dir and its like only"],
    (*DQN, "seed=${oc.env:NAME,three}"): ["seed: wanted a whole number from 0, got 'three'"],
    (*DQN, "algorithm.lr=${oc.env:NOWHERE}"): ["algorithm.lr:", "Environment variable 'NOWHERE' not found"],
}

PEERS = {
    ("train", "--sed", "3", *DQN[1:]): ["there is no option --sed: overrides have no dashes (did you mean 'seed=3'?)"],
    ("train", "--run-dri", "3", *DQN[1:]): ["there is no option --run-dri (did you mean '--run-dir'?)"],
    ("train", "algorithm=dqn", "env=Ant-v5"): [
        "env: there is no 'Ant-v5'; an id of Gymnasium is given by env.id=Ant-v5"
    ],
    ("train", "algorithm=dqn", "env=CartPole-v1"): ["(did you mean 'cartpole'?)", "env.id=CartPole-v1"],
    ("train", "algorithm=seditor", "env=constrainedbandit", "algorithm.recurrent=lstm"): [
        "no such key; algorithm.recurrent is a key of algorithm=a2c, action_repeat, airl, bc, ddpg,"
    ],
    (*DQN, "run_dir=x"): ["run_dir: no such key or group (did you mean '--run-dir'?)"],
    ("train", "--algo", "ppo", "--env", "CartPole-v1", "--learning-rate=1e-3", "--track"): [
        "there is no option --algo: overrides have no dashes (did you mean "
        "'algorithm=ppo env.id=CartPole-v1 algorithm.lr=1e-3 logger=[terminal,wandb]'?)"
    ],
}

VALUES = {
    (*DQN, "memory.lenght=5"): ["memory.lenght:", "did you mean 'memory.length'?"],
    (*DQN, "+memory.columns.plan={}"): ["memory.columns.plan: nobody fills it; the agent's response has action"],
    (*DQN, "memory.import=nowhere.zip"): ["memory.import:", "nowhere.zip"],
    (*DQN, "memory.export.path=."): ["memory.export.path: . is a folder; name a file"],
    (*SAC, "+with=hindsight"): ["hindsight needs an environment", "env=pointreach"],
    (*DQN, "memory.sampler._target_=rlrun.memory.Fifo"): ["memory.sampler"],
    (*SAC, "algorithm.recurrent=true"): ["algorithm.recurrent: wanted gru, lstm, null or {_target_: rlrun.nn.Memory"],
    ("train", "algorithm=ppo", "env=cartpole", "+with=hlgauss"): [
        "algorithm.value_head: no part reads this key; +with=hlgauss needs it, and algorithm=ppo lacks it; hlgauss: "
    ],
    (*DQN, "+with=uniform_prior"): [
        "callbacks.temperature: +with=uniform_prior needs it, and algorithm=dqn lacks it; uniform_prior: SAC,"
    ],
    ("train", "algorithm=sac", "env=pendulum", "+with=encoded_actions"): [
        "memory.adaptors.latent_actions: +with=encoded_actions needs it, and algorithm=sac lacks it; encoded_actions: ",
    ],
    ("train", "algorithm=ddpg", "env=pendulum", "+with=policy_prior"): ["callbacks.temperature:", "ddpg lacks it; pol"],
    (*DQN, "seed=abc"): ["seed: wanted a whole number", "'abc'"],
    (*DQN, "algorithm.batch_size=-4"): ["algorithm.batch_size: wanted a whole number from 1", "-4"],
    (*DQN, "algorithm.epsilon.last=x"): ["algorithm.epsilon.last: wanted a number", "'x'"],
    (*DQN, "algorithm.double=maybe"): ["algorithm.double: wanted true or false", "'maybe'"],
    (*DQN, "algorithm.max_grad_norm=x"): ["algorithm.max_grad_norm: wanted a number above 0 or null", "'x'"],
    (*DQN, "algorithm.discount=1.5"): ["algorithm.discount: wanted a number from 0 to 1", "1.5"],
    (*DQN, "precision=hihg"): ["precision: wanted one of highest, high, medium", "did you mean 'high'?"],
    (*DQN, "device=cud"): ["device: wanted one of", "did you mean 'cuda'?"],
    (*DQN, "device=cuda:99"): ["device=cuda:99:"],
    ("train", "env=cartpole"): ["algorithm: nothing is chosen", "dqn, ", "sac"],
    ("train", "algorithm=dqn"): ["env: no environment is named", "env=NAME"],
    (*DQN, "algorithm.lr"): ["'algorithm.lr'", "KEY=VALUE"],
    (*DQN, "=3"): ["'=3'", "KEY=VALUE"],
    (*DQN, "algorithm.hidden=64]"): ["']' closes nothing"],
    (*DQN, "logger=['wandb]"): ["the quote ' is not closed"],
    (*DQN, "algorithm=dqn,sac"): ["one run takes one value"],
    (*DQN, "num_envs=true"): ["num_envs: wanted a whole number from 1, got true"],
    (*DQN, "algorithm.hidden=[64,0]"): ["algorithm.hidden: wanted a list of whole numbers from 1"],
    (*DQN, "+with=curl", "curl.tau=2"): ["curl.tau: wanted a number from 0 to 1, got 2"],
    (*DQN, "+with=spr", "spr.leaves=camera"): ["spr.leaves: wanted a list of texts or null, got 'camera'"],
    (*DQN, "init=old"): ["init: wanted parts with the run of each ({networks: RUN}), got 'old'"],
    (*DQN, "+with=curl", "curl.views=cut_out"): ["curl.views: wanted keys with values, got 'cut_out'"],
    (*DQN, "+with=spr", "spr.steps=2.5"): ["spr.steps: wanted a whole number from 1, got 2.5"],
    (*DQN, "+with=spr", "spr.hidden=0"): ["spr.hidden: wanted a list of whole numbers from 1, got 0"],
    (*DQN, "env.id=null"): ["env: no environment is named"],
    (*DQN, "env.id=???"): ["env.id: a value is needed"],
    (*DQN, "algorithm.hidden=(64,64)"): ["a list is written in brackets: algorithm.hidden=[64,64]"],
    (*DQN, "env.kwargs.name=é"): ["a text that holds 'é' wants double quotes: env.kwargs.name='\"é\"'"],
    (*DQN, "env.kwargs={a: {b: ü}}"): ["a text that holds 'ü' wants double quotes"],
    (*DQN, "naïve=3"): ["a key has no 'ï'"],
    (*DQN, "algorithm.hidden=[8,,8]"): ["cannot be read; quote texts"],
    (*DQN, "seeds=3"): ["seeds: wanted the keys of rlrun.core.seeds.Seeds, got 3 (did you mean 'seed'?)"],
    (*DQN, "networks.q=nets.Net"): [
        "networks.q: wanted the keys of rlrun.algorithms.value_based.dqn.QNetwork",
        "networks.q._target_=nets.Net",
    ],
    (*DQN, "callbacks.q_loss.optimizer=adam"): [
        "callbacks.q_loss.optimizer: wanted {_target_: torch.optim.Adam, lr: 1.0e-3, _partial_: true}, got 'adam'"
    ],
    (*DQN, "callbacks.q_loss.optimizer={_target_: torch.optim.Nope}"): ["has no 'Nope'; it has ", " SGD,"],
    (*DQN, "callbacks.q_loss.optimizer={_target_: torch.optim.SGD, lr: 0.1}"): [
        "callbacks.q_loss.optimizer: torch.optim.SGD needs the argument 'params'; `_partial_: true` leaves the "
    ],
    (*DQN, "algorithm.hidden=[8"): ["'algorithm.hidden=[8'", "'[' is not closed"],
    (*DQN, "env.id=a=b"): ["quote a value that holds '='"],
    (*DQN, "seed=1,2"): ["'seed=1,2'", "a sweep, rlrun train -m, takes several", "seed=[1,2]"],
}

PARTS = {
    ("train", "--from", "old@70"): ["no checkpoint '70'"],
    ("train", "--from", "nowhere"): ["nowhere does not exist"],
    ("train", "--trust"): ["--trust goes with --from, --continue and --sweep-dir"],
    (*DQN, "networks.q._target_=rlrun.algorithms.value_based.dqn.QNetwrok"): [
        "networks.q:",
        "did you mean",
        "QNetwork'?",
    ],
    ("train", "algorithm=dqn", "env=pendulum"): ["networks.q:", "DQN", "discrete", "Box[1]", "algorithm=sac"],
    ("train", "algorithm=dqn", "env.id="): ["env.id", "''"],
    ("train", "algorithm=dqn", "env.id=CartPol-v1"): ["env.id", "did you mean 'CartPole-v1'?"],
    (*SAC, "algorithm.value_head=quantiles"): ["algorithm.value_head: wanted null or a _target_", "'quantiles'"],
}

COMMANDS = {
    (*DQN, "--dry-rum"): ["train: there is no option --dry-rum", "did you mean '--dry-run'?"],
    ("--versoin",): ["there is no option --versoin", "did you mean '--version'?"],
    ("trian", "algorithm=dqn"): ["No such command 'trian'", "'train'"],
    (*DQN, "--config-dir", "nowhere"): ["--config-dir nowhere: there is no such folder"],
    (*DQN, "--run-dir", "a_file"): ["run directory", "a_file is a file"],
    (*DQN, "--run-dir", "a_file/run"): ["run directory", "cannot be made"],
    (*DQN, "--run-dir", "full"): ["run directory", "is not empty", "notes.txt"],
    (*DQN, "--run-dir", "old"): ["run directory", "holds a run already"],
    (*DQN, "--run-dir"): ["--run-dir"],
    ("eval",): ["eval: Missing argument 'run'"],
    ("eval", "full"): ["full is not a run directory"],
    ("resume", "nowhere"): ["nowhere does not exist"],
    ("resume", "."): ["the newest run beneath it is"],
    ("eval", "old", "--checkpoint", "77"): ["no checkpoint '77'"],
    ("eval", "old", "--episodes", "0"): ["eval: Invalid value for '--episodes'"],
    ("play", "old", "env=pendulum"): ["env=pendulum: a run plays in its own environment"],
    ("eval", "old", "env=pendulum"): [
        "env=pendulum: a run plays in its own environment",
        "env.kwargs.KEY=VALUE and env.reset_options.KEY=VALUE alone",
    ],
    ("config", *DQN[1:], "--package", "stop.env_step"): [
        "stop.env_step: no such key",
        "did you mean 'stop.env_steps'?",
    ],
    ("list", "algoritms"): ["list algoritms:", "did you mean 'algorithms'?"],
    ("check", "algorithm=dqn", "env=pendulum"): ["networks.q:", "discrete"],
}

CASES = {**KEYS, **PEERS, **VALUES, **PARTS, **COMMANDS}


@pytest.fixture
def surroundings(project, write):
    """A file, a folder with notes, and a run, as they are found."""
    write("a_file", "")
    write("full/notes.txt", "")
    write("old/config.yaml", "{seed: 0, device: cpu, threads: 1, precision: highest, stop: {}, env: {}}\n")
    write("old/manifest.json", "{}")
    before = sorted(project.rglob("*"))
    yield project
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_a_broken_request_is_refused_in_one_line(overrides, rlrun, surroundings):
    refused(rlrun(*overrides), CASES[overrides])


def test_a_process_of_its_own_says_the_same(rlrun, forked, surroundings):
    overrides = (*DQN, "sed=3")
    process = forked([*overrides])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == rlrun(*overrides)


ENVIRONMENT = """
import warnings
import gymnasium, numpy
from gymnasium.spaces import Box, Discrete

class Endless(gymnasium.Env):
    observation_space = Box(-1, 1, (2,))
    action_space = Box(-numpy.inf, numpy.inf, (1,))
    def __init__(self):
        warnings.warn("noise")
        gymnasium.logger.warn("more noise")

class Needy(Endless):
    def __init__(self, size):
        pass

class Broken(Endless):
    def __init__(self):
        raise RuntimeError("one\\ntwo")
"""

OWN_ENVIRONMENTS = {"Needy": ["env.kwargs", "wants size"], "Broken": ["env.target 'mine.Broken'", "RuntimeError: one"]}


@pytest.mark.parametrize("name", OWN_ENVIRONMENTS)
def test_an_environment_that_cannot_be_used_is_refused(name, write, rlrun, surroundings):
    file = write("mine.py", ENVIRONMENT)
    refused(rlrun("train", "algorithm=sac", f"env.target=mine.{name}"), OWN_ENVIRONMENTS[name])
    file.unlink()


def test_warnings_of_libraries_are_silent(write, forked, surroundings, monkeypatch):
    file = write("mine.py", ENVIRONMENT)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    process = forked(["check", "algorithm=sac", "env.target=mine.Endless"])  # pytest would catch warnings here
    _, err = process.communicate(timeout=60)
    assert err.startswith("rlrun: networks.policy: ")
    assert "Box[1] float32 without bounds" in err
    assert (process.returncode, err.count("\n")) == (2, 1)
    file.unlink()


CALLBACK = """
from rlrun.training.callback import Callback

class Mine(Callback):
    data_group = "default"
    def end_batch(self, rewards):
        raise AssertionError("called")
"""


def test_a_callback_that_asks_for_an_unknown_name_is_refused_before_any_step(write, rlrun, surroundings):
    file = write("mine.py", CALLBACK)
    outcome = rlrun(*DQN, "+callbacks.mine._target_=mine.Mine")
    refused(outcome, ["callbacks.mine.end_batch asks for 'rewards'", "did you mean 'reward'?"])
    file.unlink()


FILES = {
    "id: [1\nkwargs: {}\n": ["mine.yaml, line 2: not valid YAML"],
    "a: 1\n\tb: 2\n": ["mine.yaml, line 2: not valid YAML: a tab, where YAML wants spaces"],
    "a:\n\tb: 2\n": ["mine.yaml, line 2: not valid YAML: a tab, where YAML wants spaces"],
    "id: A-v0\nid: B-v0\n": ["mine.yaml, line 2", "key 'id' is there twice"],
    "- a\n": ["mine.yaml: wanted keys with values, got a list"],
    "id: ${a.\n": ["mine.yaml:"],
    "id: A-v0\n": ["env: env/mine.yaml has no `_target_`; let it begin with `defaults: [gym, _self_]`"],
    "defaults: gym\n": ["env/mine"],
    "defaults: [gim]\nid: CartPole-v1\n": ["mine.yaml:", "env/gim", "did you mean 'gym'?"],
    "defaults: [gym.yaml]\nid: A-v0\n": ["a config file is named without its ending: env=gym"],
    "defaults: [gym, /nogroup: foo]\n": ["mine.yaml: its defaults name 'nogroup/foo': there is no group 'nogroup'"],
    "defaults: [mine]\nid: A-v0\n": ["name the file itself", "rlrun/env/mine"],
    "defaults: [other]\n": ["circle"],
    "defaults: 3\n": ["conf/env/mine.yaml: defaults: wanted a list, got 3"],
    "defaults: {gym: true}\n": ["conf/env/mine.yaml: defaults: wanted a list"],
    "defaults: [gym]\nhydra: 3\n": ["conf/env/mine.yaml: hydra: wanted keys, got 3"],
    "defaults: [gym]\nid: CartPole-v1\nkwargs: {1: a}\n": ["env.kwargs.1: env.id 'CartPole-v1' takes no such"],
    f"defaults: [gym]\nid: CartPole-v1\nkwargs: {'{a: ' * 90}1{'}' * 90}\n": ["a block is nested too deeply"],
    "defaults: [gym, override /memry: replay]\n": ["mine.yaml:", "memry"],
    "defaults: [gym]\nid: CartPole-v1\nkwarg: {}\n": ["env.kwarg: rlrun.env.make", "did you mean 'kwargs'?"],
    "defaults: [gym]\nid: CartPole-v1\nkwargs: ${nowhere}\n": ["env.kwargs", "'${nowhere}' leads nowhere"],
    "defaults: [gym]\nid: CartPole-v1\nkwargs: {size: '???'}\n": ["env.kwargs.size: a value is needed"],
}


@pytest.mark.parametrize("text", FILES)
def test_broken_file_of_the_user(text, write, rlrun):
    write("conf/env/mine.yaml", text)
    write("conf/env/other.yaml", "defaults: [mine]\n")
    refused(rlrun("train", "algorithm=dqn", "env=mine"), FILES[text])


@pytest.mark.parametrize("key", ["algorithm.tua", "stop.env_step", "checkpoint.evry", "log.networc"])
def test_unread_key_of_users_file(key, write, rlrun):
    block, _, name = key.partition(".")
    write("conf/with/mine.yaml", f"# @package _global_\n{block}: {{{name}: 1}}\n")
    refused(rlrun(*DQN, "with=mine"), [f"conf/with/mine.yaml: {key}: no part reads this key"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "its first line has to be"),
        ("seed: '${nowhere}'", "seed: '${nowhere}' leads nowhere"),
        ("algorithm: {lr: abc}", "algorithm.lr: wanted a number above 0"),
        (
            "callbacks: {q_loss: {foo: 1}}",
            "callbacks.q_loss.foo: rlrun.algorithms.value_based.dqn.QLoss takes no argument",
        ),
    ],
)
def test_a_wrong_file_of_the_user_is_named(text, line, write, rlrun):
    write("conf/with/mine.yaml", text and f"# @package _global_\n{text}\n")
    refused(rlrun(*DQN, "+with=mine"), [f"conf/with/mine.yaml: {line}"])


REPLACING = {  # files that replace ours and extend none -> the way out
    "conf/train.yaml": "`defaults: [/rlrun/train, _self_]`",
    "conf/algorithm/dqn.yaml": "`defaults: [/rlrun/algorithm/sac, _self_]`",
}


@pytest.mark.parametrize("file", REPLACING)
@pytest.mark.parametrize("env", [["env=cartpole"], ["env.id=CartPole-v1"]])
def test_a_file_that_replaces_ours_says_what_it_lacks(file, env, write, rlrun):
    write(file, "# @package _global_\nseed: 3\n")
    refused(rlrun("train", "algorithm=dqn", *env), [file, "; let it begin with", REPLACING[file]])


BLOCKED = {
    (*DQN, "logger=[tensorboard]"): ["logger", "[tensorboard]'"],
    (*DQN, "evaluation.video=true"): ["evaluation.video", "[video]'"],
}


@pytest.mark.parametrize("overrides", BLOCKED, ids=" ".join)
def test_a_missing_package_is_named_with_its_extra(overrides, rlrun, monkeypatch, surroundings):
    for name in ("torch.utils.tensorboard", "tensorboard", "imageio_ffmpeg"):
        monkeypatch.setitem(sys.modules, name, None)
    refused(rlrun(*overrides), BLOCKED[overrides])


def test_a_folder_that_is_gone_is_said(rlrun, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refused(rlrun("ls"), ["the folder that this command runs in was deleted"])


def test_arrays_in_place_of_a_stored_memory_are_refused_with_the_way_out(rlrun, tmp_path):
    np.savez(tmp_path / "arrays.npz", observation=np.zeros((3, 2)))
    outcome = rlrun("train", "algorithm=iql", "+with=offline_alone", "dataset=arrays.npz")
    refused(outcome, ["arrays.npz is no stored memory:", "; dataset and memory.import take", "minari:DATASET"])


def test_what_is_no_file_is_said(rlrun, tmp_path):
    (tmp_path / "conf" / "env" / "mine.yaml").mkdir(parents=True)
    refused(rlrun("train", "algorithm=dqn", "env=mine"), ["env/mine.yaml is no file that can be read"])


def test_debug_shows_the_traceback(rlrun, surroundings):
    outcome = rlrun(*DQN, "--debug", "algorithm.discont=0.9")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("rlrun: algorithm.discont")


def test_a_missing_run_is_named_before_a_missing_package(rlrun, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(rlrun("export-onnx", "nope"), ["nope does not exist"])
