"""Pages for those who come from ALF or Emote: each class and parameter that they document, and what it is here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from handbook.defaults import defaults
from handbook.markdown import code, table

ROOT = Path(__file__).parents[1]
LEDGERS = ROOT / "tests" / "compatibility"
NAMES = {"alf": "ALF", "emote": "Emote"}
PAGES = {system: ROOT / "docs" / f"from-{system}.md" for system in NAMES}


def ledger(system: str) -> dict[str, Any]:
    """Return the ledger of a system.

    `units`: conversions by parameter, or CLASS.parameter; `modules`: module -> class or function -> parameter -> entry.
    """
    return _read(f"{system}.yaml")


def documented(system: str) -> dict[str, Any]:
    """Return the defaults that a system documents: module -> class or function -> parameter -> text."""
    return _read(f"{system}_defaults.yaml")


@functools.cache
def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((LEDGERS / name).read_text(encoding="utf-8"))
    return content


def entries(system: str) -> dict[tuple[str, str, str], str]:
    """Return (module, class or function, parameter) -> text; the parameter `_` is the class itself."""
    return {
        (module, name, parameter): text
        for module, classes in ledger(system)["modules"].items()
        for name, parameters in classes.items()
        for parameter, text in parameters.items()
    }


def page(system: str) -> str:
    """Return the page of a system."""
    name, known, theirs = NAMES[system], ledger(system), documented(system)
    texts = [text for (_, _, parameter), text in entries(system).items() if parameter != "_"]
    dissolved = sum(text.startswith("dissolved: ") for text in texts)
    overrides = sum(map(said, texts))
    lines = [
        f"# Coming from {name}",
        "",
        f"Everything that {name} documents is here: of {len(texts)} parameters {overrides} are overrides,"
        f" {dissolved} need none, and {len(texts) - overrides - dissolved} are arguments in Python.",
        "A command also names an environment, `rlrun train OVERRIDES env=NAME`, unless it learns from data alone.",
        "Tests compose all of them, and `python -m benchmarks ledger` trains them. Where no override is needed, a",
        "sentence says why, or what does it instead. A default here is what the config or the class has without the",
        f"override, before a preset; a default there is the one that {name} documents. Numbers of another unit have a",
        "conversion of x, the number there; other names in it are settings.",
        "",
        "A class of your own takes the place of any network, loss or agent: `networks.NAME._target_=my_pkg.MyNetwork`.",
    ]
    for module, classes in known["modules"].items():
        lines += ["", f"## {module}"]
        for owner, parameters in classes.items():
            units = {key: _conversion(known["units"], owner, key) for key in parameters}
            given = theirs.get(module, {}).get(owner, {})
            lines += ["", f"### {owner}", "", *_class(parameters, given, units)]
    return "\n".join(lines) + "\n"


def _class(parameters: Mapping[str, str], given: Mapping[str, str], units: Mapping[str, str]) -> list[str]:
    whole, kinds = parameters["_"], {text for name, text in parameters.items() if name != "_"}
    if kinds <= {whole} and not given:  # nothing else is said of its parameters
        return [_entry(whole)]
    rows = [
        [code(name), _entry(text), code(str(given.get(name, ""))), code(_here(text)), units[name]]
        for name, text in parameters.items()
        if name != "_"
    ]
    heads = ["parameter", "here", "default there", "default here", "conversion"]
    used = [column for column in range(len(heads)) if column < 2 or any(row[column] for row in rows)]
    return [_entry(whole), "", table([heads[i] for i in used], [[row[i] for i in used] for row in rows])]


def _conversion(units: Mapping[str, list[str]], owner: str, parameter: str) -> str:
    """Return how a number is converted; nothing where both sides have the same unit."""
    unit = units.get(f"{owner}.{parameter}", units.get(parameter))
    return "" if unit is None else f"{code(unit[0])}: {unit[1]} there, {unit[2]} here"


def said(text: str) -> bool:
    """Return True if an entry is overrides."""
    return not text.startswith(("dissolved: ", "python: "))


def _here(text: str) -> str:
    return defaults(text) if said(text) else ""


def _entry(text: str) -> str:
    kind, _, rest = text.partition(": ")
    if kind == "dissolved":
        return f"No override: {rest}"
    if kind == "python":
        return f"In Python: {code(rest)}"
    return code(text)


if __name__ == "__main__":
    for system, path in PAGES.items():
        path.write_text(page(system), encoding="utf-8")
