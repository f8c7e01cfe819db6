"""The rules of the house: who may import whom, and how long things may be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rlrun"
FILES = sorted(SOURCE.rglob("*.py"))
LAYERS = {
    **dict.fromkeys(
        ("errors", "typing", "spaces", "seeds", "generators", "schedules", "files", "storage", "renames"), 0
    ),
    **dict.fromkeys(
        ("storage", "rundir", "locks", "presence", "exits", "manifest", "stored", "signals", "watching"), 0
    ),
    **dict.fromkeys(("trust", "typed", "projects", "plugins", "cluster", "learners", "interpreter", "remembered"), 0),
    "ops": 1,
    **dict.fromkeys(("callback", "routing", "wiring", "trainer", "nn"), 2),
    **dict.fromkeys(("env", "memory"), 3.0),
    "collect": 3.1,
    "callbacks": 3.2,
    "fused": 3.3,
    "algorithms": 4,
    **dict.fromkeys(("config", "build"), 5),
    **dict.fromkeys(("assembly", "arrival", "experiment", "resuming", "evaluation", "forking", "inspection"), 6),
    **dict.fromkeys(("contrast", "diagnosis", "estimate", "export", "lineup", "reporting", "sweep"), 6),
    **dict.fromkeys(("conformance", "frozen", "health", "playing", "scaffold", "sharing", "following", "checking"), 6),
    "cli": 7,
}
OUTSIDERS = ("gymnasium", "hydra", "typer")
FORBIDDEN_NAMES = {"done", "dones", "obs", "logp", "qf", "mask"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Modules imported anywhere in a file, but for type checking."""
    tree = ast.parse(path.read_text())
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" if node.module == "rlrun" else node.module for alias in node.names]
    return names


def functions(path: Path) -> list[tuple[str, int]]:
    """Each function's place and length without its docstring."""
    lengths = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (node.body[1].lineno if len(node.body) > 1 else first.end_lineno) if doc else first.lineno
            lengths.append((f"{path.relative_to(SOURCE)}:{node.name}", node.end_lineno - start + 1))
    return lengths


INSIDE = [path for path in FILES if room(path) not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    here = LAYERS[room(path)]
    for module in imports(path):
        if module.startswith("rlrun."):
            package = module.split(".")[1]
            if package in LAYERS and package != room(path):
                assert LAYERS[package] <= here, f"{path.name} imports {module} from above"


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_lower_layers_import_no_outsiders(path):
    if LAYERS[room(path)] <= 2:
        assert not [module for module in imports(path) if module.split(".")[0] in OUTSIDERS]


@pytest.mark.parametrize(("one", "other"), [("env", "memory"), ("memory", "env"), ("config", "build")])
def test_rooms_of_one_layer_form_no_circle(one, other):
    for path in (SOURCE / one).glob("*.py"):
        assert not [module for module in imports(path) if module.startswith(f"rlrun.{other}")]


def test_algorithms_import_no_other_algorithm():
    for path in (SOURCE / "algorithms").glob("*.py"):
        assert not [module for module in imports(path) if module.startswith("rlrun.algorithms")]


def test_trainer_knows_callbacks_and_wiring_only():
    inside = {module.split(".")[1] for module in imports(SOURCE / "trainer.py") if module.startswith("rlrun.")}
    assert inside <= {"callback", "wiring", "errors", "typing"}


def test_no_leftover_of_a_merge_lies_among_the_files():
    assert [path for path in SOURCE.rglob("*") if path.suffix in (".orig", ".rej")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_have_at_most_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400


def test_functions_are_short():
    assert [item for path in FILES for item in functions(path) if item[1] > 60] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_vocabulary_is_kept(path):
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.arg | ast.keyword)}
    names |= {  # what we set ourselves; methods of libraries are named by others
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    names |= {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    assert not names & FORBIDDEN_NAMES


def test_contributors_are_told_of_forbidden_words():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    assert [name for name in FORBIDDEN_NAMES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_item_is_called_by_the_logger_only(path):
    if path.name != "log.py":
        assert not re.search(r"\.item\(\)", path.read_text())


@pytest.mark.parametrize("room_name", ["cli", "trainer.py", "memory/loaders.py", "experiment.py"])
def test_plumbing_knows_no_algorithm_by_name(room_name):
    place = SOURCE / room_name
    names = {path.stem for path in (SOURCE / "algorithms").glob("*.py")} - {"__init__"}
    for path in place.rglob("*.py") if place.is_dir() else [place]:
        overrides = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)} | set(
            imports(path)
        )
        assert not {override for override in overrides if override.split(".")[-1] in names}
