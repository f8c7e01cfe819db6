"""Words, files and their precedence."""

import dataclasses
import sys
import time

import pytest
from hydra import compose as hydra_compose
from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf.errors import ConfigAttributeError
from tests.pace import within

from rlrun.config import provenance
from rlrun.config.interpolation import plain

GROUPS = ("algorithm=dqn", "env=pendulum")

ABSENT = "absent"
SAC = ("algorithm=sac", "env=pendulum")
COMPOSED = {  # overrides, and values of keys that they come to
    (*SAC, "algorithm.lr=1e-2", "seed=3"): {"env.id": "Pendulum-v1", "seed": 3, "algorithm.lr": 0.01},
    SAC: {"memory.exponent": 0.6, "trainer.loader": "${loader}"},
    ("+algorithm=sac", "env=pendulum"): {"memory.exponent": 0.6},
    (*GROUPS, "env.kwargs.size=3", "env.reset_options.low=-0.5"): {"env.kwargs.size": 3, "env.reset_options.low": -0.5},
    (*SAC, "~callbacks.temperature"): {"callbacks.temperature": ABSENT, "algorithm.temperature": 0.2},
    (*GROUPS, "logger=wandb"): {"logger": ["wandb"]},
    (*GROUPS, "seed=1", "seed=2", "seed=1"): {"seed": 1},
    ("~with", *GROUPS, "seed=${oc.env:NOWHERE,7}"): {"seed": 7},
    (*GROUPS, "env.kwargs.code=${oc.env:NOWHERE,7}"): {"env.kwargs.code": "${oc.env:NOWHERE,7}"},
    (*GROUPS, "env.kwargs.code='012'"): {"env.kwargs.code": "012", "algorithm.algorithm": ABSENT},
    **{
        (*GROUPS, f"seed={text}"): {"seed": value}
        for text, value in {"012": 12, "08": 8, "1_000": 1000, "1e3": 1000}.items()
    },
}
ADDITIONS = [
    ["+with=[rnd,scale]"],
    ["with=[rnd,scale]"],
    ["+with=rnd", "+with=scale"],
    ["+with=rnd", "+with=[scale,rnd]"],
]


def value_of(config, key):
    node = plain(config)
    for name in key.split("."):
        node = node.get(name, ABSENT) if isinstance(node, dict) else ABSENT
    return node


@pytest.mark.parametrize("overrides", COMPOSED, ids=" ".join)
def test_overrides_set_keys(overrides, compose):
    config = compose(*overrides).config
    values = {key: value_of(config, key) for key in COMPOSED[overrides]}
    assert values == COMPOSED[overrides]
    assert [type(value) for value in values.values()] == [type(value) for value in COMPOSED[overrides].values()]


@pytest.mark.parametrize("additions", ADDITIONS, ids=" ".join)
def test_additions_add_up(additions, compose):
    composed = compose(*GROUPS, *additions)
    assert {"novelty", "scale"} <= set(composed.config.callbacks)
    assert composed.choices["with"] == ["rnd", "scale"]


@pytest.fixture
def nested(write):
    """A group of the user's own, which files of three other groups list."""
    for name, lr in (("big", 0.25), ("small", 0.125)):
        write(f"conf/network/{name}.yaml", f"# @package _global_\nalgorithm: {{lr: {lr}}}\n")
    listing = "# @package _global_\ndefaults: [{}/network: big{}]\n"
    write("conf/algorithm/mine.yaml", listing.format("/rlrun/algorithm/dqn, ", ""))
    write("conf/with/wide.yaml", listing.format("", ""))
    write("conf/preset/mine.yaml", listing.format("", ", override /algorithm: dqn, override /env: pendulum"))


