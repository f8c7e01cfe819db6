"""Replay memory: tables, samplers, ejectors, adaptors and the loaders that serve from them."""

from rlrun.memory.adaptors import Adaptor, Cast, PerStep, Rename, Scale, Select, TerminalOverride, Untransformed
from rlrun.memory.advantages import Advantages
from rlrun.memory.by_episode import Coverage, Sequential, Stratified
from rlrun.memory.columns import Column
from rlrun.memory.dataset import DatasetLoader
from rlrun.memory.ejectors import CoverageEjector, Ejector, Fifo, UniformEjector
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
from rlrun.memory.rollout import RolloutLoader
from rlrun.memory.rollout_table import Rollout
from rlrun.memory.samplers import Recent, Rows, Sampler, Uniform
from rlrun.memory.sources import spaces_in
from rlrun.memory.table import Table
from rlrun.memory.transforms import (
    ImageScale,
    NStep,
    RewardClip,
    RewardFunction,
    RewardScale,
    RewardShift,
    WeighRewards,
)
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
