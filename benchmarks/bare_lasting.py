"""Actions that last, by hand: going on or switching at each step, and deciding for how many steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bare import Numbers, Open, Ring, spaces_of
from benchmarks.bare_others import Trained, target_copy, watched
from benchmarks.clock import Clock
from rlrun.algorithms.actor_critic.action_repeat import decisions
from rlrun.algorithms.actor_critic.taac import SwitchingPolicy, TrajectoryCritics
from rlrun.nn import Critics, SoftPolicy, Temperature


def gumbel(log_probs: Tensor) -> Tensor:
    """Draw choices [B] of log-probabilities [B, K]."""
    return (log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(-1)


def shared_entropy(choices: int, share: float) -> float:
    """Return the entropy of choices, of which all but one share a probability."""
    return share * (math.log(choices - 1) - math.log(share)) - (1.0 - share) * math.log1p(-share)


class Windows:
    """The newest transitions, and windows of them that end with their episode."""

    def __init__(self, length: int, width: int, steps: int) -> None:
        self.length, self.size, self.next, self.steps = length, 0, 0, np.arange(steps)
        self.observation, self.following = (np.zeros((length, width), np.float32) for _ in range(2))
        self.before, self.during = (np.zeros((length, 1), np.float32) for _ in range(2))
        self.reward = np.zeros(length, np.float32)
        self.switched, self.terminated, self.episode_end = (np.zeros(length, bool) for _ in range(3))
        self.generator = np.random.default_rng(0)

    def add(self, **values: Any) -> None:
        """Write a transition over the oldest."""
        for name, value in values.items():
            getattr(self, name)[self.next] = value
        self.next = (self.next + 1) % self.length
        self.size = min(self.size + 1, self.length)

    def sample(self, count: int) -> dict[str, Tensor]:
        """Return columns [B, T, …]; `valid` is True up to the end of the episode."""
        starts = self.generator.integers(0, self.size, count)
        rows = (starts[:, None] + self.steps) % self.length
        age = (self.next - 1 - starts) % self.length  # steps until the newest
        over = np.zeros(rows.shape, bool)
        over[:, 1:] = np.logical_or.accumulate(self.episode_end[rows[:, :-1]], 1)
        names = ("observation", "following", "before", "during", "reward", "switched", "terminated", "episode_end")
        columns = {name: torch.from_numpy(getattr(self, name)[rows]) for name in names}
        return {**columns, "valid": torch.from_numpy(~over & (self.steps <= age[:, None]))}


def taac(open_env: Open, numbers: Numbers, clock: Clock) -> None:
    """Temporally abstract actor-critic with trajectories that stay as they are; runs until the clock's last mark."""
    env = open_env()
    low, high = env.action_space.low, env.action_space.high
    update = TaacUpdate(spaces_of(env), numbers, clock)
    ring = Windows(numbers["length"], env.observation_space.shape[0], numbers["window"])
    warm_up, batch = numbers["warmup_steps"], numbers["batch_size"]
    generator, step, updates = np.random.default_rng(0), 0, 0
    observation, _ = env.reset(seed=0)
    before = np.zeros((1, 1), np.float32)
    while True:
        if step < warm_up:
            switch = bool(generator.integers(0, 2))
            during = generator.uniform(-1.0, 1.0, (1, 1)).astype(np.float32) if switch else before
        else:
            with torch.no_grad():
                taken, chosen = update.act(torch.from_numpy(observation).unsqueeze(0), torch.from_numpy(before))
            during, switch = taken.numpy(), bool(chosen)
        following, reward, terminated, truncated, _ = env.step(low + (during[0] + 1.0) * 0.5 * (high - low))
        episode_end = terminated or truncated
        ring.add(
            observation=observation,
            following=following,
            before=before[0],
            during=during[0],
            reward=reward,
            switched=switch,
            terminated=terminated,
            episode_end=episode_end,
        )
        observation, before = (env.reset()[0], np.zeros((1, 1), np.float32)) if episode_end else (following, during)
        step += 1
        while updates < int((step - warm_up) * numbers["updates_per_step"]):
            updates += 1
            update(**ring.sample(batch))
        if step >= clock.due and clock.note(step):
            return