@pytest.mark.parametrize("by", [("algorithm=mine", "env=pendulum"), (*GROUPS, "with=wide"), ("preset=mine",)])
@pytest.mark.parametrize(
    ("overrides", "option", "lr"),
    [([], "big", 0.25), (["network=small"], "small", 0.125), (["+network=small"], "small", 0.125)],
)
def test_a_group_that_a_chosen_file_lists_can_be_overridden(compose, nested, by, overrides, option, lr):
    for line in ([*overrides, *by], [*by, *overrides]):
        composed = compose(*line)
        assert (composed.choices["network"], composed.config.algorithm.lr) == (option, lr)


@pytest.mark.parametrize("override", ["network=null", "~network"])
def test_a_group_that_a_chosen_file_lists_can_be_taken_out(compose, nested, override):
    composed = compose("algorithm=mine", "env=pendulum", override)
    assert composed.config.algorithm.lr == compose(*GROUPS).config.algorithm.lr


def test_keys_of_the_result_are_closed(compose):
    with pytest.raises(ConfigAttributeError):
        compose(*GROUPS).config.nothing = 1


def test_null_takes_a_group_out(compose):
    composed = compose(*GROUPS, "with=rnd", "with=null", "preset=null")
    assert "novelty" not in composed.config.callbacks
    assert "env" not in compose("algorithm=dqn", "env=null", check=False).config


def test_a_dict_sets_keys_beside_the_choice_of_its_group(compose):
    for line in (["memory=prioritized", "memory={length: 7}"], ["memory={length: 7}", "memory=prioritized"]):
        composed = compose(*GROUPS, "preset=null", *line)
        assert (composed.choices["memory"], composed.config.memory.length) == ("prioritized", 7)
    assert compose(*GROUPS, "env.kwargs={a: 1}", "env.kwargs={b: 2}").config.env.kwargs == {"b": 2}


@pytest.mark.parametrize("override", ["experiment=e1", "+experiment=e1"])
def test_an_own_group_may_choose_the_algorithm(override, compose, write):
    write(
        "conf/experiment/e1.yaml",
        "# @package _global_\ndefaults: [override /algorithm: dqn, override /env: pendulum]\n",
    )
    composed = compose(override)
    assert (composed.choices["algorithm"], composed.choices["experiment"]) == ("dqn", "e1")


def test_the_last_of_repeated_words_wins(compose):
    composed = compose("algorithm=sac", "env=pendulum", "seed=1", "algorithm=dqn", "+seed=2", "with=rnd", "with=scale")
    assert (composed.choices["algorithm"], composed.config.seed) == ("dqn", 2)
    assert "novelty" not in composed.config.callbacks
    assert composed.overrides.count("seed=1") == 0


def test_numbers_in_files_are_decimal_too(compose, write):
    write("conf/env/mine.yaml", "defaults: [gym]\nid: A-v0\nkwargs: {a: 012, b: 1e-3, c: '012', d: 1_000, e: 12:30}\n")
    kwargs = compose("algorithm=dqn", "env=mine").config.env.kwargs
    assert dict(kwargs) == {"a": 12, "b": 0.001, "c": "012", "d": 1000, "e": "12:30"}


def test_config_dir_comes_before_the_folder_conf(compose, write, tmp_path):
    write("conf/env/pendulum.yaml", "defaults: [gym]\nid: Second-v0\n")
    write("elsewhere/settings/env/pendulum.yaml", "defaults: [gym]\nid: First-v0\n")
    composed = compose(*GROUPS, config_dir=tmp_path / "elsewhere" / "settings")
    assert composed.config.env.id == "First-v0"
    assert composed.project == tmp_path / "elsewhere"
    assert sys.path[-1] == str(tmp_path / "elsewhere")
    assert compose(*GROUPS).config.env.id == "Second-v0"


