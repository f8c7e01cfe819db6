"""Returns and advantages over windows of steps, episode ends within them included.

Windows are [B, T] or, for rewards of several dimensions, [B, T, D]. At step t, `reward` is the action's, `value` that
of the observation before the action, `next_value` that of the one after it. The observation after a truncated episode
is its last one, not the first of the next. `terminated` [B, T] marks terminal states, `episode_end` [B, T] the end of
the episode, terminated or truncated. A window's last step is bootstrapped like a truncated one. All results are without
gradient.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def discounts(discount: float | Sequence[float], *, like: Tensor) -> float | Tensor:
    """Return γ, or as a tensor [R] one γ for each reward."""
    return discount if isinstance(discount, float | int) else torch.tensor(list(discount), device=like.device)


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    *,
    terminated: Tensor,
    episode_end: Tensor,
    discount: float | Tensor,
    lambda_: float,
) -> Tensor:
    """Return generalized advantages [B, T] (Schulman et al. 2015, arXiv 1506.02438, eq. 16).

    discount: γ; [D] for one a reward dimension.
    """
    error = one_step_return(reward, next_value, terminated=terminated, discount=discount) - value
    return _backwards(error, _carry(episode_end, error) * discount * lambda_)


@torch.no_grad()
def lambda_return(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    *,
    terminated: Tensor,
    episode_end: Tensor,
    discount: float | Tensor,
    lambda_: float,
) -> Tensor:
    """Return TD(λ) targets [B, T]: values plus advantages; λ = 0: one step, λ = 1: up to the end of the window."""
    advantage = gae(
        reward, value, next_value, terminated=terminated, episode_end=episode_end, discount=discount, lambda_=lambda_
    )
    return advantage + value


@torch.no_grad()
def lengthened(
    target: Tensor, reward: Tensor, *, episode_end: Tensor, discount: float | Tensor, lambda_: float | Tensor
) -> Tensor:
    """Return TD(λ) targets [B, T] from one-step targets.

    r_t + γ v_{t+1} becomes G_t = r_t + γ ((1 - λ) v_{t+1} + λ G_{t+1}); where an episode or the window ends, the target
    stays. So v may contain an entropy, or be the smallest of several critics.
    discount: γ, or [B, T].
    """
    share = _carry(episode_end, target) * lambda_
    share[:, -1] = 0.0
    bootstrapped = target - reward
    return _backwards(target - share * bootstrapped, share * discount)


@torch.no_grad()
def discounted_return(
    reward: Tensor, next_value: Tensor, *, terminated: Tensor, episode_end: Tensor, discount: float | Tensor
) -> Tensor:
    """Return discounted sums of rewards [B, T] to the end of episode or window, bootstrapped unless terminated."""
    carry = _carry(episode_end, reward) * discount
    last = _last(episode_end, reward)
    earned = reward + last * discount * next_value.masked_fill(_like(terminated, next_value), 0.0)
    return _backwards(earned, carry)


@torch.no_grad()
def compare_through(
    reward: Tensor,
    next_value: Tensor,
    *,
    switched: Tensor,
    terminated: Tensor,
    episode_end: Tensor,
    discount: float | Tensor,
) -> Tensor:
    """Return sums of rewards [B, T] until one of two policies switches, bootstrapped there (arXiv 2104.06521 eq. 6).

    switched: [B, T], true where either policy leaves its trajectory at the step's next observation.
    """
    stopped = episode_end | switched
    return discounted_return(reward, next_value, terminated=terminated, episode_end=stopped, discount=discount)


@torch.no_grad()
def one_step_return(reward: Tensor, next_value: Tensor, *, terminated: Tensor, discount: float | Tensor) -> Tensor:
    """Return reward + γ · next value [B, T], without the value where the episode terminated."""
    return reward + discount * next_value.masked_fill(_like(terminated, next_value), 0.0)


@torch.no_grad()
def v_trace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    log_ratio: Tensor,
    *,
    terminated: Tensor,
    episode_end: Tensor,
    discount: float | Tensor,
    lambda_: float = 1.0,
    rho_limit: float = 1.0,
    c_limit: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return V-trace targets and advantages [B, T] of data from another policy (Espeholt et al. 2018, 1802.01561).

    log_ratio: of the probabilities of the actions, current over collecting policy, [B, T].
    """
    ratio, episode_end = _like(log_ratio.exp(), value), _like(episode_end, value)
    rho, c = ratio.clamp(max=rho_limit), lambda_ * ratio.clamp(max=c_limit)
    error = rho * (one_step_return(reward, next_value, terminated=terminated, discount=discount) - value)
    correction = _backwards(error, _carry(episode_end, error) * discount * c)  # eq. 1, as remark 1 unrolls it
    target = value + correction
    following = torch.cat((target[:, 1:], next_value[:, -1:]), 1)
    following = torch.where(episode_end, next_value, following)
    return target, rho * (one_step_return(reward, following, terminated=terminated, discount=discount) - value)


def _backwards(earned: Tensor, carry: Tensor) -> Tensor:
    """Return x with x_t = earned_t + carry_t · x_{t+1}, and 0 after the window."""
    if earned.is_cpu and not torch.compiler.is_compiling():  # numpy takes a third of the time
        now, factor = earned.detach().numpy(), carry.detach().numpy()
        result = np.empty_like(now)
        after = np.zeros_like(now[:, 0])
        for step in range(now.shape[1] - 1, -1, -1):
            before = result[:, step]
            np.multiply(factor[:, step], after, out=before)
            before += now[:, step]
            after = before
        return torch.from_numpy(result)
    sums, following = [], torch.zeros_like(earned[:, 0])
    for row, weight in zip(reversed(earned.unbind(1)), reversed(carry.unbind(1)), strict=True):
        following = torch.addcmul(row, weight, following)
        sums.append(following)
    return torch.stack(sums[::-1], 1)


def _carry(episode_end: Tensor, like: Tensor) -> Tensor:
    """Return 1 where the next step belongs to the same episode, 0 elsewhere."""
    return _like(~episode_end, like).to(like.dtype)


def _last(episode_end: Tensor, like: Tensor) -> Tensor:
    """Return 1 at the last step of each episode and of the window."""
    last = episode_end.clone()
    last[:, -1] = True
    return _like(last, like).to(like.dtype)


def _like(flags: Tensor, values: Tensor) -> Tensor:
    """Give flags [B, T] the dimensions of values [B, T, …]."""
    if flags.dim() == values.dim():
        return flags
    return flags.reshape(flags.shape + (1,) * (values.dim() - flags.dim())).expand_as(values)
