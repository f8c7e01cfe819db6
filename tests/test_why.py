"""What is wrong with a run: each rule on its case and on the healthy one beside it; the command; damaged files."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from rlrun.analysis.why import RULES, diagnose, markdown, why
from rlrun.analysis.why.facts import Facts, Point, override, read
from rlrun.config import Composer, compose
from rlrun.config.interpolation import leaves, locate, plain
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.runs.directory import RunDir

STEPS = 10  # records
REPLAY = {
    "algorithm": {"lr": 1e-3, "discount": 0.99, "warmup_steps": 1_000, "tau": 0.005, "target_every": 1},
    "optimizer": {"lr": "${algorithm.lr}"},
    "stop": {"env_steps": 10_000},
    "num_envs": 1,
    "loader": {"warm_up": "${algorithm.warmup_steps}", "batch": 128},
    "memory": {"length": 100_000, "adaptors": {}},
    "env": {"id": "Pendulum-v1"},
    "callbacks": {
        "q_target": {"tau": "${algorithm.tau}", "every": "${algorithm.target_every}"},
        "q_loss": {"optimizer": "${optimizer}", "max_grad_norm": 10.0},
    },
}
ROLLOUT = {
    "algorithm": {"lr": 1e-3, "discount": 0.99, "entropy_weight": 0.0, "max_grad_norm": 0.5},
    "optimizer": {"lr": "${algorithm.lr}"},
    "stop": {"env_steps": 10_000},
    "num_envs": 8,
    "memory": {"adaptors": {"advantages": {}}},
    "env": {"id": "CartPole-v1"},
    "callbacks": {
        "ppo": {
            "optimizer": "${optimizer}",
            "max_grad_norm": "${algorithm.max_grad_norm}",
            "entropy_weight": "${algorithm.entropy_weight}",
        }
    },
}
IMAGINING = {**REPLAY, "imagination": {"length": 5, "model": {"epochs": 8}}}
SEARCHING = {
    **REPLAY,
    "algorithm": {**REPLAY["algorithm"], "search": {"simulations": 25, "c_scale": 0.1}, "reanalyze": {"share": 0.0}},
}
PLANNING = {
    "algorithm": {"plan": {"horizon": 15}, "epochs": 5},
    "stop": {"env_steps": 10_000},
    "num_envs": 1,
    "env": {"id": "Pendulum-v1"},
    "callbacks": {},
}
SWINGS = {  # SAC on a pendulum, learning
    "episode/count": (5, 50),
    "episode/return": (-1_400, -300),
    "episode/length": 200,
    "episode/truncated": 1,
    "evaluation/mean_return": (-1_300, -200),
    "evaluation/mean_length": 200,
    "batch/reward": (-7, -5),
    "observation/size": 1,
    "loss/q_loss": 1,
    "grad_norm/q_loss": 20,
    "update_ratio/q_loss": (0.01, 0.001),
    "dead_units/q_loss": 0.2,
    "target_distance/q_target": 0.1,
    "value/mean": (-10, -150),
    "action/saturated": 0.3,
    "temperature/continuous": (1, 0.1),
    "entropy/continuous": (0.6, -1),
    "entropy_target/continuous": -1,
}
BALANCES = {  # PPO on a pole, learning
    "episode/count": (5, 500),
    "episode/return": (20, 300),
    "episode/length": (20, 300),
    "episode/truncated": 0,
    "evaluation/mean_return": (20, 400),
    "evaluation/mean_length": (20, 400),
    "observation/size": 0.7,
    "loss/ppo": 5,
    "grad_norm/ppo": 6,
    "update_ratio/ppo": 0.004,
    "dead_units/ppo": 0,
    "value/mean": (0, 40),
    "entropy/discrete": (0.69, 0.3),
    "policy/clipped": 0.1,
    "policy/approx_kl": 0.01,
}

QUANTIZED = {"callbacks": {"vq_vae": {"optimizer": {"lr": 1e-3}, "revive": 0.0}}}
SLOTS = {"algorithm": {"latent": 16}, "networks": {"monet": {"latent": "${algorithm.latent}"}}}
REMEMBERING = {"algorithm": {"slots": 64, "predictor": {"divergence_weight": 0.01}}}
ENCODING = {
    "algorithm": {"beta": 1.0},
    "networks": {"beta": {"initial": "${algorithm.beta}"}},
    "callbacks": {"vae": {"optimizer": {"lr": 1e-3}}},
}
SURE = [0.69, 0.3, *[0.01] * (STEPS - 2)]  # entropies of a policy that was sure early

FELL = [20, 100, 300, 400, 400, 90, 80, 70, 100, 400]  # evaluations: most of those after the peak are far below it
DIPPED = [20, 100, 300, 400, 400, 90, 80, 390, 400, 400]


@pytest.mark.parametrize(
    ("overrides", "example"),
    [
        (["algorithm=dqn", "env=cartpole"], REPLAY),
        (["algorithm=ppo", "env=cartpole"], ROLLOUT),
        (["algorithm=vae"], ENCODING),
        (["algorithm=vq_vae"], QUANTIZED),
        (["algorithm=monet"], SLOTS),
    ],
)
def test_examples_have_keys_of_real_runs(overrides, example):
    config = plain(compose([*overrides, "preset=null"]).config)
    for path, _ in leaves(example):
        assert locate(config, path), path  # raises where there is none


def changed(config, keys):
    """Return a copy of a config with other values, by dotted key."""
    result = json.loads(json.dumps(config))
    for key, value in keys.items():
        *path, last = key.split(".")
        node = result
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return result


def records(series, *, updates=1_000, per_record=1_000):
    """Return records in which each metric stays, goes evenly from one number to another, or takes those of a list."""
    history = []
    for index in range(STEPS):
        record = {"env_steps": (index + 1) * per_record, "updates": updates * (index + 1)}
        for name, value in series.items():
            first, last = value if isinstance(value, tuple) else (value, value)
            record[name] = value[index] if isinstance(value, list) else first + (last - first) * index / (STEPS - 1)
        history.append(record)
    return history


def facts(config, series, *, status="completed", updates=1_000, per_record=1_000, failure="", preset=None):
    """Return what would be known of a run."""
    run_facts = Facts(Path("run"), status, config, failure=failure, preset=preset)
    for record in records(series, updates=updates, per_record=per_record):
        for name, value in record.items():
            run_facts.series.setdefault(name, []).append(Point(record["env_steps"], value))
    run_facts.records, run_facts.env_steps, run_facts.updates = STEPS, STEPS * per_record, STEPS * updates
    return run_facts


def replay(series=None, keys=None, **options):
    return diagnose(facts(changed(REPLAY, keys or {}), {**SWINGS, **(series or {})}, **options))


def rollout(series=None, keys=None, **options):
    return diagnose(facts(changed(ROLLOUT, keys or {}), {**BALANCES, **(series or {})}, **options))


def normalized(series=None, keys=None, **options):
    return rollout(series, {"agent.preprocess.observation_norm": {}, **(keys or {})}, **options)


def encoding(series=None, keys=None, **options):
    return diagnose(facts(changed(ENCODING, keys or {}), {"vae/divergence": 2.0, **(series or {})}, **options))


def quantized(series=None, keys=None, **options):
    return diagnose(facts(changed(QUANTIZED, keys or {}), {"vq_vae/dead_codes": 0.0, **(series or {})}, **options))


def divided(series=None, keys=None, **options):
    return diagnose(facts(changed(SLOTS, keys or {}), {"monet/slots": 3.0, **(series or {})}, **options))


def imagining(series=None, keys=None, **options):
    seen = {"model/error_held": 0.1, "model/error_model": 0.09, "imagination/outside": 0.0}
    return diagnose(facts(changed(IMAGINING, keys or {}), {**SWINGS, **seen, **(series or {})}, **options))


def planning(series=None, keys=None, **options):
    seen = {"model/error_held": 0.1, "model/error_model": 0.09, "plan/at_bounds": 0.5}
    return diagnose(facts(changed(PLANNING, keys or {}), {**seen, **(series or {})}, **options))


def searching(series=None, keys=None, **options):
    seen = {"search/entropy": (0.69, 0.3), "search/value_moved": (0.1, 2.0), "search/value_size": (0.2, 40.0)}
    still = {"episode/return": [-1_300, -1_400, -1_250, *[-1_390, -1_380] * ((STEPS - 3) // 2), -1_395]}
    return diagnose(facts(changed(SEARCHING, keys or {}), {**SWINGS, **seen, **still, **(series or {})}, **options))


def remembering(series=None, keys=None, **options):
    flat = {"episode/return": [0.5, 0.4, 0.6, *[0.5] * (STEPS - 3)], "memory/focus": 0.3}
    return diagnose(facts(changed(REMEMBERING, keys or {}), {**flat, **(series or {})}, **options))


def imitating(series=None, keys=None, **options):
    return rollout(series, keys, **options)


COMMANDS = {
    imitating: ["algorithm=gail", "env=cartpole", "dataset=demonstrations.zip"],
    remembering: ["algorithm=merlin", "env=recall"],
    searching: ["algorithm=muzero", "env=cartpole"],
    imagining: ["algorithm=mbpo", "env=pendulum"],
    planning: ["algorithm=mbrl", "env=pendulum"],
    replay: ["algorithm=sac", "env=pendulum"],
    rollout: ["algorithm=ppo", "env=cartpole"],
    normalized: ["algorithm=ppo", "env=cartpole", "+with=observation_norm"],
    encoding: ["algorithm=vae"],
    quantized: ["algorithm=vq_vae"],
    divided: ["algorithm=monet"],
}


def causes(diagnosis):
    return [finding.cause for finding in diagnosis.findings]


@pytest.mark.parametrize("made", [replay, rollout])
@pytest.mark.parametrize("status", ["completed", "running", "stopped"])
def test_a_healthy_run_is_silent(made, status):
    diagnosis = made(status=status)
    assert causes(diagnosis) == []
    assert diagnosis.unmade == {}
    assert diagnosis.checks == len(diagnosis.healthy) > 10


SICK = {  # rule: who it is about, metrics and keys, a part of the remedy
    "failed run": (replay, {}, {}, "rlrun resume RUN"),
    "warm-up longer than the run": (replay, {}, {"algorithm.warmup_steps": 9_500}, "algorithm.warmup_steps=950"),
    "rollout longer than the run": (rollout, {}, {"loader.horizon": 1_250}, "stop.env_steps=1_000_000"),
    "no reward": (replay, {"batch/reward": 0.0, "episode/return": 0.0}, {}, "env.wrappers"),
    "episodes never end": (replay, {"episode/count": 0}, {}, "gymnasium.wrappers.TimeLimit"),
    "target network stands still": (
        replay,
        {"target_distance/q_target": (0.1, 0.9)},
        {"algorithm.tau": 0.0},
        "algorithm.tau=0.005",
    ),
    "replay memory too small": (replay, {}, {"memory.length": 100}, "memory.length=100_000"),
    "scale of rewards": (
        replay,
        {"episode/return": (-1.4e6, -1.2e6), "batch/reward": -7e3},
        {},
        "memory.adaptors.reward_scale.factor=0.0001",
    ),
    "time limit reported as termination": (replay, {"episode/truncated": 0}, {}, "truncated in place of terminated"),
    "drifted normalizer": (normalized, {"observation/size": 8}, {}, "normalizers.observation.mode=em"),
    "model overfits": (imagining, {"model/error_held": (0.1, 0.5)}, {}, "imagination.model.epochs=4"),
    "imagined states leave the data": (imagining, {"imagination/outside": 0.3}, {}, "imagination.length=1"),
    "plan at its bounds": (planning, {"plan/at_bounds": 0.99}, {}, "algorithm.plan.horizon=30"),
    "search prefers no action": (searching, {"search/entropy": 0.69}, {}, "algorithm.search.simulations=50"),
    "value far from its search": (searching, {"search/value_moved": (0.1, 30.0)}, {}, "algorithm.reanalyze.share=0.5"),
    "memory is not read": (remembering, {"memory/focus": 0.01}, {}, "algorithm.slots=16"),
    "scale of observations": (rollout, {"observation/size": 5_000}, {}, "+with=observation_norm"),
    "gradients clipped to nothing": (rollout, {}, {"algorithm.max_grad_norm": 1e-8}, "algorithm.max_grad_norm=0.5"),
    "weight of entropy": (
        replay,
        {"temperature/continuous": 1e-8, "entropy/continuous": (0.6, -12)},
        {"algorithm.temperature": {"largest": 1e-8}},
        "algorithm.temperature.largest=null",
    ),
    "bonus of entropy too large": (
        rollout,
        {"entropy/discrete": 0.69},
        {"algorithm.entropy_weight": 10.0},
        "algorithm.entropy_weight=0.01",
    ),
    "learning rate too high": (
        replay,
        {"update_ratio/q_loss": (0.7, 0.001)},
        {"algorithm.lr": 0.02},
        "algorithm.lr=0.0002",
    ),
    "learning rate too low": (
        rollout,
        {"update_ratio/ppo": 5e-6, "episode/return": (20, 22)},
        {"algorithm.lr": 1e-6},
        "algorithm.lr=0.0001",
    ),
    "actions at their bounds": (replay, {"action/saturated": (0.7, 1.0)}, {}, "bounds of the action space"),
    "dead units": (rollout, {"dead_units/ppo": (0.1, 0.99)}, {}, "algorithm.lr=0.0001"),
    "entropy collapsed early": (
        rollout,
        {"entropy/discrete": SURE, "episode/return": (9.5, 9.4), "episode/length": (9, 10)},
        {},
        "algorithm.entropy_weight=0.01",
    ),
    "discriminator has won": (
        imitating,
        {"discriminator/accuracy_reference": 1.0, "discriminator/accuracy_own": 0.995},
        {"reference.every": 5},
        "reference.every=20",
    ),
    "particles collapsed": (
        rollout,
        {"particles/spread": [1.0, 0.1, *[1e-5] * (STEPS - 2)]},
        {"callbacks.particles.entropy_weight": "${algorithm.entropy_weight}", "algorithm.entropy_weight": 0.01},
        "algorithm.entropy_weight=0.1",
    ),
    "values over-estimated": (replay, {"value/mean": (0, 5_000)}, {}, "algorithm.ensemble=2"),
    "policy moves too far in an update": (
        rollout,
        {"policy/clipped": 0.2, "policy/approx_kl": 0.05},
        {},
        "algorithm.kl_limit=0.02",
    ),
    "evaluation far below training": (rollout, {"evaluation/mean_return": 9.5}, {}, "--stochastic"),
    "few updates a rollout": (
        rollout,
        {},
        {"loader": {"horizon": 128, "minibatch": 256, "epochs": 4}},
        "loader.epochs=10 loader.minibatch=64",
    ),
    "returns fell after a peak": (rollout, {"evaluation/mean_return": FELL}, {}, "--checkpoint best"),
    "posterior collapsed": (encoding, {"vae/divergence": (0.1, 0.02)}, {}, "algorithm.beta=0.1"),
    "dead codes": (quantized, {"vq_vae/dead_codes": (0.1, 0.9)}, {}, "algorithm.revive=0.1"),
    "one slot takes everything": (divided, {"monet/slots": (3.0, 1.0)}, {}, "algorithm.latent=8"),
}
HEALTHY = {  # rule: metrics and keys just beside
    "failed run": ({}, {}),
    "warm-up longer than the run": ({}, {"algorithm.warmup_steps": 5_000}),
    "rollout longer than the run": ({}, {"loader.horizon": 1_249}),
    "no reward": (
        {"batch/reward": (0.0, 0.01), "value/mean": 0.1, "episode/return": (0, 1), "evaluation/mean_return": (0, 1)},
        {},
    ),
    "episodes never end": ({"episode/count": 1}, {}),
    "target network stands still": ({}, {"algorithm.tau": 1.0, "algorithm.target_every": 2_000}),
    "replay memory too small": ({}, {"memory.length": 1_000}),
    "scale of rewards": ({"episode/return": (-14_000, -12_000), "batch/reward": -70}, {}),
    "time limit reported as termination": ({"episode/truncated": 0, "episode/length": (120, 190)}, {}),
    "drifted normalizer": ({"observation/size": 2}, {}),
    "model overfits": ({"model/error_held": (0.1, 0.15)}, {}),
    "imagined states leave the data": ({"imagination/outside": 0.01}, {}),
    "plan at its bounds": ({"plan/at_bounds": 0.8}, {}),
    "search prefers no action": ({"search/entropy": (0.69, 0.6)}, {}),
    "value far from its search": ({"search/value_moved": (0.1, 15.0)}, {}),
    "memory is not read": ({"memory/focus": 0.2}, {}),
    "scale of observations": ({"observation/size": 30}, {}),
    "gradients clipped to nothing": ({"grad_norm/ppo": 60}, {"algorithm.max_grad_norm": 0.05}),
    "weight of entropy": ({"entropy/continuous": (0.6, -2.5), "temperature/continuous": 0.02}, {}),
    "bonus of entropy too large": ({}, {"algorithm.entropy_weight": 10.0}),
    "learning rate too high": ({"update_ratio/q_loss": (0.05, 0.001)}, {"algorithm.lr": 0.003}),
    "learning rate too low": ({"update_ratio/ppo": (4e-4, 1e-6)}, {}),
    "actions at their bounds": ({"action/saturated": (0.1, 0.8)}, {}),
    "dead units": ({"dead_units/ppo": (0.1, 0.7)}, {}),
    "entropy collapsed early": ({"entropy/discrete": SURE}, {}),
    "discriminator has won": ({"discriminator/accuracy_reference": 1.0, "discriminator/accuracy_own": 0.9}, {}),
    "particles collapsed": ({"particles/spread": (1.0, 0.01)}, {"callbacks.particles.entropy_weight": 0.5}),
    "values over-estimated": ({"value/mean": (0, 300)}, {}),
    "policy moves too far in an update": ({"policy/clipped": 0.3, "policy/approx_kl": 0.03}, {}),
    "evaluation far below training": ({"evaluation/mean_return": (20, 120)}, {}),
    "few updates a rollout": ({}, {"loader": {"horizon": 128, "minibatch": 64, "epochs": 10}}),
    "returns fell after a peak": ({"evaluation/mean_return": DIPPED}, {}),
    "posterior collapsed": ({"vae/divergence": (0.02, 0.5)}, {}),
    "dead codes": ({"vq_vae/dead_codes": (0.9, 0.1)}, {}),
    "one slot takes everything": ({"monet/slots": (1.0, 2.0)}, {}),
}
OPTIONS = {  # of a case, and of that beside it
    "failed run": ({"status": "failed", "failure": "ValueError: boom"}, {}),
    "warm-up longer than the run": ({"updates": 0}, {}),
    "few updates a rollout": ({"preset": False}, {"preset": False}),
}


def test_page_has_the_table_of_rules():
    page = (Path(__file__).parents[1] / "docs" / "why.md").read_text()
    assert f"<!-- rules -->\n{markdown()}\n<!-- /rules -->" in page


def test_every_rule_has_cases():
    assert [rule.name for rule in RULES] == list(SICK) == list(HEALTHY)


@pytest.mark.parametrize("name", SICK)
def test_a_rule_fires_first_on_its_case_and_not_on_the_one_beside(name):
    run_of, series, keys, remedy = SICK[name]
    options = OPTIONS.get(name, ({}, {}))
    diagnosis = run_of(series, keys, **options[0])
    assert causes(diagnosis)[:1] == [name]
    assert remedy in diagnosis.findings[0].remedy
    assert all(isinstance(value, float | int) for value in diagnosis.findings[0].evidence.values())
    diagnosis = run_of(*HEALTHY[name], **options[1])
    assert causes(diagnosis) == []
    assert name in diagnosis.healthy


LARGE = {"episode/return": (-1.4e6, -1.2e6), "batch/reward": -7e3}
NO_UPDATE = {"updates": 0, "per_record": 90}
FIXED_LENGTH = {"episode/truncated": 0, "episode/length": 11, "episode/return": (-9, -3), "evaluation/mean_return": -3}


@pytest.mark.parametrize(
    ("made", "series", "keys", "options", "expected"),
    [
        (rollout, {"episode/return": 0.0, "evaluation/mean_return": 0.0}, {}, {}, "no reward"),
        (replay, {"episode/return": -5.0, "evaluation/std_return": 0.0}, {}, {}, "no reward"),
        (replay, {}, {"algorithm.tau": 1e-6}, {}, "target network stands still"),
        (replay, {}, {"algorithm.tau": 1.0, "algorithm.target_every": 15_000}, {}, "target network stands still"),
        (replay, {"episode/length": 2_000}, {"memory.length": 1_000}, {}, "replay memory too small"),
        (rollout, {"episode/return": (1e-8, 1e-7)}, {}, {}, "scale of rewards"),
        (replay, LARGE, {"memory.adaptors": {"return_norm": None}}, {}, "scale of rewards"),
        (rollout, {"observation/size": 1e-5}, {}, {}, "scale of observations"),
        (rollout, {"policy/clipped": 0.5}, {}, {}, "policy moves too far in an update"),
        (
            replay,
            {"episode/truncated": 0, "episode/length": 150},
            {"env.id": None},
            {},
            "time limit reported as termination",
        ),
        (replay, {}, {}, {"status": "failed", **NO_UPDATE}, "failed run"),
        (
            replay,
            {"episode/raw_return": (-1_400, -300), "evaluation/mean_return": -1_500},
            {},
            {},
            "evaluation far below training",
        ),
        # What only looks like a cause:
        (replay, {}, {"algorithm.lr": 0.1}, {}, None),  # of SGD, whose steps are no multiple of it
        (replay, {}, {"algorithm.warmup_steps": 9_500}, {"updates": 500}, None),  # rows of another run were there
        (replay, {"episode/return": (-12, -8), "episode/raw_return": (-1_400, -300)}, {}, {}, None),
        (replay, {"episode/return": (-2, -1), "episode/raw_return": 900, "value/mean": 20}, {}, {}, None),
        *((replay, {}, {}, {"status": status, **NO_UPDATE}, None) for status in ("running", "interrupted", "stopped")),
        (replay, {}, {"algorithm.tau": 1.0, "algorithm.target_every": 15_000}, {"status": "running"}, None),
        (replay, {}, {"callbacks.reward_weights.rate": 1e-6}, {}, None),  # of the mean behind `with=lagrangian`
        (replay, LARGE, {"memory.adaptors": {"return_norm": {"discount": 0.9}}}, {}, None),
        (
            replay,
            {"intrinsic/rnd_bonus": 0.3, "episode/return": 0.0, "batch/reward": 0.0, "value/mean": 100},
            {"env.id": None},
            {},
            None,
        ),
        (replay, FIXED_LENGTH, {"env.id": None}, {}, None),
    ],
)
def test_other_signs_of_causes(made, series, keys, options, expected):
    assert causes(made(series, keys, **options))[:1] == ([expected] if expected else [])


def test_each_loss_is_compared_with_its_own_limit():
    quiet = {"optimizer": "${optimizer}", "max_grad_norm": 1e-8}
    (finding,) = replay({"grad_norm/quiet": 1}, {"callbacks.quiet": quiet}).findings
    assert finding.reason.startswith("those of quiet are about 1 large")


def test_a_callback_that_works_seldom_is_no_target_network():
    assert causes(replay({}, {"callbacks.evaluation": {"every": 20_000}})) == []


def test_a_loss_that_is_no_number_speaks_of_the_learning_rate():
    run_facts = facts(REPLAY, SWINGS)
    run_facts.broken["loss/q_loss"] = 3_000.0
    diagnosis = diagnose(run_facts)
    assert causes(diagnosis) == ["learning rate too high"]
    assert "from step 3,000 on" in diagnosis.findings[0].reason


@pytest.mark.parametrize("steps", [10, 100])
def test_a_run_that_has_just_begun_is_not_called_sick(steps):
    diagnosis = replay({"episode/count": 0}, status="running", updates=1, per_record=steps // 10)
    assert "episodes never end" not in causes(diagnosis)
    assert diagnosis.unmade["episodes never end"] == "400 steps per environment"


RISING = "returns still rose when the budget ended, from -689 to -322: rlrun resume RUN stop.env_steps=20_000"
CEILING = "the ceiling is reached: {}; more steps need not raise returns"
FEW_UPDATES = {"loader": {"horizon": 128, "minibatch": 256, "epochs": 4}}


def top(first):
    return {"evaluation/mean_return": (first, 500), "evaluation/mean_length": (first, 500)}


@pytest.mark.parametrize(
    ("made", "series", "keys", "options", "notes"),
    [
        (replay, {}, {}, {}, [RISING]),
        (replay, {}, {}, {"preset": True}, [RISING]),
        (replay, {}, {}, {"status": "stopped"}, []),
        (
            rollout,
            {"evaluation/mean_return": 400},
            {},
            {"preset": False},
            ["no preset chose the numbers of this run: they are defaults for any task"],
        ),
        (rollout, top(400), FEW_UPDATES, {"preset": False}, [CEILING.format("the task counts as solved from 475 on")]),
        (
            rollout,
            top(500),
            FEW_UPDATES,
            {"preset": False},
            [CEILING.format("the time limit of 500 steps, each of which pays 1")],
        ),
    ],
)
def test_notes_of_runs_without_findings(made, series, keys, options, notes):
    diagnosis = made(series, keys, **options)
    assert causes(diagnosis) == []
    assert [*diagnosis.notes] == notes


def test_a_fall_is_told_with_its_steps():
    (finding,) = rollout({"evaluation/mean_return": FELL}).findings
    assert finding.reason == "returns fell from 400 at step 4,000 to 100 after it"


def test_a_word_of_a_hostile_key_is_one_word_to_a_shell():
    assert shlex.split(override("a.$(rm x); b", 1.0)) == ["a.$(rm x); b=1"]
    assert override("algorithm.max_grad_norm", None) == "algorithm.max_grad_norm=null"


def test_remedies_are_overrides_that_are_understood(project):
    count, composer = 0, Composer()
    for run_of, series, keys, _ in SICK.values():
        command = COMMANDS[run_of]
        for finding in run_of(series, keys, updates=0 if "algorithm.warmup_steps" in keys else 1_000).findings:
            tokens = [token.strip(",;") for token in shlex.split(finding.remedy)]
            overrides = [token for token in tokens if re.fullmatch(r"[+a-z_.]+=\S.*", token)]
            known = [token for token in overrides if "target_every" not in token]
            assert composer.compose([*command, *dict.fromkeys(known)]).config.seed == 0
            count += bool(overrides)
    assert count > len(SICK) // 2


def write(run, history):
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in history))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose learning rate is too high."""
    monkeypatch.chdir(tmp_path)
    run_dir = RunDir.claim("runs/sick")
    run_dir.start(config=yaml.safe_dump(REPLAY), overrides=["algorithm=sac"], manifest={"seed": 0})
    run_dir.write_status("completed")
    series = {**SWINGS, "update_ratio/q_loss": (0.7, 0.001)}
    write(run_dir, records(series))
    return run_dir


