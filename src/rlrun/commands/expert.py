"""The policy of a finished run as an expert that collects demonstrations."""

from typing import Any

from torch import Tensor

from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.commands.fork.parents import find
from rlrun.commands.load import load
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces, describe
from rlrun.core.typing import Tree
from rlrun.env.spaces import from_gymnasium
from rlrun.export.opening import is_export
from rlrun.runs.trust import require_remembered, said_by


class Expert:
    """The policy of a run or of an exported file, with its best actions.

    Args:
        run: as for `rlrun.load`: RUN, RUN@best, RUN@STEP or FILE.onnx.
        spaces: of the environment.
        stochastic: sample actions while episodes are stored, as in training.
        learned: arguments of a trained network, if the config puts the expert in place of one, which is refused.

    Raises:
        RequestError: there is no such run, or it is not trusted.
        ConfigError: the algorithm trains a policy, the expert is recurrent, or its spaces differ.
    """

    def __init__(self, run: str, spaces: Spaces, *, stochastic: bool = False, **learned: Any) -> None:
        if learned and "hidden" not in learned:  # a mistyped argument
            raise TypeError(f"Expert.__init__() got an unexpected keyword argument '{next(iter(learned))}'")
        if learned:
            way_out = "algorithm=handcrafted stores its episodes, and +with=offline dataset=FILE learns from them"
            raise ConfigError(f"expert: it would act in place of the policy that this algorithm trains; {way_out}")
        if not is_export(run):
            place = find(run)[0].path
            require_remembered(place, said_by(place), False, "this run was not made here", f" in rlrun eval {place}")
        policy = load(run, device=None if is_export(run) else "cpu")
        if policy.recurrent:
            raise ConfigError("expert: its policy is recurrent, and only policies without a state are replayed")
        for role in ("observation", "action"):
            own = describe(from_gymnasium(getattr(policy, f"{role}_space"), f"the {role} space"))
            here = describe(getattr(spaces, role))
            if own != here:
                raise ConfigError(f"expert: {policy.name} knows {role}s {own}, and those of the environment are {here}")
        self.agent, self.stochastic = policy.agent, stochastic

    def act(self, observation: Tree, explore: bool = False) -> Tree | Tensor:
        """Return actions for observations, trees of tensors [N, …]; without `explore`, the best ones."""
        response = self.agent(to_arrays(observation), explore=explore and self.stochastic)
        return to_tensors(response["action"])