class TaacUpdate:
    """One gradient update of critics, policy and temperatures."""

    def __init__(self, spaces: Any, numbers: Numbers, clock: Clock) -> None:
        hidden = tuple(numbers["hidden"])
        self.critics = TrajectoryCritics(spaces, hidden=hidden, members=numbers["ensemble"])
        self.temperature = Temperature(self.critics.decisions)
        self.policy = SwitchingPolicy(spaces, self.critics, self.temperature, hidden=hidden)
        self.target, self.target_parameters, self.source_parameters = target_copy(self.critics)
        self.trained = [Trained(network, numbers) for network in (self.critics, self.policy, self.temperature)]
        watched(clock, self.trained)
        self.discount, self.tau = numbers["discount"], numbers["tau"]
        share = numbers["temperature"]["share"]["discrete"]
        self.entropy_target = torch.tensor([-float(spaces.action.size), shared_entropy(2, share)])

    def propose(self, observation: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return a new action [..., 1] with its log-probability [...]."""
        proposal: tuple[Tensor, Tensor] = self.policy.gaussian({"observation": observation, "trajectory": before})
        return proposal

    def act(self, observation: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is done [1, 1], and whether that is new [1]."""
        c, _ = self.propose(observation, before)
        values = self.both(self.critics, observation, before, c)
        switch = gumbel(self.choice(values, self.temperature.log.exp())) == 1
        return torch.where(switch.unsqueeze(-1), c, before), switch

    def both(self, critics: Any, observation: Tensor, kept: Tensor, new: Tensor) -> Tensor:
        """Return the smallest values [..., 2]."""
        return torch.stack((critics(observation, kept).amin(0), critics(observation, new).amin(0)), -1)

    def choice(self, values: Tensor, alpha: Tensor) -> Tensor:
        """Return the log-probabilities of both."""
        return (values / alpha[1]).log_softmax(-1)

    def __call__(
        self,
        *,
        observation: Tensor,
        following: Tensor,
        before: Tensor,
        during: Tensor,
        reward: Tensor,
        switched: Tensor,
        terminated: Tensor,
        episode_end: Tensor,
        valid: Tensor,
    ) -> None:
        for_critics, for_policy, for_temperature = self.trained
        weight = valid.float() / valid.sum()
        with torch.no_grad():
            alpha = self.temperature.log.exp()
            c, _ = self.propose(following, during)
            choice = self.choice(self.both(self.critics, following, during, c), alpha)
            value = (choice.exp() * self.both(self.target, following, during, c)).sum(-1)
            stop = episode_end | (gumbel(choice) == 1)
            stop[:, :-1] |= switched[:, 1:] | ~valid[:, 1:]
            stop[:, -1] = True
            carried = reward + self.discount * value.masked_fill(terminated, 0.0)
            q_target = carried.clone()
            for t in range(reward.shape[1] - 2, -1, -1):
                through = reward[:, t] + self.discount * q_target[:, t + 1]
                q_target[:, t] = torch.where(stop[:, t], carried[:, t], through)
        for_critics.step(((self.critics(observation, during) - q_target).square().sum(0) * weight).sum())

        c, log_prob = self.propose(observation, before)
        values = self.both(self.critics, observation, before, c)
        choice = self.choice(values.detach(), alpha)
        for_policy.step(((alpha[0] * log_prob - choice[..., 1].exp() * values[..., 1]) * weight).sum())
        entropy = torch.stack((-log_prob.detach(), -(choice.exp() * choice).sum(-1)), -1)
        distance = (self.temperature.log * (entropy - self.entropy_target)).sum(-1)
        for_temperature.step((distance * weight).sum())
        torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)


