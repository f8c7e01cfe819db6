"""The mathematics: pure functions of tensors."""

from rlrun.ops.bins import bin_centres, smoothed_bins
from rlrun.ops.choices import choice_divergence, gumbel_argmax, one_hot
from rlrun.ops.gaussian import (
    gaussian_distance,
    gaussian_divergence,
    saturated,
    squashed_action,
    squashed_entropy,
    squashed_log_prob,
    squashed_sample,
    tanh_log_slope,
)
from rlrun.ops.losses import CLIPS, Clip, clip_, distance, error_size, mean_of, normalised, surrogate
from rlrun.ops.noise import gumbel_like, normal_like
from rlrun.ops.quantiles import LEAST, Fractions, Least, fixed_fractions, least_of, quantile_distance, sampled_fractions
from rlrun.ops.returns import discounted_return, gae, lambda_return, n_step_return, one_step_return, v_trace
from rlrun.ops.targets import TargetEntropy, bootstrap, choice_entropy, lerp_, range_entropy, target_entropy
from rlrun.ops.trees import leaves_of, tree_of

__all__ = [
    "CLIPS",
    "LEAST",
    "Clip",
    "Fractions",
    "Least",
    "TargetEntropy",
    "bin_centres",
    "bootstrap",
    "choice_divergence",
    "choice_entropy",
    "clip_",
    "discounted_return",
    "distance",
    "error_size",
    "fixed_fractions",
    "gae",
    "gaussian_distance",
    "gaussian_divergence",
    "gumbel_argmax",
    "gumbel_like",
    "lambda_return",
    "least_of",
    "leaves_of",
    "lerp_",
    "mean_of",
    "n_step_return",
    "normal_like",
    "normalised",
    "one_hot",
    "one_step_return",
    "quantile_distance",
    "range_entropy",
    "sampled_fractions",
    "saturated",
    "smoothed_bins",
    "squashed_action",
    "squashed_entropy",
    "squashed_log_prob",
    "squashed_sample",
    "surrogate",
    "tanh_log_slope",
    "target_entropy",
    "tree_of",
    "v_trace",
]