def test_command_and_twin_name_cause_reason_and_remedy(run, rlrun):
    code, out, err = rlrun("why", "runs/sick")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == ("1. learning rate too high: single updates of q_loss change up to 70% of its weights")
    assert lines[1] == "   a smaller learning rate: algorithm.lr=1.0e-5"
    assert lines[2].startswith("ruled out: failed run, warm-up longer than the run, ")
    report = json.loads(rlrun("why", "runs/sick", "--json").out)
    assert report == json.loads(json.dumps(why(run.path).as_dict()))
    assert report["findings"][0]["evidence"] == {"update_ratio/q_loss": 0.7, "bound": 0.15}


def test_command_says_where_time_went(run, rlrun):
    half = {"time/update": 0.5, "time/env": 0.25}
    write(run, [*records(SWINGS), {"env_steps": 10_000, "seconds": 4.0, **half}, {"env_steps": 10_000, "seconds": 5.0}])
    assert why(run.path).time == {"update": 0.5, "env": 0.25}
    last = {"env_steps": 10_000, "seconds": 16.0, "time/update": 0.9, "time/act": "\x1b[2J"}
    write(run, [*records(SWINGS), {"env_steps": 10_000, "seconds": 4.0, **half}, last])
    assert "\ntime: 80% update, 6% env\n" in rlrun("why", "runs/sick")[1]  # (2 + 10.8) / 16 and 1 / 16


