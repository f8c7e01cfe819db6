"""Names of earlier versions compose as today's, with one line of advice each."""

import logging
import sys

import pytest

from rlrun import config as configuration
from rlrun.config import renames, saved
from rlrun.config.build import find_target
from rlrun.config.interpolation import plain
from rlrun.core import renames as of_checkpoints
from rlrun.core.errors import BuildError


@pytest.fixture
def compose():
    """Compose from the packaged folder."""
    return lambda *overrides, **options: configuration.compose([*overrides], **options)


DQN = ("algorithm=dqn", "env=cartpole")


@pytest.fixture(autouse=True)
def advice(caplog):
    renames.advise.cache_clear()
    caplog.set_level(logging.WARNING)
    return caplog


def renamed(before, now):
    return f"{before} is called {now} now"


TAU, OPTIMIZER = "callbacks.q_target.tau=1", "callbacks.q_loss.optimizer"
REMOVED = "callbacks.q_loss.compile no longer exists and is ignored: compile=true compiles the whole update"


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("experiment=dqn_cartpole", "preset=dqn_cartpole", ...),
        ("+experiment=dqn_cartpole", "+preset=dqn_cartpole", ...),
        ("pair=null", "preset=null", ...),
        ("pair=dqn_cartpole", "tuned=dqn_cartpole", ...),
        ("memory=prioritised", "memory=prioritized", ...),
        ("algorithm.target_rate=0.01", "algorithm.tau=0.01", ...),
        ("callbacks.q_target.rate=1", TAU, ...),
        ("callbacks.q_loss.optimiser={lr: 0.1}", OPTIMIZER + "={lr: 0.1}", ...),
        ("++algorithm.target_rate=0.01", "++algorithm.tau=0.01", ...),
        ("matmul=numpy", "matmul_backend=auto", ...),
        ("adam.eps=0.1", "optimizer.eps=0.1", ...),
        ("+adam.amsgrad=true", "+optimizer.amsgrad=true", ...),
        ("adam={lr: 0.1}", "optimizer={lr: 0.1}", ...),
        (
            "callbacks.q_loss={optimiser: {lr: 0.1}}",
            "callbacks.q_loss={optimizer: {lr: 0.1}}",
            renamed("callbacks.q_loss.optimiser", OPTIMIZER),
        ),
        ("callbacks.q_loss.compile=true", "seed=0", REMOVED),
        ("+callbacks.q_loss.compile=true", "seed=0", REMOVED),
        ("~callbacks.q_loss.compile", "seed=0", REMOVED),
        ("callbacks.q_loss={compile: true, huber: 2.0}", "callbacks.q_loss={huber: 2.0}", REMOVED),
    ],
)
def test_override_gets_todays_name(before, now, message, compose, advice):
    composed, expected = compose(*DQN, before), compose(*DQN, now)
    assert advice.messages == [renamed(before, now) if message is ... else message]
    assert plain(composed.config) == plain(expected.config)
    if "{" not in before:  # a dict keeps its text
        assert composed.overrides == [*DQN, *([now] if message is ... else [])]


def test_value_gets_todays_name(compose, write, tmp_path, advice):
    assert compose("algorithm=td3", "env=pendulum", "algorithm.guide=smallest").config.algorithm.actor_q == "min"
    path = tmp_path / "config.yaml"
    path.write_text("matmul: numpy\n")
    assert saved.load(path).matmul_backend == "auto"
    write("conf/with/mine.yaml", "# @package _global_\nmatmul_backend: numpy\n")
    assert compose(*DQN, "+with=mine").config.matmul_backend == "auto"
    assert advice.messages[0] == renamed("algorithm.guide=smallest", "algorithm.actor_q=min")
    assert advice.messages[2].endswith(f"mine.yaml: {renamed('matmul_backend=numpy', 'matmul_backend=auto')}")


def test_class_in_override_gets_todays_path(compose):
    composed = compose(*DQN, "callbacks.q_loss._target_=rlrun.memory.Prioritised", check=False)
    assert composed.config.callbacks.q_loss._target_ == "rlrun.memory.Prioritized"


