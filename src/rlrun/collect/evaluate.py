"""Evaluation: episodes of a frozen agent, on separate environments."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.collect.agents import Agent, Response, initial_state, restarted, to_arrays, to_tensors, where
from rlrun.collect.by_id import IDLE, rounds
from rlrun.collect.modes import evaluation_mode
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import row_count
from rlrun.core.typing import Array, Tree
from rlrun.env import Env, EnvById, Step
from rlrun.env.by_id import AgentId, EpisodeState
from rlrun.env.raw_return import RAW_RETURN
from rlrun.env.wrapper_state import States

ENVS = 16  # parallel episodes; enough to make acting cheap
SUCCESS = "is_success"  # keys in the info of the last step of an episode
SIDE = "side"
OUTCOMES = ("won", "drawn", "lost")


class Moment(NamedTuple):
    """The state of an episode, for a watcher.

    env_index, episode: counted from 0; seed: of its reset; step: number of steps so far; reward: the newest one, or 0;
    total: the return so far; ending: how it ended, at its last moment.
    """

    env_index: int
    episode: int
    seed: int
    step: int
    reward: float
    total: float
    ending: str | None


Watcher = Callable[[Moment], None]


@dataclass
class Evaluation:
    """Results of episodes; episode i was started by `reset(seed=seeds[i])`.

    If rewards have several numbers, `totals` [episodes][R] has the sums of all, and `returns` those of the first.
    `raw_returns` are sums of the environment's own rewards, if a wrapper may change rewards; with NormalizeReward
    `returns` equal them. `endings` has `terminated`, `truncated` (by the environment) or `cut` (by `max_steps`).
    `successes` has `is_success` of the last step's info, or None. `sides` has its `side` in a game, if the environment
    reports one. `opponents` has the name of each episode's opponent, if some were chosen.
    """

    returns: list[float]
    lengths: list[int]
    seeds: list[int]
    totals: list[list[float]] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    successes: list[bool | None] = field(default_factory=list)
    raw_returns: list[float] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    opponents: list[str] = field(default_factory=list)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def mean_raw_return(self) -> float | None:
        """The mean of `raw_returns`; None without any."""
        return float(np.mean(self.raw_returns)) if self.raw_returns else None

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean return; None for a single episode."""
        return mean_interval(self.returns)

    def scores(self) -> list[Score]:
        """Return the results by opponent and side; empty without both.

        Opponents are in the order of their episodes. Each has a score over all sides, then one for each side.
        """
        if not self.sides and not self.opponents:
            return []
        everyone = [""] * len(self.returns)
        returns, sides, opponents = map(np.array, (self.returns, self.sides or everyone, self.opponents or everyone))
        groups = [(name, side) for name in dict.fromkeys(opponents.tolist()) for side in ("", *sorted({*self.sides}))]
        chosen = {(name, side): (opponents == name) & ((sides == side) | (not side)) for name, side in groups}
        return [Score(*group, returns[rows].tolist()) for group, rows in chosen.items() if any(group) and rows.any()]

    def then(self, following: Evaluation) -> Evaluation:
        """Return the episodes of both evaluations."""
        joined = [getattr(self, part.name) + getattr(following, part.name) for part in fields(self)]
        return Evaluation(*joined)


class Score(NamedTuple):
    """Returns against one opponent ("" = the environment's own), on one side ("" = all)."""

    opponent: str
    side: str
    returns: list[float]

    @property
    def counts(self) -> list[int]:
        """Numbers of games won, drawn and lost, by the sign of their returns."""
        signs = np.sign(self.returns).tolist()
        return [signs.count(sign) for sign in (1.0, 0.0, -1.0)]

    @property
    def shares(self) -> dict[str, float]:
        """The mean return, and the shares of games won, drawn and lost."""
        shares = {name: count / len(self.returns) for name, count in zip(OUTCOMES, self.counts, strict=True)}
        return {"mean_return": float(np.mean(self.returns)), **shares}


def stage(env: Env, episodes: int, num_envs: int | None = None) -> Env:
    """Return separate envs for a number of episodes; num_envs: episodes in parallel."""
    return staged(env.copy, parallel(env, episodes, num_envs))


