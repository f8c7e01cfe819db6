"""Policies of runs as opponents in games."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from rlrun.collect.agents import initial_state
from rlrun.commands.fork.parents import find
from rlrun.commands.load import Policy, load
from rlrun.core.errors import ConfigError, RequestError, RunDirError, did_you_mean
from rlrun.core.spaces import RULES_STATE
from rlrun.core.typing import Array, Tree
from rlrun.env.simulator import NAMES, Move, Positions, Simulator, opponent_of
from rlrun.export.opening import is_export
from rlrun.runs.trust import require_remembered, said_by


def opponents_of(opponents: Mapping[str, Any] | Iterable[str] | None, *, trust: bool = False) -> dict[str, Any]:
    """Return opponents by name, for `evaluate` and `rlrun.callbacks.Evaluator`.

    Args:
        opponents: name -> `random`, `perfect`, a number of moves to look ahead, an `rlrun.env.Opponent`, or an
            argument of `rlrun.load`: RUN, RUN@best, FILE.onnx. None leaves one out. In a list, each is its own name.
        trust: build runs even if they were made elsewhere, and remember that they are trusted.

    Raises:
        RequestError: there is no such opponent or run, or a run is not trusted.
    """
    if not isinstance(opponents, Mapping):
        opponents = {_text(opponent): opponent for opponent in opponents or ()}
    return {_text(name): _player(name, chosen, trust) for name, chosen in opponents.items() if chosen is not None}


def _text(name: Any) -> str:
    return os.fspath(name) if isinstance(name, os.PathLike) else str(name)


def _player(name: Any, chosen: Any, trust: bool) -> Any:
    run = _text(chosen)
    try:
        if not isinstance(chosen, str | os.PathLike) or run in NAMES or run.isdecimal():
            opponent_of(chosen)
            return chosen
        if not is_export(run):
            place = find(run)[0].path
            why, way_out = "this run was not made here", f" in rlrun eval {place}"
            require_remembered(place, said_by(place), trust, why, way_out)
        return RunPlayer(run, load(run, device=_device(run)))
    except RunDirError as error:
        near = did_you_mean(run, NAMES)
        wanted = "wanted a run, random, perfect or a number of moves"
        raise RunDirError(f"opponent {name}: {error}; {wanted}{near}") from error
    except RequestError as error:
        raise RequestError(f"opponent {name}: {error}") from error


def _device(run: str) -> str | None:
    return None if run.endswith(".onnx") else "cpu"


class RunPlayer:
    """The policy of a run as an opponent, with its best moves; a copy in another process loads it again.

    Args:
        run: argument of `rlrun.load`.
        policy: its policy.
    """

    def __init__(self, run: str, policy: Policy) -> None:
        self.run = run
        self._policy: Policy | None = policy

    def begin(self, rules: Simulator, count: int) -> Tree:
        policy = self._loaded()
        shown = self._shown(rules, policy).observation_space
        for role, own, here in (
            ("observations", policy.observation_space, shown),
            ("moves", getattr(policy.action_space, "n", None), rules.actions),
        ):
            if own != here:
                raise ConfigError(f"{policy.name} knows {role} {own}, and those of the game are {here}")
        return initial_state(policy.agent, count)

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        policy = self._loaded()
        return Move(*policy.predict(self._shown(rules, policy).observe(state, rules.turn(state)), memory))

    @staticmethod
    def _shown(rules: Simulator, policy: Policy) -> Simulator | Positions:
        """Return the simulator for a policy's observations; with the position, if the policy searches."""
        return Positions(rules) if RULES_STATE in getattr(policy.observation_space, "spaces", {}) else rules

    def _loaded(self) -> Policy:
        if self._policy is None:
            self._policy = load(self.run, device=_device(self.run))
        return self._policy

    def __getstate__(self) -> dict[str, Any]:
        return {"run": self.run, "_policy": None}
