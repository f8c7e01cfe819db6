"""What the files of algorithms say of themselves, so that a new one need not enter any list."""

import re

import yaml

from rlrun.config.places import packaged_dir

FOLDER = packaged_dir() / "algorithm"
ALGORITHMS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def actions(algorithm: str) -> str:
    """Return the actions that the first line of a file ends with: continuous, discrete, or every where it says none."""
    match = re.search(r"; (continuous|discrete) actions$", (FOLDER / f"{algorithm}.yaml").read_text().splitlines()[0])
    return match[1] if match else "every"


def env_of(algorithm: str) -> str:
    """Return an environment that an algorithm can act in."""
    return "env=pendulum" if actions(algorithm) == "continuous" else "env=cartpole"


def keys(algorithm: str) -> set[str]:
    """Return the keys under `algorithm`, those of the files that it starts from included."""
    content = yaml.safe_load((FOLDER / f"{algorithm}.yaml").read_text())
    result = set(content.get("algorithm") or {})
    for name in content.get("defaults", ()):
        if isinstance(name, str) and name in ALGORITHMS:
            result |= keys(name)
    return result
