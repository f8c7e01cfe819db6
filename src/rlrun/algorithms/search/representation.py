"""MuZero's model as a representation: an algorithm reads its latents in place of observations.

The model learns as MuZero's does, from rows of its own memory and with its own optimizer. This memory has no searches,
so returns bootstrap from the values of a target network. Policies are learned from searches of stored positions by that
network, or not at all. No gradient of the algorithm reaches the model.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlrun.algorithms.search.candidates import Candidates
from rlrun.algorithms.search.muzero import MuZeroLoss, SearchTargets
from rlrun.callbacks.losses.loss import LossResult
from rlrun.callbacks.losses.target import TargetResult
from rlrun.core.errors import require_number, require_whole
from rlrun.core.typing import Batch, Tree
from rlrun.memory.adaptors.trajectory import Trajectory, require_return
from rlrun.memory.adaptors.transforms import WeighRewards
from rlrun.nn.muzero import MuZeroNetwork


class MuZeroRepresentation(MuZeroNetwork):
    """MuZero's networks, whose latents of observations are the features that an algorithm reads."""

    @property
    def size(self) -> int:
        """Size of a latent, Z."""
        return self.latent

    def features(self, observation: Tree) -> Tensor:
        """Return the latents [..., Z] of observations [...]."""
        return self.represent(observation)


def trajectory_of(
    candidates: Candidates,
    *,
    unroll: int,
    td_steps: int,
    share: float,
    reanalyze_td_steps: int,
    compared: float = 0.0,
    seed: int = 0,
) -> Trajectory:
    """Return the `Trajectory` adaptor of a memory without searches.

    Args:
        candidates: actions of new searches.
        unroll: number of predicted steps.
        td_steps: number of rewards of a return; -1 = all of an episode.
        share: of a batch, whose positions are searched.
        reanalyze_td_steps: number of rewards of their returns.
        compared: weight of the consistency loss, whose observations are looked up if it is above 0.
        seed: of its random numbers.

    Raises:
        ConfigError: a number is out of range.
    """
    require_whole("unroll", unroll, 1)
    require_return("td_steps", td_steps)
    require_whole("reanalyze_td_steps", reanalyze_td_steps, 1)
    unstored: dict[str, Any] = {"value": None, "policy": None, "actions": candidates.actions}
    lengths = [td_steps, reanalyze_td_steps]
    return Trajectory(
        steps=unroll, td_steps=lengths, fresh=True, searched=share, compared=compared, seed=seed, **unstored
    )


def weighed(adaptors: Mapping[str, Any]) -> WeighRewards | None:
    """Return an adaptor that sums several rewards as another memory's does, which may keep them apart; or None."""
    weighing = [adaptor for adaptor in adaptors.values() if isinstance(adaptor, WeighRewards)]
    if not weighing:
        return None
    weights = weighing[0].weights
    return WeighRewards(weights if callable(weights) else weights.tolist())


class MuZeroRepresentationTargets(SearchTargets):
    """Provide the targets of all predictions: `SearchTargets` that always bootstrap from the target network.

    Metrics have names of their own, as the algorithm may be MuZero, too.

    Args:
        options: of `SearchTargets`, without `fresh`.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, *args: Any, discount: float, tau: float, every: int, **options: Any) -> None:
        require_number("discount", discount, 0, 1)
        require_number("tau", tau, 0, 1)
        require_whole("every", every, 1)
        super().__init__(*args, fresh=True, discount=discount, tau=tau, every=every, **options)

    def target(self, trajectory: Batch, later: Tree) -> TargetResult:
        outputs, metrics = super().target(trajectory, later)
        return outputs, _renamed(metrics)


class MuZeroRepresentationLoss(MuZeroLoss):
    """The weighted sum of all losses: `MuZeroLoss` with other names of metrics."""

    def loss(self, observation: Tree, trajectory: Batch, wanted: Batch, later: Tree) -> LossResult:
        total, outputs, metrics = super().loss(observation, trajectory, wanted, later)
        return total, outputs, _renamed(metrics)


def _renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return `muzero/loss_value` as `representation/loss_value`, and `value/mean` as `representation/value_mean`."""
    return {
        f"representation/{name.removeprefix('muzero/').replace('/', '_')}": value for name, value in metrics.items()
    }