def test_command_is_silent_on_a_healthy_run(run, rlrun):
    write(run, records(SWINGS))
    code, out, err = rlrun("why", "runs/sick")
    assert (code, err) == (0, "")
    assert re.match(r"nothing stands out: 20 checks made\nreturns still rose", out)


def test_a_failed_run_says_so_and_why(run, rlrun):
    run.write_status("failed")
    run.note("failed\nTraceback (most recent call last):\n  …\nValueError: boom\n")
    assert rlrun("why", "runs/sick")[1].startswith("1. failed run: it ended at step 10,000: ValueError: boom\n")


@pytest.mark.parametrize(
    ("set_by", "preset"),
    [
        ({"seed": "word", "algorithm.lr": "rlrun/preset/dqn_cartpole.yaml (found by algorithm and env)"}, True),
        ({"algorithm.lr": "word"}, False),
        (None, None),
    ],
)
def test_the_manifest_tells_whether_a_preset_chose_numbers(run, set_by, preset):
    run.manifest.write_text(json.dumps({"set_by": set_by}))
    assert read(run).preset is preset


def test_a_run_without_records_is_no_failure(run, rlrun):
    run.metrics.unlink()
    code, out, err = rlrun("why", "runs/sick")
    assert code == 0
    assert re.match(r"nothing stands out: \d+ checks? made, \d+ could not be made for want of data\nnot checked: ", out)
    assert re.fullmatch(r"rlrun: .*metrics\.jsonl cannot be read: .*\n", err)


