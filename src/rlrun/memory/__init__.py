"""Replay memory: tables, samplers, ejectors, adaptors and the loaders that serve from them."""

from rlrun.env.by_id import DictObservation, DictResponse, EpisodeState, MetaData
from rlrun.memory.adaptors import Adaptor, Cast, PerStep, Rename, Scale, Select, Untransformed
from rlrun.memory.advantages import Advantages
from rlrun.memory.augment import Augmentation, ColorJitter, CutOut, Later, PixelNoise, RandomCrop, RandomShift, Views
from rlrun.memory.by_episode import Coverage, Sequential, Stratified
from rlrun.memory.columns import Column
from rlrun.memory.dataset import DatasetLoader, Lazy
from rlrun.memory.ejectors import CoverageEjector, Ejector, Fifo, UniformEjector
from rlrun.memory.hindsight import Hindsight
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.intrinsic import Bonus, Intrinsic, StepReward, effort
from rlrun.memory.joint import JointLoader, Mix, batches
from rlrun.memory.loaders import CollectLoader, ReplayLoader
from rlrun.memory.mirrored import Mirrored
from rlrun.memory.past import Past
from rlrun.memory.prefetch import Prefetch
from rlrun.memory.prioritized import Prioritized
from rlrun.memory.proxy import MemoryProxy
from rlrun.memory.recent import Recent
from rlrun.memory.rollout import PhasicLoader, RolloutLoader
from rlrun.memory.rollout_table import Rollout
from rlrun.memory.sample import Sample
from rlrun.memory.samplers import Rows, Sampler, Uniform
from rlrun.memory.sources import spaces_in
from rlrun.memory.split import Split, classes, digits
from rlrun.memory.table import Table
from rlrun.memory.trajectory import Trajectory
from rlrun.memory.transforms import (
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
from rlrun.memory.trees import MinTree, SegmentTree, SumTree
from rlrun.memory.unrolled import Unrolled
from rlrun.memory.virtual import Continues, EpisodeEnd, LastOfWindow, Next, NextN, Previous
from rlrun.memory.whole import Shuffled, WholeReplayLoader

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
