"""Losses, target networks, evaluation, checkpoints, logs and budgets, for any algorithm."""

from rlrun.callbacks.budget import Budget, Interrupt, Interrupted
from rlrun.callbacks.checkpointer import Checkpointer
from rlrun.callbacks.diagnostics.parameters import ParameterLogs
from rlrun.callbacks.diagnostics.profile import Profile
from rlrun.callbacks.diagnostics.validation import Auroc, SquaredError, Validation
from rlrun.callbacks.diagnostics.value_bias import ValueBias
from rlrun.callbacks.evaluator import Evaluator
from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.logging.record import Sink
from rlrun.callbacks.logging.sinks import make_sinks
from rlrun.callbacks.losses.critic import CriticLoss, PriorityFeedback, TargetScale
from rlrun.callbacks.losses.entropy import EntropyTarget, EntropyWeight, SGDEntropyTarget
from rlrun.callbacks.losses.joint import JointLoss, replaced
from rlrun.callbacks.losses.loss import BonusLoss, LossCallback
from rlrun.callbacks.losses.policy import ActorCriticLoss, ActorCriticNetwork, SharedEncoder, SoftPolicyLoss
from rlrun.callbacks.losses.target import LambdaReturn, QuantileTarget, SmoothedPolicy, TargetCallback
from rlrun.callbacks.schedule import Schedule
from rlrun.callbacks.transfer import MemoryExport, MemoryImport

__all__ = ["ActorCriticLoss", "ActorCriticNetwork", "Auroc", "BonusLoss", "Budget", "Checkpointer", "CriticLoss"]
__all__ += ["EntropyTarget", "EntropyWeight", "Evaluator", "Interrupt", "Interrupted", "JointLoss", "LambdaReturn"]
__all__ += ["Logger", "LossCallback", "MemoryExport", "MemoryImport", "ParameterLogs", "PriorityFeedback", "Profile"]
__all__ += ["QuantileTarget", "SGDEntropyTarget", "Schedule", "SharedEncoder", "Sink", "SmoothedPolicy"]
__all__ += ["SoftPolicyLoss", "SquaredError", "TargetCallback", "TargetScale", "Validation", "ValueBias", "make_sinks"]
__all__ += ["replaced"]
