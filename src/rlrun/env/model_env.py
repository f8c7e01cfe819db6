"""A learned model as a vector environment of Gymnasium."""

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.core.errors import ConfigError, RequestError, require_at_least
from rlrun.core.spaces import Spaces, map_tree, row_count
from rlrun.core.typing import Array, Tree
from rlrun.env.spaces import to_gymnasium
from rlrun.nn.dynamics import WorldModel


class ModelEnv(VectorEnv[Any, Any, Any]):
    """Imagined envs that a model steps. Actions are those of policies: numbers in [-1, 1], choices from 0.

    At each step every env draws a member of the elite, which predicts it (Janner et al. 2019, arXiv 1906.08253). An
    episode ends with the predicted probability.

    `reset(options={"observation": …, "reset_mask": …})` begins episodes from observations [num_envs, …]; without them
    from those of the last reset.

    Args:
        model: to step.
        spaces: of the modelled environment.
        num_envs: imagined envs.
        max_steps: after which an episode is truncated; None = never.
        starts: observations [S, …] from which episodes begin, drawn evenly; a reset may replace them.

    Raises:
        ConfigError: the model is recurrent.

    Attributes:
        state, action: the newest, as numbers [num_envs, D] and [num_envs, A].
    """

    def __init__(
        self, model: WorldModel, spaces: Spaces, num_envs: int, *, max_steps: int | None = None, starts: Tree = None
    ) -> None:
        require_at_least("num_envs", num_envs, 1)
        if model.remembers:
            raise ConfigError(
                "ModelEnv: a model that remembers earlier steps, such as a recurrent one, cannot begin within an "
                "episode; planners use it"
            )
        self.model, self.num_envs, self.max_steps, self.starts = model, num_envs, max_steps, starts
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = to_gymnasium(spaces.observation)
        self.single_action_space = to_gymnasium(spaces.action)
        for space in (self.single_observation_space, self.single_action_space):
            space.seed(0)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.state = torch.zeros(num_envs, model.dynamics.size, device=model.dynamics.shift.device)
        self._steps = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Begin episodes in all envs, or in those of a mask.

        Raises:
            RequestError: there are no observations to begin from.
        """
        super().reset(seed=seed if not isinstance(seed, list | tuple) else seed[0])
        options = options or {}
        rows = np.asarray(options.get("reset_mask", np.ones(self.num_envs, np.bool_)))
        given = options.get("observation")
        if given is not None:
            self.starts = given
        elif self.starts is None:
            raise RequestError('ModelEnv: nothing says where episodes begin: reset(options={"observation": …})')
        count = row_count(self.starts)
        drawn = np.arange(count) if given is not None and count == self.num_envs else None
        picked = self.np_random.integers(count, size=self.num_envs) if drawn is None else drawn
        began = map_tree(lambda leaf: torch.as_tensor(leaf)[picked], self.starts)
        numbers = self.model.dynamics.numbers(began).to(self.state)
        self.state = torch.where(torch.from_numpy(rows).unsqueeze(-1).to(numbers.device), numbers, self.state)
        self._steps[rows] = 0
        self._predictor = self.model.dynamics.predictor()
        return self._observed(), {}

    @torch.no_grad()
    def step(self, actions: Tree) -> tuple[Tree, Array, Array, Array, dict[str, Any]]:
        dynamics, count = self.model.dynamics, self.num_envs
        self.action = dynamics.coded.numbers(map_tree(torch.as_tensor, actions)).to(self.state)
        members = dynamics.elites
        # an equal number of envs for each member, so that it evaluates only its own
        order = torch.from_numpy(np.resize(self.np_random.permutation(count), -(-count // members) * members))
        numbers = (members, len(order) // members, dynamics.size + dynamics.rewards)
        noise = torch.from_numpy(self.np_random.standard_normal(numbers, np.float32)).to(self.state)
        at, action = (tensor[order].reshape(members, -1, tensor.shape[-1]) for tensor in (self.state, self.action))
        step = self.model.step(at, action, self._predictor, noise)
        place = torch.empty(count, dtype=torch.int64)
        place[order[:count]] = torch.arange(count)
        self.state, reward = step.state.flatten(0, 1)[place], step.reward.flatten(0, 1)[place]
        self._steps += 1
        terminated = np.zeros(count, np.bool_)
        if step.ended is not None:
            terminated = self.np_random.random(count, np.float32) < step.ended.flatten()[place].cpu().numpy()
        truncated = ~terminated & (self._steps >= (self.max_steps or np.inf))
        return self._observed(), reward.cpu().numpy(), terminated, truncated, {}

    def _observed(self) -> Tree:
        observation = self.model.dynamics.observation(self.state)
        return map_tree(lambda leaf: leaf.cpu().numpy().copy(), observation)
