"""Features of another network's encoder, which a second loss trains, too."""

from torch import Tensor, nn

from rlrun.core.errors import ConfigError, require_at_least
from rlrun.core.typing import Tree
from rlrun.nn.encoders import Encoded


class SharedFeatures(nn.Module):
    """The encoder of another network, such as critics, which a term of their joint loss trains, too."""

    def __init__(self, network: Encoded) -> None:
        super().__init__()
        if not [*network.encoder.parameters()]:
            kind = type(network).__name__
            way_out = "encoder._target_=torch.nn.LazyLinear +encoder.out_features=32 makes one"
            raise ConfigError(f"a {kind} has no layers in its encoder here, which this loss could train; {way_out}")
        self.encoder = network.encoder
        self.size = network.encoded
        self._owner = (network,)  # in a tuple, so that its other parameters do not belong to the term

    def forward(self, observation: Tree) -> Tensor:
        return self._owner[0].encode(observation)


class Latent(nn.Module):
    """Latents [..., Z] of observations [...]: shared features, optionally with a dense layer behind them.

    Args:
        network: owner of the encoder.
        projection: width of the dense layer, Z; None = no layer.

    Raises:
        ConfigError: the encoder has no layers, or a state.
    """

    def __init__(self, network: Encoded, *, projection: int | None = None) -> None:
        super().__init__()
        if getattr(network.encoder, "state_size", 0):
            raise ConfigError(
                f"the encoder of a {type(network).__name__} has a state here, and these latents are of single "
                "observations; remove algorithm.recurrent and encoder=recurrent"
            )
        require_at_least("projection", 1 if projection is None else projection, 1)
        self.features = SharedFeatures(network)
        self.size = self.features.size if projection is None else projection
        self.projection = nn.Identity() if projection is None else nn.Linear(self.features.size, projection)

    def forward(self, observation: Tree) -> Tensor:
        latent: Tensor = self.projection(self.features(observation))
        return latent
