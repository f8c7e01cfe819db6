"""Imagined episodes as training data (MBPO, Janner et al. 2019, arXiv 1906.08253, algorithm 2).

The policy acts in a model for a few steps, from many stored observations. The imagined rows have their own table, from
which an off-policy algorithm takes most of each batch. It treats them as real rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlrun.collect.agents import Agent, initial_state
from rlrun.collect.modes import evaluating, modal_parts
from rlrun.core.errors import ConfigError, SpaceError, require_at_least
from rlrun.core.schedules import Schedule, as_schedule
from rlrun.core.spaces import ACTION_MASK, Spaces, leaves, map_tree, take_rows
from rlrun.core.typing import Batch, Tree
from rlrun.env.model_env import ModelEnv
from rlrun.env.spaces import empty
from rlrun.memory import Table
from rlrun.nn.dynamics import WorldModel
from rlrun.training.callback import Callback

FAR = 4.0  # deviations from the training mean, beyond which a number is outside of the data


class Imagination(Callback):
    """Act in a model from stored observations, and store the imagined rows.

    It starts once the model has learned from `after` batches. Episodes end at predicted terminations, and are truncated
    after `length` steps. The table keeps the rows of the newest `keep` calls, and grows with `length`.

    Args:
        model: to act in.
        agent: acts, exploring.
        table: for the imagined rows, with `grows`; it has as many envs as a batch of the data group has rows.
        spaces: of the environment.
        length: steps of an imagined episode, a number or a schedule over environment steps.
        keep: number of calls whose rows the table keeps.
        after: number of batches that the model learns from first.
        seed: of members, noise and terminations.
        data_group: name of the batches whose observations episodes start from.

    Raises:
        SpaceError: observations have an action mask.
        ConfigError: the agent has a state, or a number is out of range.
    """

    def __init__(
        self,
        model: WorldModel,
        agent: Agent,
        table: Table,
        spaces: Spaces,
        *,
        length: float | Schedule = 1,
        keep: int = 100,
        after: int = 1,
        seed: int = 0,
        data_group: str = "imagination",
    ) -> None:
        require_at_least("keep", keep, 1)
        if ACTION_MASK in dict(leaves(spaces.observation)):
            raise SpaceError("imagination: a model predicts no action mask, and the agent needs one at each step")
        if initial_state(agent, 1) is not None:
            raise ConfigError(
                "imagination: an agent with a state, such as a recurrent one, cannot begin within an episode"
            )
        self.model, self.agent, self.table, self.keep, self.after = model, agent, table, keep, after
        self.modal = modal_parts(model.dynamics)
        self.length, self.data_group = as_schedule(length), data_group
        require_at_least("length", self.length(0), 1)
        self.env = ModelEnv(model, spaces, table.index.num_envs)
        self.env.reset(seed=seed, options={"observation": empty(spaces.observation, 1)})
        self.outputs = tuple(name for name in agent.outputs if name in table.names())

    def begin_batch(self, observation: Tree, step: int, untransformed: Batch | None = None) -> None:
        """Imagine episodes from the observations of a batch, [B, …]."""
        if int(self.model.dynamics.seen) < self.after:
            return
        length = max(1, round(self.length(step)))
        envs = self.env.num_envs
        if (wanted := self.keep * envs * (length + 1)) > self.table.length:
            self.table.resize(wanted)
        stored = observation if untransformed is None else untransformed["observation"]
        at, _ = self.env.reset(options={"observation": map_tree(lambda leaf: leaf.cpu().numpy(), stored)})
        alive = np.arange(envs)
        rewards, last = [], []
        for number in range(1, length + 1):
            response = self.agent(at)
            with evaluating(self.modal):
                after, reward, terminated, _, _ = self.env.step(response["action"])
            truncated = ~terminated & (number == length)
            row: dict[str, Any] = {name: response[name] for name in self.outputs}
            row |= {"observation": at, "reward": reward, "terminated": terminated, "truncated": truncated}
            with self.table.unobserved():  # adaptors learn from real rewards and observations only
                self.table.add(None if len(alive) == envs else alive, take_rows(row, alive))
            rewards.append(reward[alive])
            ended = alive[(terminated | truncated)[alive]]
            if len(ended):
                self.table.close(ended, take_rows(after, ended))
                last.append(self.model.dynamics.normalized(self.env.state[ended], self.env.action[ended]))
                alive = alive[~(terminated | truncated)[alive]]
            at = after
            if not len(alive):
                break
        first = np.concatenate([paid.reshape(len(paid), -1)[:, 0] for paid in rewards])  # the first of several rewards
        metrics: dict[str, Any] = {"reward": float(first.mean()), "length": length}
        metrics["outside"] = (torch.cat(last).abs() > FAR).float().mean()
        self.store.put({f"imagination/{name}": value for name, value in metrics.items()})

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"{self.env.num_envs} imagined episodes -> {path_of(self.table)}, acting by {path_of(self.agent)}"

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.env.np_random.bit_generator.state, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.np_random.bit_generator.state = state["random"]
        super().load_state_dict(state)
