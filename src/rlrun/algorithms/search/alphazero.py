"""AlphaZero (Silver et al. 2018, doi 10.1126/science.aar6404): learn a game from tree searches with its rules.

    (p, v) = f(s)                         for the player to move; v from -1 to 1
    π      = the visits of a search by f, from s
    z_t    = Σ_k γ^k σ_k r_t+k            σ_k: 1 if the player of step t moves at t+k, otherwise -1
    L      = (z - v)² - Σ_a π(a) log p(a) + c |θ|²

z is known once the game is over; until then the first term is left out.
"""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.search.agent import SearchModel
from rlrun.algorithms.search.player import SimulatorModel
from rlrun.algorithms.search.tree import Node
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.collect.agents import prepared, to_arrays, to_tensors
from rlrun.compile.calls import NoGrad, part_of
from rlrun.core.errors import RlrunError, require_at_least
from rlrun.core.spaces import RULES_STATE, row_count
from rlrun.core.typing import Array, Batch, Tree
from rlrun.env.simulator import Positions, Simulator
from rlrun.memory import Rows
from rlrun.memory.table.index import CLOSED
from rlrun.nn import ActorCritic


class Judging(Protocol):
    """A network that returns policy and value of positions."""

    def judge(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of moves [B, A] and the value for the player to move [B]."""

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return moves [B] without a search."""


class PolicyValue(ActorCritic):
    """A network of p and v on shared layers; v lies between -1 and 1.

    Args:
        spaces: of the environment.
        options: of `ActorCritic`.
    """

    def __init__(self, spaces: Any, **options: Any) -> None:
        super().__init__(spaces, shared=True, **options)

    def judge(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of moves [B, A] and the value for the player to move [B]."""
        features = part_of(self, "trunk")(observation)
        choices = part_of(self, "head")(features, observation).choices
        return choices, self._laid_out(part_of(self, "value_head")(features))

    def _laid_out(self, output: Tensor) -> Tensor:
        return super()._laid_out(output).tanh()


class JudgedGame(SearchModel):
    """A model for searches by the rules of a game, from the positions in observations.

    Args:
        rules: of the game.
        network: returns policy and value of positions.
        discount: γ of a move.
    """

    def __init__(self, rules: Simulator, network: Judging, *, discount: float = 1.0) -> None:
        self.positions, self.network = Positions(rules), network
        self.game = SimulatorModel(rules, self._judge, discount)

    def root(self, observation: Tree, rng: np.random.Generator | None = None) -> Node:
        return self.game.root(self.positions.of(observation), np.zeros(row_count(observation), np.uint64))

    def __call__(self, state: Tree, action: Array) -> Node:
        return self.game(state, action)

    def text(self, state: Tree, row: int) -> str:
        rules: Any = self.positions.rules
        return rules.text(state["position"], row) if hasattr(rules, "text") else ""

    def _judge(self, rules: Simulator, state: Tree, seeds: Array) -> tuple[Array, Array]:
        seen = to_tensors(self.positions.seen(state, rules.turn(state)), self.device)
        with NoGrad():
            logits, value = self.network.judge(prepared(seen, self.preprocess))
        return to_arrays(logits), to_arrays(value)


class Outcome:
    """Adds `outcome`, z of each row [B], and `decided` [B], whether the game is over, so that z is known.

    Truncated games are not decided.

    Args:
        rules: of the game.
        discount: γ of a move.
    """

    requires = (f"observation.{RULES_STATE}", "reward", "terminated")
    provides = ("outcome", "decided")
    rowwise = True
    removes = replaces = ()

    def __init__(self, rules: Simulator, *, discount: float = 1.0) -> None:
        self.positions, self.discount = Positions(rules), discount

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Outcome looks ahead in a table, and this batch is not of one")
        where = rows.where
        episode = where.episode(rows.index)
        slots, count = rows.onward(int((where.newest(episode) - rows.step).max()))
        last = np.take_along_axis(slots, count[..., None] - 1, -1)[..., 0]
        over = (where.status[episode] == CLOSED) & rows.stored("terminated", last).numpy()
        position = rows.stored(f"observation.{RULES_STATE}", slots).numpy()
        turn = self.positions.rules.turn(self.positions.of({RULES_STATE: position.reshape(-1, position.shape[-1])}))
        turn, reward = turn.reshape(slots.shape), rows.gather("reward", slots).numpy()
        outcome = np.zeros(count.shape, np.float32)
        for step in reversed(range(slots.shape[-1] - 1)):
            signed = np.where(turn[..., step] == turn[..., 0], reward[..., step], -reward[..., step])
            outcome = np.where(step < count, signed + self.discount * outcome, outcome).astype(np.float32)
        return batch | {"outcome": torch.from_numpy(outcome), "decided": torch.from_numpy(over)}


class AlphaZeroLoss(LossCallback):
    """The loss of policy and value: (z - v)² - Σ_a π(a) log p(a) + c |θ|².

    Args:
        network: p and v.
        optimizer: of both.
        value_weight: factor of the first term.
        decay: c.
        options: of `LossCallback`.
    """

    def __init__(
        self,
        network: Any,
        optimizer: Optimizer | None,
        *,
        value_weight: float = 1.0,
        decay: float = 1e-4,
        **options: Any,
    ) -> None:
        require_at_least("value_weight", value_weight, 0)
        require_at_least("decay", decay, 0)
        super().__init__(network, optimizer, **options)
        self.judge: Judging = network
        self.value_weight, self.decay = value_weight, decay

    def loss(self, observation: Tree, search_policy: Tensor, outcome: Tensor, decided: Tensor) -> LossResult:
        log_probs, value = self.judge.judge(observation)
        error = (outcome - value).square() * decided
        cross_entropy = -(search_policy * log_probs).sum(-1)
        loss = self.value_weight * error + cross_entropy
        if self.decay:
            loss = loss + self.decay * sum(parameter.square().sum() for parameter in self.parameters)
        return loss, {}, {"alphazero/value_error": error.detach(), "alphazero/cross_entropy": cross_entropy.detach()}
