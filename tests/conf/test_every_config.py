"""Every file of conf/ composes, is read completely, runs, is left and resumed; and its comments keep their form."""

import io
import json
import pickle
import re
import shlex
from pathlib import Path

import hydra
import pytest
from handbook.metrics import meaning
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from tests.conf.files import (
    ALONE,
    APPROXIMATE,
    CONF,
    FILES,
    FULL,
    ONE_ENV,
    OVERRIDES_OF_FILE,
    PRESETS,
    RUNS,
    has_memory,
    missing_extra,
    overrides_of,
    small,
    text,
    used,
)
from tests.resume.twins import assert_exact, records, twins
from tests.short import AT, RESUMED

from rlrun import train
from rlrun.config import compose, replaced, unread
from rlrun.config.interpolation import plain
from rlrun.core.errors import MissingExtra

SINGLE = (*(f"memory/{name}" for name in ("replay", "episodes", "prioritized", "rollout")), *ONE_ENV)  # also, or only
DENSITIES = ("algorithm/particles", "algorithm/generator")  # they learn without data, and nothing judges them
PAIRS = [file for file in PRESETS if (CONF / "env" / f"{file.partition('_')[2]}.yaml").exists()]
COMMANDED = [file for file in FILES if file.startswith(("preset/", "with/"))]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Let Hydra parse what each file says once, and not for each of the compositions that it is part of."""
    parse, known = OmegaConf.load, {}

    def load(file):
        if (text := file.read()) not in known:
            known[text] = pickle.dumps(parse(io.StringIO(text)))
        return pickle.loads(known[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(load))
        yield


@pytest.mark.parametrize("file", [*RUNS, *ONE_ENV])
def test_a_file_composes_and_is_read_completely(file):
    composed = compose(overrides_of(file))
    assert used(file) <= {layer.config_path for layer in composed.layers}
    encoder = {f"encoder.{key}" for key in ("_target_", "_partial_")}
    idle = {"optimizer"} | encoder if file.startswith("preset/handcrafted") else set()
    idle |= {f"algorithm.temperature.{key}" for key in ("target", "share") if file == "with/entropy_target"}
    idle |= {"env", "memory", "spaces"} if composed.config.env is None else set()
    idle |= {"encoder", "seeds"} if file in DENSITIES else set()
    assert set(unread(composed.config)) == idle


@pytest.mark.parametrize(("file", "envs"), [*((file, 3) for file in RUNS), *((file, 1) for file in SINGLE)])
def test_a_resumed_run_is_the_one_that_never_stopped(file, envs, tmp_path):
    composed = small(file, envs=envs)
    if (extra := next(filter(None, map(missing_extra, used(file))), None)) is not None:
        with pytest.raises(MissingExtra, match=rf"\[{extra}\]'"):
            train(composed, run_dir=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return
    assert_exact(composed, tmp_path, at=AT)
    assert_judged(file, tmp_path / "whole")


@pytest.mark.parametrize(
    ("file", "own", "reason"),
    [
        ("env/atari", [], "its episode has no seed (env.seed_episodes)"),
        ("env/pong", ["env.seed_episodes=true"], None),
        ("with/async", ["async.kind=thread"], "its environment ran ahead of learning (thread)"),
    ],
)
def test_a_resumed_run_is_exact_or_says_why_it_is_not(file, own, reason, tmp_path):
    if missing_extra(file) is not None:
        pytest.skip("nothing plays it")
    composed = small(file, envs=3)
    for override in own:
        key, _, value = override.partition("=")
        OmegaConf.update(composed.config, key, value == "true" or value)
    if reason is None:
        assert_exact(composed, tmp_path, at=AT)
    else:
        twins(composed, tmp_path, at=AT)
    assert_judged(file, tmp_path / "whole")
    manifest = json.loads((tmp_path / "resumed" / "manifest.json").read_text())
    reasons = [reason for resumed in manifest["resumed"] for reason in resumed["approximate"]]
    assert manifest["resume"] == ("exact" if reason is None else "approximate")
    assert len(reasons) == (reason is not None)
    assert all(reason in found for found in reasons)


def assert_judged(file, run):
    """Require that a run was completed and evaluated, and that docs/metrics.md says what each of its metrics is."""
    updates = (FULL if has_memory(file) else RESUMED)["stop.updates"]
    summary = json.loads((run / "summary.json").read_text())
    judged = summary["evaluation"]["episodes"] if summary["evaluation"] else bool(summary.get("validation"))
    assert (summary["status"], bool(judged)) == ("completed", file not in DENSITIES)
    others = max(sum(value for name, value in record.items() if name[:8] == "updates/") for record in records(run))
    assert updates <= summary["updates"] <= updates + others  # of further data groups, partly in the same updates
    assert [name for record in records(run) for name in record if "/" in name and not meaning(name)] == []


@pytest.mark.parametrize("file", PAIRS)
def test_a_preset_is_the_tuned_pair_too(file):
    name = file.partition("/")[2]
    algorithm, _, env = name.partition("_")
    beside = OVERRIDES_OF_FILE.get(file, [])
    pair = compose([f"algorithm={algorithm}", f"env={env}", *beside])
    assert pair.preset == name
    preset = compose([file.replace("/", "="), *beside])
    assert plain(pair.config) == plain(preset.config)  # OmegaConf's own comparison takes seconds


@pytest.mark.parametrize("file", [*RUNS, *ONE_ENV, *APPROXIMATE, *ALONE])
def test_hydra_alone_composes_a_file(file):
    overrides = overrides_of(file)
    composed = compose(overrides, check=False)
    additions = [override for override in overrides if re.match(r"\+?with=", override)]
    names = ",".join(override.partition("=")[2].strip("[]") for override in additions)
    others = [override for override in overrides if override not in additions]
    typed = [f"++{override}" if override.startswith("env.kwargs") else override for override in others] + [
        f"+with=[{names}]"
    ] * bool(names)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        alone = hydra.compose("train", typed + [f"preset={composed.preset}"] * bool(composed.preset))
    assert plain(alone) == unmarked(plain(composed.config))


def unmarked(node):
    """Return a config without the marks of classes that an override replaced."""
    if not isinstance(node, dict):
        return node
    return {key: unmarked(value) for key, value in node.items() if key not in replaced.KEYS}


@pytest.mark.parametrize("file", FILES)
def test_the_first_comment_says_what_a_file_is(file):
    first = text(file)[0]
    assert re.match(r"# [A-Z]", first)
    assert len(first) <= 120


@pytest.mark.parametrize("file", COMMANDED)
def test_the_second_comment_is_a_command_that_uses_the_file(file):
    program, command, *overrides = shlex.split(text(file)[1].removeprefix("# "))
    settings = [override for override in overrides if "." in override.partition("=")[0] or override.startswith("+")]
    assert (program, command) == ("rlrun", "train")
    assert plain(compose(overrides).config) == plain(compose(overrides_of(file) + settings).config)


@pytest.mark.parametrize("file", PRESETS)
def test_a_preset_promises_one_measure_within_its_budget(file):
    config = compose(overrides_of(file)).config
    (budget,) = {"env_steps", "updates"} & set(config.expect)
    assert config.expect[budget] == config.stop[budget]
    assert len(set(config.expect) - {budget, "seeds"}) == 1
    assert len(config.expect.seeds) >= 5


@pytest.mark.parametrize("file", [file for file in PRESETS if re.match(r"preset/(ppo|ppg|trac)_", file)])
def test_a_preset_of_ppo_states_the_numbers_that_defaults_of_ppo_may_change(file):
    preset = OmegaConf.create("\n".join(text(file)))
    assert any("override /optimizer" in default for default in preset.defaults)
    keys = ("num_envs", *(f"algorithm.{name}" for name in ("horizon", "epochs", "batch_size", "lr")))
    assert [key for key in keys if OmegaConf.select(preset, key) is None] == []
    assert "learning_rate" in preset.callbacks


def test_numbers_are_written_as_every_reader_of_yaml_reads_them():
    lines = [f"{file}: {line}" for file in FILES for line in text(file) if re.search(r"(?<![\d.])\d+e[-+]?\d", line)]
    assert lines == []
