"""The codebase in numbers: `python -m benchmarks.structure --against COMMIT`.

Prints and saves (results/structure.json) the numbers of a commit before and of this working tree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kept import checkout
from benchmarks.names import names_on_the_way
from benchmarks.process import ROOT

EMPTY = {"found", "made", "each", "held", "told", "one", "other", "another", "others", "lies", "said", "given", "asked"}
# `pair` is left out: the presets of that name are gone, and what it names now are pairs.
GONE = {"lane", "lanes", "word", "words", "tells", "told_by", "guide", "judge", "arm", "arms", "slow_copy"}
AIMS = {
    "entries at the top": 24,
    "commands not found by their name": 0,
    "class names in two modules": 5,
    "variables that say nothing": 0,
    "identifiers of before": 0,
    "modules in circles": 0,
    "imports inside functions": 60,
    "names that `overrides` has on its way": 12,
    "source lines": 49_000,
    "source files": 300,
    "test lines": 40_000,
    "frames between the trainer's loop and a loss": 2,
    "files that run in two updates of SAC": 20,
    "files that run in two updates of DQN": 18,
    "files that run in two updates of PPO": 14,
    "lines to read for SAC": 800,
    "lines to read for DQN": 600,
    "lines to read for PPO": 700,
}
RUNS = {
    "SAC": ("algorithm=sac", "env=pendulum", "algorithm.warmup_steps=300"),
    "DQN": ("algorithm=dqn", "env=cartpole", "algorithm.warmup_steps=300"),
    "PPO": ("algorithm=ppo", "env=cartpole"),
}
FUNCTIONS, IMPORTS = (ast.FunctionDef, ast.AsyncFunctionDef), (ast.Import, ast.ImportFrom)
READ = ("algorithms", "nn", "ops")  # packages of formulas and networks
PROFILE = """
import json, runpy, sys
files, losses, depth = set(), [], 0

def look(frame, event, _):
    global depth
    code = frame.f_code
    if event != "call" or not ("/rlrun/" in code.co_filename or code.co_filename.startswith("<update")):
        return
    if code.co_name == "loss":
        losses.append(code)
        above, count = frame.f_back, 0
        while above is not None and above.f_code.co_name != "_loop":
            own = "/rlrun/" in above.f_code.co_filename or above.f_code.co_filename.startswith("<update")
            above, count = above.f_back, count + own
        depth = max(depth, count) if losses.count(code) > 2 else 0  # the first update looks at its hooks
    if 8 <= losses.count(losses[0] if losses else None) < 10:
        files.add(code.co_filename)

sys.argv[0] = "rlrun"
sys.setprofile(look)
try:
    runpy.run_module("rlrun", run_name="__main__", alter_sys=True)
except SystemExit:
    pass
sys.setprofile(None)
print(json.dumps({"depth": depth, "files": sorted(files)}))
"""


def measure(root: Path) -> dict[str, int]:
    """Return the numbers of a checkout."""
    source, tests = root / "src" / "rlrun", (root / "tests", root / "benchmarks" / "tests")
    trees = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
    classes = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(path)
    names = [name for tree in trees.values() for name in _bound(tree)]
    return {
        "entries at the top": len({path.relative_to(source).parts[0] for path in source.rglob("*") if _counts(path)}),
        "commands not found by their name": len(_lost_commands(source)),
        "class names in two modules": sum(len(paths) > 1 for paths in classes.values()),
        "variables that say nothing": sum(name in EMPTY for name in names),
        "identifiers of before": sum(name in GONE for name in names),
        "modules in circles": len(_circles(source, trees)),
        "imports inside functions": len(_imports_inside_functions(trees)),
        "names that `overrides` has on its way": len(names_on_the_way(source, "rlrun.cli.train", "train")),
        "source lines": sum(len(path.read_text().splitlines()) for path in trees),
        "source files": len(trees),
        "test lines": sum(len(path.read_text().splitlines()) for folder in tests for path in folder.rglob("*.py")),
    }


def measure_updates(root: Path) -> dict[str, int]:
    """Return what runs of a checkout show: how deep a loss lies, and the files whose code runs in two updates."""
    rows: dict[str, int] = {"frames between the trainer's loop and a loss": 0}
    lines: dict[str, int] = {}
    for name, overrides in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = [*overrides, "stop.env_steps=null", "stop.updates=12", "evaluation.every=0", "logger=[]"]
            command = [sys.executable, "-c", PROFILE, "train", *settings, "--run-dir", f"{folder}/run"]
            environment = {**os.environ, "PYTHONPATH": str(root / "src")}
            output = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        result = json.loads(output.stdout.splitlines()[-1])
        depth = "frames between the trainer's loop and a loss"
        rows[depth] = max(rows[depth], result["depth"])
        files = [Path(file) for file in result["files"] if "/rlrun/" in file]
        rows[f"files that run in two updates of {name}"] = len(files)
        read = [path for path in files if path.relative_to(root / "src" / "rlrun").parts[0] in READ]
        lines[f"lines to read for {name}"] = sum(len(path.read_text().splitlines()) for path in read)
    return {**rows, **lines}


def _counts(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables and arguments where they are bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _lost_commands(source: Path) -> list[str]:
    """Return the commands for which there is no file of their name in cli/."""
    text = (source / "cli" / "main.py").read_text()
    commands = re.findall(r'app\.command\("([a-z-]+)"\)', text)
    commands += re.findall('"([a-z-]+)"', text.partition("\nCOMMANDS = (")[2].partition("\n)")[0])
    return [name for name in commands if not (source / "cli" / f"{name.replace('-', '_')}.py").exists()]


def _circles(source: Path, trees: dict[Path, ast.Module]) -> set[str]:
    """Return the modules that import each other, directly or by others; imports for type checking count as well."""
    modules = {
        ".".join(("rlrun", *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__"): tree
        for path, tree in trees.items()
    }
    graph = {name: _imported(tree, set(modules)) - {name} for name, tree in modules.items()}
    for direction in (graph, _turned(graph)):  # without what only imports, and what is only imported
        while leaves := [name for name in graph if not direction[name] & graph.keys()]:
            for name in leaves:
                del graph[name]
    return set(graph)


def _turned(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    turned: dict[str, set[str]] = {name: set() for name in graph}
    for name, below in graph.items():
        for imported in below & turned.keys():
            turned[imported].add(name)
    return turned


def _imported(tree: ast.AST, modules: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name if name in modules else name.rpartition(".")[0] for name in names} & modules


def _imports_inside_functions(trees: dict[Path, ast.Module]) -> set[ast.AST]:
    """Return the import statements that run when a function is called."""
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    return {node for function in functions for node in ast.walk(function) if isinstance(node, IMPORTS)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__)
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the commit before")
    with checkout(parser.parse_args().against) as (commit, tree):
        before = {**measure(tree), **measure_updates(tree)}
    after = {**measure(ROOT), **measure_updates(ROOT)}
    result: dict[str, Any] = {"against": commit, "before": before, "after": after, "aims": AIMS}
    (ROOT / "benchmarks" / "results" / "structure.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, aim in AIMS.items():
        print(f"{name:<45} {before[name]:>7,} -> {after[name]:>7,}   aim {aim:,}")


if __name__ == "__main__":
    main()
