"""Environments: made from a name in the config, checked, and stepped in parallel."""

from rlrun.env.batched import BatchedEnv
from rlrun.env.by_id import ByIdEnv, EnvById
from rlrun.env.make import make
from rlrun.env.match import Match, Matches, players_of, rules_of
from rlrun.env.model_env import ModelEnv
from rlrun.env.simulator import Move, Opponent, Simulator
from rlrun.env.vector import Env, Resumed, Step, spaces_of

__all__ = [
    "BatchedEnv",
    "ByIdEnv",
    "Env",
    "EnvById",
    "Match",
    "Matches",
    "ModelEnv",
    "Move",
    "Opponent",
    "Resumed",
    "Simulator",
    "Step",
    "make",
    "players_of",
    "rules_of",
    "spaces_of",
]
