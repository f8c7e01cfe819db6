"""Agents, collectors that step environments with them, evaluation and videos."""

from rlrun.collect.agents import Agent, EpsilonGreedy, PolicyAgent, RandomAgent
from rlrun.collect.async_collector import AsyncCollector
from rlrun.collect.by_id import AgentProxy, ByIdCollector
from rlrun.collect.collector import Collector
from rlrun.collect.evaluate import Evaluation, evaluate
from rlrun.collect.goals import GoalGenerator, LearningProgress
from rlrun.collect.noisy import ColoredNoise, Noisy, Optimistic
from rlrun.collect.repeating import Repeating
from rlrun.collect.second import SecondCollector, SecondTable

__all__ = ["Agent", "AgentProxy", "AsyncCollector", "ByIdCollector", "Collector", "ColoredNoise"]
__all__ += ["EpsilonGreedy", "Evaluation", "GoalGenerator", "LearningProgress", "Noisy", "Optimistic", "PolicyAgent"]
__all__ += ["RandomAgent", "Repeating", "SecondCollector", "SecondTable", "evaluate"]
