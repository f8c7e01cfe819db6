"""Other learners of one continuous action by hand: deterministic gradients, bins, an editor, implicit Q-learning."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from benchmarks.bare import Numbers, adam, target_copy
from benchmarks.clock import Clock
from rlrun.algorithms.actor_critic.seditor import Editor
from rlrun.algorithms.value_based.mdq import BinPolicy
from rlrun.core.spaces import Spaces
from rlrun.nn import Critics, DeterministicPolicy, Policy, SquashedGaussian, Temperature, Value


class Trained:
    """A network with its optimizer."""

    def __init__(self, network: nn.Module, numbers: Numbers) -> None:
        self.parameters = list(network.parameters())
        self.optimizer = adam(self.parameters, numbers)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]
        self.optimizer.step()


def watched(clock: Clock, trained: Iterable[Trained]) -> None:
    """Let a clock count the steps of all."""
    clock.watch(learner.optimizer for learner in trained)


def critics_of(spaces: Spaces, numbers: Numbers) -> Critics:
    """Return plain critics."""
    return Critics(spaces, hidden=tuple(numbers["hidden"]), members=numbers["ensemble"])


class DdpgUpdate:
    """DDPG and, by its numbers, TD3."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        self.critics = critics_of(spaces, numbers)
        self.policy = DeterministicPolicy(spaces, hidden=tuple(numbers["hidden"]))
        both = nn.ModuleDict({"critics": self.critics, "policy": self.policy})
        self.target, self.target_parameters, self.source_parameters = target_copy(both)
        self.for_critics, self.for_policy = Trained(self.critics, numbers), Trained(self.policy, numbers)
        watched(clock, (self.for_critics, self.for_policy))
        noise = numbers["noise"]
        self.deviation, self.damping = noise["deviation"], noise["damping"]
        self.smoothing, self.limit = noise["target"], noise["target_limit"]
        self.every, self.target_every = numbers["policy_every"], numbers["target_every"]
        self.tau = numbers["tau"]
        self.noise = torch.zeros(1, spaces.action.size)

    def act(self, observation: Tensor) -> Tensor:
        self.noise = (1.0 - self.damping) * self.noise + self.deviation * torch.randn_like(self.noise)
        action: Tensor = (self.policy(observation) + self.noise).clamp(-1.0, 1.0)
        return action

    def __call__(self, number: int, *batch: Tensor) -> None:
        observation, action, reward, next_observation, carry = batch
        with torch.no_grad():
            next_action = self.target["policy"](next_observation)  # type: ignore[index]
            if self.smoothing:
                noise = (self.smoothing * torch.randn_like(next_action)).clamp(-self.limit, self.limit)
                next_action = (next_action + noise).clamp(-1.0, 1.0)
            value = self.target["critics"](next_observation, next_action).amin(0)  # type: ignore[index]
            q_target = reward + carry * value
        self.for_critics.step((self.critics(observation, action) - q_target).square().sum(0).mean())
        if number % self.every == 0:
            self.for_policy.step(-self.critics(observation, self.policy(observation))[0].mean())
        if number % self.target_every == 0:
            torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)


