"""Every class and constructor parameter that ALF and Emote document has its overrides here."""

import math
import shlex
from collections import defaultdict
from hashlib import md5

import numpy as np
import pytest
import torch
from handbook.compatibility import PAGES, documented, entries, ledger, page, said
from handbook.defaults import complete, defaults, key_of, parted
from omegaconf import OmegaConf
from tests.compatibility.trial import attempt

import rlrun.algorithms.search
import rlrun.core.schedules
import rlrun.memory
import rlrun.nn
import rlrun.ops
from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.config.interpolation import split
from rlrun.core.errors import RlrunError, SpaceError

COUNTS = {"alf": (118, 867), "emote": (164, 474)}


def names(words):
    """Return the last names of keys: with each loss's optimizer replaced, nothing would read `optimizer`."""
    return {key_of(word).rpartition(".")[2] for word in words}


def overrides_of(system):
    """Return choices of groups -> the other overrides of each entry that has these choices."""
    groups = defaultdict(set)
    for text in entries(system).values():
        if said(text):
            choices, words = parted(text)
            groups[tuple(choices)].add(tuple(words))
    return groups


@pytest.mark.parametrize("system", COUNTS)
def test_ledger_has_every_documented_name(system):
    ledger_entries = entries(system)
    classes = {place[:2] for place in ledger_entries}
    assert (len(classes), len(ledger_entries) - len(classes)) == COUNTS[system]
    for place, text in ledger_entries.items():
        kind, _, rest = text.partition(": ")
        assert kind != "todo", place
        assert kind != "dissolved" or len(rest) > 10, place


def composed(*overrides, check=True):
    return OmegaConf.to_container(compose(complete(overrides), check=check).config, resolve=False)


def value_at(config, key):
    """Return the value at a key, or a text that no config has."""
    for name in split(key):
        try:
            config = config[int(name) if isinstance(config, list) else name]
        except (KeyError, IndexError, TypeError, ValueError):
            return "absent"
    return config


@pytest.mark.parametrize("system", COUNTS)
def test_every_entry_composes_and_changes_a_key(system):
    faults = []
    for choices, others in overrides_of(system).items():
        base, rounds = composed(*choices, check=False), []  # others may set values that choices need
        for words in sorted(others - {()}):  # of different names many are composed at once
            free = next((entry for entry in rounds if not names(words) & names(entry)), None)
            rounds.append(list(words)) if free is None else free.extend(words)
        for words in rounds:
            try:
                config = composed(*choices, *words)
            except RlrunError as error:
                faults.append(f"{shlex.join([*choices, *words])}: {error}")
                continue
            faults += [
                f"{shlex.join(choices)}: {word} changes nothing"
                for word in words
                if value_at(config, key_of(word)) == value_at(base, key_of(word))
            ]
    assert faults == []


@pytest.mark.parametrize("system", COUNTS)
def test_a_sample_of_entries_builds(system):
    commands = [
        (*choices, *words)
        for choices, others in overrides_of(system).items()
        for words in others
        if not any(key_of(word).startswith("init.") for word in words)  # there is no run of the name RUN
    ]
    for overrides in sorted(commands, key=lambda overrides: md5(repr(overrides).encode()).digest())[:8]:
        try:
            check(complete(overrides))
        except SpaceError:
            check(complete(overrides, "env=pendulum"))


WEIGHTS = torch.nn.Linear(2, 3)
OTHERS = torch.nn.Linear(2, 3).requires_grad_(False)
POINT = torch.tensor([1.0, 2.0], requires_grad=True)
VALUES = {  # of what expressions in Python name
    "achieved_goal": torch.tensor([[0.0, 0.0], [0.3, 0.4]]),
    "goal": torch.zeros(2, 2),
    "threshold": 0.5,
    "m": torch.nn.Linear(4, 4),
    "gain": 0.1,
    "source": WEIGHTS,
    "target": OTHERS,
    "source_params": [WEIGHTS.weight],
    "target_params": [OTHERS.weight],
    "tau": 0.5,
    "data": torch.arange(6.0),
    "rollout_len": 3,
    "rewards": torch.tensor([[1.0, 2.0]]),
    "values": torch.tensor([[9.0, 4.0]]),
    "ends": torch.tensor([[False, True]]),
    "gamma": 0.5,
    "min_x": 10,
    "max_x": 20,
    "min_y": 1.0,
    "max_y": 3.0,
    "x": torch.tensor(15.0),
    "tensor": torch.empty(1_000),
    "mean": 5.0,
    "std": 1.0,
    "minval": 2.0,
    "maxval": 3.0,
    "shape": (1_000,),
    "operation": np.multiply,
    "images": torch.zeros(2, 3, 16, 16),
    "signals": torch.zeros(2, 3, 16),
    "prior": np.array([[0.5, 0.3, 0.2]]),
    "value": np.array([[0.0, 0.5, 1.0]]),
    "c": 0.5,
    "model_output": (POINT**2).sum().reshape(1),
    "model_input": POINT,
}


def evaluated(text, **values):
    return eval(text.removeprefix("python: "), {"torch": torch, "rlrun": rlrun, **VALUES, **values})


def in_python(name, **values):
    places = (place for system in COUNTS for place in entries(system).items() if place[0][1] == name)
    (text,) = {text for _, text in places if text.startswith("python: ")}
    return evaluated(text, **values)