def test_the_users_algorithm_starts_from_ours(compose, write):
    body = "defaults: [/rlrun/algorithm/dqn, _self_]\nalgorithm: {discount: 0.5}\n"
    write("conf/algorithm/dqn.yaml", f"# @package _global_\n{body}")
    config = compose(*GROUPS).config
    assert dict(config.algorithm) == {"hidden": [64], "discount": 0.5, "lr": 1e-3, "batch_size": 32}
    assert config.networks.q._target_ == "parts.Network"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# @package _global_\ndefaults: [rlrun/algorithm/dqn]\n",
            "the packaged file is '/rlrun/algorithm/dqn'",
        ),
        ("# Mine\n# @package _global_\nalgorithm: {lr: 1}\n", "`# @package _global_` has to be its first line"),
        ("\ufeff# @package _global_\nalgorithm: {lr: 1}\n", "it begins with a byte order mark"),
        ("algorithm: {lr: 1}\n", "its first line has to be `# @package _global_`"),
        ("defaults: [/rlrun/algorithm/dqn, override /memory: replay]\n", "its first line has to be `# @package"),
    ],
)
def test_a_file_that_hydra_would_read_otherwise_is_named(refusal, write, text, message):
    write("conf/algorithm/mine.yaml", text)
    line = refusal("algorithm=mine", "env=pendulum")
    assert message in line
    assert "conf/algorithm/mine.yaml: " in line


def test_a_missing_header_in_a_group_of_the_users_own_is_told(refusal, write):
    write("conf/network/big.yaml", "algorithm: {lr: 0.25}\n")
    line = refusal(*GROUPS, "+network=big")
    assert "conf/network/big.yaml: network: no part reads this key; the file has no `# @package _global_` in" in line


def test_other_groups_and_train_start_from_ours_too(compose, write):
    write("conf/env/pendulum.yaml", "defaults: [/rlrun/env/pendulum]\nnum_envs: 7\n")
    write("conf/train.yaml", "defaults: [/rlrun/train, _self_]\nseed: 5\n")
    config = compose("algorithm=sac", "env=pendulum").config
    assert (config.seed, config.env.id, config.env.num_envs) == (5, "Pendulum-v1", 7)
    assert config.memory.exponent == 0.6


def test_a_users_hydra_application_stays_untouched(compose, tmp_path):
    (tmp_path / "app.yaml").write_text("a: 1\n")
    GlobalHydra.instance().clear()
    compose(*GROUPS)
    assert not GlobalHydra.instance().is_initialized()
    with initialize(version_base="1.3", config_path=None):
        before = GlobalHydra.instance().hydra
        compose(*GROUPS)
        assert GlobalHydra.instance().hydra is before
        assert hydra_compose(overrides=["+a=1"]).a == 1


@pytest.mark.speed
def test_composing_takes_less_than_a_tenth_of_a_second(compose):
    def seconds():
        start = time.process_time()
        compose("algorithm=dqn", "env=cartpole", "seed=3")
        return time.process_time() - start

    compose(*GROUPS)
    assert within(seconds, 0.1)


def test_an_experiment_may_bring_additions_and_the_user_more(compose, write):
    text = "# @package _global_\ndefaults: [/with/rnd, override /algorithm: sac, override /env: pendulum]\nseed: 4\n"
    write("conf/preset/mine.yaml", text)
    composed = compose("preset=mine", "with=scale")
    assert {"novelty", "scale", "temperature"} <= set(composed.config.callbacks)
    assert composed.choices["algorithm"] == "sac"


@pytest.mark.parametrize(
    ("further", "memory"), [("_self_", "prioritized"), ("_self_, override /memory: replay", "replay")]
)
def test_the_users_algorithm_has_the_memory_of_ours_unless_it_chooses_one(compose, write, further, memory):
    start = f"# @package _global_\ndefaults: [/rlrun/algorithm/sac, {further}]\n"
    write("conf/algorithm/mine.yaml", f"{start}algorithm: {{lr: 0.5}}\n")
    composed = compose("algorithm=mine", "env=pendulum")
    assert (composed.choices["memory"], composed.config.algorithm.lr) == (memory, 0.5)


