"""The collector: it steps an environment with an agent, and stores transitions in memory."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from rlrun.collect.agents import Agent, Response, initial_state, random_agent, restarted, state_after
from rlrun.collect.executed import Executed
from rlrun.collect.goals import GoalGenerator, require_generator
from rlrun.collect.statistics import Tally, observed
from rlrun.core import distributed
from rlrun.core.clock import Spent
from rlrun.core.errors import ConfigError, DataError, RequestError, RlrunError, did_you_mean, require_counts
from rlrun.core.progress import Progress
from rlrun.core.seeds import EpisodeSeeds
from rlrun.core.spaces import leaves, map_tree, require_like, take_rows, tree_of
from rlrun.core.typing import Array, Tree
from rlrun.env import Env, EnvById, Step
from rlrun.env.vector import describe_lost_envs
from rlrun.memory import Table
from rlrun.training.callback import Callback

_messages = logging.getLogger("rlrun")

TAGS = ("episode_return", "episode_length", "interrupted")  # tags of an episode that memory can store


class NoSignals:
    """Stands in for `Interrupt` in a run without one."""

    requested: str | None = None  # name of a signal that came

    def check(self) -> None:
        """Raise if a signal came; with several ranks only `meet` raises."""

    def meet(self) -> None:
        """Raise in all ranks if a signal came to one; all ranks call it."""


class Budgeted(Callback, ABC):
    """A collector that makes no more steps than the run's budget allows, and counts them as `step`."""

    provides: tuple[str, ...] = ("step",)
    steps: int
    tally: Tally
    _budget: Any = None  # the run's, once training has begun
    _signals: Any = NoSignals()  # likewise
    _progress = Progress()
    _spent = Spent()

    @property
    def episodes(self) -> int:
        """Complete episodes since the beginning."""
        return self.tally.episodes

    def _connect(self, callbacks: Mapping[str, Any] | None, spent: Spent | None) -> None:
        """Find the run's budget and signals among its callbacks."""
        self._spent = Spent() if spent is None else spent
        self._signals = (callbacks or {}).get("interrupt") or NoSignals()
        self._budget = (callbacks or {}).get("budget")
        self._progress = getattr(self._budget, "progress", self._progress)

    def _count(self, steps: int) -> None:
        """Count environment steps."""
        self.steps += steps
        self._progress.step = self.steps

    def begin_batch(self) -> dict[str, int]:
        return self._clock()

    def _clock(self) -> dict[str, int]:
        return {"step": self.steps}

    @abstractmethod
    def collect(self, steps: int, random: bool = False) -> int:
        """Make `steps` steps, rounded up to whole rounds; return the number made."""

    def fill(self, steps: int, random: bool = False) -> int:
        """Call `collect` with at most the steps that the budget leaves; return the number made.

        Raises:
            Stop: the budget is used up, or a signal came.
        """
        return self.collect(steps if self._budget is None else self._budget.left(self.steps, steps), random)


