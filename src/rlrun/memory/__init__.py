"""Replay memory: tables, samplers, ejectors, adaptors and the loaders that serve from them."""

from rlrun.memory.adaptors import Adaptor, Cast, NStep, Rename, Scale
from rlrun.memory.columns import Column
from rlrun.memory.ejectors import Ejector, Fifo
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.loaders import ReplayLoader
from rlrun.memory.samplers import Rows, Sampler, Uniform
from rlrun.memory.table import Table

__all__ = [
    "Adaptor",
    "Cast",
    "Column",
    "Ejector",
    "EpisodeIndex",
    "Fifo",
    "NStep",
    "Rename",
    "ReplayLoader",
    "Rows",
    "Sampler",
    "Scale",
    "Table",
    "Uniform",
]
