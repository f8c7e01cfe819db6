"""Pages for those who come from ALF or Emote: each class and parameter that they document, and what it is here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from handbook.markdown import code, table

ROOT = Path(__file__).parents[1]
NAMES = {"alf": "ALF", "emote": "Emote"}
PAGES = {system: ROOT / "docs" / f"from-{system}.md" for system in NAMES}


def ledger(system: str) -> dict[str, Any]:
    """Return `done`, the families that are complete, and `modules`: module -> class -> parameter -> entry."""
    path = ROOT / "tests" / "compatibility" / f"{system}.yaml"
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def page(system: str) -> str:
    """Return the page of a system."""
    lines = [
        f"# Coming from {NAMES[system]}",
        "",
        f"Each class and constructor parameter that {NAMES[system]} documents, and overrides that say the same here.",
        "A command also names an environment, `rlrun train OVERRIDES env=NAME`, unless it learns from data alone.",
        "Tests compose all of them. Where no override is needed, a sentence says why, or what does it instead.",
        "A class of your own takes the place of any network, loss or agent: `networks.NAME._target_=my_pkg.MyNetwork`.",
    ]
    for module, classes in ledger(system)["modules"].items():
        lines += ["", f"## {module}"]
        for name, parameters in classes.items():
            lines += ["", f"### {name}", "", *_class(parameters)]
    return "\n".join(lines) + "\n"


def _class(parameters: Mapping[str, str]) -> list[str]:
    rows = [[code(name), _entry(text)] for name, text in parameters.items() if name != "_"]
    whole, kinds = parameters["_"], {text for name, text in parameters.items() if name != "_"}
    if kinds <= {whole}:  # nothing else is said of its parameters
        return [_entry(whole)]
    return [_entry(whole), "", table(["parameter", "here"], rows)]


def _entry(text: str) -> str:
    kind, _, rest = text.partition(": ")
    if kind == "dissolved":
        return f"No override: {rest}"
    return "To come." if kind == "todo" else code(text)


if __name__ == "__main__":
    for system, path in PAGES.items():
        path.write_text(page(system), encoding="utf-8")