def test_quoted_texts_stay_texts_wherever_they_are(compose):
    kwargs = compose(*GROUPS, "env.kwargs={levels: ['001', '1e5', 002], id: '007', b: {a: \"010\"}}").config.env.kwargs
    assert kwargs == {"levels": ["001", "1e5", 2], "id": "007", "b": {"a": "010"}}


@pytest.mark.parametrize("override", ["env@env2=pendulum", "+env@env2=pendulum", "+memory@networks.x=replay"])
def test_a_package_that_nothing_reads_is_refused(override, refusal):
    assert "no part reads this key" in refusal(*GROUPS, override)


def test_a_package_that_something_reads_is_composed(compose):
    config = compose(*GROUPS, "+env@other=pendulum", "+callbacks.mine={_target_: my.Callback, env: '${other}'}").config
    assert (config.other.id, config.env.id) == ("Pendulum-v1", "Pendulum-v1")


@dataclasses.dataclass
class Pole:
    _target_: str = "parts.Env"
    id: str = "Pole-v0"
    num_envs: int = 2


def test_a_structured_config_of_the_users_store_is_an_option(compose, refusal):
    ConfigStore.instance().store(group="env", name="stored_pole", node=Pole)
    composed = compose("algorithm=dqn", "env=stored_pole", "env.num_envs=3")
    assert (composed.config.env.id, composed.config.env.num_envs) == ("Pole-v0", 3)
    assert provenance(composed)["env.id"] == "ConfigStore: env/stored_pole"
    assert "env.num_envs" in refusal("algorithm=dqn", "env=stored_pole", "env.num_envs=many")


def test_options_of_the_store_are_hinted(refusal):
    ConfigStore.instance().store(group="tuned", name="quickly", node={"lr": 0.5})
    assert "did you mean 'quickly'?" in refusal(*GROUPS, "+tuned=quikly")


def test_an_entry_of_the_store_may_change_between_two_calls(compose):
    for size in (1, 2):
        ConfigStore.instance().store(
            group="env", name="changing", node={"_target_": "parts.Env", "id": "A-v0", "num_envs": size}
        )
        assert compose("algorithm=dqn", "env=changing").config.env.num_envs == size


def test_a_resolver_of_another_config_is_not_there(compose, write, refusal):
    write("mine.py", "def double(x): return 2 * x\n")
    compose(*GROUPS, "resolvers.twice=mine.double", "num_envs='${twice:2}'")
    assert "resolvers.twice=my_package.function" in refusal(*GROUPS, "num_envs='${twice:2}'")


def test_notes_may_look_like_a_part(compose):
    assert compose(*GROUPS, "notes={_target_: x}").config.notes == {"_target_": "x"}


def test_a_list_of_an_included_file_can_be_overridden(compose, write, refusal):
    for name in "abc":
        write(f"conf/cb/{name}.yaml", f"# @package _global_\ncallbacks: {{{name}: {{_target_: my.{name}}}}}\n")
    write("conf/with/several.yaml", "# @package _global_\ndefaults: [/cb: [a, b]]\n")
    assert {"a", "b"} <= {*compose(*GROUPS, "+with=several").config.callbacks}
    assert {"a", "b", "c"} & {*compose(*GROUPS, "+with=several", "cb=c").config.callbacks} == {"c"}
    for override in ("cb=null", "~cb", "cb=[]"):
        assert not {"a", "b"} & {*compose(*GROUPS, "+with=several", override).config.callbacks}
    for override, message in (("~cb=a", "~cb=a: that was not chosen"), ("~cb=[a]", "~cb=NAME"), ("~env=sac", "~env=s")):
        assert message in refusal(*GROUPS, "+with=several", override)


def test_groups_in_groups_are_found_by_hints(write, refusal):
    write("conf/net/deep/a.yaml", "# @package _global_\nalgorithm: {lr: 0.5}\n")
    assert "did you mean 'net/deep'?" in refusal(*GROUPS, "net/dep=a")
    assert "did you mean the group 'net/deep'?" in refusal(*GROUPS, "net.deep=a")


