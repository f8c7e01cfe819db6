"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv 1707.01495)."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, DataError, RlrunError, SpaceError, did_you_mean, require_one_of
from rlrun.core.generators import Seeded
from rlrun.core.spaces import Spaces, describe, leaves
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.adaptors.adaptor import RELABEL
from rlrun.memory.table.samplers import Rows
from rlrun.memory.table.storage import leaf_of

Strategy = Literal["future", "final", "episode"]
Function = Callable[..., Array]  # of achieved and desired goals [..., G], and of infos (name -> [...]) if there are any


class Hindsight(Seeded):
    """Replaces the goal of a share of the rows by a goal that the same episode reached later.

    Both observations of such a row have the new goal. The environment computes its reward and, if it depends on the
    goal, `terminated`; `truncated` stays. A window has one goal, reached at its end or later. Later steps of n-step
    returns have the row's new goal, too, and the sum stops at a termination.

    Args:
        reward: returns the environment's rewards [...] for the goals `achieved` and `desired` [..., G]. Its
            `terminated` returns whether the episode ends there; None = terminations do not depend on the goal.
        spaces: of the environment, to check that observations have goals.
        share: of the rows.
        strategy: step whose achieved goal is taken: "future" any stored one after the row, "final" the newest stored,
            "episode" any of the whole episode.
        goal, achieved: names of the parts of the observation.
        info: columns that the reward reads as its info, besides the goals; `memory.columns.KEY={info: true}` stores it.
        check: number of samples whose stored rewards are compared with those of the environment.
        seed: of the choice of rows and goals.

    Raises:
        ConfigError, SpaceError: `share` or `strategy` is invalid, or observations lack the goals.
    """

    tier = RELABEL
    provides = ("observation", "next_observation", "reward", "terminated")
    removes = replaces = ()

    def __init__(
        self,
        *,
        reward: Function,
        spaces: Spaces | None = None,
        share: float = 0.8,
        strategy: Strategy = "future",
        goal: str = "desired_goal",
        achieved: str = "achieved_goal",
        info: Sequence[str] = (),
        check: int = 10,
        seed: int = 0,
    ) -> None:
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"Hindsight.share must lie from 0 to 1, not {share}")
        require_one_of("strategy", strategy, get_args(Strategy))
        if spaces is not None:
            known = dict(leaves(spaces.observation))
            shapes = {known[path].shape if path in known else None for path in (goal, achieved)}
            if len(shapes) > 1 or None in shapes:
                near = next((did_you_mean(path, known) for path in (goal, achieved) if path not in known), "")
                raise SpaceError(
                    f"Hindsight wants an observation that is a Dict with goals '{goal}' and '{achieved}' of one shape, "
                    f"as Gymnasium-Robotics' environments have; here it is {describe(spaces.observation)}{near}"
                )
        self.reward = reward
        self.terminated = getattr(reward, "terminated", None)
        self.share = share
        self.strategy = strategy
        self.goal, self.achieved = goal.split("."), achieved.split(".")
        self.info = tuple(info)
        parts = (f"observation.{goal}", f"observation.{achieved}")
        self.requires = (*parts, "next_observation", "reward", "terminated", *self.info)
        self.check = check
        # a branch of its own, as the sampler may have the same seed
        super().__init__(np.random.SeedSequence(seed, spawn_key=(1707,)))

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Hindsight looks ahead in a table, and this batch is not of one")
        if self.check > 0:
            self.check -= 1
            self._compare(batch, rows.valid)
        chosen = np.flatnonzero(self.generator.random(len(rows.index)) < self.share)
        last = rows.end[chosen]
        episode, step = rows.where.episode(last), rows.where.step(last)
        reached = newest = rows.where.newest(episode)  # the steps whose achieved goals are taken
        if self.strategy != "final":
            before = step if self.strategy == "future" else rows.where.oldest(episode)
            reached = before + (self.generator.random(len(last)) * (newest - before)).astype(np.int64) + 1
        goals = rows.stored(self.requires[1], rows.where.at(episode, reached)).numpy()
        return _Relabelled(self, rows, chosen, goals)(batch)

    def evaluate(self, batch: Batch, rows: Rows | None) -> Batch:
        """Return the batch unchanged, with the original goals."""
        return batch

    def _compare(self, batch: Batch, valid: Array | None) -> None:
        """Compare stored rewards and ends with those of the environment.

        Raises:
            DataError: they differ.
        """
        achieved, goal = (leaf_of(batch["next_observation"], path).numpy() for path in (self.achieved, self.goal))
        infos = [{name: batch[name].numpy() for name in self.info}] if self.info else []
        checks = [("reward", self.reward)] + ([("terminated", self.terminated)] if self.terminated is not None else [])
        for name, function in checks:
            answer, stored = function(achieved, goal, *infos), batch[name].numpy()
            if answer.shape != stored.shape:
                shapes = f"{list(answer.shape)} for goals {list(goal.shape)}, stored are {list(stored.shape)}"
                raise DataError(f"memory.adaptors: Hindsight got {name} in the shape {shapes}")
            wrong = ~np.isclose(answer, stored, rtol=1e-4, atol=1e-5)
            if valid is not None:
                wrong &= valid
            if wrong.any():
                at = tuple(np.argwhere(wrong)[0])
                raise DataError(
                    f"memory.adaptors: Hindsight got {name} {answer[at]} from the environment's function; stored is "
                    f"{stored[at]} (achieved {achieved[at].tolist()}, desired {goal[at].tolist()}; so in "
                    f"{np.count_nonzero(wrong)} of {wrong.size} rows): a wrapper changes rewards or goals after "
                    "compute_reward, or it reads an info that memory.adaptors.hindsight.info does not name; "
                    "Hindsight.check=0 lets it pass"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state, and the number of samples still to check."""
        return super().state_dict() | {"check": self.check}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        self.check = state["check"]


class _Relabelled:
    """Applies new goals to the batch of a sample, and to columns that are fetched for its rows.

    chosen: rows with a new goal, [K]; goals: [K, …].
    """

    def __init__(self, hindsight: Hindsight, rows: Rows, chosen: Array, goals: Array) -> None:
        self.rows, self.chosen, self.goals = rows, chosen, goals
        self.goal_path, self.achieved_path = hindsight.goal, hindsight.achieved
        self.goal, self.achieved, *_ = hindsight.requires
        self.info = hindsight.info
        self.functions: dict[str, Function] = {"reward": hindsight.reward}
        if hindsight.terminated is not None:
            self.functions["terminated"] = hindsight.terminated
        rows.through("observation", self.observation)
        for name in self.functions:
            rows.through(name, self.computed)

    def __call__(self, batch: Batch) -> Batch:
        index, following = self.rows.index, batch["next_observation"]
        achieved = leaf_of(following, self.achieved_path).numpy()[self.chosen]
        return batch | {
            "observation": self.observation("observation", batch["observation"], index),
            "next_observation": self.observation("observation", following, index),
            **{name: self._changed(batch[name], self._compute(name, achieved, index)) for name in self.functions},
        }

    def observation(self, name: str, value: Tree, slots: Array) -> Tree:
        """Return an observation, or its leaf `name`, at slots [B, …] with the new goals."""
        if "." not in name:
            return _replace(value, self.goal_path, self._changed(leaf_of(value, self.goal_path), self._spread(slots)))
        return self._changed(value, self._spread(slots)) if name == self.goal else value

    def computed(self, name: str, value: Tensor, slots: Array) -> Tensor:
        """Return rewards or terminations at slots [B, …], computed by the environment for the new goals."""
        after = self.rows.where.after(slots[self.chosen], 1)
        return self._changed(value, self._compute(name, self.rows.stored(self.achieved, after).numpy(), slots))

    def _compute(self, name: str, achieved: Array, slots: Array) -> Array:
        goals = self._spread(slots)
        goals = goals if goals.shape == achieved.shape else np.broadcast_to(goals, achieved.shape)
        infos = [{key: self.rows.stored(key, slots[self.chosen]).numpy() for key in self.info}] if self.info else []
        return self.functions[name](achieved, goals, *infos)

    def _changed(self, value: Tensor, rows: Array) -> Tensor:
        changed = value.numpy().copy()
        changed[self.chosen] = rows
        return torch.from_numpy(changed)

    def _spread(self, slots: Array) -> Array:
        """Return the goals with the leading dimensions of slots, for broadcasting."""
        count, *shape = self.goals.shape
        spread: Array = self.goals.reshape(count, *(1,) * (slots.ndim - 1), *shape)
        return spread


def _replace(tree: Tree, path: list[str], leaf: Tensor) -> Tree:
    if not path:
        return leaf
    return tree | {path[0]: _replace(tree[path[0]], path[1:], leaf)}
