"""Replay memory: tables, samplers, ejectors, adaptors and the loaders that serve from them."""

from rlrun.env.by_id import DictObservation, DictResponse, EpisodeState, MetaData
from rlrun.memory.adaptors.adaptor import Adaptor, Cast, PerStep, Rename, Scale, Select, Untransformed
from rlrun.memory.adaptors.advantages import Advantages
from rlrun.memory.adaptors.augment import (
    Augmentation,
    ColorJitter,
    CutOut,
    Later,
    PixelNoise,
    RandomCrop,
    RandomShift,
    Views,
)
from rlrun.memory.adaptors.hindsight import Hindsight
from rlrun.memory.adaptors.intrinsic import Bonus, Intrinsic, StepReward, effort
from rlrun.memory.adaptors.mirrored import Mirrored
from rlrun.memory.adaptors.recurrent_windows import Past
from rlrun.memory.adaptors.trajectory import Trajectory
from rlrun.memory.adaptors.transforms import (
    ImageScale,
    NStep,
    ObservationNormalize,
    ReturnNormalize,
    RewardClip,
    RewardFunction,
    RewardNormalize,
    RewardScale,
    RewardShift,
    WeighRewards,
)
from rlrun.memory.adaptors.unrolled import Unrolled
from rlrun.memory.formats.sources import spaces_in
from rlrun.memory.loaders.dataset import DatasetLoader, Lazy
from rlrun.memory.loaders.held_out import Split, classes, digits
from rlrun.memory.loaders.joint import JointLoader, batches
from rlrun.memory.loaders.prefetch import Prefetch
from rlrun.memory.loaders.replay import CollectLoader, ReplayLoader
from rlrun.memory.loaders.rollout import PhasicLoader, RolloutLoader
from rlrun.memory.loaders.whole import Shuffled, WholeReplayLoader
from rlrun.memory.table.columns import Column
from rlrun.memory.table.coverage_samplers import Coverage, Sequential, Stratified
from rlrun.memory.table.ejectors import CoverageEjector, Ejector, Fifo, UniformEjector
from rlrun.memory.table.index import EpisodeIndex
from rlrun.memory.table.mix import Mix
from rlrun.memory.table.prioritized import Prioritized
from rlrun.memory.table.proxy import MemoryProxy
from rlrun.memory.table.recent_sampler import Recent
from rlrun.memory.table.rollout_table import Rollout
from rlrun.memory.table.sample import Sample
from rlrun.memory.table.samplers import Rows, Sampler, Uniform
from rlrun.memory.table.table import Table
from rlrun.memory.table.trees import MinTree, SegmentTree, SumTree
from rlrun.memory.table.virtual import Continues, EpisodeEnd, LastOfWindow, Next, NextN, Previous

__all__ = ["Adaptor", "Advantages", "Bonus", "Cast", "Hindsight", "ImageScale", "Intrinsic", "NStep"]
__all__ += ["ObservationNormalize", "Past", "PerStep", "Rename", "ReturnNormalize", "RewardClip", "RewardFunction"]
__all__ += ["RewardNormalize", "RewardScale", "RewardShift", "Scale", "Select", "StepReward", "Untransformed"]
__all__ += ["Coverage", "CoverageEjector", "Ejector", "Fifo", "Prioritized", "Recent", "Rows", "Sampler", "Sequential"]
__all__ += ["Sample", "Stratified", "Uniform", "UniformEjector", "WeighRewards", "effort"]
__all__ += ["CollectLoader", "DatasetLoader", "JointLoader", "Lazy", "Mix", "PhasicLoader", "Prefetch"]
__all__ += ["Mirrored", "ReplayLoader", "Rollout", "RolloutLoader", "Shuffled", "WholeReplayLoader"]
__all__ += ["Column", "Continues", "EpisodeEnd", "EpisodeIndex", "LastOfWindow", "Next", "NextN"]
__all__ += ["Previous", "Split", "Table", "Trajectory", "Unrolled", "batches", "classes", "digits", "spaces_in"]
__all__ += ["Augmentation", "ColorJitter", "CutOut", "Later", "PixelNoise", "RandomCrop", "RandomShift", "Views"]
__all__ += ["MinTree", "SegmentTree", "SumTree"]
__all__ += ["DictObservation", "DictResponse", "EpisodeState", "MemoryProxy", "MetaData"]