def test_dicts_and_entries_of_lists_can_be_given(compose, write):
    write("conf/with/wrapped.yaml", "# @package _global_\nenv: {wrappers: [{_target_: parts.Wrap, size: 1}]}\n")
    config = compose(*GROUPS, "with=wrapped", "env.kwargs={a:1,b:[2]}", "env.wrappers.0.size=3").config
    assert config.env.kwargs == {"a": 1, "b": [2]}
    assert config.env.wrappers[0].size == 3


def test_a_missing_dict_of_arguments_is_made(compose, write):
    write("conf/env/bare.yaml", "_target_: parts.Env\nid: Bare-v0\nkwargs: null\nnum_envs: 1\n")
    assert compose("algorithm=dqn", "env=bare", "env.kwargs.x=1").config.env.kwargs == {"x": 1}


def test_a_file_of_another_ending_is_named(write, refusal):
    write("conf/env/other.yml", "defaults: [/rlrun/env/pendulum]\n")
    assert "env/other.yml is not read, as config files end in .yaml" in refusal("algorithm=sac", "env=other")


def test_a_group_that_no_file_chooses_is_not_overridden(refusal, write):
    write("conf/network/small.yaml", "hidden: [3]\n")
    write("conf/experiment/mine.yaml", "# @package _global_\ndefaults: [override /network: small]\n")
    line = refusal(*GROUPS, "+experiment=mine")
    assert "no file before this one chooses network; `- /network: NAME` without override chooses it" in line


@pytest.mark.parametrize("value", ["null", "50", "abc"])
def test_a_block_without_its_keys_is_named(refusal, write, value):
    text = "sizes: {first: 1}\nnetworks: {q: {hidden: '${sizes.first}'}}"
    write("conf/experiment/mine.yaml", f"# @package _global_\n{text}\n")
    line = refusal("algorithm=dqn", "env=pendulum", "+experiment=mine", f"sizes={value}")
    got = f"'{value}'" if value == "abc" else value
    assert f"sizes: wanted keys with values, got {got}; networks.q.hidden reads '${{sizes.first}}'" in line


def test_keys_in_place_of_a_number_are_refused_unless_they_are_a_part(refusal, compose):
    line = refusal("algorithm=sac", "env=pendulum", "algorithm.temperature={a: 1}")
    assert "algorithm.temperature: wanted a number, got {'a': 1}" in line
    node = compose("algorithm=sac", "env=pendulum", "algorithm.temperature={_target_: parts.Rate, a: 1}").config
    assert node.algorithm.temperature.a == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm: [1]", "algorithm: wanted keys with values, as there are before, got a list"),
        ("algorithm: {hidden: {a: 1}}", "algorithm.hidden: wanted a list, as there is before, got keys with values"),
    ],
)
def test_a_file_that_does_not_fit_those_before_it_is_named_with_its_key(refusal, write, text, message):
    write("conf/experiment/mine.yaml", f"# @package _global_\n{text}\n")
    line = refusal("algorithm=dqn", "env=pendulum", "+experiment=mine")
    assert line.endswith(f"mine.yaml: {message}")


def test_a_list_is_no_block_and_a_switch_is_never_null(refusal, compose, write):
    assert refusal("algorithm=dqn", "env=pendulum", "algorithm.hidden={a: 1}").endswith(
        "algorithm.hidden: wanted a list, got keys with values"
    )
    part = "algorithm.hidden={_target_: parts.Network, width: 3}"
    assert compose("algorithm=dqn", "env=pendulum", part).config.algorithm.hidden.width == 3
    write("conf/experiment/mine.yaml", "# @package _global_\nnetworks: {q: {double: true}}\n")
    line = refusal("algorithm=dqn", "env=pendulum", "+experiment=mine", "networks.q.double=null")
    assert "networks.q.double: wanted true or false, got null" in line
