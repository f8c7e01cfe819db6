"""What is wrong with a request, in one line with place and nearest match."""

from __future__ import annotations

import pytest

from rlrun.core.errors import ConfigError

GROUPS = ("algorithm=dqn", "env=pendulum")

WORDS = {
    "algorithm.discont=0.9": ["algorithm.discont:", "did you mean 'algorithm.discount'?"],
    "~callbacks.q_los": ["callbacks.q_los:", "did you mean 'callbacks.q_loss'?"],
    "evaluation=null": ["evaluation: wanted keys with values, got null; evaluation.every=0 turns it off"],
    "stop=3": ["stop: wanted keys with values, got 3"],
    "sed=3": ["sed:", "did you mean 'seed'?"],
    "algorithm=dqm": ["algorithm:", "there is no 'dqm'", "did you mean 'dqn'?"],
    "algorithm=xyz": ["algorithm:", "there is no 'xyz'", "dqn, sac"],
    "algorithm=7": ["algorithm:", "there is no '7'"],
    "with=rn": ["with:", "did you mean 'rnd'?"],
    "+with=[rnd,scal]": ["with:", "there is no 'scal'", "did you mean 'scale'?"],
    "~nothing": ["nothing: no such key"],
    "algorithm.lr": ["'algorithm.lr'", "KEY=VALUE"],
    "=3": ["'=3'", "KEY=VALUE"],
    "algorithm.hidden=[64": ["'['", "not closed"],
    "algorithm.hidden=64]": ["']' closes nothing"],
    "logger=['wandb]": ["the quote ' is not closed"],
    "env.id=a=b": ["quote a value that holds '='"],
    "seed=1,2": ["one run takes one value", "a sweep, rlrun train -m, takes several", "seed=[1,2]"],
    "seed=range(5)": ["one run takes one value", "a sweep, rlrun train -m, takes several"],
    "algorithm=dqn,sac": ["one run takes one value"],
    "algorithm.lr=choice(1,2)": ["one run takes one value"],
    "hydra.run.dir=x": ["hydra.run.dir:", "--run-dir"],
    "seed=abc": ["seed: wanted a whole number from 0, got 'abc'"],
    "seed=-1": ["seed: wanted a whole number from 0, got -1"],
    "seed=": ["seed: wanted a whole number from 0, got ''"],
    "seed=1.5": ["seed: wanted a whole number from 0, got 1.5"],
    "num_envs=two": ["num_envs: wanted a whole number from 1, got 'two'"],
    "num_envs=true": ["num_envs: wanted a whole number from 1, got true"],
    "stop.env_steps=many": ["stop.env_steps: wanted a whole number from 0 or null, got 'many'"],
    "algorithm.discount=1.5": ["algorithm.discount: wanted a number from 0 to 1, got 1.5"],
    "algorithm.hidden=[64,0]": ["algorithm.hidden: wanted a list of whole numbers from 1"],
    "env.vectorization=asinc": ["env.vectorization:", "did you mean 'async'?"],
    "env.id=null": ["env: no environment is named"],
    "env.id=???": ["env.id: a value is needed"],
    "algorithm.lr='${algorithm.batchsize}'": ["algorithm.lr:", "did you mean 'algorithm.batch_size'?"],
    "networks.q.hidden='${networks.p}'": ["networks.q.hidden:", "'${networks.p}' leads nowhere"],
    "algorithm.lr='${callbacks.q_loss.lr}'": ["circle", "algorithm.lr -> callbacks.q_loss.lr -> algorithm.lr"],
    "algorithm.lr='${oc.env:RLRUN_ABSENT}'": ["algorithm.lr:", "RLRUN_ABSENT"],
    "algorithm.lr='${nonsense:1}'": ["algorithm.lr:", "nonsense"],
    "algorithm.lr='${a.'": ["algorithm.lr:"],
    "+typo=1": ["typo: no part reads this key"],
    "+algorithm.warmup=1": ["algorithm.warmup: no part reads this key"],
    "+stop.env_stepss=1": ["stop.env_stepss: no part reads this key", "did you mean 'stop.env_steps'?"],
    "algorithm.lr.x=1": ["algorithm.lr.x: no such key"],
    "loader.table.length=3": ["loader.table.length:", "${memory}"],
    "stop={env_stepss:1}": ["stop:", "no such key 'env_stepss'", "did you mean 'env_steps'?"],
    f"algorithm.lr={'[' * 1000}{']' * 1000}": ["algorithm.lr: nested too deeply"],
    f"algorithm.lr={'x' * 30_000}": ["an override has at most 20,000 letters"],
    "nowhere/group@x=1": ["nowhere/group@x: no such group"],
}