@pytest.mark.parametrize(
    "overrides",
    [
        ["+env.kwargs.optimiser=1"],
        ["+callbacks.q_loss.normalise=1"],
        ["callbacks.q_loss._target_=mine.Loss", "+callbacks.q_loss.compile=true"],
        ["+callbacks.mine={_target_: mine.Loss, compile: true}"],
        ["+callbacks.mine._target_=mine.Loss", "+callbacks.mine.compile=true"],
    ],
)
def test_keys_of_a_users_class_keep_their_names(overrides, compose, advice):
    composed = compose(*DQN, *overrides, check=False)
    assert composed.overrides[2:] == overrides
    assert not advice.messages


def test_removed_key_in_a_file_is_ignored(compose, write, advice):
    write(
        "conf/with/mine.yaml",
        """
        # @package _global_
        callbacks:
          q_loss: {compile: "${compile}", huber: 2.0}
          mine: {_target_: builtins.dict, compile: "${compile}"}
        """,
    )
    composed = compose(*DQN, "+with=mine", check=False)
    assert "compile" not in composed.config.callbacks.q_loss
    assert (composed.config.callbacks.q_loss.huber, composed.config.callbacks.mine.compile) == (2.0, False)
    (message,) = advice.messages
    assert message.endswith(
        "mine.yaml: callbacks.q_loss.compile no longer exists and is ignored: compile=true compiles the whole update"
    )


def test_pair_null_beside_a_named_preset(compose):
    composed = compose("experiment=dqn_cartpole", "pair=null")
    assert composed.overrides == ["preset=dqn_cartpole"]


def test_file_gets_todays_names(compose, write, advice):
    write(
        "conf/preset/mine.yaml",
        """
        # @package _global_
        defaults: [override /algorithm: td3, override /env: pendulum, override /memory: prioritised]
        algorithm: {target_rate: 0.1, guide: smallest}
        callbacks:
          q:
            optimiser: {lr: "${algorithm.target_rate}"}
          mine: {_target_: builtins.dict, optimiser: 1, inner: {_target_: rlrun.nn.Normaliser, normalise: 2}}
          twice: {_target_: builtins.dict, link: "${callbacks.mine.optimiser}", near: "${..q.optimiser.lr}"}
        env: {kwargs: {optimiser: 1}}
        """,
    )
    composed = compose("preset=mine", check=False)
    config = plain(composed.config)
    assert composed.choices["memory"] == "prioritized"
    assert (config["algorithm"]["tau"], config["algorithm"]["actor_q"]) == (0.1, "min")
    assert config["callbacks"]["q"]["optimizer"]["lr"] == "${algorithm.tau}"
    inner = {"_target_": "rlrun.nn.Normalizer", "normalize": 2}
    assert config["callbacks"]["mine"] == {"_target_": "builtins.dict", "optimiser": 1, "inner": inner}
    assert config["callbacks"]["twice"]["link"] == "${callbacks.mine.optimiser}"
    assert config["callbacks"]["twice"]["near"] == "${..q.optimizer.lr}"
    assert config["env"]["kwargs"] == {"optimiser": 1}
    assert any(message.endswith("algorithm.target_rate is called algorithm.tau now") for message in advice.messages)


def test_key_of_a_class_named_in_another_file(compose, write):
    write("conf/with/mine.yaml", "# @package _global_\ncallbacks: {mine: {_target_: builtins.dict, optimiser: 1}}\n")
    write("conf/with/more.yaml", "# @package _global_\ncallbacks: {mine: {optimiser: 2}}\n")
    config = compose(*DQN, "+with=[mine,more]", check=False).config
    assert config.callbacks.mine.optimiser == 2


def test_users_file_goes_before_a_rename(compose, write):
    write("conf/memory/prioritised.yaml", "defaults: [rlrun/memory/replay]\nlength: 77\n")
    composed = compose(*DQN, "memory=prioritised")
    assert (composed.choices["memory"], composed.config.memory.length) == ("prioritised", 77)


def test_saved_config_gets_one_line(tmp_path, advice):
    path = tmp_path / "config.yaml"
    path.write_text("algorithm: {target_rate: 0.1, optimiser: {normalise: 1}}\n")
    assert plain(saved.load(path)) == {"algorithm": {"tau": 0.1, "optimizer": {"normalize": 1}}}
    assert advice.messages == [f"{path}: algorithm.target_rate is called algorithm.tau, 2 more now"]


