"""Every key of every packaged file with its meaning."""

from __future__ import annotations

from handbook.algorithms import keys, linked
from handbook.markdown import table
from handbook.settings import CONF
from rlrun.config.places import first_comment

GROUPS = {
    "env": "Environments",
    "memory": "Memories",
    "encoder": "Encoders",
    "optimizer": "Optimizers",
    "with": "Additions",
    "sweep": "Searches",
    "launcher": "Launchers",
}
HEADS = ("key", "value", "meaning")
FIRST = """# Keys

Every key that a config can have, made from the files in `conf/`. The keys of an algorithm are on its own page
([algorithms](algorithms.md)); a key under `algorithm:` means the same everywhere. `rlrun config … --provenance` prints
the keys of a run with the file or override that set each. A key that nothing reads is refused."""


def page() -> str:
    """Return the page of all keys but those of algorithms."""
    parts = [FIRST, "## A run", "`conf/train.yaml`", table(HEADS, keys(CONF / "train.yaml"))]
    parts += ["## A sweep", "`conf/multirun.yaml`", table(HEADS, keys(CONF / "multirun.yaml"))]
    for group, title in GROUPS.items():
        parts.append(f"## {title}")
        for file in sorted((CONF / group).glob("*.yaml")):
            parts += [f"### {group}={file.stem}", f"{linked(first_comment(file))}.", table(HEADS, keys(file))]
    return "\n\n".join(parts) + "\n"
