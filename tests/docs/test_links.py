"""Links of the documentation lead somewhere; commands in backticks exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from rlrun.cli.main import app

from .pages import ROOT, Page, anchors, links, pages, spans

PAGES = pages()
ABROAD = re.compile(r"https://[\w-]+(\.[\w-]+)+(/[\w./%~+@#?=&-]*)?")
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


def dead(page: Page) -> list[str]:
    """Return what is wrong with the links of a page, by its name and line."""
    wrong = [(line, target, _wrong(page, target)) for line, target in links(page.text)]
    return [f"{page.name}:{line}: {target}: {why}" for line, target, why in wrong if why]


def _wrong(page: Page, target: str) -> str:
    if re.match(r"[a-z]+:", target):
        return "" if ABROAD.fullmatch(target) else "no address of the web"
    place, _, anchor = target.partition("#")
    if place.startswith("/"):
        return "a path from the root, which is another one wherever the page is shown"
    path = (ROOT / page.name).parent / place
    if not path.exists() or ROOT not in (path.resolve(), *path.resolve().parents):
        return "there is no such file"
    if not anchor:
        return ""
    there = anchors(path.read_text() if place else page.text)
    return "" if anchor in there else f"no heading has this anchor; there are {', '.join(there)}"


@EVERY_PAGE
def test_links_lead_somewhere(page):
    assert dead(page) == []


# --- commands in text


def misnamed(page: Page) -> list[str]:
    """Return commands in backticks that there are not, and options that a command does not have."""
    commands = [(line, text, _unknown(text)) for line, text in spans(page.text) if re.match(r"rlrun [a-z]", text)]
    return [f"{page.name}:{line}: `{text}`: there is no {what}" for line, text, what in commands if what]


def _unknown(text: str) -> str:
    overrides = shlex.split(text)[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and overrides and not overrides[0].startswith("-"):
        if overrides[0] not in command.commands:
            return f"command '{overrides[0]}'"
        command = command.commands[overrides.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    options = [override for override in overrides if re.match(r"--?[a-z]", override)]
    return next((f"option '{option}'" for option in options if option.partition("=")[0] not in known), "")


@EVERY_PAGE
def test_commands_in_text_are_known(page):
    assert misnamed(page) == []


def test_template_pages_are_checked():
    assert [page.name for page in PAGES if "template" in page.name] == [
        "src/rlrun/devtools/template/README.md.template"
    ]
    assert {Path(page.name).name for page in PAGES} > {"README.md", "CONTRIBUTING.md", "sweeps.md"}
