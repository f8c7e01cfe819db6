"""An entry of a ledger as a run of three updates, with the files and the parent run that it names."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handbook.defaults import complete, key_of
from tests.configs import env_of
from tests.short import shrink

from rlrun import train
from rlrun.collect import Collector, RandomAgent
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import MissingExtra, RlrunError
from rlrun.memory import Table
from rlrun.memory.formats import table_file

UPDATES = 3
SHORT = {  # numbers that an entry leaves to the config: only waiting depends on them
    "algorithm.warmup_steps": 300,
    "algorithm.members": 4,
    "algorithm.plan.population": 60,
    "algorithm.plan.horizon": 3,
    "imagination.episodes": 20,
    "offline.updates": 2,
    "evaluation.episodes": 1,
    "evaluation.max_steps": 20,
    "logger": "[]",
}
ENVS = ("env=cartpole", "env=pendulum")  # of entries that name no environment
PARENT = re.compile(r"\b(RUN|runs/mine)(@[\w]+)?")
OF_DEMONSTRATIONS = "algorithm=vae env=none data=file data.dataset=demonstrations.zip algorithm.column=action"
EPISODES = 5  # at least, of a file that an entry names
ROWS = 5_000  # at most


def attempt(text: str) -> dict[str, Any]:
    """Train an entry in the working folder; return its environment and updates, or the first environment's error."""
    words = shlex.split(text)
    algorithm = next((word.partition("=")[2] for word in words if key_of(word) == "algorithm"), "sac")
    first = env_of(algorithm)
    outcomes: list[dict[str, Any]] = []
    for env in dict.fromkeys((first, *ENVS)):
        command = complete(words, env)
        if any(outcome["command"] == command for outcome in outcomes):
            continue
        try:
            return {"command": command, "updates": _trained(command, Path("run"))}
        except MissingExtra as error:
            return {"command": command, "skipped": str(error)}
        except RlrunError as error:
            outcomes.append({"command": command, "error": " ".join(str(error).split())})
    return outcomes[0]


def _trained(command: list[str], run_dir: Path) -> int:
    """Train three updates, after what the command reads; return their number."""
    _provide(command)
    command = [_with_parent(word, command) if key_of(word).startswith("init.") else word for word in command]
    typed = {key_of(word) for word in command}
    numbers = {key: value for key, value in SHORT.items() if key not in typed}
    composed = shrink(compose(command), {**numbers, "stop.env_steps": None, "stop.updates": UPDATES})
    summary = train(composed, run_dir=run_dir).summary
    if summary["status"] != "completed" or summary["updates"] < UPDATES:  # more of further data groups
        raise RlrunError(f"{summary['status']} after {summary['updates']} of {UPDATES} updates")
    return UPDATES


def _with_parent(word: str, command: list[str]) -> str:
    """Train the run that a key of `init` names; return the override with its own step."""
    match = PARENT.search(word)
    assert match is not None, word
    place, mark = Path(match[1]), match[2] or ""
    if not place.exists():
        _trained(_parent(word, command), place)
    if mark and mark != "@best":
        mark = f"@{json.loads((place / 'summary.json').read_text())['env_steps']}"
    return PARENT.sub(f"{place}{mark}", word)


def _parent(word: str, command: list[str]) -> list[str]:
    if "algorithm=genrl" not in command:
        return [other for other in command if not key_of(other).startswith("init.")]
    sizes = [other.replace("vae_hidden", "hidden") for other in command if re.match(r"algorithm\.(vae_h|cond)", other)]
    latent = next((other for other in command if key_of(other) == "algorithm.latent"), "algorithm.latent=2")
    sizes += ["algorithm.condition_reader=decoder"] if "algorithm.condition=observation" in sizes else []
    demonstrations = [*complete(OF_DEMONSTRATIONS.split()), "algorithm.likelihood=gaussian", latent, *sizes]
    _provide(demonstrations, [other for other in command if key_of(other).startswith("env")])
    return demonstrations


def _provide(command: list[str], env: Sequence[str] = ()) -> None:
    """Write the files of rows that a command names, by random actions; env: that they are of, None = the command's."""
    names = {name for word in command for name in re.findall(r"[\w/]+\.zip", word) if "export" not in key_of(word)}
    missing = [name for name in sorted(names) if not Path(name).exists()]
    if not missing:
        return
    chosen = list(env) or [word for word in command if key_of(word).startswith("env")]
    chosen = ["env=pendulum"] if chosen == ["env=none"] else chosen
    envs = Builder(compose(["algorithm=sac", *chosen, "preset=null"]).config).get("env")
    table = Table(spaces=envs.spaces, length=ROWS)
    collector = Collector(envs, RandomAgent(envs.spaces.action, seed=1), table)
    collector.begin_training()
    while collector.episodes < EPISODES and collector.steps < ROWS:
        collector.collect(100)
    for name in missing:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        table_file.store(table, Path(name))
    envs.close()


if __name__ == "__main__":
    print(json.dumps(attempt(sys.argv[1])))