def require_opponents(env: Env, opponents: Mapping[str, Any]) -> None:
    """Refuse opponents that cannot play in an environment, and an empty mapping if the agent plays both sides.

    Raises:
        ConfigError: naming the first such opponent, or the missing key.
    """
    if not opponents and not getattr(env, "plays_both", False):
        return
    with closing(env.copy()) as trial:
        if not opponents and trial.plays_both:
            raise ConfigError(
                "env.kwargs.opponent=null: who plays both sides always wins; evaluation.opponents={any: random}, "
                "--opponent random, or evaluation.every=0"
            )
        for name, opponent in opponents.items():
            try:
                trial.face(opponent)
            except ConfigError as error:
                raise ConfigError(f"opponent {name}: {error}") from error


def parallel(env: Env, episodes: int, num_envs: int | None) -> int:
    """Return the number of envs that play episodes at a time; num_envs: at most, None = `ENVS`."""
    return 1 if isinstance(env, EnvById) else min(episodes, ENVS if num_envs is None else num_envs)


def staged(copy: Callable[[int, str | None], Env], num_envs: int) -> Env:
    """Return copies of an environment whose envs can be seeded one by one."""
    envs = copy(num_envs, None)
    if envs.envs or envs.seed_episodes or envs.num_envs == 1:
        return envs
    envs.close()
    return copy(1, None)  # an engine that steps all envs cannot seed a single one


