"""The rules of the codebase: who may import whom, and how long things may be."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rlrun.core.layers import LAYERS, PARTS

SOURCE = Path(__file__).parents[1] / "src" / "rlrun"
FILES = sorted(SOURCE.rglob("*.py"))
OUTSIDERS = ("gymnasium", "hydra", "typer")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
FORBIDDEN_NAMES = {"done", "dones", "obs", "logp", "qf", "mask"}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Return what is imported anywhere in a file, of ours each name with its module.

    Imports inside functions and those for type checking count as well: who reads a file needs them all.
    """
    return imported_by(ast.walk(tree_of(path)))


def imported_by(nodes: Iterable[ast.AST]) -> list[str]:
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            ours = node.module.split(".")[0] == "rlrun"
            names += [f"{node.module}.{alias.name}" for alias in node.names] if ours else [node.module]
    return names


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that run when its module is imported."""
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (for_types or isinstance(child, FUNCTION)):
            yield child
            yield from outside_functions(child)


def functions(path: Path) -> list[tuple[str, int]]:
    """Each function's place and length without its docstring."""
    lengths = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, FUNCTION):
            first = node.body[0]
            doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (node.body[1].lineno if len(node.body) > 1 else first.end_lineno) if doc else first.lineno
            lengths.append((f"{path.relative_to(SOURCE)}:{node.name}", node.end_lineno - start + 1))
    return lengths


INSIDE = [path for path in FILES if package_of(path) in LAYERS]


def names_of(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, anywhere in it."""
    return {module_named(name) for name in imports(path)} & MODULES.keys()


def module_named(name: str) -> str:
    """Return the module of an imported name of ours; one of others unchanged."""
    return name if name in MODULES or name.split(".")[0] != "rlrun" else name.rpartition(".")[0]


@functools.cache
def loaded_with(module: str) -> frozenset[str]:
    """Return the modules that an import of this one loads, with itself."""
    if module not in MODULES:
        return frozenset({module})
    names = imported_by(outside_functions(tree_of(MODULES[module])))
    return frozenset({module}).union(*(loaded_with(module_named(name)) for name in names))


def module_of(path: Path) -> str:
    return ".".join(("rlrun", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def test_the_order_names_every_package():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == set(LAYERS)
    assert set(PARTS) <= folders


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    package = package_of(path)
    below = {*LAYERS[: LAYERS.index(package) + 1], *(["__init__"] if package == "cli" else ())}  # what a user calls
    assert [name for name in names_of(path) if package_of(MODULES[name]) not in below] == []


def test_modules_import_in_no_circle():
    graph = {name: names_of(path) - {name} for name, path in MODULES.items()}
    while leaves := [name for name, below in graph.items() if not below & graph.keys()]:
        for name in leaves:
            del graph[name]
    inner = {name: below & graph.keys() for name, below in graph.items()}
    assert inner == {}, "these, or what imports them, form a circle"


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_inside_functions_spare_time(path):
    inside = [node for part in ast.walk(tree_of(path)) if isinstance(part, FUNCTION) for node in ast.walk(part)]
    known = loaded_with(module_of(path))
    loaded = [name for name in imported_by(inside) if module_named(name) in known]
    assert loaded == [], "these are loaded with the file: import them at its top"


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_lower_layers_import_no_outsiders(path):
    if LAYERS.index(package_of(path)) <= LAYERS.index("training"):
        assert not [module for module in imports(path) if module.split(".")[0] in OUTSIDERS]


def test_algorithms_import_no_other_algorithm():
    shared = {"imitation", "model_based", "search", "memory_based"}  # families with parts that their algorithms share
    for path in (SOURCE / "algorithms").rglob("*.py"):
        family = path.relative_to(SOURCE / "algorithms").parts[0]
        own = (f"rlrun.algorithms.{family}.",) if family in shared else ()
        others = [module for module in imports(path) if module.startswith("rlrun.algorithms")]
        assert not [module for module in others if not module.startswith(own)], path


def test_trainer_knows_callbacks_and_wiring_only():
    core = {"rlrun.core.clock", "rlrun.core.errors", "rlrun.core.typing"}
    allowed = core | {"rlrun.training.callback", "rlrun.training.plan"}
    assert names_of(SOURCE / "training" / "trainer.py") <= allowed | {"rlrun.training.update"}
    assert names_of(SOURCE / "training" / "update.py") <= allowed


def test_architecture_page_names_each_package():
    purposes = {}
    for package in LAYERS:
        doc = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text()))
        purposes[package] = (doc or "").split("\n")[0]
    lines = [f"{package:<15}{purpose}" for package, purpose in reversed(purposes.items())]
    assert "\n".join(lines) in (SOURCE.parents[1] / "docs" / "architecture.md").read_text()


def test_files_have_at_most_500_lines():
    assert [path for path in FILES if len(path.read_text().splitlines()) > 500] == []


def test_functions_are_short():
    assert [item for path in FILES for item in functions(path) if item[1] > 80] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_vocabulary_is_kept(path):
    names = set()
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Store):  # others name a library's methods
            names |= {getattr(node, field, None) for field in ("id", "arg", "attr")}
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
    assert not names & FORBIDDEN_NAMES


def test_contributing_page_has_forbidden_names():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    assert [name for name in FORBIDDEN_NAMES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_logger_calls_item(path):
    if path.name != "log.py":
        assert not re.search(r"\.item\(\)", path.read_text())


@pytest.mark.parametrize("name", ["cli", "commands", "training", "memory/loaders/replay.py"])
def test_plumbing_knows_no_algorithm_by_name(name):
    place = SOURCE / name
    conf = SOURCE.parents[1] / "conf"
    chosen = {path.stem for group in ("algorithm", "with") for path in (conf / group).glob("*.yaml")}
    algorithms = chosen & {path.stem for path in (SOURCE / "algorithms").rglob("*.py")}
    for path in place.rglob("*.py") if place.is_dir() else [place]:
        names = {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
        assert not {name for name in (*names, *imports(path)) if name.split(".")[-1] in algorithms}


def described(node: ast.AST) -> set[str]:
    """Return the names in the section "Args:" of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE)
    lines = re.findall(r"^    ([\w*]+(?:, [\w*]+)*):", section[1] if section else "", re.MULTILINE)
    return {name.lstrip("*") for line in lines for name in line.split(", ")}


def parameters(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], set[str]]:
    """Return the parameters of a function or of a class, or its fields, and those of them that collect others."""
    if isinstance(node, ast.ClassDef):
        makers = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        if not makers:
            return {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}, set()
        node = makers[0]
    collecting = {item.arg for item in (node.args.vararg, node.args.kwarg) if item}
    plain = {item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    return (plain | collecting) - {"self", "cls"}, collecting


def described_by_bases(node: ast.AST, classes: dict[str, list[ast.ClassDef]]) -> set[str]:
    """Return the parameters that a docstring describes, and those that the docstrings of base classes do."""
    names = described(node)
    for base in getattr(node, "bases", ()):
        for parent in classes.get(ast.unparse(base).split("[")[0], ()):
            names |= described_by_bases(parent, classes)
    return names


def test_docstrings_describe_the_parameters():
    trees = {path: tree_of(path) for path in FILES}
    classes: dict[str, list[ast.ClassDef]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    wrong = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and described(node):
                names, collecting = parameters(node)
                unknown, missing = described(node) - names, names - collecting - described_by_bases(node, classes)
                if unknown or missing:
                    wrong.append((f"{path.relative_to(SOURCE)}:{node.name}", unknown, missing))
    assert wrong == [], "names in Args: without a parameter, and parameters without a name there"
