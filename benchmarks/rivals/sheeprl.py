"""ReplayBuffer as its SAC keeps it, next observations stored; SequentialReplayBuffer of the same columns."""

from __future__ import annotations

from sheeprl.data.buffers import ReplayBuffer, SequentialReplayBuffer

from benchmarks.rivals.case import COUNT, Array, Call, Case, Episode, fill

PACKAGE = "sheeprl"
LACKS = {"prioritized": "no priorities"}


def insert(case: Case, episode: Episode) -> Call:
    """Add an episode, step by step."""
    buffer = _filled(ReplayBuffer(case.capacity // case.envs, case.envs), case, episode)
    rows = [_rows(episode, slice(step, step + 1)) for step in range(len(episode.action))]

    def write() -> None:
        for row in rows:
            buffer.add(row)

    return write


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions."""
    buffer = _filled(ReplayBuffer(case.capacity), case, episode)
    return lambda: buffer.sample_tensors(COUNT, from_numpy=True)


def sequence(case: Case, episode: Episode) -> Call:
    """Sample sequences, which may run over the end of an episode."""
    buffer = _filled(SequentialReplayBuffer(case.capacity), case, episode)
    return lambda: buffer.sample_tensors(COUNT, from_numpy=True, sequence_length=case.length)


def _filled(buffer: ReplayBuffer, case: Case, episode: Episode) -> ReplayBuffer:
    rows = _rows(episode, slice(None))
    fill(lambda: buffer.add(rows), case)
    return buffer


def _rows(episode: Episode, steps: slice) -> dict[str, Array]:
    """Return some steps of every env, [T, N, …]; numbers have a dimension of their own."""
    return {
        "observations": episode.observation[:-1][steps],
        "next_observations": episode.observation[1:][steps],
        "actions": episode.action[steps],
        "rewards": episode.reward[steps, :, None],
        "terminated": episode.terminated[steps, :, None],
        "truncated": episode.truncated[steps, :, None],
    }


CALLS = {"insert": insert, "sample": sample, "sequence": sequence}
