"""The mathematics: pure functions of tensors."""

from rlrun.ops.choices import gumbel_argmax, one_hot
from rlrun.ops.gaussian import squashed_entropy, squashed_log_prob, squashed_sample, tanh_log_slope
from rlrun.ops.losses import clip_, distance, error_size
from rlrun.ops.targets import TargetEntropy, bootstrap, choice_entropy, lerp_, range_entropy, target_entropy
from rlrun.ops.trees import leaves_of, tree_of

__all__ = [
    "TargetEntropy",
    "bootstrap",
    "choice_entropy",
    "clip_",
    "distance",
    "error_size",
    "gumbel_argmax",
    "leaves_of",
    "lerp_",
    "one_hot",
    "range_entropy",
    "squashed_entropy",
    "squashed_log_prob",
    "squashed_sample",
    "tanh_log_slope",
    "target_entropy",
    "tree_of",
]