@pytest.mark.parametrize("override", WORDS)
def test_a_wrong_word_is_refused(refusal, override):
    message = refusal(*GROUPS, override)
    assert all(part in message for part in WORDS[override]), message


def test_a_mistyped_group_is_named_first(refusal):
    assert refusal("algoritm=sac", "env=cartpole").startswith(
        "algoritm: no such key or group (did you mean 'algorithm'?)"
    )


def test_a_missing_choice_lists_the_choices(refusal):
    assert refusal("env=cartpole") == "algorithm: nothing is chosen: algorithm=NAME with one of dqn, sac"


def test_an_environment_must_be_named(refusal):
    assert refusal("algorithm=dqn").startswith("env: no environment is named")


FILES = {
    "a: [1\nb: 2\n": ["pendulum.yaml, line 2: not valid YAML"],
    "a: 1\n\tb: 2\n": ["pendulum.yaml, line 2: not valid YAML"],
    "id: A-v0\nid: B-v0\n": ["pendulum.yaml, line 2", "key 'id' stands twice"],
    "- a\n": ["pendulum.yaml: wanted keys with values, got a list"],
    "id: ${a.\n": ["pendulum.yaml:"],
    "id: A-v0\n": ["env: env/pendulum.yaml has no `_target_`; let it begin with `defaults: [gym, _self_]`"],
    "defaults: gym\n": ["env/pendulum"],
    "defaults: [gim]\nid: A-v0\n": ["pendulum.yaml:", "env/gim", "did you mean 'gym'?"],
    "defaults: [pendulum]\nid: A-v0\n": ["name the file itself", "rlrun/env/pendulum"],
    "defaults: [gym, override /memry: replay]\n": ["pendulum.yaml:", "memry"],
    "defaults: [gym]\nid: A-v0\nkwargs: ${nowhere}\n": ["env.kwargs", "'${nowhere}' leads nowhere"],
}


@pytest.mark.parametrize("text", FILES)
def test_a_broken_file_is_named(refusal, write, text):
    write("conf/env/pendulum.yaml", text)
    message = refusal(*GROUPS)
    assert all(part in message for part in FILES[text]), message


def test_files_that_include_each_other_are_refused(refusal, write):
    write("conf/env/pendulum.yaml", "defaults: [other]\n")
    write("conf/env/other.yaml", "defaults: [pendulum]\n")
    assert "circle" in refusal(*GROUPS)


def test_a_key_in_the_users_file_that_nobody_reads_is_refused(refusal, write):
    write("conf/with/mine.yaml", "# @package _global_\nalgorithm: {tua: 1}\n")
    assert refusal(*GROUPS, "with=mine").startswith("algorithm.tua: no part reads this key")


def test_a_number_whose_reader_was_deleted_may_stay(compose):
    assert compose("algorithm=sac", "env=pendulum", "~callbacks.temperature").config.algorithm.temperature == 0.2


def test_a_missing_primary_config_is_named(tmp_path):
    from rlrun.config import compose

    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"^no 'train\.yaml' on the search path: .*empty$"):
        compose([], packaged=tmp_path / "empty")


def test_a_missing_config_dir_is_named(refusal):
    assert refusal(config_dir="nowhere") == "--config-dir nowhere: there is no such folder"


def test_a_mandatory_value_is_asked_for(refusal, write):
    write("conf/env/mine.yaml", "defaults: [gym]\nid: Mine-v0\nkwargs: {size: '???'}\n")
    assert refusal("algorithm=dqn", "env=mine").startswith("env.kwargs.size: a value is needed")
