"""Plumbing that knows no algorithm."""

from rlrun.callbacks.actor_critic import ActorCriticLoss
from rlrun.callbacks.checkpoint import Checkpointer
from rlrun.callbacks.critic import CriticLoss
from rlrun.callbacks.entropy import EntropyTarget, EntropyWeight, SGDEntropyTarget
from rlrun.callbacks.evaluate import Evaluator
from rlrun.callbacks.intrinsic import BonusLoss
from rlrun.callbacks.log import Logger
from rlrun.callbacks.longer import LambdaReturn
from rlrun.callbacks.loss import LossCallback
from rlrun.callbacks.priority import PriorityFeedback
from rlrun.callbacks.quantile_target import QuantileTarget
from rlrun.callbacks.schedule import Schedule
from rlrun.callbacks.sinks import make_sinks
from rlrun.callbacks.soft import SoftPolicyLoss
from rlrun.callbacks.stop import Budget, Interrupt, Interrupted
from rlrun.callbacks.target import TargetCallback
from rlrun.callbacks.target_scale import TargetScale
from rlrun.callbacks.transfer import MemoryExport, MemoryImport
from rlrun.callbacks.value_bias import ValueBias

__all__ = [
    "ActorCriticLoss",
    "BonusLoss",
    "Budget",
    "Checkpointer",
    "CriticLoss",
    "EntropyTarget",
    "EntropyWeight",
    "Evaluator",
    "Interrupt",
    "Interrupted",
    "LambdaReturn",
    "Logger",
    "LossCallback",
    "MemoryExport",
    "MemoryImport",
    "PriorityFeedback",
    "QuantileTarget",
    "SGDEntropyTarget",
    "Schedule",
    "SoftPolicyLoss",
    "TargetCallback",
    "TargetScale",
    "ValueBias",
    "make_sinks",
]