def test_expressions_in_python_return_what_the_documented_functions_do():
    assert in_python("l2_dist_close_reward_fn").tolist() == [0.0, -1.0]  # at the threshold it is too far
    assert in_python("gradient_loss_function").item() == 20.0  # (2 · 1)² + (2 · 2)²
    assert in_python("split_rollouts").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert [in_python("truncated_linear", x=x) for x in (0, 15, 30)] == [1.0, 2.0, 3.0]
    assert in_python("to_numpy", x=torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
    assert in_python("rand_uniform").min() >= 2.0
    assert in_python("rand_uniform").max() <= 3.0
    assert in_python("truncated_normal_").sub(5.0).abs().max() <= 2.0
    regularized = {"": (0.212456, 0.221659, 0.565885), "kl_": (0.179, 0.291944, 0.529056)}
    for kind, policy in regularized.items():
        np.testing.assert_allclose(in_python(f"calculate_{kind}exploration_policy")[0], policy, atol=1e-6)
    assert in_python("discount").tolist() == [[3.0, 4.0]]  # 1 + γ (2 + γ 4), 2 + γ 4


def test_expressions_in_python_keep_the_layout_of_images():
    for name, text in entries("emote").items():
        if name[2] == "flatten" and text.startswith("python"):
            assert evaluated(text).shape[:2] == (2, 8)
            assert evaluated(text).dim() == (4 if name[1] == "Conv2dEncoder" else 3)


def test_expressions_in_python_run():
    for system in COUNTS:
        for text in {text for text in entries(system).values() if text.startswith("python: ")}:
            evaluated(text)


CONVERTED = {  # names in conversions
    **dict.fromkeys(("num_envs", "unroll_length", "num_updates_per_train_iter"), 2),
    **dict.fromkeys(("num_env_steps", "mini_batch_size", "action_dim", "action_scale"), 2),
    **dict.fromkeys(("inverse_mvp_hidden_size", "hidden_size", "steps", "updates_per_step", "learning_rate"), 2),
    **vars(math),
}


@pytest.mark.parametrize("system", COUNTS)
def test_units_are_those_of_entries_and_convert(system):
    known = {name for _, owner, parameter in entries(system) for name in (parameter, f"{owner}.{parameter}")}
    for name, (expression, there, here) in ledger(system)["units"].items():
        assert name in known
        assert there != here
        assert eval(expression, {**CONVERTED, "x": 1}) is not None, name


def converted(name, x, **settings):
    (unit,) = {ledger(system)["units"][name][0] for system in COUNTS if name in ledger(system)["units"]}
    return eval(unit, {**CONVERTED, "x": x, **settings})


def test_numbers_of_another_unit_are_converted():
    assert converted("initial_log_alpha", 0.0) == 1.0
    assert converted("net_moving_average_rate", 0.01) == 0.99
    assert converted("f_norm_penalty_weight", 0.5, mini_batch_size=8, action_dim=2) == 2.0
    assert converted("replay_buffer_length", 1_000, num_envs=4) == 4_000
    assert converted("num_evals", 10, num_env_steps=500) == 50
    assert converted("staircase_steps", 5, steps=100) == 20


@pytest.mark.parametrize("system", COUNTS)
def test_documented_defaults_are_those_of_entries(system):
    given = [
        (module, owner, name)
        for module, classes in documented(system).items()
        for owner, parameters in classes.items()
        for name in parameters
    ]
    assert set(given) <= set(entries(system))


DEFAULTS = {  # parameter -> the default there, and here
    ("alf", "sac_algorithm", "SacAlgorithm", "target_update_tau"): ("0.05", "0.005"),
    ("alf", "sarsa_algorithm", "SarsaAlgorithm", "target_update_period"): ("10", "1"),  # of the class
    ("alf", "dqn_algorithm", "DqnAlgorithm", "num_critic_replicas"): ("2", "1"),
    ("alf", "config", "TrainerConfig", "priority_replay"): ("False", "replay"),  # of the group
    ("alf", "config", "TrainerConfig", "profiling"): ("False", "off"),
    ("alf", "ppo_loss", "PPOLoss", "log_prob_clipping"): ("0.0", "null"),
    ("emote", "emote.algorithms.sac", "AlphaLoss", "max_alpha"): ("0.2", "null"),
}


@pytest.mark.parametrize("place", DEFAULTS)
def test_a_default_here_is_that_of_the_config_or_the_class(place):
    system, module, owner, name = place
    text = entries(system)[module, owner, name]
    assert (documented(system)[module][owner][name], defaults(text)) == DEFAULTS[place]


@pytest.mark.parametrize(
    "text",
    [
        "algorithm=dqn algorithm.ensemble=2",
        "algorithm=sac memory=prioritized",
        "algorithm=bc dataset=demonstrations.zip",
        "algorithm=dqn init.networks=runs/mine@200_000",
        "algorithm=particles algorithm.method=gfsf",
    ],
)
def test_an_entry_trains_for_three_updates(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = attempt(text)
    assert outcome.get("updates") == 3, outcome


def test_an_entry_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attempt("algorithm=a2c algorithm.horizon=0")["error"] == "algorithm.horizon must be at least 1, not 0"


@pytest.mark.parametrize("system", COUNTS)
def test_page_is_what_the_ledger_says(system):
    assert PAGES[system].read_text(encoding="utf-8") == page(system), "python -m handbook.compatibility writes it"
