"""The bias of critics: their values against the returns of the policy."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.losses.critic import CriticLoss
from rlrun.callbacks.losses.joint import with_terms
from rlrun.callbacks.schedule import following
from rlrun.collect.agents import Agent, Response, initial_state, prepared, to_arrays, to_tensors
from rlrun.collect.evaluate import Moment, evaluate, restored_generators, stage
from rlrun.core.errors import ConfigError, WiringError
from rlrun.core.typing import Array, Tree
from rlrun.env import Env, EnvById
from rlrun.memory import Table
from rlrun.memory.adaptors.adaptor import RETURNS, REWARDS, PerStep
from rlrun.nn import ActionCodec
from rlrun.training.callback import Callback


class ValueBias(Callback):
    """Evaluate the frozen agent periodically, and compare its critics with the return from each step.

    The bias is the smallest Q(s, a) of the critics minus the discounted sum of the rewards that follow (Fujimoto et al.
    2018, arXiv 1802.09477, section 4). The value of the last step stands for the rest of an episode that is cut off, so
    that step has no bias. Soft values contain entropy: compare their bias between runs, not with zero. Rewards are
    changed by the adaptors of the table, as in updates.

    Args:
        env: evaluated in a copy; training's own envs are never touched.
        agent: acts without exploration.
        table: its adaptors change rewards.
        discount: γ.
        every: environment steps (updates, where there is no collector) between two comparisons.
        episodes: of each comparison; always the same ones.
        seed: of the first episode.
        max_steps: of an episode.
        logger: gets `value_bias/…`.

    Raises:
        ConfigError: rewards have several numbers.
        WiringError: no critics are trained, or they have inputs besides observation and action, or adaptors add other
            rewards.
    """

    cycle = 1
    leads = True

    def __init__(
        self,
        env: Env,
        agent: Agent,
        table: Table,
        *,
        discount: float,
        every: int,
        episodes: int = 10,
        seed: int = 0,
        max_steps: int | None = 10_000,
        logger: Logger,
    ) -> None:
        if env.spaces.rewards:
            raise ConfigError("value_bias: it compares one reward a step, and this environment's rewards have several")
        if every < 1 or episodes < 1:
            raise ConfigError("value_bias: every and episodes must be at least 1")
        self.env = env
        self.agent = agent
        self.rewards = [adaptor for adaptor in table.adaptors if getattr(adaptor, "tier", None) in (REWARDS, RETURNS)]
        self.discount = discount
        self.every = every
        self.episodes = episodes
        self.seed = seed
        self.max_steps = max_steps
        self.logger = logger
        self._next = every
        self._newest = 0  # environment step, or update, of the newest comparison
        self._abandon: Callable[[], None] | None = None
        self._envs: Env | None = None
        self._loss: CriticLoss | None = None

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        parts = [part for callback in callbacks.values() for part in with_terms(callback)]
        losses = [part for part in parts if isinstance(part, CriticLoss)]
        if not losses:
            raise WiringError(f"callbacks.{self.name}: no critics are trained; sac, td3, ddpg and dqn have some")
        self._loss = losses[0]
        own, codec = ActionCodec(self.env.spaces), self._loss.codec
        if isinstance(self.env, EnvById):
            raise WiringError(f"callbacks.{self.name}: it follows single episodes, which agents known by an id lack")
        if getattr(self.agent, "recurrent", False) or (codec.continuous, codec.width) != (own.continuous, own.width):
            raise WiringError(
                f"callbacks.{self.name}: critics must have an observation and an action as inputs, and these need more"
            )
        for adaptor in self.rewards:
            if not isinstance(adaptor, PerStep):
                raise WiringError(
                    f"callbacks.{self.name}: {type(adaptor).__name__} adds rewards that no evaluated episode has, so "
                    "values and returns cannot be compared"
                )
        self._abandon = getattr(callbacks.get("interrupt"), "check", None)

    def end_cycle(self, update: int, step: int | None = None) -> None:
        clock = update if step is None else step
        if clock >= self._next:
            self._newest, self._next = clock, following(clock, self.every)
            self.logger.write(step, update, self.measure(), counted=True)

    def end_training(self, error: BaseException | None) -> None:
        if self._envs is not None:
            self._envs.close()

    def measure(self) -> dict[str, float]:
        """Return the mean value, the mean return and the mean of their difference, over all steps of the episodes."""
        assert self._loss is not None
        evaluated, tally = _Evaluated(self.agent, self._loss), _Tally(self.discount, self._learned)
        with restored_generators():
            if self._envs is None:
                self._envs = stage(self.env, self.episodes)
            evaluate(
                self._envs,
                evaluated,
                episodes=self.episodes,
                seed=self.seed,
                max_steps=self.max_steps,
                wrappers=self.env.wrapper_states(),
                abandon=self._abandon,
                watch=lambda moment: tally.add(moment, evaluated.values),
            )
        value, following = tally.means()
        return {"value_bias/value": value, "value_bias/return": following, "value_bias/mean": value - following}

    def _learned(self, rewards: Tensor) -> Tensor:
        """Return rewards [T] after the table's adaptors, as updates use them."""
        for adaptor in self.rewards:
            rewards = adaptor.change(rewards)  # type: ignore[attr-defined]
        return rewards

    def state_dict(self) -> dict[str, Any]:
        return {"made": self._newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._newest, self._next = state["made"], following(state["made"], self.every)  # `every` may have changed


class _Evaluated(Agent):
    """An agent that also evaluates its actions: `values` [N] of the newest ones."""

    def __init__(self, agent: Agent, loss: CriticLoss) -> None:
        self.agent = agent
        self.outputs = agent.outputs
        self.policy = getattr(agent, "policy", None)
        self.loss = loss
        self.values: Array = to_arrays(torch.zeros(0))

    def initial_state(self, count: int) -> Tree | None:
        return initial_state(self.agent, count)

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        response = self.agent(observation, state, explore=explore)
        device = getattr(self.agent, "device", "cpu")
        inputs = prepared(to_tensors(observation, device), getattr(self.agent, "preprocess", ()))
        c, k = self.loss.codec.split(to_tensors(response["action"], device))
        training = self.loss.critics.training
        self.loss.critics.eval()
        value = self.loss.critics(inputs, c)  # [M, N] or [M, N, K]
        self.loss.critics.train(training)
        self.values = to_arrays((value if k is None else self.loss.codec.select(value, k)).amin(0))
        return response


class _Tally:
    """Values and rewards of open episodes, and values and returns of finished ones."""

    def __init__(self, discount: float, learned: Callable[[Tensor], Tensor]) -> None:
        self.discount = discount
        self.learned = learned
        self._open: dict[int, list[tuple[float, float]]] = {}  # episode -> value and reward of each step
        self._pairs: list[tuple[float, float]] = []  # value and return

    def add(self, moment: Moment, values: Array) -> None:
        if not moment.step:
            return
        steps = self._open.setdefault(moment.episode, [])
        steps.append((float(values[moment.env_index]), moment.reward))
        if moment.ending is None:
            return
        following = 0.0
        if moment.ending != "terminated":
            following = steps.pop()[0]
        rewards = self.learned(torch.tensor([reward for _, reward in steps])).tolist()
        for (value, _), reward in zip(reversed(steps), reversed(rewards), strict=True):
            following = reward + self.discount * following
            self._pairs.append((value, following))
        del self._open[moment.episode]

    def means(self) -> tuple[float, float]:
        """Return the mean value and the mean return; NaN if every episode was cut off at its first step."""
        if not self._pairs:
            return float("nan"), float("nan")
        values, returns = zip(*self._pairs, strict=True)
        return sum(values) / len(values), sum(returns) / len(returns)
