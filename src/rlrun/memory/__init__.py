"""Replay memory: tables, samplers, ejectors, adaptors and the loaders that serve from them."""

from rlrun.memory.adaptors import Adaptor, Cast, PerStep, Rename, Scale
from rlrun.memory.advantages import Advantages
from rlrun.memory.ahead import NStep
from rlrun.memory.by_episode import Coverage, Sequential
from rlrun.memory.columns import Column
from rlrun.memory.dataset import DatasetLoader
from rlrun.memory.ejection import CoverageEjector, UniformEjector
from rlrun.memory.ejectors import Ejector, Fifo
from rlrun.memory.hindsight import Hindsight
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.intrinsic import Bonus, Intrinsic
from rlrun.memory.joint import JointLoader, Mix, MixLoader
from rlrun.memory.loaders import CollectLoader, ReplayLoader
from rlrun.memory.normalise import ObservationNormalise, ReturnNormalise, RewardNormalise
from rlrun.memory.phasic import PhasicLoader
from rlrun.memory.prefetch import Prefetch
from rlrun.memory.prioritised import Prioritised
from rlrun.memory.proxy import DictObservation, DictResponse, EpisodeState, MemoryProxy, MetaData
from rlrun.memory.recent import Recent
from rlrun.memory.rollout import RolloutLoader
from rlrun.memory.rollout_table import Rollout
from rlrun.memory.samplers import Rows, Sampler, Uniform
from rlrun.memory.seen import spaces_in
from rlrun.memory.shaping import Select, TerminalOverride, Untransformed
from rlrun.memory.stratified import Stratified
from rlrun.memory.table import Table
from rlrun.memory.transforms import ImageScale, RewardClip, RewardFunction, RewardScale, RewardShift, WeighRewards
from rlrun.memory.virtual import Continues, Ended, LastOfWindow, Next, NextN, NStepDiscount, NStepReturn, Previous

__all__ = [
    "Adaptor",
    "Advantages",
    "Bonus",
    "Cast",
    "CollectLoader",
    "Column",
    "Continues",
    "Coverage",
    "CoverageEjector",
    "DatasetLoader",
    "DictObservation",
    "DictResponse",
    "Ejector",
    "Ended",
    "EpisodeIndex",
    "EpisodeState",
    "Fifo",
    "Hindsight",
    "ImageScale",
    "Intrinsic",
    "JointLoader",
    "LastOfWindow",
    "MemoryProxy",
    "MetaData",
    "Mix",
    "MixLoader",
    "NStep",
    "NStepDiscount",
    "NStepReturn",
    "Next",
    "NextN",
    "ObservationNormalise",
    "PerStep",
    "PhasicLoader",
    "Prefetch",
    "Previous",
    "Prioritised",
    "Recent",
    "Rename",
    "ReplayLoader",
    "ReturnNormalise",
    "RewardClip",
    "RewardFunction",
    "RewardNormalise",
    "RewardScale",
    "RewardShift",
    "Rollout",
    "RolloutLoader",
    "Rows",
    "Sampler",
    "Scale",
    "Select",
    "Sequential",
    "Stratified",
    "Table",
    "TerminalOverride",
    "Uniform",
    "UniformEjector",
    "Untransformed",
    "WeighRewards",
    "spaces_in",
]