def action_repeat(open_env: Open, numbers: Numbers, clock: Clock) -> None:
    """Mixed soft actor-critic over an action and how often it is done; runs until the clock's last mark."""
    env = open_env()
    low, high = env.action_space.low, env.action_space.high
    most, discount = numbers["most_steps"], numbers["discount"]
    update = RepeatUpdate(decisions(spaces_of(env), most=most), numbers, clock)
    ring = Ring(numbers["length"], observation=env.observation_space.shape[0], action=(2,), dtype="float32")
    warm_up, batch = numbers["warmup_steps"], numbers["batch_size"]
    generator, step, updates = np.random.default_rng(0), 0, 0
    observation, _ = env.reset(seed=0)
    steps: list[tuple[Any, float]] = []
    remaining = 0
    while True:
        if not remaining:
            if step < warm_up:
                action, remaining = generator.uniform(-1.0, 1.0, low.shape), int(generator.integers(1, most + 1))
            else:
                with torch.no_grad():
                    c, k = update.act(torch.from_numpy(observation).unsqueeze(0))
                action, remaining = c[0].numpy(), int(k) + 1
        following, reward, terminated, truncated, _ = env.step(low + (action + 1.0) * 0.5 * (high - low))
        steps.append((observation, float(reward)))
        remaining -= 1
        if terminated or truncated or not remaining:
            total, carry = 0.0, 0.0 if terminated else 1.0
            for count, (seen, gained) in enumerate(reversed(steps)):
                total, carry = gained + discount * total, carry * discount
                ring.add(seen, (action[0], count), total, following, carry)
            steps, remaining = [], 0
        observation = env.reset()[0] if terminated or truncated else following
        step += 1
        while updates < int((step - warm_up) * numbers["updates_per_step"]):
            updates += 1
            update(*ring.sample(batch))
        if step >= clock.due and clock.note(step):
            return


class RepeatUpdate:
    """One gradient update of critics, policy and temperatures."""

    def __init__(self, spaces: Any, numbers: Numbers, clock: Clock) -> None:
        hidden = tuple(numbers["hidden"])
        self.critics = Critics(spaces, hidden=hidden, members=numbers["ensemble"])
        self.temperature = Temperature(spaces)
        self.policy = SoftPolicy(spaces, self.critics, self.temperature, hidden=hidden).gaussian
        self.target, self.target_parameters, self.source_parameters = target_copy(self.critics)
        self.trained = [Trained(network, numbers) for network in (self.critics, self.policy, self.temperature)]  # type: ignore[arg-type]
        watched(clock, self.trained)
        self.tau = numbers["tau"]
        share = numbers["temperature"]["share"]["discrete"]
        self.entropy_target = torch.tensor([-1.0, shared_entropy(numbers["most_steps"], share)])

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action [1, 1] and how often it is done beyond once [1]."""
        c, _ = self.policy(observation)  # type: ignore[misc]
        return c, gumbel(self.choice(self.critics(observation, c).amin(0), self.temperature.log.exp()))

    def choice(self, values: Tensor, alpha: Tensor) -> Tensor:
        """Return log-probabilities [B, K]."""
        return (values / alpha[1]).log_softmax(-1)

    def __call__(self, observation: Tensor, action: Tensor, reward: Tensor, following: Tensor, carry: Tensor) -> None:
        for_critics, for_policy, for_temperature = self.trained
        c, k = action[:, :1], action[:, 1:].long()
        with torch.no_grad():
            alpha = self.temperature.log.exp()
            next_c, next_log_prob = self.policy(following)  # type: ignore[misc]
            choice = self.choice(self.critics(following, next_c).amin(0), alpha)
            value = (choice.exp() * (self.target(following, next_c).amin(0) - alpha[1] * choice)).sum(-1)
            q_target = reward + carry * (value - alpha[0] * next_log_prob)
        q_value = self.critics(observation, c).gather(-1, k.expand(2, -1, -1)).squeeze(-1)
        for_critics.step((q_value - q_target).square().sum(0).mean())

        drawn, log_prob = self.policy(observation)  # type: ignore[misc]
        values = self.critics(observation, drawn).amin(0)
        choice = self.choice(values.detach(), alpha)
        for_policy.step((alpha[0] * log_prob - (choice.exp() * values).sum(-1)).mean())
        entropy = torch.stack((-log_prob.detach(), -(choice.exp() * choice).sum(-1)), -1)
        for_temperature.step((self.temperature.log * (entropy - self.entropy_target)).sum(-1).mean())
        torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)
