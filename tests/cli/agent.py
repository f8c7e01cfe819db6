"""Go from nothing to a comparison of two configurations over five seeds.

This program knows `rlrun --help`, the help of each command, `--json` and the schemas. It finds commands and options
by what their help says.
"""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "rlrun", *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command[2:])}: {process.stderr}")
    return process.stdout


def entries(text: str) -> dict[str, str]:
    """Return the commands, arguments and options in a help text, with what it says of each."""
    result: dict[str, str] = {}
    name = None
    for line in text.splitlines():
        if entry := re.match(r"  (\S.*?)(?:  +(\S.*))?$", line):
            name = re.sub(r" [<A-Z].*", "", entry[1]).split(", ")[-1]
            result[name] = entry[2] or ""
        elif name and line.strip():
            result[name] = f"{result[name]} {line.strip()}"
    return result


def find(known: dict[str, str], words: str) -> str:
    return next(name for name, text in known.items() if words in text.lower())


def leaves(tree: dict, path: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        flat |= leaves(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return flat


class Program:
    """The commands of rlrun, by what they say of themselves."""

    def __init__(self) -> None:
        self.help = run("--help")
        self.commands = entries(self.help)
        train = self.options("train an agent")
        self.json = find(train, "json value")
        command, option = re.search(r"`rlrun (\S+) (\S+)`", train[self.json]).groups()
        self.schemas = json.loads(run(command, option))

    def options(self, words: str) -> dict[str, str]:
        return entries(run(find(self.commands, words), "--help"))

    def __call__(self, words: str, *arguments: str):
        """Return what a command prints as JSON, held against its schema."""
        command = find(self.commands, words)
        value = json.loads(run(command, *arguments, self.json))
        jsonschema.validate({command: value}, self.schemas)
        return value


def main() -> dict:
    rlrun = Program()

    choices = rlrun("list all choices")
    algorithm = next(choice for choice in choices if choice["text"].startswith("Deep Q-learning"))
    env = next(choice for choice in choices if "pole on a cart" in choice["text"])
    task = [f"{choice['group']}={choice['choice']}" for choice in (algorithm, env)]

    keys = leaves(rlrun("composed yaml", *task))
    sizes = {"stop.env_steps": 60, "evaluation.every": 30, "evaluation.episodes": 2, "evaluation.max_steps": 20}
    sizes |= {"algorithm.warmup_steps": 20, "algorithm.batch_size": 8, "algorithm.hidden": "[8]", "logger": "[]"}
    assert {"algorithm.lr", *sizes} <= {*keys}

    training = rlrun.options("train an agent")
    several = find(training, "several values")
    seeds = re.search(r"seed=\S+", training[several])[0]
    small = [f"{key}={value}" for key, value in sizes.items()]
    sweep = rlrun("train an agent", several, *task, *small, "algorithm.lr=1e-3,1e-5", seeds)
    assert [job["state"] for job in sweep["jobs"]] == ["completed"] * 10

    report = rlrun("about many runs", sweep["path"])
    assert [sum(len(task["scores"]) for task in group["tasks"].values()) for group in report["groups"]] == [5, 5]
    (comparison,) = report["comparisons"]

    tables = re.search(r"tables (\w+), (\w+) and (\w+)", rlrun.options("by sql")["sql"]).groups()
    joined = f"{tables[0]} JOIN {tables[1]} USING (run) WHERE key = 'algorithm.lr'"
    rows = rlrun("by sql", f"SELECT * FROM {joined} ORDER BY objective DESC", sweep["path"])
    assert [len(rows), len({float(row["value"]) for row in rows})] == [10, 2]
    best = Path(sweep["path"], rows[0]["run"])

    proof = find(rlrun.options("export the policy"), "prove equality")
    export = rlrun("export the policy", best, proof, "1")
    python = __import__("rlrun")
    load, predict = re.search(r"rlrun\.(\w+)\(RUN_OR_FILE\)\.(\w+)\(", " ".join(rlrun.help.split())).groups()
    (observed,) = export["inputs"]
    observation = np.full(observed["shape"], 0.01, observed["dtype"])
    policies = [getattr(python, load)(place) for place in (best, export["path"])]
    actions = [getattr(policy, predict)(observation)[0] for policy in policies]
    assert all(np.array_equal(left, right) for left, right in pairwise(actions))

    episodes = find(rlrun.options("evaluate"), "number of episodes")
    evaluation = rlrun("evaluate", export["path"], episodes, "2")
    result = {"verdict": report["verdict"], "comparison": comparison["verdict"], "page": report["path"]}
    return {**result, "best": rows[0]["objective"], "exported": evaluation["mean_return"]}


if __name__ == "__main__":
    print(json.dumps(main()))
