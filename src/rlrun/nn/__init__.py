"""Networks for any space, and the methods that algorithms call on them.

A network of your own, named by `_target_`, takes part by the same calls. Observations are
trees of tensors [B, …] or [B, T, …]. c [B, A] is the continuous part of an action, in [-1, 1]. k [B, D] are the
choices of its discrete part. `rlrun.nn.ActionCodec` cuts action trees into c and k.

Soft actor-critic calls, on the network of the Gaussian (only where the action space has a Box):

    gaussian(observation) -> c, log_prob                [B, A], [B], with gradients to the parameters
    gaussian.mode(observation) -> c                     without noise

and on the critics, and a copy of them:

    critics(observation, c) -> value                    [M, B] without choices (c is None without a Box)
    critics(observation, c) -> values                   [M, B, width] with choices
    critics.codec                                       the ActionCodec that gives `values` their meaning

Critics whose values are means of distributions, such as `rlrun.nn.Critics`, also have:

    critics.raw_output(observation, c) -> output        [M, B, N], or [M, B, width, N] with choices
    critics.value_head                                  the `rlrun.nn.ValueHead` that gives them their meaning

Where `value_head` is `rlrun.nn.Rewards`, outputs and values have an axis for R rewards behind that of members:
[M, R, B] or [M, R, B, width].

DQN calls `network(observation) -> values` [M, B, width], `network.codec`, and for acting
`network.act(observation, explore) -> action`; `rlrun.algorithms.value_based.dqn.QNetwork` is such a network.

DDPG and TD3 call, on the network of the policy, `network(observation) -> c` [B, A] with gradients, and `network.act`;
`rlrun.nn.DeterministicPolicy` is such a network. Their critics are those of soft actor-critic.

Optimistic actor-critic also calls `gaussian.normal(observation) -> mean, log_std` [B, A], of the normal under the tanh.

Where one of these is recurrent, observations of replayed windows are those that `rlrun.nn.recurrent.with_state` makes.
What acts then has `state_size`, `initial_state`, `advance` and `after` of the following; `Remembering` is a base.

On-policy algorithms call, on one network:

    network.act(observation, explore) -> action         tree
    network.evaluate_actions(observation, action) -> log_prob, entropy, value: each [B]; heads; and
                                                        leaf_entropy [B, leaves], where leaves have entropy targets
    network.value(observation) -> value                 [B]
    network.head.divergence(heads, heads)               -> KL [B], where an algorithm holds a policy near another
    network.state_size                                  0; or the numbers S of a recurrent state, or a tree of shapes
                                                        such as {"read": [4], "memory": [9, 4]}, and then:
    network.initial_state(count) -> state               [count, S], or a tree, of episodes that begin
    network.advance(observation, state, explore)        -> action, and the state after it; in place of `act`
    network.after(observation, state) -> state          [B, S]; with `follows_actions` = True, of an action, too
    network.evaluate_actions(observation, action, state, episode_end)
    network.value(observation, state, episode_end)      state [B, S] before single steps, or windows [B, T, …] of them;
                                                        episode_end [B, T]: the state is zero after that row
    network.heads(observation, …) -> heads              where an update is compared with the policy before it
"""

from rlrun.nn.actions import ActionCodec, ActionHead, Heads
from rlrun.nn.actor_critic import ActorCritic, Evaluated
from rlrun.nn.autoencoder import Autoencoder, RegularizedMLP
from rlrun.nn.convolutions import Convolutions, ResNet
from rlrun.nn.critics import Critics, ImplicitCritics, Value
from rlrun.nn.decoders import Decoder, Deconvolutions, ResNetDecoder, SpatialBroadcast, UNet
from rlrun.nn.dynamics import Beyond, Coded, Dynamics, WorldModel
from rlrun.nn.encoders import DetachedEncoder, Encoded, EncodedMLP, Encoder, ImageEncoder, Trunk, flatten
from rlrun.nn.ensemble import Dueling, Ensemble
from rlrun.nn.external_memory import ExternalMemory, MemoryCore
from rlrun.nn.inverse_model import InverseModel
from rlrun.nn.latent import Latent, SharedFeatures
from rlrun.nn.mirror import Mirror
from rlrun.nn.mlp import MLP, normal_, orthogonal_, xavier_uniform_
from rlrun.nn.muzero import MuZeroNetwork
from rlrun.nn.muzero_maps import MuZeroMaps
from rlrun.nn.normalizer import Normalizer, ReturnNormalizer
from rlrun.nn.parameter_groups import grouped, retuned
from rlrun.nn.policy import DeterministicPolicy, Policy, SoftPolicy, SquashedGaussian, Temperature
from rlrun.nn.precision import MixedPrecision
from rlrun.nn.recurrent import Core, StatefulEncoder
from rlrun.nn.target_network import Follow, frozen_copy
from rlrun.nn.value_heads import Bins, Numbers, Ordered, Quantiles, Rewards, TwoHot, ValueHead, value_head_of

__all__ = ["MLP", "ActionCodec", "ActionHead", "ActorCritic", "Autoencoder", "Bins", "Convolutions", "Core", "Critics"]
__all__ += ["Decoder", "Deconvolutions", "DetachedEncoder", "DeterministicPolicy", "Dueling", "Encoded", "EncodedMLP"]
__all__ += ["Encoder", "Ensemble", "Evaluated", "Follow", "Heads", "ImageEncoder", "ImplicitCritics", "InverseModel"]
__all__ += [
    "Latent",
    "Mirror",
    "MixedPrecision",
    "Normalizer",
    "Numbers",
    "Policy",
    "Quantiles",
    "RegularizedMLP",
    "ResNet",
]
__all__ += [
    "ResNetDecoder",
    "ReturnNormalizer",
    "Rewards",
    "SharedFeatures",
    "SoftPolicy",
    "SpatialBroadcast",
    "SquashedGaussian",
]
__all__ += ["StatefulEncoder", "Temperature", "Trunk", "UNet", "Value", "ValueHead"]
__all__ += [
    "Beyond",
    "Coded",
    "Dynamics",
    "ExternalMemory",
    "MemoryCore",
    "Mirror",
    "MuZeroMaps",
    "MuZeroNetwork",
    "Ordered",
    "TwoHot",
    "WorldModel",
]
__all__ += [
    "flatten",
    "frozen_copy",
    "grouped",
    "normal_",
    "orthogonal_",
    "retuned",
    "value_head_of",
    "xavier_uniform_",
]
