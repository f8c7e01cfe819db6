"""Tuned presets: packaged algorithm < tuned preset < user's files < words."""

import pytest

TUNED = ("algorithm=dqn", "env=cartpole")


@pytest.mark.parametrize(
    ("overrides", "preset", "values"),
    [
        ([*TUNED], "dqn_cartpole", (2.5e-3, 4, 9000)),
        ([*TUNED, "algorithm.lr=0.5"], "dqn_cartpole", (0.5, 4, 9000)),
        ([*TUNED, "env.kwargs.size=3"], "dqn_cartpole", (2.5e-3, 4, 9000)),
        *(
            ([*TUNED, override], None, (1e-3, 1, None))
            for override in ("env.id=Other-v0", "env.id=CartPole-v1", "env.target=my.Env", "preset=null", "~preset")
        ),
        (["algorithm=dqn", "env=pendulum"], None, (1e-3, 1, None)),
    ],
)
def test_tuned_preset_applies_unless_env_changes(overrides, preset, values, compose):
    composed = compose(*overrides)
    lr, num_envs, length = values
    assert composed.preset == preset
    assert (composed.config.algorithm.lr, composed.config.num_envs) == (lr, num_envs)
    assert composed.choices["memory"] == ("prioritized" if preset else "replay")
    assert length is None or composed.config.memory.length == length


def test_memory_of_preset_can_be_replaced(compose):
    assert compose(*TUNED, "memory=replay").choices["memory"] == "replay"


def test_a_key_that_a_pair_adds_exists_where_the_pair_applies(compose, refusal):
    override = "memory.exponent=0.25"
    assert compose(*TUNED, override).config.memory.exponent == 0.25
    assert "no such key" in refusal(*TUNED, override, "env.id=Other-v0")


def test_a_named_preset_switches_the_pair_off(compose, write):
    write("conf/preset/mine.yaml", "# @package _global_\nalgorithm: {discount: 0.5}\n")
    composed = compose(*TUNED, "preset=mine")
    assert (composed.preset, composed.config.algorithm.lr, composed.config.algorithm.discount) == (None, 1e-3, 0.5)


@pytest.mark.parametrize("name", ["algorithm/dqn", "env/cartpole"])
def test_the_users_own_file_switches_the_pair_off(compose, write, name):
    write(f"conf/{name}.yaml", f"defaults: [/rlrun/{name}]\n")
    composed = compose(*TUNED)
    assert composed.preset is None
    assert composed.config.algorithm.lr == 1e-3


def test_the_users_files_beat_the_pair(compose, write):
    write("conf/memory/prioritized.yaml", "defaults: [/rlrun/memory/prioritized]\nlength: 5\n")
    write("conf/train.yaml", "defaults: [/rlrun/train, _self_]\nnum_envs: 2\n")
    config = compose(*TUNED).config
    assert (config.memory.length, config.num_envs, config.algorithm.lr) == (5, 2, 2.5e-3)


def test_a_block_of_the_user_beats_the_pair(compose, write):
    write("conf/train.yaml", "defaults: [_self_, /rlrun/train]\nexpect: null\n")
    assert compose(*TUNED).config.expect is None


@pytest.mark.parametrize("algorithm", ["dqn", "mine"])
def test_users_own_preset_is_found(compose, write, algorithm):
    write("conf/algorithm/mine.yaml", "defaults: [/rlrun/algorithm/dqn]\n")
    write(
        f"conf/preset/{algorithm}_pendulum.yaml",
        f"# @package _global_\ndefaults: [override /algorithm: {algorithm}, override /env: pendulum]\nseed: 9\n",
    )
    composed = compose(f"algorithm={algorithm}", "env=pendulum")
    assert (composed.preset, composed.config.seed) == (f"{algorithm}_pendulum", 9)
    assert compose(f"algorithm={algorithm}", "env=pendulum", "preset=null").config.seed == 0
    assert compose(f"algorithm={algorithm}", "env=cartpole").config.seed == 0


def test_users_own_preset_goes_before_the_packaged(compose, write):
    write("conf/preset/dqn_cartpole.yaml", "# @package _global_\nalgorithm: {lr: 0.25}\n")
    config = compose(*TUNED).config
    assert (config.algorithm.lr, config.num_envs) == (0.25, 1)


def test_a_pair_works_where_train_does_not_list_it(compose, write):
    write(
        "conf/train.yaml",
        "defaults: [memory: replay, algorithm: dqn, env: gym, _self_]\nnum_envs: 1\n"
        "spaces: {_target_: parts.Spaces}\ntrainer: {_target_: parts.Trainer, a: '${callbacks}', b: '${loader}'}\n",
    )
    config = compose(*TUNED).config
    assert (config.algorithm.lr, config.num_envs) == (2.5e-3, 1)


OWN = "# @package _global_\n"


def test_a_preset_of_the_users_own_beats_his_algorithm_file(compose, write):
    write("conf/algorithm/dqn.yaml", f"{OWN}defaults: [/rlrun/algorithm/dqn, _self_]\nalgorithm: {{lr: 0.001}}\n")
    write("conf/preset/dqn_pendulum.yaml", f"{OWN}algorithm: {{lr: 0.07}}\n")
    composed = compose("algorithm=dqn", "env=pendulum")
    assert (composed.preset, composed.config.algorithm.lr) == ("dqn_pendulum", 0.07)


def test_a_file_that_only_lists_others_yields_to_a_preset(compose, write):
    write("conf/algorithm/mine.yaml", f"{OWN}defaults: [/rlrun/algorithm/dqn]\n")
    write("conf/preset/mine_pendulum.yaml", f"{OWN}algorithm: {{lr: 0.07}}\n")
    composed = compose("algorithm=mine", "env=pendulum")
    assert (composed.preset, composed.config.algorithm.lr) == ("mine_pendulum", 0.07)
    write("conf/memory/prioritized.yaml", "defaults: [/rlrun/memory/prioritized]\n")
    assert compose(*TUNED).config.memory.length == 9000
    assert "" not in compose(*TUNED).config
