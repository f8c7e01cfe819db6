"""Every class and constructor parameter that ALF and Emote document has its overrides here."""

import shlex
from collections import defaultdict
from hashlib import md5

import pytest
from handbook.compatibility import PAGES, ledger, page
from omegaconf import OmegaConf
from tests.configs import ALGORITHMS, FILES

from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.config.places import packaged_dir
from rlrun.core.errors import RlrunError, SpaceError

FAMILIES = {"model", "search", "representation", "inference", "imitation", "recurrent", "masks", "options"}
GROUPS = {path.name for path in packaged_dir().iterdir() if path.is_dir()}
COUNTS = {"alf": (110, 841), "emote": (144, 420)}


def entries(system):
    """Return (module, class, parameter) -> text."""
    return {
        (module, name, parameter): text
        for module, classes in ledger(system)["modules"].items()
        for name, parameters in classes.items()
        for parameter, text in parameters.items()
    }


def key_of(override):
    return override.lstrip("+~").partition("=")[0]


def names(words):
    """Return the last names of keys: with each loss's optimizer replaced, nothing would read `optimizer`."""
    return {key_of(word).rpartition(".")[2] for word in words}


def overrides_of(system):
    """Return choices of groups -> the other overrides of each entry that has these choices."""
    groups = defaultdict(set)
    for text in entries(system).values():
        if not text.startswith(("dissolved: ", "todo: ")):
            words = shlex.split(text)
            choices = tuple(word for word in words if key_of(word) in GROUPS)
            groups[choices].add(tuple(word for word in words if word not in choices))
    return groups


@pytest.mark.parametrize("system", COUNTS)
def test_ledger_has_every_documented_name(system):
    ledger_entries, done = entries(system), set(ledger(system)["done"])
    classes = {place[:2] for place in ledger_entries}
    assert (len(classes), len(ledger_entries) - len(classes)) == COUNTS[system]
    assert done <= FAMILIES
    for place, text in ledger_entries.items():
        kind, _, rest = text.partition(": ")
        if kind == "todo":
            assert rest in FAMILIES - done, place
        assert kind != "dissolved" or len(rest) > 10, place


def complete(overrides, env="cartpole"):
    """Return overrides with an environment, and without a tuned preset unless they choose one."""
    keys = {key_of(override).partition(".")[0] for override in overrides}
    env = "none" if any(f"algorithm={name}" in overrides for name in set(FILES) - set(ALGORITHMS)) else env
    return [*overrides, *(f"{key}={value}" for key, value in (("env", env), ("preset", "null")) if key not in keys)]


def composed(*overrides, check=True):
    return OmegaConf.to_container(compose(complete(overrides), check=check).config, resolve=False)


def value_at(config, key):
    """Return the value at a key, or a text that no config has."""
    for name in key.split("."):
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
        if not any(key_of(word) == "init.from" for word in words)  # there is no run of the name RUN
    ]
    for overrides in sorted(commands, key=lambda overrides: md5(repr(overrides).encode()).digest())[:8]:
        try:
            check(complete(overrides))
        except SpaceError:
            check(complete(overrides, "pendulum"))


@pytest.mark.parametrize("system", COUNTS)
def test_page_is_what_the_ledger_says(system):
    assert PAGES[system].read_text(encoding="utf-8") == page(system), "python -m handbook.compatibility writes it"
