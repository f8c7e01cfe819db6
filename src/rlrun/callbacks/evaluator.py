"""Periodic evaluation on separate environments; it does not affect training."""

import copy
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch

from rlrun import checkpointing
from rlrun.callbacks.checkpointer import Checkpointer
from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.schedule import due_offline
from rlrun.collect import async_evaluation
from rlrun.collect import video as videos
from rlrun.collect.agents import Agent
from rlrun.collect.async_collector import POLL
from rlrun.collect.async_evaluation import EvaluationJob
from rlrun.collect.evaluate import Evaluation, evaluate, require_opponents, restored_generators, sampling, stage
from rlrun.collect.statistics import by_opponent, by_reward
from rlrun.collect.unroll import freeze, thaw
from rlrun.core import distributed
from rlrun.core.clock import Spent
from rlrun.core.errors import ConfigError, RlrunError, printable
from rlrun.core.worker import Failed, Worker
from rlrun.env import Env
from rlrun.env.make import require_equal_spaces
from rlrun.env.wrapper_state import States, pool, wrappers_in
from rlrun.runs.directory import RunDir, checkpoint_name
from rlrun.training.callback import Callback, Stop

_messages = logging.getLogger("rlrun")
Moment = tuple[int | None, int]  # environment step and update
QUEUE = 8  # copies that wait for their evaluation, at most


