"""Config keys in the documentation exist: in a file of `conf/`, or as an argument of the class that stands there."""

import functools
import inspect
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from rlrun.config.build import find_target, parameters

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"(?<!`)`([^`\n]+)`")
KEY = re.compile(r"[a-z_]+(\.\w+)+")
OPEN = ("kwargs", "reset_options", "columns", "groups", "rename", "parts", "metrics")  # places for any key
NOT_KEYS = {  # files, metrics, parameters and methods that begin like a key of the config
    *("log.txt", "env.step", "evaluation.mean_return", "compile.backend", "compile.calls", "compile.fused_adam"),
    *("compile.noise.draws", "encoder.layers.0.weight", "callbacks.q_loss.loss", "callbacks.mine.end_batch"),
    *("sweep.yaml", "export.metadata.game", "agent.policy.decelerate", "agent.policy.stop", "encoder.width"),
    "expect.metrics",  # `expect` takes more than any packaged file has
    *("encoder.features_dim", "encoder.out_features"),  # arguments of a user's class
}


@functools.cache
def packaged():
    """Return the paths of all keys of `conf/`, and the classes at each of them."""
    paths, targets = set(), defaultdict(set)

    def walk(node, path):
        paths.add(path)
        if isinstance(node, dict):
            if isinstance(node.get("_target_"), str) and "${" not in node["_target_"]:
                targets[path].add(node["_target_"])
            for key, value in node.items():
                walk(value, (*path, str(key)))

    for file in (ROOT / "conf").rglob("*.yaml"):
        text = file.read_text()
        header = re.match(r"# @package (\S+)", text)
        group = file.parent.relative_to(ROOT / "conf").as_posix()
        package = header[1] if header else group
        content = yaml.safe_load(text) or {}
        content.pop("defaults", None)
        walk(content, tuple(part for part in package.split(".") if part not in (".", "_global_", "")))
    return paths, targets


@functools.cache
def arguments(target):
    part = find_target(target, "docs")
    params = parameters(part, subclasses=True)
    hands_on = inspect.isfunction(part) and any(parameter.kind is parameter.VAR_KEYWORD for parameter in params)
    return {parameter.name for parameter in params}, hands_on


def exists(key):
    paths, targets = packaged()
    path = tuple(key.split("."))
    above = path[:-1]
    if path[0] == "init" and (path[1:] in paths or path[1] == "PART"):  # a part, or the word that stands for one
        return True
    if path in paths or path[-1] in ("_target_", "_inputs_") or "NAME" in path or "mine" in path:
        return True
    if any(path[:end] in paths and path[end - 1] in OPEN for end in range(2, len(path))):
        return True
    known = [arguments(target) for target in targets.get(above, ())]
    return any(path[-1] in names or hands_on for names, hands_on in known)


def keys(text):
    """Return the dotted keys in the code of a page whose first name is one of the config."""
    heads = {path[0] for path in packaged()[0] if path}
    words = (word for code in CODE.findall(text) for word in re.split(r"[\s|]+", code))
    names = {word.lstrip("+~").split("=")[0].strip("'\"{},;:") for word in words}
    return {name for name in names if KEY.fullmatch(name) and name.split(".")[0] in heads} - NOT_KEYS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_exist(page):
    assert sorted(key for key in keys(page.read_text()) if not exists(key)) == []


def test_a_wrong_key_is_found():
    assert exists("algorithm.batch_size")
    assert exists("networks.policy.output_gain")
    assert not exists("algorithm.batchsize")
    assert not exists("callbacks.q_loss.hubber")
    assert keys("a key `+algorithm.lr=1` and `log.txt`") == {"algorithm.lr"}