def evaluate(
    env: Env,
    agent: Agent,
    *,
    episodes: int,
    seed: int,
    max_steps: int | None = None,
    explore: bool = False,
    wrappers: States | None = None,
    watch: Watcher | None = None,
    abandon: Callable[[], None] | None = None,
    opponents: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Play exactly `episodes` episodes; their choice does not depend on which ends first.

    Layers with a `state_dict` begin with their states of the first evaluation on these envs.

    Args:
        env: separate from training; its envs play episodes in parallel.
        agent: chooses actions.
        episodes: number of episodes; episode i starts with `reset(seed=seed + i)` for any number of envs.
        seed: of the first episode.
        max_steps: steps after which an episode is cut.
        explore: act as in training, not greedily.
        wrappers: states of the env's wrappers, fixed in all episodes; None = those of new wrappers.
        watch: called when an episode begins and after each of its steps, before the env is reset.
        abandon: called at each step; may raise to stop.
        opponents: name -> opponent as `Env.face` takes it; the same episodes are played against each. None = the
            environment's own.

    Returns:
        The results, in the order of the episodes. For agents known by an id, these are the first episodes after one
        reset by `seed`.
    """
    if opponents:
        options: dict[str, Any] = {"episodes": episodes, "seed": seed, "max_steps": max_steps, "explore": explore}
        results = Evaluation([], [], [])
        for name, opponent in opponents.items():
            env.face(opponent)
            played = evaluate(env, agent, **options, wrappers=wrappers, watch=watch, abandon=abandon)
            results = results.then(replace(played, opponents=[name] * episodes))
        return results
    if isinstance(env, EnvById):
        return _evaluate_ids(env, agent, _Tally(episodes, 0, seed), max_steps or math.inf, explore, abandon)
    envs = pending = env.num_envs
    playing = np.arange(envs)  # env -> episode
    tally = _Tally(episodes, env.spaces.rewards, seed, raw=env.normalizes_rewards)
    active = playing < episodes
    env.renew()
    if wrappers:
        env.freeze_wrappers(wrappers)
    observation = env.reset((seed + playing).tolist())
    state = initial = initial_state(agent, envs)
    tally.show(watch, playing, active)
    with evaluation_mode(getattr(agent, "policy", None)):
        while active.any():
            if abandon is not None:
                abandon()
            response = agent(observation, state, explore=explore)
            step = env.step(response["action"])
            episode_end = tally.add(step, playing, active, max_steps)
            tally.show(watch, playing, active)
            observation = step.observation
            state = None if initial is None else response["state"]
            if episode_end.any():
                over = np.flatnonzero(episode_end & active)
                playing[over] = pending + np.arange(len(over))  # an env with an index beyond the last is idle
                pending += len(over)
                active = playing < episodes
                if not active.any():
                    break
                seeds = (seed + playing[episode_end]).tolist()  # idle envs continue, uncounted
                observation = env.restart(episode_end, seeds)
                state = restarted(state, initial, episode_end)
                tally.show(watch, playing, episode_end & active)
    return tally.evaluation()


def _evaluate_ids(
    env: EnvById, agent: Agent, tally: _Tally, max_steps: float, explore: bool, abandon: Callable[[], None] | None
) -> Evaluation:
    """Play the episodes of the agents that begin first; the others act, too."""
    playing: dict[AgentId, int] = {}  # id -> episode
    seen: dict[AgentId, int] = {}  # id -> newest round
    begun = ended = 0
    with evaluation_mode(getattr(agent, "policy", None)):
        for number, observations in enumerate(rounds(env, agent, seed=tally.seed, explore=explore)):
            if abandon is not None:
                abandon()
            seen |= dict.fromkeys(observations, number)
            if lost := [name for name in playing if number - seen[name] > IDLE]:
                raise RlrunError(f"{env.name} gave no last observation of agent {lost[0]}, and it is gone for good")
            for name, entry in observations.items():
                if entry.episode_state is EpisodeState.INITIAL and begun < len(tally.endings):
                    playing[name], begun = begun, begun + 1
                elif name in playing:
                    episode = playing[name]
                    tally.totals[episode] += entry.rewards.get("reward", 0.0)
                    tally.lengths[episode] += 1
                    if entry.episode_state.over or tally.lengths[episode] >= max_steps:
                        endings = {EpisodeState.TERMINAL: "terminated", EpisodeState.INTERRUPTED: "truncated"}
                        tally.endings[playing.pop(name)] = endings.get(entry.episode_state, "cut")
                        ended += 1
            if ended == len(tally.endings):
                break
    return replace(tally.evaluation(), seeds=[tally.seed] * ended)


def sampling(agent: Agent, epsilon: float, *, seed: int) -> Agent:
    """Return an agent that replaces its best actions by sampled ones with probability epsilon, by torch's generator.

    seed: of uniform actions.

    Raises:
        ConfigError: the agent has no method `respond`, so it could not sample without its counters.
    """
    if not epsilon:
        return agent
    if not hasattr(agent, "respond"):
        name = type(agent).__name__
        raise ConfigError(f"evaluation.epsilon: a {name} has no respond(observation, state, explore) to sample by")
    if not hasattr(agent, "uniform") and hasattr(getattr(agent, "agent", None), "uniform"):
        raise ConfigError("evaluation.epsilon: repeated actions (+with=action_repeat) are not sampled step by step")
    return _Sampling(agent, epsilon, seed)


class _Sampling(Agent):
    """Acts greedily, but with probability epsilon by a sampled action; the agent's counters and noise stay unchanged.

    The policy samples the action; it is uniform if the agent itself explores by uniform actions.
    """

    def __init__(self, agent: Any, epsilon: float, seed: int) -> None:
        self.agent, self.epsilon, self.outputs = agent, epsilon, agent.outputs
        uniform = getattr(agent, "uniform", None)
        self.random = uniform and agent.at_random(uniform.space, seed=seed)
        self.policy = getattr(agent, "policy", None)  # read for `evaluation_mode`

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        best: Response = self.agent(observation, state, explore=explore)
        sampled = torch.rand(row_count(observation)).numpy() < self.epsilon
        if self.random:
            return {**best, "action": where(sampled, self.random(observation)["action"], best["action"])}
        before = None if state is None else to_tensors(state, self.agent.device)
        action, after = self.agent.respond(to_tensors(observation, self.agent.device), before, True)
        response = {**best, "action": where(sampled, to_arrays(action), best["action"])}
        if after is not None:
            response["state"] = where(sampled, to_arrays(after), best["state"])
        return response

    def initial_state(self, count: int) -> Tree | None:
        return initial_state(self.agent, count)


class _Tally:
    """Results of E episodes so far; for rewards with several numbers, `totals` is [E, R], else [E].

    raw: whether `totals` are sums of the environment's own rewards.
    """

    def __init__(self, episodes: int, numbers: int, seed: int, *, raw: bool = False) -> None:
        self.seed = seed
        self.raw = raw
        self.raw_totals = np.full(episodes, np.nan)
        self.totals = np.zeros((episodes, numbers) if numbers else episodes)
        self.newest = np.zeros_like(self.totals)  # rewards
        self.lengths = np.zeros(episodes, dtype=np.int64)
        self.endings: list[str | None] = [None] * episodes
        self.successes: list[bool | None] = [None] * episodes
        self.sides: list[str | None] = [None] * episodes

    def add(self, step: Step, playing: Array, active: Array, max_steps: int | None) -> Array:
        """Add a step of the active envs [N]; return the envs [N] whose episode is over, idle ones among them."""
        episodes = playing[active]
        self.newest[episodes] = step.reward[active]
        self.totals[episodes] += step.reward[active]
        self.lengths[episodes] += 1
        if self.raw:
            self._add_raw(step, playing, np.flatnonzero(active))
        episode_end: Array = step.terminated | step.truncated
        if max_steps is not None:
            episode_end = episode_end | (
                active & (self.lengths[np.minimum(playing, len(self.lengths) - 1)] >= max_steps)
            )
        over = np.flatnonzero(episode_end & active)
        self._add_raw(step, playing, over)
        for env_index in over.tolist():
            ending = "terminated" if step.terminated[env_index] else "truncated" if step.truncated[env_index] else "cut"
            self.endings[playing[env_index]] = ending
            info = step.info.get(env_index) or {}
            self.successes[playing[env_index]] = _success(info)
            self.sides[playing[env_index]] = str(info[SIDE]) if isinstance(info.get(SIDE), str) else None
        return episode_end

    def _add_raw(self, step: Step, playing: Array, envs: Array) -> None:
        """Take the raw returns of some envs [n] so far from their infos."""
        for env_index in envs.tolist():
            if (total := (step.info.get(env_index) or {}).get(RAW_RETURN)) is not None:
                self.raw_totals[playing[env_index]] = total
                if self.raw:
                    self.totals[playing[env_index]] = total

    def show(self, watch: Watcher | None, playing: Array, envs: Array) -> None:
        """Show the episodes in some envs [N] to a watcher."""
        if watch is None:
            return
        returns, rewards = self._first(self.totals), self._first(self.newest)
        for env_index in np.flatnonzero(envs).tolist():
            i = int(playing[env_index])
            length, ending = int(self.lengths[i]), self.endings[i]
            watch(Moment(env_index, i, self.seed + i, length, float(rewards[i]), float(returns[i]), ending))

    def evaluation(self) -> Evaluation:
        several = self.totals.ndim > 1
        return Evaluation(
            self._first(self.totals).tolist(),
            self.lengths.tolist(),
            [self.seed + i for i in range(len(self.lengths))],
            self.totals.tolist() if several else [],
            [str(ending) for ending in self.endings],
            self.successes,
            [] if np.isnan(self.raw_totals).any() else self.raw_totals.tolist(),
            [] if None in self.sides else [str(side) for side in self.sides],
        )

    @staticmethod
    def _first(rewards: Array) -> Array:
        return rewards[:, 0] if rewards.ndim > 1 else rewards


def _success(info: dict[str, Any]) -> bool | None:
    flag = info.get(SUCCESS)
    return bool(np.ravel(flag)[0]) if flag is not None and np.size(flag) == 1 else None


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the process-wide random generators after the context."""
    python, legacy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch_state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


CERTAINTY = 0.95
HALVINGS = 60  # enough for all digits


def mean_interval(numbers: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean, by Student's t distribution.

    None for fewer than two numbers, or if one is not finite.
    """
    count = len(numbers)
    if count < 2 or not np.isfinite(numbers).all():
        return None
    mean, error = float(np.mean(numbers)), float(np.std(numbers, ddof=1)) / math.sqrt(count)
    within = error * quantile(count - 1)
    return mean - within, mean + within


def quantile(freedom: int) -> float:
    """Return the half-width of the interval in standard errors; freedom: number of values less one, at least 1."""
    low, high = 0.0, math.pi / 2.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _inside(middle, freedom) < CERTAINTY else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _inside(angle: float, freedom: int) -> float:
    """Return the probability of |t| < tan(angle) · √freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd, cosine = freedom % 2, math.cos(angle)
    k = np.arange(1, freedom // 2)
    series = 1.0 + float(np.cumprod((2 * k - 1 + odd) / (2 * k + odd) * cosine**2).sum()) if freedom > 1 else 0.0
    total = math.sin(angle) * cosine**odd * series
    return (angle + total) * 2.0 / math.pi if odd else total