HOSTILE = "\x1b]0;owned\x07\x1b[31mevil: {0}"


@pytest.mark.parametrize(
    "line",
    [
        b"no json at all",
        b'{"env_steps": "many"}',
        b"[1, 2]",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"env_steps": NaN}',
        b'{"env_steps": 1' + b"0" * 5_000 + b"}",
    ],
)
def test_damaged_lines_are_left_out_and_told(run, rlrun, line):
    text = run.metrics.read_bytes()
    run.metrics.write_bytes(line + b"\n" + text)
    code, out, err = rlrun("why", "runs/sick")
    assert code == 0
    assert out.startswith("1. learning rate too high")
    assert re.fullmatch(r"rlrun: .*metrics\.jsonl: 1 line is not a record and was left out\n", err)


def test_a_line_that_is_being_written_is_no_damage(run):
    run.metrics.write_text(run.metrics.read_text() + '{"env_steps": 12_0')
    assert why(run.path).damage == ()


def test_what_stands_in_files_steers_no_terminal(run, rlrun):
    config = changed(REPLAY, {f"callbacks.{HOSTILE}": {"optimizer": "${optimizer}"}})
    run.config.write_text(yaml.safe_dump(config))
    name = f"update_ratio/{HOSTILE}"
    write(run, [{**record, name: 0.9} for record in records(SWINGS)])
    _, out, err = rlrun("why", "runs/sick")
    assert "evil" in out
    assert not {"\x1b", "\x07"} & {*(out + err)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: [", "not valid YAML"),
        ("[1, 2]", "wanted keys with values"),
        ("algorithm: {lr: '${algorithm.lr}'}\noptimizer: {lr: '${algorithm.lr}'}\ncallbacks: 7\n", None),
        ("callbacks: {q_loss: {optimizer: {_target_: os.system}, max_grad_norm: '${oc.env:HOME}'}}\n", None),
        ("env: {id: [1]}\nloader: {warm_up: many}\nstop: null\nmemory: {length: .nan}\n", None),
    ],
)
def test_a_config_that_is_damaged(run, text, message):
    run.config.write_text(text)
    if message is None:
        assert why(run.path).checks > 0
    else:
        with pytest.raises(ConfigError, match=message):
            why(run.path)


