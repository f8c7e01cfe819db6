"""The table of other libraries' names: each row leads somewhere, and the page shows it."""

import re
from pathlib import Path

import pytest

from rlrun.config import compose
from rlrun.config.interpolation import plain
from rlrun.config.peers import _exists, hint, markdown, override_of, rows
from rlrun.core.errors import ConfigError

ALGORITHMS = ("ppo", "dqn", "sac", "td3", "qrsac", "muzero")


@pytest.fixture(scope="module")
def configs():
    memories = {"dqn": ["memory=prioritized"]}
    overrides = [[f"algorithm={name}", "env=cartpole", *memories.get(name, ())] for name in ALGORITHMS]
    return [plain(compose(override, check=False).config) for override in overrides]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.override)
def test_a_row_fits_an_algorithm_and_each_of_its_names_leads_there(row, configs):
    fitting = [config for config in configs if _exists(row.override, config)]
    assert fitting, f"no algorithm has {row.override}"
    for name in row.names:
        assert any(f"'{row.override}'" in hint((name,), config) for config in fitting), name


@pytest.mark.parametrize("name", ["tau", "sac.tau", "algorithm.policy_kwargs.tau"])
def test_a_name_counts_wherever_it_stands(name, configs):
    assert hint(tuple(name.split(".")), configs[ALGORITHMS.index("sac")]) == " (did you mean 'algorithm.tau'?)"


@pytest.mark.parametrize("place", ["prioritized.", "memory.", ""])
@pytest.mark.parametrize("name", ["feedback", "alpha", "beta0"])
def test_a_samplers_key_is_named(name, place, configs):
    answer = hint(tuple(f"{place}{name}".split(".")), configs[ALGORITHMS.index("dqn")])
    assert answer.startswith(f" (did you mean 'memory.sampler.{name.rstrip('0')}'?)")


def test_a_name_that_nobody_knows_gets_the_nearest(configs):
    assert hint(("algorithm", "foo"), configs[0], "; near") == "; near"


