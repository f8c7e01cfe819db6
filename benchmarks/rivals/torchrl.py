"""ReplayBuffer of TensorDicts in a LazyTensorStorage; one add a step, one extend for 64; slices with cached ends."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, SliceSampler

from benchmarks.rivals.case import ALPHA, BETA, COUNT, Call, Case, Episode, fill, priorities

PACKAGE = "torchrl"
LACKS: dict[str, str] = {}


def insert(case: Case, episode: Episode) -> Call:
    """Add an episode: `add` takes one transition, `extend` many."""
    buffer = _filled(ReplayBuffer(storage=LazyTensorStorage(case.capacity)), case, episode)
    steps = _steps(episode).split(case.envs)  # all envs of a step are neighbors
    put = buffer.extend
    if case.envs == 1:
        steps, put = [step[0] for step in steps], buffer.add

    def write() -> None:
        for step in steps:
            put(step)

    return write


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions."""
    buffer = _filled(ReplayBuffer(storage=LazyTensorStorage(case.capacity), batch_size=COUNT), case, episode)
    return lambda: buffer.sample()


def sequence(case: Case, episode: Episode) -> Call:
    """Sample slices of one episode each."""
    sampler = SliceSampler(num_slices=COUNT, end_key=("next", "done"), cache_values=True)
    buffer = ReplayBuffer(storage=LazyTensorStorage(case.capacity), sampler=sampler, batch_size=case.transitions)
    _filled(buffer, case, episode)
    return lambda: buffer.sample()


def prioritized(case: Case, episode: Episode) -> Call:
    """Sample by priority, and write new priorities."""
    sampler = PrioritizedSampler(case.capacity, alpha=ALPHA, beta=BETA)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(case.capacity), sampler=sampler, batch_size=COUNT, priority_key="priority"
    )
    _filled(buffer, case, episode)
    lots = cycle([torch.from_numpy(lot) for lot in priorities()])

    def call() -> Any:
        batch = buffer.sample()
        batch["priority"] = next(lots)
        buffer.update_tensordict_priority(batch)
        return batch

    return call


def _filled(buffer: ReplayBuffer, case: Case, episode: Episode) -> ReplayBuffer:
    steps = _steps(episode)
    fill(lambda: buffer.extend(steps), case)
    return buffer


def _steps(episode: Episode) -> TensorDict:
    """Return all transitions as torchrl's environments give them."""
    flat = {name: torch.from_numpy(value) for name, value in episode.flat().items()}
    following = {"observation": flat["next_observation"], "reward": flat["reward"][:, None]}
    following |= {name: flat[name][:, None] for name in ("terminated", "truncated")}
    following["done"] = following["terminated"] | following["truncated"]
    tree = {"observation": flat["observation"], "action": flat["action"], "next": following}
    return TensorDict(tree, batch_size=[len(flat["action"])])


CALLS = {"insert": insert, "sample": sample, "sequence": sequence, "prioritized": prioritized}
