"""A page for each algorithm: papers, equations, YAML, keys, data flow, metrics, and what was measured."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from handbook import metrics
from handbook.markdown import block, code, table
from handbook.settings import CONF, settings
from handbook.trial import Trial, trial
from rlrun.config.places import first_comment
from rlrun.core.errors import SpaceError

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ENVS = ("cartpole", "pendulum")  # choices, and numbers
CONSTRAINED = ("env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]")  # for what takes neither
PAPER = re.compile(r"\b(?:(doi) |(arXiv) |)(10\.\d{4,}/[^\s,;)]+|\d{4}\.\d{5})")
MODULE = re.compile(r"rlrun\.algorithms\.((?:[a-z0-9_]+\.)*[a-z0-9_]+)\.[A-Z]")
LINK = re.compile(r"\]\((\w[\w-]*\.md)")  # to a page, from one beside it
EXAMPLE = "# rlrun train "
CHOICE = "- override /env: "  # of an environment, by the file of an algorithm
RULES = "rlrun.env.rules_of"  # of a game, which the file of an algorithm wants


def names() -> list[str]:
    """Return the algorithms, in alphabetical order."""
    return sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))


def additions() -> list[str]:
    """Return what is added by `+with=` and has a file among the algorithms."""
    return sorted(path.stem for path in (CONF / "with").glob("*.yaml") if MODULE.search(path.read_text()))


def page(name: str) -> str:
    """Return the page of an algorithm, tried on what it chooses, on choices and numbers, or on several rewards."""
    tried = []
    file = CONF / "algorithm" / f"{name}.yaml"
    if CHOICE in file.read_text():
        tried.append(trial(f"algorithm={name}"))
    if RULES in file.read_text():
        tried.append(trial(f"algorithm={name}", "env=tictactoe"))
    for env in () if tried else ENVS:
        try:
            tried.append(trial(f"algorithm={name}", f"env={env}"))
        except SpaceError:
            continue
    if not tried:
        tried.append(trial(f"algorithm={name}", *CONSTRAINED))
    return _page(file, tried, _modules("".join(each.config for each in tried), name), _measured(name))


def page_of_addition(name: str) -> str:
    """Return the page of an addition, tried by the command that its file shows."""
    file = CONF / "with" / f"{name}.yaml"
    example = next(line for line in file.read_text().splitlines() if line.startswith(EXAMPLE))
    tried = trial(*shlex.split(example.removeprefix(EXAMPLE)))
    return _page(file, [tried], _modules(file.read_text(), name), [])


def _page(file: Path, tried: list[Trial], modules: list[str], measured: list[str]) -> str:
    option = f"algorithm={file.stem}" if file.parent.name == "algorithm" else f"+with={file.stem}"
    commands = block("\n".join(f"rlrun train {shlex.join(each.words)}" for each in tried), "sh")
    parts = [f"# {file.stem}", f"{linked(first_comment(file))}.", f"Option: `{option}`", commands]
    for module in modules:
        parts += [f"## `{module}`", *_documentation(module)]
    parts += ["## YAML", f"`conf/{file.relative_to(CONF)}`", block(file.read_text(), "yaml"), "## Keys"]
    parts.append(table(("key", "value", "meaning"), keys(file)))
    parts += [f"All other keys are those of {base}." for base in _bases(file)]
    parts.append("## Data flow")
    parts.append("Who reads each name and who provides it, in the order of an update:")
    for each in tried:
        parts += [block(f"$ rlrun explain {shlex.join(each.words)}\n{each.flow}")]
    parts += ["## Metrics", table(("metric", "meaning"), _metrics(tried)), *measured]
    return "\n\n".join(parts) + "\n"


def _bases(file: Path) -> Iterator[str]:
    """Yield the files of the same folder that a file starts from, with links to those that have a page."""
    paged = names() if file.parent.name == "algorithm" else additions()
    for base in yaml.safe_load(file.read_text()).get("defaults", []):
        if isinstance(base, str) and (file.parent / f"{base}.yaml").exists():
            yield f"[{base}]({base}.md)" if base in paged else code(f"{file.parent.name}={base}")


def keys(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a table of a file's keys."""
    for each in settings(file):
        yield code(each.path), code(each.value), each.meaning


def linked(text: str) -> str:
    """Return text with links to the papers that it names."""

    def link(found: re.Match[str]) -> str:
        number = found[3]
        where = f"https://doi.org/{number}" if number.startswith("10.") else f"https://arxiv.org/abs/{number}"
        return f"[{found[0]}]({where})"

    return PAPER.sub(link, text)


def _modules(config: str, name: str) -> list[str]:
    """Return the modules of algorithms that a config takes parts of, the one of this name first."""
    found = sorted(set(MODULE.findall(config)), key=lambda module: (module != name, module))
    return [f"rlrun.algorithms.{module}" for module in found]


def _documentation(module: str) -> Iterator[str]:
    """Yield the paragraphs of a module's docstring, equations as blocks, and its public classes."""
    loaded = importlib.import_module(module)
    for paragraph in (inspect.getdoc(loaded) or "").split("\n\n"):
        indented = all(line.startswith("    ") for line in paragraph.splitlines())
        yield block(inspect.cleandoc("\n" + paragraph)) if indented else linked(paragraph)


def _metrics(tried: Iterable[Trial]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(name for each in tried for name in each.metrics):
        yield code(name), LINK.sub(r"](../\1", metrics.meaning(name))


def _measured(name: str) -> list[str]:
    found = json.loads((RESULTS / "learning.json").read_text())["found"]
    rows = [_row(case, result) for case, result in found.items() if f"algorithm={name}" in result["words"]]
    if not rows:
        return []
    text = "By `python -m benchmarks learning`: one value for each of five seeds. More: [Measured](../measured.md)."
    return ["## Measured", text, table(("run", "command", "unit", "values", "bar", "held"), rows)]


def _row(case: str, result: dict) -> tuple[str, ...]:
    values = ", ".join(f"{run['value']:.4g}" for run in result["runs"])
    bar = f"{'≤' if result['at_most'] else '≥'} {result['bar']:g}, {result['enough']}"
    verdict = f"{result['held']}: {'met' if result['passed'] else 'missed'}"
    return case, code(f"rlrun train {' '.join(result['words'])}"), result["unit"], values, bar, verdict
