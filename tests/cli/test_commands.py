"""What the commands print and do, called as a user calls them."""

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tests.pace import within

from rlrun import checkpointing as storage
from rlrun.runs.directory import RunDir

from .conftest import TINY

DQN = ("algorithm=dqn", "env=cartpole")
HEAVY = {"torch", "gymnasium", "numpy", "hydra", "omegaconf", "safetensors", "wandb"}


def spawn(*overrides: str, **environment: str) -> str:
    """Return what a fresh interpreter prints."""
    process = subprocess.run(
        [sys.executable, *overrides], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return process.stdout


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that some code loads."""
    return set(spawn("-c", f"import sys\n{code}\nprint('\\n' + ' '.join(sys.modules))").splitlines()[-1].split())


def processor_seconds(*overrides: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    spawn("-m", "rlrun", *overrides)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


CALL_MAIN = "from rlrun.cli.main import main\ntry: main()\nexcept SystemExit as left: assert not left.code"

PRESET = "preset: {} (tuned for this algorithm and environment; preset=null for none)"


@pytest.mark.parametrize(
    ("overrides", "presets"),
    [
        (("check", *DQN), ["dqn_cartpole"]),
        (("explain", *DQN), ["dqn_cartpole"]),
        (("train", *DQN, "--dry-run"), ["dqn_cartpole"]),
        (("train", *DQN, *TINY, "--run-dir", "run"), ["dqn_cartpole"]),
        (("train", *DQN, *TINY, "preset=null", "--run-dir", "run"), []),
    ],
)
def test_a_preset_that_applies_is_named_once(rlrun, project, overrides, presets):
    outcome = rlrun(*overrides)
    lines = [PRESET.format(name) for name in presets]
    assert (outcome.code, outcome.err.splitlines()) == (0, lines)
    assert "preset: " not in outcome.out
    log = project / "run" / "log.txt"
    if "--run-dir" in overrides:
        noted = [line.split(" ", 1)[1] for line in log.read_text().splitlines()] if log.exists() else []
        assert [line for line in noted if "preset" in line] == lines


def test_a_dry_run_of_a_sweep_names_its_presets(rlrun):
    outcome = rlrun("train", "-m", "algorithm=dqn,sac", "env=cartpole", "--dry-run")
    assert outcome.err.splitlines()[-1] == PRESET.format("dqn_cartpole, sac_cartpole")


def test_what_needs_nothing_heavy_loads_none(project):
    """Help, lists, completion, what reads manifests only; composing needs Hydra alone."""
    run = RunDir.claim(project / "run")
    run.start(config="seed: 0\n", overrides=[], manifest={})
    storage.write(run.checkpoints / "0000000020-0000000007", storage.snapshot({"loader": {"drawn": 3}}))
    calls = [["--help"], ["train", "--help"], ["resume", "--help"], ["list"], ["--version"]]
    calls += [["checkpoints", "run", "--parts"], ["checkpoints", "run", "--json", "--no-digest"]]
    code = "".join(f"sys.argv = {['rlrun', *overrides]}\n{CALL_MAIN}\n" for overrides in calls)
    code += "from rlrun.cli.completion import candidates\nassert '+with=rnd' in candidates('+with=')\n"
    code += "assert candidates('intrinsic.rnd.w', ['algorithm=sac', '+with=rnd']) == ['intrinsic.rnd.weight=']"
    assert not modules_after(code) & HEAVY
    compose = "from rlrun.config import compose; compose(['algorithm=dqn', 'env=cartpole'])"
    assert not modules_after(compose) & {"torch", "gymnasium", "numpy"}


@pytest.mark.speed
def test_help_takes_less_than_three_tenths_of_a_second():
    assert within(lambda: processor_seconds("--help"), 0.3)


@pytest.mark.speed
def test_config_takes_less_than_a_second():
    assert within(lambda: processor_seconds("config", "algorithm=sac", "env=cartpole"), 1.0)


def test_no_command_prints_the_help(rlrun):
    outcome = rlrun()
    assert (outcome.code, outcome.err) == (0, "")
    assert "train" in outcome.out


def test_config_prints_yaml_alone(rlrun):
    outcome = rlrun("config", *DQN, "seed=3", "--resolve")
    config = yaml.safe_load(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert (config["seed"], config["env"]["id"], config["seeds"]["seed"]) == (3, "CartPole-v1", 3)
    assert yaml.safe_load(rlrun("config", *DQN).out)["seeds"]["seed"] == "${seed}"
    assert rlrun("config", *DQN, "--package", "env.id").out == "CartPole-v1\n"
    config = yaml.safe_load(rlrun("config", *DQN, "--package", "stop", "stop.updates=7").out)
    assert config == {"env_steps": 50_000, "updates": 7, "seconds": None, "mean_return": None, "validation": None}


def test_provenance_names_file_pair_and_word(rlrun):
    lines = rlrun("config", *DQN, "seed=3", "--provenance").out.splitlines()
    assert "seed = 3   # override" in lines
    assert "algorithm.n_step = 3   # rlrun/preset/dqn_cartpole.yaml (found by algorithm and env)" in lines
    assert "callbacks.q_loss._target_ = rlrun.algorithms.value_based.dqn.QLoss   # rlrun/algorithm/dqn.yaml" in lines
    assert "stop.seconds = null   # rlrun/train.yaml" in lines


def test_lists_have_a_line_for_each_file(rlrun, write):
    names = {
        "algorithms": "sac",
        "envs": "cartpole",
        "memories": "replay",
        "optimizers": "adamw",
        "presets": "dqn_cartpole",
    }
    for kind, name in names.items():
        lines = rlrun("list", kind).out.splitlines()
        assert any(line.split()[0] == name and len(line.split()) > 3 for line in lines)
    write("conf/env/mine.yaml", "# My own environment\ndefaults: [gym]\nid: CartPole-v1\n")
    out = rlrun("list").out
    assert [part for part in ("algorithms (algorithm=…)", "  cartpole ", "My own environment") if part not in out] == []
    assert rlrun("list", "with").code == 0


def test_dry_run_prints_the_data_flow(rlrun, project):
    outcome = rlrun("train", *DQN, "--dry-run")
    assert outcome == rlrun("explain", *DQN)
    assert (outcome.code, list(project.iterdir())) == (0, [])
    assert [part for part in ("-> q_target", "q_loss", "networks.q") if part not in outcome.out] == []


def test_explain_prints_the_layers_of_networks(rlrun, project):
    out = rlrun("explain", "algorithm=sac", "env=pendulum", "algorithm.hidden=[7]", "--networks").out
    assert [line.partition(":")[0] for line in out.splitlines() if line.startswith("networks.")] == [
        *("networks.critics", "networks.policy", "networks.temperature"),
    ]
    assert "Linear(in_features=3, out_features=7, bias=True)" in out
    assert "StackedLinear(4, 7, members=2, norm=False)" in out


def test_explain_prints_the_code_of_an_update(rlrun, project):
    outcome = rlrun("explain", *DQN, "--update")
    assert (outcome.code, list(project.iterdir())) == (0, [])
    (function,) = ast.parse(outcome.out).body
    assert (function.name, [argument.arg for argument in function.args.args]) == ("update", ["groups", "state"])
    assert "loss, outputs, metrics = of_loss(q_loss.loss(batch['observation'], batch['action']" in outcome.out


def test_check_reports_and_leaves_nothing(rlrun, project):
    outcome = rlrun("check", *DQN, "memory.length=500")
    assert outcome.code == 0
    assert "environment cartpole" in outcome.out
    assert "parameters on" in outcome.out
    assert re.search(r"^memory +up to [\d.]+ kB$", outcome.out, re.MULTILINE)
    assert re.search(r"^disk +[\d.]+ GB free; a checkpoint takes up to [\d.]+ [kM]B$", outcome.out, re.MULTILINE)
    assert list(project.iterdir()) == []


UNFIT = {
    "stop.env_steps=900": "budget    a warm-up of 1,000 steps (algorithm.warmup_steps) takes all of stop.env_steps=900",
    "stop.env_steps=null": "budget    no limit is set in stop: the run continues until a signal ends it",
    "algorithm.batch_size=60_000": "budget    a batch of 60,000 rows is more than",
    "algorithm.unroll=16": "unused    algorithm.unroll=16 is idle: algorithm.recurrent is null",
    "~callbacks.q_loss": "untrained networks.q: no loss steps its parameters",
}


def test_check_tells_what_will_not_work(rlrun):
    plain = rlrun("check", *DQN).out
    for override, message in UNFIT.items():
        outcome = rlrun("check", *DQN, override)
        assert (outcome.code, message in outcome.out, message in plain) == (0, True, False), outcome
    unrolled = rlrun("check", "algorithm=muzero", "env=cartpole", "algorithm.unroll=3")
    assert (unrolled.code, "idle" in unrolled.out) == (0, False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm=ppo", "num_envs=2", "algorithm.horizon=32", "stop.env_steps=60"],
            "a rollout of 64 steps (algorithm.horizon × num_envs) takes all of stop.env_steps=60: there will be one "
            "update",
        ),
        (["algorithm=ppo", "num_envs=2", "algorithm.horizon=32", "stop.env_steps=65", "algorithm.epochs=1"], None),
    ],
)
def test_training_tells_what_its_budget_is_too_small_for(overrides, message, rlrun, project):
    outcome = rlrun("train", *overrides, *DQN[1:], "preset=null", "evaluation.every=0", "logger=[]", "--run-dir", "run")
    assert (outcome.code, outcome.err.splitlines()) == (0, [message] * (message is not None))
    assert message is None or message in (project / "run" / "log.txt").read_text()
    why = rlrun("why", "run").out
    assert ("longer than the run" in why.partition("ruled out")[0]) == (message is not None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "override /preset: dqn_chain",
            "'override /preset' comes too early, preset is chosen after this file; leave the line out and",
        ),
        ("override env: none", "its defaults override 'algorithm/env', which is not a group (did you mean '/env'?)"),
        ("override /nope: none", "its defaults override 'nope', which is not a group\n"),
    ],
)
def test_wrong_choices_of_an_algorithm_name_the_way_out(line, message, rlrun, write):
    write("conf/algorithm/mine.yaml", f"# @package _global_\ndefaults: [/rlrun/algorithm/bc, {line}]\n")
    outcome = rlrun("check", "algorithm=mine")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"mine.yaml: {message}" in outcome.err


def test_training_prints_outcome_and_folder(tiny_run, project):
    outcome = tiny_run(DQN[0], "--config-dir", ".", DQN[1], "preset=null", "seed=5")  # options stand anywhere
    first, folder = outcome.out.splitlines()
    assert (outcome.code, outcome.err) == (0, "")
    assert first.startswith("completed: 40 env steps, ")
    assert Path(folder).parent == project / "runs" / "dqn-cartpole"
    assert folder.endswith("_s5")


def test_a_reader_that_leaves_hears_nothing():
    code = "import time, rlrun.cli.main as m; time.sleep(0.5); m.main()"
    process = subprocess.Popen([sys.executable, "-c", code, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


class Fixed(torch.nn.Module):
    """Values without a parameter."""

    def forward(self, observation):
        return observation[:, :2]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("callbacks.q_loss=null", "networks.q: no loss steps its parameters"),
        (f"networks.q._target_={__name__}.Fixed", "callbacks.q_loss: no network of a loss has a parameter"),
    ],
)
def test_a_run_says_that_nothing_is_trained(rlrun, override, message):
    short = ("stop.env_steps=40", "algorithm.warmup_steps=8", "evaluation.every=0")
    assert message in rlrun("train", *DQN, *short, override, "--run-dir", "run").err


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_options_of_completion_end_well(project, option):
    answer = subprocess.run(
        [sys.executable, "-m", "rlrun", option, "bash"],
        env={**os.environ, "HOME": str(project)},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
