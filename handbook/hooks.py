"""What mkdocs calls: pages made from code join those of `docs/`, and links lead to where pages stand on the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs is a command of its own, which does not look where it stands

from handbook import algorithms, commands, reference  # noqa: E402

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/results/README.md": "measured.md",
}
STYLE = "site.css"
LINK = re.compile(r"(?<=\]\()(?:\.\./)*(docs/)?([\w./-]+\.(?:md|svg))(?=[#)])")


def on_config(config: Any) -> Any:
    """Put a page an algorithm into the navigation."""
    for entry in config.nav:
        if "Algorithms" in entry:
            entry["Algorithms"] += [{name: f"algorithms/{name}.md"} for name in algorithms.names()]
            entry["Algorithms"] += [{f"+{name}": f"algorithms/{name}.md"} for name in algorithms.additions()]
    config.extra_css.append(STYLE)
    config.watch += [str(ROOT / name) for name in ("conf", "src", "handbook", "benchmarks/results", *PAGES)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for path, text in made().items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, STYLE, abs_src_path=str(ROOT / "handbook" / "assets" / STYLE)))
    return files


def made() -> dict[str, str]:
    """Return all pages that are no files of `docs/`, by where they stand."""
    return {
        **{page: moved((ROOT / source).read_text()) for source, page in PAGES.items()},
        **{f"algorithms/{name}.md": algorithms.page(name) for name in algorithms.names()},
        **{f"algorithms/{name}.md": algorithms.page_of_addition(name) for name in algorithms.additions()},
        "commands.md": commands.page(),
        "keys.md": reference.page(),
    }


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to files that lie elsewhere in the repository lead to their pages."""
    return moved(markdown)


def moved(text: str) -> str:
    """Return text whose links to files of the repository lead to pages."""

    def link(found: re.Match[str]) -> str:
        path = found[2]
        return PAGES.get(path, path if found[1] else found[0])

    return LINK.sub(link, text)
