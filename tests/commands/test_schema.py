"""Schemas of config files: what editors underline, by a kept validator."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import rlrun
from rlrun.commands.schema import GLOBAL, schemas
from rlrun.config.places import packaged_dir
from rlrun.core.errors import RequestError
from rlrun.devtools.init import init

SCHEDULE = "callbacks: {mine: {_target_: rlrun.callbacks.Schedule, provides: x, value: {%s}}}"
NEW = "callbacks: {mine: {_target_: %s}}"
WRONG = {  # part of a config with the key that an editor shall underline; what stands before `|` is the group
    "misspelt key": [
        ("algoritm: {lr: 0.1}", "algoritm"),
        ("algorithm: {learning_rat: 0.1}", "learning_rat"),
        ("stop: {env_step: 5_000}", "env_step"),
        ("evaluation: {episode: 3}", "episode"),
        ("checkpoint: {keeplast: 3}", "keeplast"),
        ("callbacks: {q_loss: {hubber: 1.0}}", "hubber"),
        ("networks: {q: {hiden: [64]}}", "hiden"),
        ("memory: {sampler: {sed: 3}}", "sed"),
        ("env|kwarg: {a: 1}", "kwarg"),
        ("memory|lenght: 100", "lenght"),
    ],
    "wrong type": [
        ("seed: first", "seed"),
        ("num_envs: 0", "num_envs"),
        ("algorithm: {lr: fast}", "lr"),
        ("algorithm: {hidden: [wide]}", "hidden"),
        ("evaluation: {video: 3}", "video"),
        ("compile: 1", "compile"),
        ("stop: 5000", "stop"),
        ("checkpoint: {every: [1]}", "every"),
        ("env|kwargs: 3", "kwargs"),
        ("callbacks: {q_loss: {_target_: rlrun.algorithms.value_based.dqn.QLoss, huber: much}}", "huber"),
    ],
    "unknown choice": [
        ("defaults: [override /algorithm: dqnn]", "defaults"),
        ("defaults: [override /env: cartpol]", "defaults"),
        ("defaults: [algoritm: dqn]", "defaults"),
        ("defaults: [/rlrun/algorithm/dqnn]", "defaults"),
        ("env|defaults: [gim, _self_]", "defaults"),
        ("defaults: [override /memory: replays]", "defaults"),
        ("precision: hi", "precision"),
        ("threads: auto", "threads"),
        ("env|vectorization: threads", "vectorization"),
        ("callbacks: {q_loss: {_target_: rlrun.algorithms.value_based.dqn.QLoss, grad_clip: norms}}", "grad_clip"),
    ],
    "unknown _target_": [
        (NEW % "rlrun.callbacks.Schedul", "_target_"),
        (NEW % "rlrun.callback.Schedule", "_target_"),
        (NEW % "rlrun.algorithms.value_based.dqn.Loss", "_target_"),
        (NEW % "Schedule", "_target_"),
        (NEW % "torch.optim.Adamm", "_target_"),
        ("networks: {q: {_target_: rlrun.nn.Critic}}", "_target_"),
        ("memory: {sampler: {_target_: rlrun.memory.Uniforms}}", "_target_"),
        ("memory|_target_: rlrun.memory.Tables", "_target_"),
        ("callbacks: {q_loss: {network: {_target_: rlrun.nn.MPL}}}", "_target_"),
        ("optimizer: {_target_: torch.optim.adam}", "_target_"),
    ],
    "unknown argument": [
        (NEW % "rlrun.callbacks.Schedule, provide: x", "provide"),
        (NEW % "rlrun.algorithms.value_based.dqn.QLoss, hubber: 1.0", "hubber"),
        (NEW % "rlrun.callbacks.Budget, steps: 3", "steps"),
        ("networks: {mine: {_target_: rlrun.nn.MLP, inputs: 3, outputs: 2, width: 3}}", "width"),
        ("optimizer: {_target_: torch.optim.SGD, momentums: 0.9}", "momentums"),
        ("memory: {sampler: {_target_: rlrun.memory.Uniform, sed: 3}}", "sed"),
        ("memory: {adaptors: {n: {_target_: rlrun.memory.NStep, step: 3}}}", "step"),
        ("agent: {_target_: rlrun.collect.EpsilonGreedy, eps: 0.1}", "eps"),
        (SCHEDULE % "_target_: rlrun.core.schedules.Linear, a: 1", "a"),
        ("trainer: {_target_: rlrun.training.trainer.Trainer, loaders: 3}", "loaders"),
    ],
    "missing argument": [
        (NEW % "rlrun.callbacks.Schedule", "mine"),
        (NEW % "rlrun.algorithms.value_based.dqn.QLoss, huber: 1.0", "mine"),
        (NEW % "rlrun.algorithms.value_based.dqn.QTarget, tau: 0.1", "mine"),
        ("networks: {mine: {_target_: rlrun.nn.MLP, inputs: 3}}", "mine"),
        ("networks: {mine: {_target_: rlrun.algorithms.value_based.dqn.QNetwork, hidden: [3]}}", "mine"),
        ("memory: {adaptors: {mine: {_target_: rlrun.memory.NStep, steps: 3}}}", "mine"),
        ("callbacks: {mine: {_target_: rlrun.callbacks.MemoryExport, every: 3}}", "mine"),
        (SCHEDULE % "_target_: rlrun.core.schedules.Linear, first: 1", "value"),
        ("algorithm: {value_head: {_target_: rlrun.nn.HLGauss, bins: 3}}", "value_head"),
        ("normalizers: {mine: {_target_: rlrun.nn.Normalizer}}", "mine"),
    ],
    "unknown logger or environment": [
        ("logger: [tensorbord]", "logger"),
        ("logger: tensorbord", "logger"),
        ("logger: [jsonl, {wandbb: {project: x}}]", "wandbb"),
        ("logger: [{_target_: rlrun.callbacks.Jsonll}]", "_target_"),
        ("env: {target: rlrun.env.toys.Bandi}", "target"),
        ("env|target: rlrun.env.toys.Bandi", "target"),
        ("env|{target: rlrun.env.toys.Bandit, kwargs: {sise: 3}}", "sise"),
    ],
}  # fmt: skip
CASES = [(kind, text, key) for kind, entries in WRONG.items() for text, key in entries]


@pytest.fixture(scope="module")
def packaged() -> dict[str, Any]:
    return schemas(packaged_dir())


def as_an_editor(text: str) -> Any:
    """Read YAML 1.2, in which 5_000 is a text."""
    return yaml.safe_load(re.sub(r"(?<=[ \[])(\d+(?:_\d+)+(?:\.\d+)?)(?=[ ,\]}\n])", r"'\1'", text))


def underlined(schema: dict[str, Any], tree: Any) -> set[str]:
    """Return the keys whose values an editor underlines, or which it says are not allowed."""
    keys, definitions, named = set[str](), dict(schema["definitions"]), json.dumps(tree)
    for kind in ("object", "override"):  # conditions on targets that the tree does not name take most of the time
        conditions = definitions[kind]["allOf"]
        fitting = [entry for entry in conditions if entry["if"]["properties"]["_target_"]["const"] in named]
        definitions[kind] = {**definitions[kind], "allOf": fitting}
    for error in jsonschema.Draft7Validator({**schema, "definitions": definitions}).iter_errors(tree):
        errors = [error]
        while errors:
            error = errors.pop()
            errors += error.context or []
            keys |= {str(key) for key in error.absolute_path}
            if error.validator == "additionalProperties":
                keys |= set(re.findall("'([^']+)'", error.message))
    return keys


@pytest.mark.parametrize(
    "text",
    [
        "logger: null",
        "logger: wandb",
        "logger: [terminal, {wandb: {project: x}}, '${mine}', {_target_: mine.Sink}]",
        "env|{target: mine.make, kwargs: {any: 3}}",
        "env|{target: rlrun.env.toys.Bandit, kwargs: null}",
        "env|kwargs: {any: 3}",
    ],
)
def test_what_is_right_is_not_underlined(packaged: dict[str, Any], text: str) -> None:
    group, bar, rest = text.partition("|")
    assert underlined(packaged[group if bar else "train"], as_an_editor(rest if bar else text)) == set()


@pytest.mark.parametrize(("kind", "text", "key"), CASES)
def test_mistakes_are_underlined(packaged: dict[str, Any], kind: str, text: str, key: str) -> None:
    group, bar, rest = text.partition("|")
    tree = as_an_editor(rest if bar else text)
    assert key in underlined(packaged[group if bar else "train"], tree)


def wrong_files(folder: Path, packaged: dict[str, Any]) -> dict[str, Any]:
    """Return what is underlined in the files of a config folder."""
    result = {}
    for path in sorted(folder.rglob("*.yaml")):
        text, group = path.read_text(), path.relative_to(folder).parent.as_posix()
        name = "train" if group == "." or GLOBAL.search(text) else group
        result[str(path.relative_to(folder))] = underlined(packaged[name], as_an_editor(text))
    return {path: keys for path, keys in result.items() if keys}


def test_no_shipped_file_is_underlined(packaged: dict[str, Any]) -> None:
    assert wrong_files(packaged_dir(), packaged) == {}


OWN = """
# @package _global_
conservative: {weigth: 0.1}
env: {target: catching.environment.Catch, kwargs: {widht: 3}}
callbacks:
  q_loss: {_target_: catching.loss.Conservativ}
  mine: {_target_: catching.loss.Conservative, hubber: 0.1}
