"""What a page of the documentation holds: code blocks of known kinds, links, and the anchors that links lead to."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "src" / "rlrun" / "devtools" / "template"
PROJECT = "walker"  # what the pages call the project that `rlrun init` makes
KINDS = ("commands", "python", "yaml", "toml", "text", "shown")
# What a command line begins with; an indented block that begins otherwise is of no kind.
PROGRAMS = ("rlrun", "torchrun", "python", "pip", "cd", "mv", "if", "else", "diff", "ruff", "wandb")
COMMENT = re.compile(r"<!-- (?P<name>[\w-]+) -->")
FILE = re.compile(r"[\w./-]+\.(?P<kind>py|yaml|toml)")
PARSER = MarkdownIt("commonmark").enable("table")


class Page(NamedTuple):
    """A page, by its place in the repository."""

    name: str
    text: str


class Block(NamedTuple):
    """A code block.

    kind: one of `KINDS`, or the info string of its fence, or "" without any; line: of its first line of code,
    from 1; name: of the comments around it, or of the file that the paragraph before it names.
    """

    kind: str
    line: int
    text: str
    name: str


def pages() -> list[Page]:
    """Return all pages, those that `rlrun init` writes included, as it writes them."""
    places = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    places += sorted(TEMPLATE.rglob("README*"))
    return [Page(str(place.relative_to(ROOT)), place.read_text().replace("{{project}}", PROJECT)) for place in places]


def blocks(text: str) -> list[Block]:
    """Return all code blocks of a page, fenced and indented ones, those in lists too, from its first to its last."""
    result, around, paragraph = [], "", ""
    for token in PARSER.parse(text):
        if token.type == "html_block" and (comment := COMMENT.search(token.content)):
            around = comment["name"]
        elif token.type == "inline":
            paragraph, around = token.content, ""
        elif token.type in ("fence", "code_block"):
            result.append(_block(token, around, paragraph))
            around = paragraph = ""  # both are about what follows at once
    return result


def _block(token: Token, around: str, paragraph: str) -> Block:
    assert token.map is not None
    line = token.map[0] + (2 if token.type == "fence" else 1)
    kind = token.info.split()[0] if token.info.strip() else _kind_of(token, around)
    kind = {"sh": "commands", "bash": "commands"}.get(kind, kind)
    return Block(kind, line, token.content, around if kind == "shown" else _named(paragraph, kind))


def _kind_of(token: Token, around: str) -> str:
    """Return the kind of a block without an info string."""
    if around:
        return "shown"
    first = token.content.split()[0]
    return "commands" if token.type == "code_block" and first in PROGRAMS else ""


def _named(paragraph: str, kind: str) -> str:
    """Return the file that a paragraph names last, of the kind that the block below it is."""
    names = [match for span in re.findall(r"`([^`]+)`", paragraph) if (match := FILE.fullmatch(span))]
    fitting = [name[0] for name in names if {"py": "python"}.get(name["kind"], name["kind"]) == kind]
    return fitting[-1] if fitting else ""


def commands(block: Block) -> list[tuple[int, str]]:
    """Return the command lines of a block with their lines; of what is shown, those behind a `$`."""
    lines = list(enumerate(block.text.splitlines(), start=block.line))
    if block.kind == "shown":
        return [(number, line[2:]) for number, line in lines if line.startswith("$ ")]
    if block.kind != "commands":
        return []
    return [(number, line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]


def links(text: str) -> list[tuple[int, str]]:
    """Return where a page leads, with lines: links and images, without those in code."""
    return [
        (line, str(child.attrGet("href") or child.attrGet("src")))
        for line, child in _inline(text)
        if child.type in ("link_open", "image")
    ]


def spans(text: str) -> list[tuple[int, str]]:
    """Return code spans within text, with their lines."""
    return [(line, " ".join(child.content.split())) for line, child in _inline(text) if child.type == "code_inline"]


def _inline(text: str) -> Iterator[tuple[int, Token]]:
    """Yield what paragraphs are made of, with their first lines."""
    for token in PARSER.parse(text):
        if token.type != "inline":
            continue
        assert token.map is not None
        for child in token.children or []:
            yield token.map[0] + 1, child


def anchors(text: str) -> list[str]:
    """Return the anchors of a page's headings, by the rules of GitHub."""
    tokens, slugs = PARSER.parse(text), list[str]()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            heading = "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
            again = sum(name == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", name) is not None for name in slugs)
            slugs.append(f"{slug}-{again}" if again else slug)
    return slugs
