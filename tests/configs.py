"""What the files of algorithms say of themselves, so that a new one need not enter any list."""

import re

import yaml

from rlrun.config.places import packaged_dir

FOLDER = packaged_dir() / "algorithm"
FROM_DATA = "override /env: none"  # in the file of an algorithm that learns from data and acts nowhere
FILES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.yaml"))}
ALGORITHMS = [name for name, text in FILES.items() if FROM_DATA not in text]


def actions(algorithm: str) -> str:
    """Return the actions that the comment of a file ends with: continuous, discrete, games; every where it says none.

    games: an environment with the rules of a game.
    """
    match = re.search(r"; (continuous|discrete|games)( actions)?$", FILES[algorithm].splitlines()[1])
    return match[1] if match else "every"


def env_of(algorithm: str) -> str:
    """Return an environment that an algorithm can act in."""
    if algorithm not in ALGORITHMS:
        return "env=none"
    return {"continuous": "env=pendulum", "games": "env=tictactoe"}.get(actions(algorithm), "env=cartpole")


def keys(algorithm: str) -> set[str]:
    """Return the keys under `algorithm`, those of the files that it starts from included."""
    content = yaml.safe_load(FILES[algorithm])
    result = set(content.get("algorithm") or {})
    for name in content.get("defaults", ()):
        if isinstance(name, str) and name in ALGORITHMS:
            result |= keys(name)
    return result