class Evaluator(Callback):
    """Evaluate the frozen agent every so many environment steps, and once at the end.

    Every evaluation plays the same episodes, started by `seed`, `seed + 1`, … The first of several ranks plays.

    Args:
        env: evaluated in a copy; training's own envs are never touched.
        agent: acts without exploration, but for `epsilon`.
        every: environment steps (updates, where there is no collector); 0 or None = never, not even at the end.
        episodes: of each evaluation.
        seed: of the first episode.
        max_steps: of an episode.
        num_envs: environments that play episodes in parallel, at most; None = 16. The episodes are the same.
        epsilon: probability of a sampled action in place of the best one, drawn from a generator seeded by `seed`.
        asynchronous: evaluate a copy of the agent in a separate process; training continues meanwhile. Copies wait
            their turn, so none is left out; beyond 8 of them, and at the end, training waits. If the process fails, a
            warning is logged, and this process evaluates from then on.
        video: write a video of each evaluation's first episode.
        logger: gets `evaluation/…` at once.
        checkpointer: keeps the best.
        offline: updates before the first environment step; every so many of them, and the last, count as well.
        opponents: name -> an argument of `rlrun.env.Env.face`; `episodes` are played against each. Means are over all
            of them. None = the environment's own.

    Raises:
        ConfigError: `epsilon` is set for an agent without `respond`, a separate process is to write videos, or an
            opponent cannot play.
    """

    cycle = 1
    momentary = ("_link", "_waiting")  # of this process

    def __init__(
        self,
        env: Env,
        agent: Agent,
        *,
        every: int | None,
        episodes: int = 10,
        seed: int = 0,
        max_steps: int | None = 10_000,
        num_envs: int | None = None,
        epsilon: float = 0.0,
        asynchronous: bool = False,
        video: bool = False,
        logger: Logger | None = None,
        checkpointer: Checkpointer | None = None,
        offline: int = 0,
        opponents: Mapping[str, Any] | None = None,
    ) -> None:
        self.env = env
        self.agent = agent
        self.every = every or 0
        self.episodes = episodes
        self.seed = seed
        self.max_steps = max_steps
        self.num_envs = num_envs
        self.epsilon = epsilon
        sampling(agent, epsilon, seed=seed)
        self.asynchronous = bool(asynchronous and every)
        self.one_rank = "evaluation.async=true has one process for one rank" if self.asynchronous else ""
        if every and getattr(env, "varies", False):
            with restored_generators():
                require_equal_spaces(env)
        self.opponents = dict(opponents or {})
        if every:
            with restored_generators():
                require_opponents(env, self.opponents)
        self.video = bool(video)
        if self.video and self.asynchronous:
            raise ConfigError("evaluation.video films in this process: evaluation.async=false, or `rlrun eval --video`")
        self._screen: Env | None = None  # draws episodes
        if self.video:
            videos.require_encoder("evaluation.video")
            self._screen = videos.screen("evaluation.video", env)
        self.logger = logger
        self.checkpointer = checkpointer
        self.offline = offline
        self.abandon: Callable[[], None] | None = None
        self.last: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self._next = self.every or math.inf
        self._evaluated: tuple[int | None, int] | None = None
        self.reward_sum: Any = np.zeros(getattr(getattr(env, "spaces", None), "rewards", 0))  # of all evaluations: [R]
        self.reward_steps = 0
        self._envs: Env | None = None
        self._due = self._newest()  # results at the newest evaluation that was due
        self._run: RunDir | None = None
        self._warned = False  # True once a video has failed
        self._newest_update: Moment = (None, 0)
        self._spent = Spent()
        self._worker: Worker | None = None
        self._waiting: deque[tuple[Moment, EvaluationJob]] = deque()  # copies of the agent that are not evaluated yet
        self._owed: list[Moment] = []  # those of a checkpoint

    @property
    def value(self) -> float:
        """The objective of a run: `mean_return`."""
        return self.mean_return

    @property
    def mean_return(self) -> float:
        """Mean return of the newest evaluation; minus infinity before the first."""
        return -math.inf if self.last is None else float(self.last["mean_return"])

    def begin_training(
        self,
        callbacks: dict[str, Callback],
        run_dir: Path | None,
        update: int = 0,
        step: int | None = None,
        spent: Spent | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        self._newest_update = (step, update)
        self._spent = self._spent if spent is None else spent
        self.abandon = getattr(callbacks.get("interrupt"), "abandon", None)
        self._run = None if run_dir is None else RunDir(run_dir)
        if self.asynchronous:
            try:
                freeze(self.agent)  # refuses an agent that cannot be sent
                self._worker = async_evaluation.start(self.env, self.epsilon, self._options, self.num_envs)
            except ConfigError as error:
                _messages.warning("evaluation.async: %s; evaluations take place in this process", error)
        modules = {path: part for path, part in (parts or {}).items() if isinstance(part, torch.nn.Module)}
        env = next((path for path, part in (parts or {}).items() if part is self.env), None)
        owed, self._owed = self._owed, []
        for moment in owed:
            self._evaluate_again(moment, modules, env)

    def _evaluate_again(self, moment: Moment, modules: Mapping[str, torch.nn.Module], env: str | None) -> None:
        """Send the agent of an earlier checkpoint, whose evaluation was under way when the run stopped."""
        try:
            if self._run is None:
                raise RlrunError("there is no run directory")
            where = self._run.checkpoints / checkpoint_name(clock_of(moment), moment[1])
            states = checkpointing.load(where, [*modules, *([] if env is None else [env])])
            wrappers = {} if env is None else wrappers_in(states[env])
            agent, copies = copy.deepcopy((self.agent, dict(modules)))
            for path, module in copies.items():
                module.load_state_dict(states[path])
        except (RlrunError, RuntimeError, TypeError, KeyError) as error:
            _messages.warning(
                "evaluation at update %d cannot be made again: %s", moment[1], " ".join(str(error).split())
            )
            return
        self._send(moment, EvaluationJob(freeze(agent), wrappers))

    def _send(self, moment: Moment, job: EvaluationJob) -> None:
        self._waiting.append((moment, job))
        if self._worker is not None:
            self._worker.send(job)
        self._protect()

    def _protect(self) -> None:
        """Keep the checkpoints that may prove the best."""
        if self.checkpointer is not None:
            self.checkpointer.awaited = [(clock_of(moment), moment[1]) for moment, _ in self._waiting]

    def end_cycle(self, update: int, step: int | None = None) -> None:
        clock = update if step is None else step
        self._newest_update = (step, update)
        self._take_results()
        if clock >= self._next:
            due, self._next = self._next, (clock // self.every + 1) * self.every
            try:
                self._begin(step, update)
            except Stop:  # abandoned: it is still due after a resume
                self._next = due
                raise
        elif due_offline(update, self.every, self.offline):
            self._begin(step, update)

    def _begin(self, step: int | None, update: int) -> None:
        """Evaluate now, or send a copy of the agent to the process that evaluates."""
        if self._worker is None:
            self._evaluate(step, update)
            self._due = self._newest()
            return
        with self._spent.during("evaluate"):
            if len(self._waiting) >= QUEUE:  # each takes memory, and a checkpoint
                self._take_results(at_most=QUEUE - 1)
            self._send((step, update), EvaluationJob(freeze(self.agent), self.env.wrapper_states()))
        if self.checkpointer is not None:
            self.checkpointer.save_soon(clock_of((step, update)))

    def _take_results(self, *, at_most: int = QUEUE) -> None:
        """Take the results that have arrived, in order; wait until at most so many are missing."""
        while self._waiting:
            (step, update), job = self._waiting[0]
            result = self._received(wait=len(self._waiting) > at_most)
            if result is None and self._worker is not None:
                return
            if result is None:
                result = self._played(step, update, job.wrappers, thaw(job.agent))
            self._waiting.popleft()
            self._take(result, step, update, late=True)
            self._due = self._newest()
            self._protect()

    def _received(self, *, wait: bool) -> Evaluation | None:
        """Return the next result; None if there is none yet, or if the process has failed."""
        while self._worker is not None:
            message = self._worker.messages.receive(POLL if wait else 0.0)
            if isinstance(message, Evaluation):
                return message
            if message is not None or self._worker.messages.closed:
                why = message.line if isinstance(message, Failed) else self._worker.cause()
                _messages.warning("evaluation: its process failed: %s; evaluations take place in this process", why)
                self._worker.close(0.0)
                self._worker = None
            elif not wait:
                break
            elif self.abandon is not None:
                self.abandon()
        return None

    def end_training(self, error: BaseException | None) -> None:
        try:
            step, update = self._newest_update
            ended_well = update > 0 and (error is None or type(error) is Stop)
            if ended_well and self._waiting:
                with self._spent.during("evaluate"):
                    self._take_results(at_most=0)
                if self.checkpointer is not None:
                    self.checkpointer.save_again()
            if self.every and ended_well and (self.last is None or self._evaluated != self._newest_update):
                self._evaluate(step, update, final=True)
        finally:
            if self._worker is not None:
                self._worker.close(0.0)
            for envs in (self._envs, self._screen):
                if envs is not None:
                    envs.close()

    def _evaluate(self, step: int | None, update: int, *, final: bool = False) -> None:
        with self._spent.during("evaluate"):
            result = self._by_the_first(step, update)
        self._take(result, step, update, final=final)

    def _take(
        self, result: Evaluation, step: int | None, update: int, *, final: bool = False, late: bool = False
    ) -> None:
        """Log a result, and mark the best one."""
        self.last = {
            "mean_return": result.mean_return,
            "std_return": result.std_return,
            "episodes": len(result.returns),
            "env_steps": step or 0,
        }
        if result.totals:
            self.last["mean_totals"] = np.mean(result.totals, 0).tolist()
            self.reward_sum = self.reward_sum + np.sum(result.totals, 0)
            self.reward_steps += sum(result.lengths)
        self._evaluated = (step, update)
        if self.checkpointer is not None:
            self.checkpointer.evaluation = self.last
        if self.logger is not None:
            length = sum(result.lengths) / len(result.lengths)
            summary = {"mean_return": result.mean_return, "std_return": result.std_return, "mean_length": length}
            record = {f"evaluation/{name}": value for name, value in summary.items()}
            record |= by_reward("evaluation", result.totals) | by_opponent("evaluation", result.scores())
            if (raw := result.mean_raw_return) is not None:
                record["evaluation/mean_raw_return"] = raw
            if late:
                self.logger.write_late(step, update, record)
            else:
                self.logger.write(step, update, record, counted=not final)
        value = result.mean_return  # of equal ones the later is the best; nan never is
        if not math.isnan(value) and (self.best is None or not value < self.best["mean_return"]):
            self.best = dict(self.last)  # a separate copy, as after a resume
            if self.checkpointer is not None and late:
                self.checkpointer.mark_saved(clock_of((step, update)), update)
            elif self.checkpointer is not None:
                self.checkpointer.mark_best(clock_of((step, update)), update, final=final)

    def _by_the_first(self, step: int | None, update: int) -> Evaluation:
        """Evaluate in the first rank, and send the result, or its stop, to the others."""
        wrappers = pool(distributed.all_gather(self.env.wrapper_states()))
        return distributed.by_first(lambda: self._played(step, update, wrappers), Stop)

    def _played(self, step: int | None, update: int, wrappers: States, agent: Agent | None = None) -> Evaluation:
        with restored_generators():
            if self._envs is None:
                self._envs = stage(self.env, self.episodes, self.num_envs)
            result = self._play(self._envs, agent=agent, wrappers=wrappers)
            if math.isnan(result.mean_return) and self._run is not None:
                clock = f"update {update:,}" if step is None else f"step {step:,}"
                message = f"the evaluation at {clock} has a mean return of nan: it is never the best"
                self._run.echo(message, logging.WARNING)
            if self.video and self._run is not None:
                path = self._run.evaluation_video(step or 0, update, offline=self.offline > 0)
                self._film(self._run, path, wrappers)
        return result

    @property
    def _options(self) -> dict[str, Any]:
        options = {"episodes": self.episodes, "seed": self.seed, "max_steps": self.max_steps}
        return {**options, "opponents": self.opponents}

    def _play(self, envs: Env, *, agent: Agent | None = None, **options: Any) -> Evaluation:
        if self.epsilon:
            torch.manual_seed(self.seed)
        agent = sampling(self.agent if agent is None else agent, self.epsilon, seed=self.seed)
        return evaluate(envs, agent, abandon=self.abandon, **self._options | options)

    def _newest(self) -> Any:
        return self.last, self.best, self._evaluated, self.reward_sum, self.reward_steps

    def _film(self, run: RunDir, path: Path, wrappers: States) -> None:
        """Record the first episode again, as a video; report only the first error."""
        try:
            assert self._screen is not None
            with videos.VideoRecorder(self._screen, lambda moment: path) as watch:
                first = dict([*self.opponents.items()][:1])
                self._play(self._screen, episodes=1, watch=watch, wrappers=wrappers, opponents=first)
        except Stop:
            raise
        except Exception as error:
            if not self._warned:
                self._warned = True
                with suppress(RlrunError):  # the run itself reports a full disk
                    run.echo(f"no video of this evaluation: {' '.join(str(error).split())}; training continues")

    def note(self, path_of: Callable[[object], str]) -> str:
        place = ", in a separate process" if self.asynchronous else ""
        faced = f" against each of {', '.join(self.opponents)}" if self.opponents else ""
        return f"{self.episodes} episodes{faced} every {self.every:,} steps{place}" if self.every else "off"

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the evaluation at the end, which an extended run never makes."""
        last, best, evaluated, reward_sum, reward_steps = self._due
        state = {"last": last, "best": best, "next": self._next if self.every else 0, "evaluated": evaluated}
        waiting = [list(moment) for moment in [*self._owed, *(moment for moment, _ in self._waiting)]]
        state |= {"waiting": waiting} if waiting else {}
        return state | ({"reward_sum": reward_sum, "reward_steps": reward_steps} if len(self.reward_sum) else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("last", "best"):
            if state[name] is not None:
                _require_result(name, state[name])
        self.last, self.best = state["last"], state["best"]
        self._next = state["next"] or self.every if self.every else math.inf  # `every` may change on resume
        evaluated = [] if state["evaluated"] is None else [state["evaluated"]]
        moments = [(step, update) for step, update in (*evaluated, *state.get("waiting", ()))]
        self._evaluated, self._owed = (moments[0] if evaluated else None), moments[len(evaluated) :]
        wrong = [(type(step), type(update)) not in ((int, int), (NoneType, int)) for step, update in moments]
        if len(self._owed) > QUEUE + 1 or any(wrong):
            raise RlrunError(f"waiting: wanted at most {QUEUE + 1} pairs of an environment step and an update")
        if "reward_sum" in state and len(self.reward_sum):
            self.reward_sum, self.reward_steps = np.array(state["reward_sum"]), state["reward_steps"]
        self._due = self._newest()
        if self.checkpointer is not None:
            self.checkpointer.evaluation = self.last


def _require_result(name: str, result: Any) -> None:
    """Refuse an invalid saved result; the mean return of the last may be NaN, that of the best may not.

    Raises:
        RlrunError: naming it.
    """
    values = {"mean_totals": (), **result}
    numbers = [values["mean_return"], *values.pop("mean_totals"), *values.values()]
    if any(type(number) not in (int, float) for number in numbers) or (name == "best" and math.isnan(numbers[0])):
        raise RlrunError(f"{name}: wanted the numbers of an evaluation, got {printable(f'{result}'[:80])}")


def clock_of(moment: Moment) -> int:
    """Return the environment step; the update where there is none."""
    step, update = moment
    return update if step is None else step