class MdqUpdate:
    """Soft Q-learning over bins."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        self.critics, self.temperature = critics_of(spaces, numbers), Temperature(spaces)
        self.policy = BinPolicy(spaces, self.temperature, bins=numbers["bins"], hidden=tuple(numbers["hidden"]))
        self.target, self.target_parameters, self.source_parameters = target_copy(self.critics)
        self.trained = [Trained(network, numbers) for network in (self.critics, self.policy, self.temperature)]
        watched(clock, self.trained)
        self.noise, self.tau = numbers["distill_noise"], numbers["tau"]
        self.even = -spaces.action.size * math.log(numbers["bins"])
        self.size = spaces.action.size

    def act(self, observation: Tensor) -> Tensor:
        return self.policy.sample(observation)[0]

    def __call__(self, number: int, *batch: Tensor) -> None:
        observation, action, reward, next_observation, carry = batch
        for_critics, for_policy, for_temperature = self.trained
        with torch.no_grad():
            alpha = self.temperature.log.exp()
            next_action, next_log_prob = self.policy.sample(next_observation)
            value = self.target(next_observation, next_action).amin(0) - alpha * (next_log_prob - self.even)
            q_target = reward + carry * value
            drawn, log_prob = self.policy.sample(observation)
            drawn = (drawn + self.noise * torch.randn_like(drawn)).clamp(-1.0, 1.0)
            evaluated = self.target(observation, drawn).amin(0)
            entropy = -log_prob + self.even + self.size * math.log(2.0)
        for_critics.step((self.critics(observation, action) - q_target).square().sum(0).mean())
        for_policy.step((self.policy(observation, drawn) - evaluated).square().mean())
        for_temperature.step((self.temperature.log * (entropy + self.size)).mean())
        torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)


class SeditorUpdate:
    """A policy, an editor of its actions, and critics of utility and cost."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        hidden = tuple(numbers["hidden"])
        self.utility_critics, self.cost_critics = critics_of(spaces, numbers), critics_of(spaces, numbers)
        self.utility, self.editor = SquashedGaussian(spaces, hidden=hidden), Editor(spaces, hidden=hidden)
        both = nn.ModuleList((self.utility_critics, self.cost_critics))
        self.target, self.target_parameters, self.source_parameters = target_copy(both)
        networks = (self.utility_critics, self.cost_critics, self.utility, self.editor)
        self.trained = [Trained(network, numbers) for network in networks]
        self.log_temperature = nn.Parameter(torch.zeros(2))
        self.for_temperature = Trained(nn.ParameterList([self.log_temperature]), numbers)
        watched(clock, (*self.trained, self.for_temperature))
        self.tau, self.size = numbers["tau"], spaces.action.size

    def act(self, observation: Tensor) -> Tensor:
        proposed = self.utility(observation)[0]
        return edited(proposed, self.editor(observation, proposed)[0])

    def __call__(self, number: int, *batch: Tensor) -> None:
        observation, action, reward, next_observation, carry = batch
        for_utility_critics, for_cost_critics, for_utility, for_editor = self.trained
        with torch.no_grad():
            alpha = self.log_temperature.exp()
            next_action = self.act(next_observation)
            values = [critics(next_observation, next_action).amin(0) for critics in self.target]  # type: ignore[union-attr]
            targets = [reward[:, index] + carry * value for index, value in enumerate(values)]
        for_utility_critics.step((self.utility_critics(observation, action) - targets[0]).square().sum(0).mean())
        for_cost_critics.step((self.cost_critics(observation, action) - targets[1]).square().sum(0).mean())

        proposed, log_prob = self.utility(observation)
        value = self.utility_critics(observation, edited(proposed, self.editor(observation, proposed)[0])).amin(0)
        for_utility.step((alpha[0] * log_prob - value).mean())

        with torch.no_grad():
            proposed, _ = self.utility(observation)
            before = self.utility_critics(observation, proposed).amin(0)
        edit, edit_log_prob = self.editor(observation, proposed)
        done = edited(proposed, edit)
        lost = (before - self.utility_critics(observation, done).amin(0)).relu()
        cost = self.cost_critics(observation, done).amin(0)
        for_editor.step((alpha[1] * edit_log_prob + lost - cost).mean())

        log_probs = torch.stack((log_prob.detach(), edit_log_prob.detach()), -1)
        self.for_temperature.step(-(self.log_temperature * (log_probs + self.size)).sum(-1).mean())
        torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)


def edited(proposed: Tensor, edit: Tensor) -> Tensor:
    """Return what is done."""
    return (proposed + 2.0 * edit).clamp(-1.0, 1.0)


class IqlUpdate:
    """Implicit Q-learning, from what it does itself."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        hidden = tuple(numbers["hidden"])
        self.critics, self.value = critics_of(spaces, numbers), Value(spaces, hidden=hidden)
        self.policy = Policy(spaces, hidden=hidden, spread=numbers["spread"])
        self.target, self.target_parameters, self.source_parameters = target_copy(self.critics)
        self.trained = [Trained(network, numbers) for network in (self.value, self.policy, self.critics)]
        watched(clock, self.trained)
        self.tau, self.expectile = numbers["tau"], numbers["expectile"]
        self.temperature, self.limit = numbers["temperature"], numbers["largest_weight"]
        self.edge = numbers["edge"]

    def act(self, observation: Tensor) -> Tensor:
        mean, log_std, _ = self.policy.heads(observation)
        assert mean is not None
        assert log_std is not None
        return torch.tanh(mean + log_std.exp() * torch.randn_like(mean))

    def __call__(self, number: int, *batch: Tensor) -> None:
        observation, action, reward, next_observation, carry = batch
        for_value, for_policy, for_critics = self.trained
        with torch.no_grad():
            q_target = reward + carry * self.value(next_observation)
            evaluated = self.target(observation, action).amin(0)
        error = evaluated - self.value(observation)
        share = torch.where(error < 0.0, 1.0 - self.expectile, self.expectile).detach()
        for_value.step((share * error.square()).mean())
        weight = (error.detach() / self.temperature).exp().clamp(max=self.limit)
        mean, log_std, _ = self.policy.heads(observation)
        assert mean is not None
        assert log_std is not None
        inside = action.clamp(self.edge - 1.0, 1.0 - self.edge)
        score = (inside.atanh() - mean) * (-log_std).exp()
        log_prob = -(0.5 * score.square() + log_std + 0.5 * math.log(2.0 * math.pi) + (1.0 - inside.square()).log())
        for_policy.step(-(weight * log_prob.sum(-1)).mean())
        for_critics.step((self.critics(observation, action) - q_target).square().sum(0).mean())
        torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)