def test_a_pipe_in_place_of_a_file_is_refused(run):
    run.metrics.unlink()
    os.mkfifo(run.metrics)
    assert "not a plain file" in why(run.path).damage[0]
    run.config.unlink()
    with pytest.raises(RunDirError, match="is not a run directory"):
        why(run.path)


def test_nothing_of_a_run_is_imported(run, monkeypatch):
    config = changed(REPLAY, {"env.id": "evil_module:Env-v0", "env.target": "evil_module.Env"})
    run.config.write_text(yaml.safe_dump(config))
    Path("evil_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert causes(why(run.path)) == ["learning rate too high"]


@pytest.mark.parametrize("value", [0, -1, 1e-99, 9e99, -9e99, 1e308, "x", None, True, [], {}])
def test_no_number_is_too_odd(run, value):
    keys = ("algorithm.discount", "algorithm.lr", "algorithm.warmup_steps", "algorithm.tau", "memory.length")
    keys += ("stop.env_steps", "num_envs", "loader.batch", "callbacks.q_loss.max_grad_norm", "env.id")
    for key in (*keys, "callbacks.q_loss.entropy_weight", "algorithm.target_every", "memory.adaptors"):
        run.config.write_text(yaml.safe_dump(changed(REPLAY, {key: value})))
        assert json.dumps(why(run.path).as_dict())
    run.config.write_text(yaml.safe_dump(REPLAY))
    for name in SWINGS:
        write(run, [{**record, name: value} for record in records(SWINGS)])
        assert json.dumps(why(run.path).as_dict())