"""
SCRIPT = "raise SystemExit(3)  # a script without a guard"


def test_own_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = init(tmp_path / "catching")
    monkeypatch.chdir(project)
    monkeypatch.setattr("sys.path", [*sys.path])
    folder = project / "conf"
    for name in ("__main__", "script"):
        (project / "catching" / f"{name}.py").write_text(SCRIPT if name == "script" else "import no_such_module")
    lines = [path.read_text() for path in folder.rglob("*.yaml")]
    assert all("# yaml-language-server: $schema=../.schema/" in text for text in lines)
    packaged = {path.stem: json.loads(path.read_text()) for path in rlrun.schema()}
    assert wrong_files(folder, packaged) == {}
    assert underlined(packaged["train"], yaml.safe_load(OWN)) >= {"weigth", "_target_", "mine", "widht", "hubber"}
    right = "callbacks: {q_loss: {_target_: catching.loss.Conservative, weight: 0.1, huber: 1.0}}"
    assert underlined(packaged["train"], yaml.safe_load(right)) == set()
    assert underlined(packaged["train"], {"conservative": {"weight": 0.1}}) == set()
    for name in [name for name in sys.modules if name.partition(".")[0] == "catching"]:
        del sys.modules[name]  # other tests have projects of this name


def test_other_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=r"there is no folder .*conf; --config-dir names"):
        rlrun.schema()
