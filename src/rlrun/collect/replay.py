"""A test that plays one episode twice, to see whether a resume would be exact."""

from contextlib import closing

from rlrun.collect.agents import RandomAgent
from rlrun.collect.evaluate import restored_generators
from rlrun.core.seeds import episode_seed
from rlrun.core.spaces import leaves, leaves_of
from rlrun.core.typing import Tree
from rlrun.env import Env
from rlrun.env.recorded import Recorded
from rlrun.env.sync import SyncEnv
from rlrun.env.wrapper_state import LayerStates

MOST = 10_000  # steps of an episode
BEFORE = 8  # episodes before: some environments differ only after several


def replay(env: Env, *, seed: int = 0, max_steps: int = MOST) -> str:
    """Return "exact: …", or "approximate: …" with the first difference.

    One environment plays some episodes, and then another one. A fresh environment gets the states of layers that
    remember, and plays the last episode by the same seed and actions, as a resume does. Actions are uniformly random.

    Args:
        env: is copied.
        seed: of the episodes and actions.
        max_steps: of the first episodes together, and of the last one.
    """
    if getattr(env, "keeps_open", False):
        return "exact: checkpoints have the state of its open episodes"
    if not isinstance(env, Recorded):
        return f"approximate: {env.name} ({env.vectorization}) has no record of its episodes"
    if not env.seed_episodes:
        return "approximate: env.seed_episodes=false: later episodes have no seed"
    with closing(env.copy()) as trial, restored_generators():
        wrapper = trial.remembers() if isinstance(trial, SyncEnv) else None
    if wrapper is not None:
        fault = f"{wrapper} remembers across episodes, and offers no state_dict"
        return f"approximate: {fault}: evaluations and loaded policies start without it, too"
    used, fresh = env.copy(), env.copy()
    with closing(used), closing(fresh), restored_generators():
        assert isinstance(used, SyncEnv)
        assert isinstance(fresh, SyncEnv)
        agent = RandomAgent(env.spaces.action, seed=seed)
        observation, episode = used.reset([episode_seed(seed, 0, 0)]), 1
        for _ in range(max_steps):
            step = used.step(agent(observation)["action"])
            observation, over = step.observation, step.terminated | step.truncated
            if over[0] and episode == BEFORE:
                break
            if over[0]:
                observation, episode = used.restart(over, [episode_seed(seed, 0, episode)]), episode + 1
        states = LayerStates(used.envs[0]).state_dict()
        LayerStates(fresh.envs[0]).load_state_dict(states)
        first, second = (envs.reset([episode_seed(seed, 0, episode)]) for envs in (used, fresh))
        if part := _difference(env, first, second):
            return f"approximate: reset: {part} differs"
        for number in range(1, max_steps + 1):
            action = agent(first)["action"]
            one, two = (envs.step(action) for envs in (used, fresh))
            first, second = one.observation, two.observation
            part = _difference(env, first, second)
            for name in ("reward", "terminated", "truncated"):
                part = part or (name if getattr(one, name).tobytes() != getattr(two, name).tobytes() else "")
            if part:
                return f"approximate: step {number:,} of the episode: {part} differs"
            if one.terminated[0] or one.truncated[0]:
                break
    return f"exact: an episode of {number:,} steps, played twice"


def _difference(env: Env, first: Tree, second: Tree) -> str:
    """Return the name of the first part in which two observations differ; empty if they are equal."""
    space = env.spaces.observation
    for (path, _), one, two in zip(leaves(space), leaves_of(space, first), leaves_of(space, second), strict=True):
        if one.tobytes() != two.tobytes():
            return f"observation.{path}" if path else "observation"
    return ""
