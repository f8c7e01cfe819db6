"""Agents, and what walks them through environments."""

from rlrun.collect.agents import Agent, EpsilonGreedy, PolicyAgent, RandomAgent
from rlrun.collect.collector import Collector
from rlrun.collect.evaluate import Evaluation, evaluate

__all__ = ["Agent", "Collector", "EpsilonGreedy", "Evaluation", "PolicyAgent", "RandomAgent", "evaluate"]
