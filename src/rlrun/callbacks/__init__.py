"""Losses, target networks, evaluation, checkpoints, logs and budgets, for any algorithm."""

from rlrun.callbacks.budget import Budget, Interrupt, Interrupted
from rlrun.callbacks.checkpoint import Checkpointer
from rlrun.callbacks.critic import CriticLoss, PriorityFeedback, TargetScale
from rlrun.callbacks.entropy import EntropyTarget, EntropyWeight, SGDEntropyTarget
from rlrun.callbacks.evaluate import Evaluator
from rlrun.callbacks.joint import JointLoss, replaced
from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.logging.record import Sink
from rlrun.callbacks.logging.sinks import make_sinks
from rlrun.callbacks.loss import BonusLoss, LossCallback
from rlrun.callbacks.parameters import ParameterLogs
from rlrun.callbacks.policy import ActorCriticLoss, ActorCriticNetwork, SharedEncoder, SoftPolicyLoss
from rlrun.callbacks.profile import Profile
from rlrun.callbacks.schedule import Schedule
from rlrun.callbacks.target import LambdaReturn, QuantileTarget, SmoothedPolicy, TargetCallback
from rlrun.callbacks.transfer import MemoryExport, MemoryImport
from rlrun.callbacks.validation import Auroc, SquaredError, Validation
from rlrun.callbacks.value_bias import ValueBias

__all__ = ["ActorCriticLoss", "ActorCriticNetwork", "Auroc", "BonusLoss", "Budget", "Checkpointer", "CriticLoss"]
__all__ += ["EntropyTarget", "EntropyWeight", "Evaluator", "Interrupt", "Interrupted", "JointLoss", "LambdaReturn"]
__all__ += ["Logger", "LossCallback", "MemoryExport", "MemoryImport", "ParameterLogs", "PriorityFeedback", "Profile"]
__all__ += ["QuantileTarget", "SGDEntropyTarget", "Schedule", "SharedEncoder", "Sink", "SmoothedPolicy"]
__all__ += ["SoftPolicyLoss", "SquaredError", "TargetCallback", "TargetScale", "Validation", "ValueBias", "make_sinks"]
__all__ += ["replaced"]