class Collector(Budgeted):
    """Steps all envs of an environment with an agent, and stores transitions.

    It provides `step`, the number of environment steps of all envs together. It counts all ranks, which step at the
    same pace. A resumed run continues the open episodes. An env that cannot do so begins a new episode, and the open
    one ends in memory at its last step, without being truncated. `approximate` names such envs; it is None if all
    continued.

    For a recurrent agent it keeps the state of each env. A memory with a column `state` gets the state before acting,
    or its entry `recurrent` if it is a dict. After an end, and after a row that is not a step, an env has the initial
    state.

    Args:
        env: the environments.
        agent: chooses actions.
        table: stores rows.
        seed: of all environments of the run; an episode's seed is made of it, and the numbers of env and episode.
        first_env: number of the first env in the run.
        warm_up_seed: of the uniformly random actions before learning starts.
        window: number of the newest episodes in the logged mean return and length.
        executed_action: name in infos of the action that the environment executed, in its own units; if a step has it,
            it is stored in place of the agent's.
        goal_generator: learns the probabilities of later goals from complete episodes.

    Raises:
        ConfigError: the memory is of another number of envs; or `executed_action` comes with a memory that stores more
            of the agent's action, such as its log_prob.
        DataError: a NaN or infinite reward, observation or action came; that step is not stored.
    """

    def __init__(
        self,
        env: Env,
        agent: Agent,
        table: Table,
        *,
        seed: int = 0,
        first_env: int = 0,
        warm_up_seed: int = 0,
        window: int = 20,
        executed_action: str | None = None,
        goal_generator: GoalGenerator | None = None,
    ) -> None:
        if isinstance(env, EnvById):
            raise ConfigError(f"collector: agents of {env.name} are known by an id: +with=by_id, after other files")
        if getattr(table, "num_envs", env.num_envs) != env.num_envs:
            raise ConfigError(
                f"num_envs: environment '{env.name}' has {env.num_envs} envs, and the memory stores {table.num_envs}; "
                "both want one number"
            )
        self.env = env
        self.agent = agent
        self.table = table
        self.seeds = EpisodeSeeds(seed, env.num_envs, first_env)
        self.goal_generator = require_generator(goal_generator)
        self.random = random_agent(agent, env.spaces.action, seed=warm_up_seed)
        self.steps = 0
        self.tally = Tally(env.num_envs, env.spaces.rewards, window=window)
        self.observation: Tree = None
        self.state: Tree = None  # of a recurrent agent, before it acts on the observation
        self.approximate: str | None = None
        self._followers: list[Any] = []  # collectors that step when this one does
        self._seconds: list[Any] = []  # second tables, which store each row, too
        self._tagged = tuple(getattr(table, "tags", ()))
        for name in self._tagged:
            if name not in TAGS:
                raise ConfigError(
                    f"memory.columns.{name}: the collector has no such tag; it has {', '.join(TAGS)}"
                    f"{did_you_mean(name, TAGS)}"
                )
        columns = getattr(table, "columns", ()) or getattr(getattr(table, "storage", None), "columns", {}).values()
        infos = [column for column in columns if column.info]
        self._infos = tuple(column.name for column in infos)
        for name in getattr(table, "wanted", ()):
            if name not in (*agent.outputs, *self._infos):
                raise ConfigError(
                    f"memory.columns.{name}: nobody fills it; the agent's response has {', '.join(agent.outputs)}"
                    f"{did_you_mean(name, agent.outputs)}"
                )
        self._initial = initial_state(agent, env.num_envs)
        own = ("action",) if self._initial is None else ("action", "state")
        self._extras = tuple(name for name in agent.outputs if name not in own and name in table.names())
        self._keeps_state = self._initial is not None and "state" in table.names()
        if executed_action is not None and self._extras:
            raise ConfigError(
                f"executed_action: the memory stores {self._extras[0]}, which is of the agent's own action; without it"
            )
        if executed_action is not None and getattr(getattr(agent, "policy", None), "follows_actions", False):
            raise ConfigError(
                "executed_action: the policy remembers its own actions, and not those that were executed; it goes with "
                "a model that reads one step alone"
            )
        self.executed = Executed(env, executed_action, infos) if infos or executed_action is not None else None

    def begin_training(self, callbacks: Mapping[str, Any] | None = None, spent: Spent | None = None) -> dict[str, int]:
        self._connect(callbacks, spent)
        self._followers = [part for part in (callbacks or {}).values() if getattr(part, "first", None) is self]
        self.env.record()
        if self.observation is None:
            for table in (self.table, *(second.table for second in self._seconds)):
                forget_returns(table, np.arange(self.env.num_envs))  # a fork's are of other episodes
            self._weigh_goals()
            self.observation, self.state = self.env.reset(self.seeds.every()), self._initial
        else:
            self.observation = self._resume()
        require_finite(self.observation, "observation", self.steps)
        return self._clock()

    def _connect(self, callbacks: Mapping[str, Any] | None, spent: Spent | None) -> None:
        super()._connect(callbacks, spent)
        self._seconds = [part for part in (callbacks or {}).values() if getattr(part, "of", None) is self]

    @property
    def _round(self) -> int:
        """Number of environment steps in a round: one for every env of all ranks."""
        return self.env.num_envs * distributed.world_size()

    def _resume(self) -> Tree:
        """Resume the open episodes; begin new ones in envs that cannot resume."""
        resumed = self.env.resume_episodes(self._signals.check)
        self._weigh_goals()
        if resumed is None:
            why = f"{self.env.name} ({self.env.vectorization}) has no record of its open episodes"
            lost = dict.fromkeys(range(self.env.num_envs), why)
        else:
            lost = resumed.lost
            if not lost:
                return resumed.observation
        self.approximate = describe_lost_envs(lost, self.env.num_envs)
        _messages.warning("resume: approximate: %s; new episodes begin there", self.approximate)
        envs = np.array(sorted(lost))
        self._break_off(envs)
        self.seeds.episode[envs] += 1
        if len(envs) == self.env.num_envs:
            return self.env.reset(self.seeds.every())
        return self.env.restart(np.isin(np.arange(self.env.num_envs), envs), self.seeds.of(envs))

    def _break_off(self, envs: Array) -> None:
        """End the open episodes of envs [n] in memory."""
        cut_off, index = (getattr(self.table, name, None) for name in ("cut_off", "index"))
        if cut_off is not None:  # a rollout keeps all steps, so these episodes are truncated
            forget_returns(self.table, cut_off(envs, take_rows(self.observation, envs)))
        elif index is not None:
            stored_envs = envs[index.newest()[index.open[envs]] >= 0]  # those with rows of the open episode in memory
            if len(stored_envs):
                self._close(stored_envs, self.observation, interrupted=np.ones(len(stored_envs), np.bool_))
            forget_returns(self.table, envs)
        for second in self._seconds:
            second.break_off(envs, self.observation)
        self.tally.drop(envs)
        self.state = restarted(self.state, self._initial, np.isin(np.arange(self.env.num_envs), envs))

    @property
    def stored(self) -> tuple[str, ...]:
        """Columns of its rows beside those of the environment."""
        return (*self._extras, *self._infos, *(["state"] if self._keeps_state else ()))

    def end_training(self, error: BaseException | None) -> dict[str, int]:
        self.env.end()
        return self._clock()  # after a signal during collection later callbacks save the current state

    def collect(self, steps: int, random: bool = False) -> int:
        """Make at least `steps` environment steps, a multiple of the number of envs.

        Args:
            steps: wanted, all envs together.
            random: act uniformly at random in place of the agent.

        Returns:
            The number of environment steps made.

        Raises:
            Stop: a signal came; earlier steps are stored.
        """
        if self.observation is None:
            raise RequestError("callbacks.collector is missing: the loader's collector must be among the callbacks")
        self._require_stored(random)
        act: Callable[..., Response] = self.random if random else self.agent
        before, signals = self.steps, self._signals
        if steps > self._round:  # a single round is short: the update's end handles signals
            signals.meet()
        while self.steps - before < steps:
            if signals.requested is not None:  # between two steps the state is consistent, to be saved
                signals.check()
            self._step(act)
            for follower in self._followers:
                follower.follow(random)
        return self.steps - before

    def _require_stored(self, random: bool) -> None:
        """Refuse random actions if the memory stores more than actions.

        Raises:
            RequestError: naming the missing column.
        """
        missing = [name for name in self._extras if name not in self.random.outputs]
        if random and missing:
            raise RequestError(f"warm-up: random actions have no {missing[0]}, which the memory stores")

    def _step(self, act: Callable[..., Response]) -> None:
        spent, begun = self._spent, perf_counter()
        response = act(self.observation, self.state)
        acted = perf_counter()
        try:
            step = self.env.step(response["action"])
        except RlrunError:
            self._require_action(response)
            raise
        spent["act"] += acted - begun
        spent["env"] += perf_counter() - acted
        self._store_response(response, step)

    def _require_action(self, response: Response) -> None:
        """Refuse an action that is not finite; the error names the policy."""
        policy = type(getattr(self.agent, "policy", self.agent)).__name__
        require_finite(response["action"], "action", self.steps, f"the policy ({policy}) diverged: it")

    def _store_response(self, response: Response, step: Step) -> None:
        """Store the agent's response to the current observations, and the step."""
        if self.executed is not None:
            response = self.executed(response, step)
        try:
            require_finite(step.reward, "reward", self.steps)
            require_finite(step.observation, "observation", self.steps)
        except DataError:
            self._require_action(response)
            raise
        row = {
            "observation": self.observation,
            "action": response["action"],
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        for name in (*self._extras, *self._infos):
            row[name] = response[name]
        if self._keeps_state:
            within = isinstance(self.state, dict) and "recurrent" in self.state
            row["state"] = self.state["recurrent"] if within else self.state
        if self._initial is not None:
            self.state = state_after(self.agent, self.observation, self.state, response)
        self._store(row, step)

    def _store(self, row: dict[str, Tree], step: Step) -> None:
        """Add a row for every env with a valid step, and begin new episodes where one ended."""
        tables = self.table, *(second.table for second in self._seconds)
        if step.valid is None:
            for table in tables:
                table.add(None, row)
            self._count(self._round)
        else:
            envs = np.flatnonzero(step.valid)
            row = take_rows(row, envs)
            for table in tables:
                table.add(envs, row)
            self._count(len(envs))
            self.state = restarted(self.state, self._initial, ~step.valid)
        self.tally.add(step.reward, step.valid)
        episode_end = step.terminated | step.truncated
        if np.count_nonzero(episode_end):  # takes a tenth of the time of any()
            envs = np.flatnonzero(episode_end)
            interrupted = (step.truncated & ~step.terminated)[envs]
            self._close(envs, step.observation, interrupted=interrupted)
            for second in self._seconds:
                second.table.close(envs, take_rows(step.observation, envs))
            if (generator := self.goal_generator) is not None:
                goal = step.observation[generator.part][envs]
                generator.learn(goal, self.tally.returns(envs), self.tally.length[envs])
                self._weigh_goals()
            self.tally.end(envs, interrupted, step.info)
            self.seeds.episode[envs] += 1
            with self._spent.during("env"):
                self.observation = self._restart(episode_end)
            self.state = restarted(self.state, self._initial, episode_end)
            require_finite(self.observation, "observation", self.steps)
        else:
            self.observation = step.observation

    def _weigh_goals(self) -> None:
        """Pass the probabilities of goals to the environment, for later episodes."""
        if self.goal_generator is not None:
            self.env.weigh_goals(self.goal_generator.probabilities())

    def _restart(self, episode_end: Array) -> Tree:
        return restart_by_seeds(self.env, episode_end, self.seeds)

    def _close(self, envs: Array, observation: Tree, *, interrupted: Array) -> None:
        """End the episodes of envs [n] in memory, with the tags that it stores."""
        last = take_rows(observation, envs)
        if not self._tagged:
            self.table.close(envs, last)
            return
        tags = (self.tally.returns(envs), self.tally.length[envs], interrupted)
        self.table.close(envs, last, dict(zip(TAGS, tags, strict=True)))

    @property
    def metrics(self) -> Mapping[str, Any]:
        agent, space = self.agent, self.env.spaces.observation
        sizes = {} if self.observation is None else observed(self.observation, space, getattr(agent, "preprocess", ()))
        return {**getattr(agent, "metrics", {}), **getattr(self.table, "metrics", {}), **self.tally.metrics, **sizes}

    def note(self, path_of: Callable[[object], str]) -> str:
        goals = f", goals by {path_of(self.goal_generator)}" if self.goal_generator else ""
        return f"{self.env.num_envs} × {self.env.name} -> {path_of(self.table)}, acting by {path_of(self.agent)}{goals}"

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            **self.tally.state_dict(),
            "episode": self.seeds.episode,
            "observation": self.observation,
            "state": self.state,
            "random": self.random.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_counts({"steps": state["steps"]})
        if state["observation"] is not None:
            space, envs = self.env.spaces.observation, self.env.num_envs
            arrays = [np.empty((envs, *leaf.shape), leaf.dtype) for _, leaf in leaves(space)]
            wanted = {"observation": tree_of(space, arrays), "state": self._initial, "episode": self.seeds.episode}
            map_tree(require_like, wanted, state)
        self.steps = state["steps"]
        self.tally.load_state_dict(state)
        self.observation, self.state = state["observation"], state["state"]
        self.seeds.episode = state["episode"].copy()
        self.random.load_state_dict(state["random"])


def forget_returns(table: Any, envs: Array) -> None:
    """Notify adaptors of a table that episodes of envs [n] have ended."""
    for adaptor in getattr(table, "adaptors", ()):
        if hasattr(adaptor, "break_off"):
            adaptor.break_off(envs)


def require_finite(tree: Tree, name: str, step: int, source: str = "the environment") -> None:
    """Refuse NaN and infinity before they enter memory.

    Raises:
        DataError: with source, env, step and value.
    """
    if isinstance(tree, dict):
        for key, part in tree.items():
            require_finite(part, f"{name}.{key}", step, source)
    elif tree.dtype.kind == "f" and not math.isfinite(np.vdot(tree, tree)) and not np.isfinite(tree).all():
        env_index, *rest = np.argwhere(~np.isfinite(tree))[0].tolist()
        place = f"{name}{rest}" if rest else name
        value = tree[(env_index, *rest)]
        largest = f"; {tree.dtype} holds numbers up to {np.finfo(tree.dtype).max:.2g}" if np.isinf(value) else ""
        raise DataError(f"{source} gave {place} = {value} in env {env_index} after {step} environment steps{largest}")


def restart_by_seeds(env: Env, episode_end: Array, seeds: EpisodeSeeds) -> Tree:
    """Begin the next episodes in some envs [N], by their seeds if the environment accepts seeds."""
    return env.restart(episode_end, seeds.of(np.flatnonzero(episode_end)) if env.seed_episodes else None)