def test_names_of_the_top_are_renamed_there_only(tmp_path, advice):
    path = tmp_path / "config.yaml"
    path.write_text(
        """
        adam: {_target_: torch.optim.Adam, lr: 0.1}
        mine: {adam: 1}
        callbacks: {q: {optimizer: "${adam}", lr: "${adam.lr}", near: "${..mine.adam}", adam: "${mine.adam}"}}
        """
    )
    config = plain(saved.load(path))
    assert config["optimizer"] == {"_target_": "torch.optim.Adam", "lr": 0.1}
    assert config["mine"] == {"adam": 1}
    q = {"optimizer": "${optimizer}", "lr": "${optimizer.lr}", "near": "${..mine.adam}", "adam": "${mine.adam}"}
    assert config["callbacks"]["q"] == q
    assert advice.messages == [f"{path}: adam is called optimizer now"]


def test_removed_keys_of_a_saved_config_get_one_line(tmp_path, advice):
    path = tmp_path / "config.yaml"
    path.write_text(
        """
        compile: false
        callbacks:
          q_loss: {_target_: rlrun.callbacks.CriticLoss, huber: 1.0, compile: "${compile}"}
          policy: {_target_: rlrun.callbacks.SoftPolicyLoss, compile: "${compile}"}
          mine: {_target_: mine.Loss, compile: "${compile}"}
        fused_update: {_target_: rlrun.compile.FusedUpdate, compile: "${compile}"}
        """
    )
    config = plain(saved.load(path))
    assert [name for name, callback in config["callbacks"].items() if "compile" in callback] == ["mine"]
    assert (config["callbacks"]["q_loss"]["huber"], config["compile"]) == (1.0, False)
    assert "compile" in config["fused_update"]
    ignored = "callbacks.q_loss.compile, 1 more no longer exists and is ignored: compile=true compiles the whole update"
    assert advice.messages == [f"{path}: {ignored}"]


def test_recorded_overrides_get_todays_names():
    texts = ["experiment=a", "pair=null", "memory=prioritised", "algorithm.guide=smallest", "~normaliser", "seed=3"]
    today = ["preset=a", "memory=prioritized", "algorithm.actor_q=min", "~normalizer", "seed=3"]
    texts, today = [*texts, "+adam.eps=1", "mine.adam=1"], [*today, "+optimizer.eps=1", "mine.adam=1"]
    assert of_checkpoints.recorded(texts) == today


def test_part_is_stored_under_its_own_name_first():
    stored = ["normalisers.a", "normalizers.b", "normalisers.b"]
    parts = ("normalizers.a", "normalizers.b", "q")
    assert [of_checkpoints.stored_as(part, stored) for part in parts] == ["normalisers.a", "normalizers.b", "q"]


def test_a_name_for_several_names_is_these_names():
    node = {"memory": {"adaptors": {"emote_names": {"_target_": "rlrun.memory.Rename", "preset": "emote"}}}}
    now = renames.tree(node, "config.yaml")["memory"]["adaptors"]["emote_names"]
    assert now == {"_target_": "rlrun.memory.Rename", "names": {"action": "actions", "reward": "rewards"}}


def test_a_users_preset_of_before_is_chosen(compose, write):
    write("conf/experiment/mine.yaml", "# @package _global_\ndefaults: [override /algorithm: dqn]\nseed: 7\n")
    composed = compose("experiment=mine", "env=pendulum")
    assert (composed.config.seed, composed.overrides[0]) == (7, "preset=mine")
    assert plain(composed.config) == plain(compose("preset=mine", "env=pendulum").config)


def test_the_table_names_what_is_there():
    from hydra.utils import get_object

    for now in renames.table("targets").values():
        get_object(now)


def test_users_module_is_told_of_a_moved_module(project, write):
    write("mine_of_before.py", "from rlrun.callback import Callback\n")
    sys.path.append(str(project))
    with pytest.raises(BuildError, match=r"rlrun\.callback is called rlrun\.training\.callback now"):
        find_target("mine_of_before.Callback", "callbacks.mine")


def test_advice_has_no_control_characters(tmp_path, advice):
    path = tmp_path / "config.yaml"
    path.write_text('callbacks: {"a\\e]0;b\\nrlrun: c": {_target_: rlrun.callbacks.CriticLoss, compile: true}}\n')
    saved.load(path)
    (message,) = advice.messages
    assert "callbacks.a?]0;b?rlrun: c.compile no longer exists" in message