@pytest.mark.parametrize(
    ("algorithm", "override", "expected"),
    [
        ("ppo", "memory.length=1", r"; on-policy .* no replay memory, a rollout has algorithm\.horizon .*"),
        ("ppo", "buffer_size=1", r"; on-policy .*"),
        ("ppo", "anneal_lr=true", r" \(did you mean '\+with=anneal'\?\); .*"),
        ("ppo", "anneal_lr=false", r" \(did you mean 'callbacks\.learning_rate=null'\?\); .*"),
        ("sac", "anneal_lr=false", r"; callbacks\.learning_rate=null is a key of algorithm=airl, gail, ppg, ppo, trac"),
        ("ppo", "verbose=1", r" \(did you mean 'logger=\[terminal\]'\?\); .*"),
        ("ppo", "verbose=0", r" \(did you mean 'logger=\[\]'\?\); .*"),
        ("ppo", "policy=MlpPolicy", r" \(did you mean 'algorithm\.hidden'\?\); .*"),
        ("ppo", "policy=MlpLstmPolicy", r" \(did you mean 'algorithm\.recurrent=lstm'\?\); .*"),
        ("dqn", "policy=CnnPolicy", r" \(did you mean 'encoder'\?\); .*"),
        ("ppo", "policy_kwargs={lstm_hidden_size: 8}", r" \(did you mean 'algorithm\.core_size'\?\); .*"),
        ("ppo", "policy_kwargs={activation_fn: relu}", r" \(did you mean 'algorithm\.hidden'\?\); .*"),
        ("ppo", "wandb.project=mine", r" \(did you mean 'logger=\[terminal,\{wandb:\{project:NAME\}\}\]'\?\); .*"),
        ("sac", "colored_noise.length=9", r"; it is a key of \+with=colored_noise"),
        ("dqn", "compile.mode=max-autotune", r"; 'compile' itself is true or false"),
        ("dqn", "cudagraphs=true", r" \(did you mean 'compile'\?\); true or false.*"),
        ("dqn", "per=true", r" \(did you mean 'memory=prioritized'\?\)"),
        ("ppo", "normalizers.reward.clip=9", r"; it is a key of \+with=reward_norm"),
        ("dqn", "memory.sampler.alpha=0.5", r"; it is a key of memory=coverage, memory=prioritized"),
        ("sac", "memory.sampler.alpha=0.5", r"; it is a key of memory=coverage, memory=prioritized"),
        ("dqn", "memory.samplr.alpha=0.5", r"; memory\.sampler\.alpha is a key of memory=coverage, memory=prioritized"),
        ("sac", "memory.alpha=0.5", r"; memory\.sampler\.alpha is a key of memory=coverage, memory=prioritized"),
        ("ppo", "memory.alpha=0.5", r"; on-policy .* no replay memory, .*"),
        ("ppo", "memory.lenght=9", r"; on-policy .* no replay memory, .*"),
        ("sac", "memory.capacity=9", r" \(did you mean 'memory\.length'\?\)"),
        ("sac", "polyak=0.9", r" \(did you mean 'algorithm\.tau'\?\)"),
        ("dqn", "env.vectriaztion=sync", r" \(did you mean 'env\.vectorization'\?\)"),
        ("dqn", "ceckpoint.every=100", r" \(did you mean 'checkpoint\.every'\?\)"),
        ("sac", "evalaution.epsiodes=3", r" \(did you mean 'evaluation\.episodes'\?\)"),
        ("sac", "algorithm.gamma=0.9", r" \(did you mean 'algorithm\.discount'\?\)"),
        ("ppo", "algorithm.gamma=0.9", r" \(did you mean 'algorithm\.discount'\?\)"),
        ("dqn", "algorithm.batch_szie=3", r" \(did you mean 'algorithm\.batch_size'\?\)"),
        ("mbrl", "algorithm.horizon=9", r" \(did you mean 'algorithm\.plan\.horizon'\?\)"),
        ("mbpo", "imagination.model.learning_rate=1", r" \(did you mean 'imagination\.model\.lr'\?\)"),
    ],
)
def test_an_override_is_answered_for_the_chosen_algorithm(algorithm, override, expected):
    with pytest.raises(ConfigError) as caught:
        compose([f"algorithm={algorithm}", "env=cartpole", override])
    assert re.fullmatch(r"\S+: no such key(?: or group)?" + expected, str(caught.value))


@pytest.mark.parametrize(("option", "meant"), [("per", "memory=prioritized"), ("drqq", "drq")])
def test_an_addition_may_be_something_else_here(option, meant):
    with pytest.raises(ConfigError, match=f"with: there is no '{option}' .did you mean '{meant}'"):
        compose(["algorithm=dqn", "env=cartpole", f"+with={option}"])


@pytest.mark.parametrize(
    ("option", "value", "algorithm", "expected"),
    [
        ("--n-steps", "3", "dqn", "algorithm.n_step=3"),
        ("--n-steps", "3", "ppo", "algorithm.horizon=…"),  # it says "steps of each environment"
        ("--num-minibatches", "4", "ppo", "algorithm.batch_size=…"),  # a count is no number of rows
        ("--ent-coef", "0.1", "ppo", "algorithm.entropy_weight=0.1"),
        ("--ent-coef", "0.1", "sac", "algorithm.temperature.initial=…"),
        ("--gamma", "", None, "algorithm.discount=…"),
        ("--anneal-lr", "False", "ppo", "callbacks.learning_rate=null"),
        ("--policy", "MlpLstmPolicy", "ppo", "algorithm.recurrent=lstm"),
        ("--policy", "MlpPolicy", "ppo", "algorithm.hidden=…"),
        ("--anneal-lr", "False", "sac", None),  # its rate stays by itself
        ("--anneal-lr", "", "ppo", "+with=anneal"),
    ],
)
def test_an_option_is_answered_for_the_chosen_algorithm(option, value, algorithm, expected):
    assert override_of(option, value, algorithm) == expected


def test_the_page_has_the_table():
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
    assert f"<!-- names -->\n{markdown()}\n<!-- /names -->" in page
