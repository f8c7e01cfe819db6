"""Recurrent networks in off-policy algorithms: windows, the states that they begin with, and targets step by step."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.actor_critic.action_repeat import Repeats, decisions, persistent
from rlrun.algorithms.actor_critic.ddpg import DeterministicPolicyLoss, DeterministicQTarget
from rlrun.algorithms.actor_critic.oac import OACAgent
from rlrun.algorithms.actor_critic.sac import SoftPolicy, SoftQTarget, Temperature
from rlrun.algorithms.actor_critic.sarsa import SarsaTarget
from rlrun.algorithms.actor_critic.taac import (
    SwitchingPolicy,
    SwitchingPolicyLoss,
    TrajectoryCritics,
    TrajectoryLoss,
    TrajectoryTarget,
)
from rlrun.algorithms.value_based.dqn import QNetwork, QTarget
from rlrun.callbacks import SoftPolicyLoss
from rlrun.collect import Collector, EpsilonGreedy, PolicyAgent, Repeating
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Spaces
from rlrun.env import make
from rlrun.memory import NStep, Past, Prioritized, Table
from rlrun.memory.adaptors.adaptor import RELABEL
from rlrun.nn import ActorCritic, Core, Critics, DeterministicPolicy, Policy
from rlrun.nn.recurrent import present, with_state

from .fixed import COIN, CONTINUOUS, DISCRETE, LINE, adam

pytestmark = pytest.mark.usefixtures("no_noise")
CORE = {"hidden": (4, 5), "core_size": 3}
PRESENT = torch.tensor([0.3, -0.7, 0.9, 0.1, -0.2])


def table_of(lengths, *, length, burn_in, n_step=1, terminated=False, sampler=None, size=60, further=()):
    """Return a table of episodes in which observation and state are the number of a row, and the last is still open."""
    past = Past(SimpleNamespace(state_size=1), length=length, burn_in=burn_in, n_step=n_step)
    adaptors = [past, NStep(steps=n_step, discount=0.5), *further]
    table, number = Table(spaces=CONTINUOUS, length=size, adaptors=adaptors, sampler=sampler), 0
    for episode, count in enumerate(lengths):
        for step in range(count):
            last = step == count - 1 and episode < len(lengths) - 1
            row = {"observation": [[number]], "action": [[0.0]], "reward": [1.0], "state": [[-number]]}
            table.add(None, row | {"terminated": [last and terminated], "truncated": [last and not terminated]})
            number += 1
        if episode < len(lengths) - 1:
            table.close(None, [[number]])
            number += 1
    return table


def windows_of(table, count=200):
    """Return by the first learned row: what each window of a sample has, of valid rows only."""
    batch, windows = table.sample(count), {}
    now, then = batch["observation"], batch["next_observation"]
    for index in range(count):
        valid = batch["valid"][index]
        row = {
            "first": float(now["observation"][index, 0]),
            "state": float(now["recurrent_state"][index]),
            "now": present(now)[index, valid, 0].tolist(),
            "next": present(then)[index, valid, 0].tolist(),
            "path": now["observation"][index, : int(then["at"][index][valid].max()) + 1, 0].tolist(),
            "weight": batch["weight"][index, valid].tolist(),
            "reward": batch["reward"][index, valid].tolist(),
        }
        assert float(batch["weight"][index, ~valid].abs().sum()) == 0.0
        assert windows.setdefault(row["now"][0], row) == row
    return windows


@pytest.mark.parametrize("n_step", [1, 2])
def test_each_row_is_learned_from_in_one_window(n_step):
    """Rows 0…8 of an episode, its last observation 9; and 10…12 of an open one, whose last row has no successor yet."""
    windows = windows_of(table_of([9, 3], length=5, burn_in=2, n_step=n_step))
    assert {row["first"]: row["now"] for row in windows.values()} == {
        0: [0.0, 1.0, 2.0, 3.0, 4.0],
        3: [5.0, 6.0, 7.0],
        6: [8.0],
        10: [10.0, 11.0],
    }
    for row in windows.values():
        first, end = row["first"], 9.0 if row["first"] < 10 else 12.0
        assert row["state"] == (-first if first < 10 else 0.0)  # the first row of an episode begins with zeros
        assert row["next"] == [min(now + n_step, end) for now in row["now"]]
        assert row["path"] == [first + step for step in range(int(row["next"][-1] - first) + 1)]
        assert row["weight"] == pytest.approx([5 / len(row["now"])] * len(row["now"]))


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_decisions_in_windows_last_as_they_were_decided(ends):
    """Observations 0…9 of an episode, in windows that learn from 0…4, 5…7 and 8."""
    lasts, most = [3, 2, 1, 2, 1, 4, 3, 2, 1], 4
    past = Past(SimpleNamespace(state_size=1), length=5, burn_in=2, n_step=most)
    adaptors = [past, Repeats(steps=most, most=most, discount=0.5)]
    table = Table(spaces=CONTINUOUS, length=30, columns={"lasts": {"dtype": "int64"}}, adaptors=adaptors)
    for number, steps in enumerate(lasts):
        row = {"observation": [[number]], "action": [[0.0]], "reward": [1.0], "state": [[-number]], "lasts": [steps]}
        over = {name: [name == ends and number == 8] for name in ("terminated", "truncated")}
        table.add(None, row | over)
    table.close(None, [[9]])
    batch = table.sample(60)
    now, then, valid = batch["observation"], batch["next_observation"], batch["valid"]
    learned = {}
    for index in range(60):
        rows = zip(present(now)[index, :, 0], present(then)[index, :, 0], batch["reward"][index], strict=True)
        learned |= {int(row[0]): (float(row[1]), float(row[2])) for row in np.array([*rows])[valid[index].numpy()]}
        first, path = int(now["observation"][index, 0]), now["observation"][index, :, 0]
        assert path.tolist() == [min(first + step, 9) for step in range(9)]
    sums = {1: 1.0, 2: 1.5, 3: 1.75, 4: 1.875}
    assert learned == {number: (number + steps, sums[steps]) for number, steps in enumerate(lasts)}
    assert (batch["action"]["repeats"] + 1 == batch["lasts"]).all()


def test_windows_begin_with_the_oldest_row_where_others_were_overwritten():
    table = table_of(
        [12, 2], length=5, burn_in=2, size=9
    )  # slots: 13 of the first episode and 2 of the second, ten kept
    windows = windows_of(table)
    oldest = min(windows)
    assert oldest == 5.0
    assert sorted(now for row in windows.values() for now in row["now"]) == [5.0, *range(6, 12), 13.0]
    assert windows[oldest]["state"] == -3.0  # the newest one that is stored: windows begin with rows 0, 3, 6, …


@pytest.mark.parametrize("size", range(5, 13))
@pytest.mark.parametrize(("n_step", "burn_in"), [(1, 2), (2, 0), (3, 2), (4, 1)])
def test_paths_begin_where_rows_are_left(n_step, burn_in, size):
    table = table_of([12, 2], length=5, burn_in=burn_in, n_step=n_step, size=size)
    for row in windows_of(table).values():
        last = 12.0 if row["first"] < 13 else 14.0
        assert row["next"] == [min(now + n_step, last) for now in row["now"]]
        assert row["path"] == [row["first"] + step for step in range(len(row["path"]))]
        assert row["path"][-1] == row["next"][-1]


class Reached:
    """Ends episodes at row 3, as hindsight does where a new goal is reached."""

    tier = RELABEL
    requires = provides = ("observation", "terminated")
    removes = replaces = ()

    def __call__(self, batch, rows):
        def ended(name, value, slots):
            return value | (rows.stored("observation", slots)[..., 0] == 3.0)

        rows.through("terminated", ended)
        return batch | {"terminated": ended("terminated", batch["terminated"], rows.index)}


@pytest.mark.parametrize("n_step", [2, 3])
def test_paths_go_on_behind_new_goals(n_step):
    row = windows_of(table_of([9, 3], length=5, burn_in=1, n_step=n_step, further=[Reached()]))[0.0]
    assert row["path"] == [float(step) for step in range(5 + n_step)]
    assert row["reward"][3] == 1.0  # nothing behind the goal is summed


def test_priorities_are_those_of_learned_rows():
    sampler = Prioritized(alpha=1.0, beta=1.0, epsilon=1e-6, mix=0.9, seed=1)
    table = table_of([9, 1], length=5, burn_in=2, sampler=sampler)
    batch = table.sample(64)
    errors = present(batch["observation"])[..., 0].clone()
    errors[~batch["valid"]] = 1000.0  # of burn-in and padding: never counted
    batch.feedback(errors)
    expected = [0.9 * 4 + 0.1 * 2] * 5 + [0.9 * 7 + 0.1 * 6] * 3 + [8.0]
    assert table.sampler.tree.leaves[:9] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("feedback", ["update", "burst"])
def test_priority_of_a_window_is_that_of_the_rows_it_learns_from(feedback):
    """A window begins with steps that are not learned from; priorities [B] are not theirs."""
    sampler = Prioritized(alpha=1.0, beta=1.0, epsilon=1e-12, seed=1, feedback=feedback)
    table = table_of([9, 1], length=5, burn_in=2, sampler=sampler)
    batch = table.sample(64)
    batch.feedback(5.0 + present(batch["observation"])[:, 0, 0])
    table.sample(1)  # priorities that waited are written before
    leaves = table.sampler.tree.leaves
    assert leaves[:8] == pytest.approx([5.0] * 5 + [8.0] * 3)


def stepped(network, observations, state, *arguments):
    """Return outputs of a network along observations [T], one step after the other, by states of its encoder."""
    outputs, encoder = [], network.encoder
    for step, observation in enumerate(observations):
        more = [argument[step] for argument in arguments]
        with torch.no_grad():
            outputs.append(network(with_state(observation.view(1, 1), state), *more))
            state = encoder.step(observation.view(1, 1), state)[1]
    return outputs


def batch_of(state, *, ends):
    """Return a window of 4 rows after a state, whose last row terminates if `ends`."""
    seen = PRESENT.view(1, 5, 1)
    now, then = (with_state(seen, state, torch.arange(4).view(1, 4) + shift) for shift in (0, 1))
    reward, terminated = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[False, False, False, ends]])
    return now, then, reward, terminated


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_q_targets_are_those_of_steps(kind, ends):
    torch.manual_seed(1)
    network, other = (QNetwork(DISCRETE, core=kind, **CORE) for _ in range(2))
    target = QTarget(network, discount=0.9)
    target.target_network.load_state_dict(other.state_dict())
    state = torch.randn(1, network.state_size)
    now, then, reward, terminated = batch_of(state, ends=ends)
    best = [int(values[0].argmax()) for values in stepped(network, PRESENT, state)]
    valued = [float(values[0, 0, choice]) for values, choice in zip(stepped(other, PRESENT, state), best, strict=True)]
    q_target = target.begin_batch(then, reward, terminated)["q_target"]
    expected = [step + 1 + 0.9 * valued[step + 1] for step in range(4)]
    assert q_target[0].tolist() == pytest.approx([*expected[:3], 4.0 if ends else expected[3]], abs=1e-5)
    assert network(now)[0, 0, -1].tolist() == pytest.approx(
        stepped(network, PRESENT, state)[3][0, 0].tolist(), abs=1e-5
    )


def test_soft_targets_and_losses_are_those_of_steps():
    torch.manual_seed(1)
    critics, slow = (Critics(CONTINUOUS, core="gru", **CORE) for _ in range(2))
    temperature = Temperature(CONTINUOUS, initial=0.2)
    policy = SoftPolicy(CONTINUOUS, critics, temperature, core="lstm", **CORE)
    assert policy.state_size == 2 * 3 + 3
    state = torch.randn(1, 9)
    now, then, reward, terminated = batch_of(state, ends=False)
    drawn = stepped(policy.gaussian, PRESENT, state[:, :6])
    actions = [c for c, _ in drawn]
    for target, cost in ((SoftQTarget, 0.2), (SarsaTarget, 0.0)):
        callback = target(critics, policy, temperature, discount=0.9)
        callback.target_network.load_state_dict(slow.state_dict())
        values = [float(value.amin()) for value in stepped(slow, PRESENT, state[:, 6:], actions)]
        after = [value - cost * float(log_prob) for value, (_, log_prob) in zip(values, drawn, strict=True)]
        q_target = callback.begin_batch(then, reward, terminated)["q_target"][0].tolist()
        assert q_target == pytest.approx([step + 1 + 0.9 * after[step + 1] for step in range(4)], abs=1e-5)
    loss = SoftPolicyLoss(policy, adam, critics=critics, temperature=temperature)
    values = [float(value.amin()) for value in stepped(critics, PRESENT, state[:, 6:], actions)]
    expected = [0.2 * float(log_prob) - value for value, (_, log_prob) in zip(values, drawn, strict=True)]
    assert loss.loss(now)[0][0].tolist() == pytest.approx(expected[:4], abs=1e-5)


def test_deterministic_targets_are_those_of_steps():
    torch.manual_seed(1)
    critics = Critics(CONTINUOUS, core="gru", **CORE)
    policy = DeterministicPolicy(CONTINUOUS, core="gru", **CORE)
    Past(policy, critics)
    state = torch.randn(1, policy.state_size)
    now, then, reward, terminated = batch_of(state, ends=True)
    actions = stepped(policy, PRESENT, state[:, :3])
    values = [float(value.amin()) for value in stepped(critics, PRESENT, state[:, 3:], actions)]
    q_target = DeterministicQTarget(critics, policy, discount=0.9).begin_batch(then, reward, terminated)["q_target"]
    expected = [*(step + 1 + 0.9 * values[step + 1] for step in range(3)), 4.0]
    assert q_target[0].tolist() == pytest.approx(expected, abs=1e-5)
    loss = DeterministicPolicyLoss(policy, adam, critics=critics, actor_q="min")
    assert loss.loss(now)[0][0].tolist() == pytest.approx([-value for value in values[:4]], abs=1e-5)


def acting(name):
    """Return a recurrent network that acts, with one or two encoders."""
    critics = Critics(CONTINUOUS, core="gru", **CORE)
    if name == "deterministic":
        policy = DeterministicPolicy(CONTINUOUS, core="lstm", **CORE)
        PolicyAgent(policy, critics=critics)
        return policy
    kinds = {"values": QNetwork, "policy": Policy, "actor_critic": ActorCritic}
    if name in kinds:
        return kinds[name](DISCRETE, core="lstm", **CORE)
    return SoftPolicy(CONTINUOUS, critics, Temperature(CONTINUOUS), core="lstm", **CORE)


@pytest.mark.parametrize("first", [0, 1])
def test_trajectories_are_proposed_after_what_was_seen(first, monkeypatch):
    """Where every step switches, targets are of one step; those before the first learned row do not matter."""
    monkeypatch.setattr("rlrun.ops.gumbel_argmax", lambda logits: torch.ones(logits.shape[:-1], dtype=torch.int64))
    torch.manual_seed(1)
    critics, slow = (TrajectoryCritics(CONTINUOUS, trajectory="linear", core="gru", **CORE) for _ in range(2))
    temperature = Temperature(critics.decisions, initial=0.2)
    policy = SwitchingPolicy(CONTINUOUS, critics, temperature, core="lstm", **CORE)
    trajectory, state = torch.rand(5, 3) - 0.5, torch.randn(1, policy.state_size)
    seen, after = [], state
    for observation in PRESENT:
        step, after = policy.stepped(observation.view(1, 1), after)
        seen.append(step)
    offers = [policy.propose(step, row[None, :-1]) for step, row in zip(seen, trajectory, strict=True)]
    both = [[offer.kept for offer in offers], [offer.new for offer in offers]]
    worth, slow_worth = (
        torch.stack([torch.cat(stepped(network, PRESENT, state[:, 6:], rows), 1).amin(0) for rows in both], -1)
        for network in (critics, slow)
    )
    values = (policy.choice(worth).exp() * slow_worth).sum(-1).tolist()
    target = TrajectoryTarget(critics, policy, discount=0.9)
    target.target_network.load_state_dict(slow.state_dict())
    now, then, reward, terminated = batch_of(state, ends=True)
    flags = {"terminated": terminated, "truncated": ~(terminated | True), "valid": torch.arange(4).view(1, 4) >= first}
    q_target = target.begin_batch(then, trajectory[None, 1:], reward, **flags)["q_target"][0].tolist()
    expected = [*(step + 1 + 0.9 * values[step + 1] for step in range(3)), 4.0]
    assert q_target[first:] == pytest.approx(expected[first:], abs=1e-5)
    loss = SwitchingPolicyLoss(policy, adam, critics=critics, temperature=temperature)
    losses = [loss.loss(step, row[None])[0].item() for step, row in zip(seen, trajectory, strict=True)]
    assert loss.loss(now, trajectory[None, :4])[0][0].tolist() == pytest.approx(losses[:4], abs=1e-5)
    elements = TrajectoryLoss(critics, adam).loss(now, trajectory[None, :4], torch.ones(1, 4))[0]
    learned = torch.cat(stepped(critics, PRESENT, state[:, 6:], trajectory[:, None, :-1]), 1)  # [M, T]
    assert elements[0].tolist() == pytest.approx(((learned - 1.0) ** 2).sum(0)[:4].tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["values", "policy", "actor_critic", "deterministic", "soft"])
def test_a_step_runs_encoders_once(name, monkeypatch):
    torch.manual_seed(1)
    policy = acting(name)
    encoders, state = policy.encoders(), torch.randn(2, policy.state_size)
    assert policy.state_size == sum(encoder.state_size for encoder in encoders)
    observation = PRESENT[:2].view(2, 1)
    expected = policy.act(with_state(observation, state), False), policy.after(observation, state)
    calls, step = [], Core.step
    monkeypatch.setattr(Core, "step", lambda core, *inputs: calls.append(core) or step(core, *inputs))
    action, after = policy.advance(observation, state, False)
    assert calls == [encoder.core for encoder in encoders]
    assert torch.equal(action, expected[0])
    assert torch.equal(after, expected[1])


def test_optimistic_actions_and_states_are_those_of_steps():
    torch.manual_seed(1)
    critics = Critics(CONTINUOUS, core="gru", **CORE)
    policy = SoftPolicy(CONTINUOUS, critics, Temperature(CONTINUOUS), core="lstm", **CORE)
    agent, state = OACAgent(policy, gaussian=policy.gaussian, critics=critics), torch.randn(2, policy.state_size)
    observation = PRESENT[:2].view(2, 1)
    response = agent(observation.numpy(), state.numpy())
    mean = agent.exploring(with_state(observation, state))[0]
    assert response["action"].tolist() == mean.tanh().tolist()
    assert response["state"].tolist() == policy.after(observation, state).tolist()


def test_action_masks_are_those_of_the_rows():
    spaces = Spaces(Composite({"action_mask": Box((2,), np.zeros(2), np.ones(2), "int8"), "x": LINE}), COIN)
    network = QNetwork(spaces, core="gru", **CORE)
    allowed = torch.tensor([[[1, 0], [0, 1], [1, 1]]])
    seen = {"action_mask": allowed, "x": torch.zeros(1, 3, 1)}
    observation = with_state(seen, torch.zeros(1, 3), torch.tensor([[1, 2]]))
    assert network.codec.allowed(observation).tolist() == [[[False, True], [True, True]]]


def remembering(name, spaces):
    """Return an agent with a recurrent network, and the columns that memory wants of it."""
    if name == "switching":
        critics = TrajectoryCritics(spaces, core="gru", **CORE)
        agent = Repeating(SwitchingPolicy(spaces, critics, Temperature(critics.decisions), core="gru", **CORE))
        size = critics.trajectories.state_size
        return agent, {"trajectory": {"shape": size}, "next_trajectory": {"shape": size}}
    options = {"epsilon": 0.5, "seed": 0}
    if name == "values":
        return EpsilonGreedy(QNetwork(spaces, core="lstm", **CORE), spaces=spaces, **options), {}
    decided = decisions(spaces, most=3)
    return persistent(QNetwork(decided, core="lstm", **CORE), spaces=decided, most=3, **options), {"lasts": {}}


@pytest.mark.parametrize("name", ["values", "switching", "repeated"])
def test_stored_states_are_those_of_replaying_an_episode(name):
    kwargs = {"gap": 4, "continuous": name == "switching"}
    env = make(target="rlrun.env.toys.Recall", kwargs=kwargs, num_envs=2)
    agent, columns = remembering(name, env.spaces)
    network = agent.policy
    adaptors = [Past(network, length=3, burn_in=1)]
    table = Table(spaces=env.spaces, num_envs=2, length=60, adaptors=adaptors, columns=columns)
    collector = Collector(env, agent, table)
    collector.begin_training()
    collector.collect(8, random=True)  # the states of a warm-up are stored, too
    collector.collect(24)
    batch = table.sample(50)
    state = batch["observation"]["recurrent_state"]
    seen = batch["observation"]["observation"]
    again = {tuple(row.tolist()) for row in state}
    assert tuple([0.0] * 6) in again
    assert len(again) > 2
    for row, path in zip(state, seen, strict=True):
        if float(path[0, 0]) == 0.0:  # in the middle of an episode, after 2 or 4 steps
            signs = [torch.tensor([sign, *[0.0] * (count - 1)]) for sign in (-1.0, 1.0) for count in (2, 4)]
            ends = [walked(network, sign) for sign in signs]
            assert min(float((row - end).abs().max()) for end in ends) < 1e-6


def walked(network, observations):
    state = torch.zeros(1, network.state_size)
    with torch.no_grad():
        for observation in observations:
            state = network.stepped(observation.view(1, 1), state)[1]
    return state[0]


SMALL = (
    *("algorithm.hidden=[8,8]", "algorithm.core_size=4", "algorithm.unroll=6", "algorithm.burn_in=2", "preset=null"),
    *("algorithm.batch_size=4", "stop.env_steps=70", "evaluation.every=0", "checkpoint.every=0", "logger=[]"),
    *("algorithm.warmup_steps=50", "memory.length=400"),
)
RUNS = {
    "dqn": ("algorithm=dqn", "env=cartpole", "memory=prioritized", "memory.sampler.mix=0.9", "algorithm.dueling=true"),
    "quantiles": ("algorithm=dqn", "env=cartpole", "algorithm.quantiles=4", "algorithm.n_step=3", "memory=stratified"),
    "mixed": ("algorithm=sac", "env=mixedaction", "memory=coverage"),
    "lambda": ("algorithm=sac", "env=pendulum", "+with=td_lambda", "memory=recent"),
    "td3": ("algorithm=td3", "env=pendulum", "num_envs=3", "memory=sequential"),
    **{name: (f"algorithm={name}", "env=pendulum") for name in ("qrsac", "dsac", "oac", "doac", "mdq", "iql")},
    "taac": ("algorithm=taac", "env=pendulum", "memory=prioritized", "algorithm.random_start=true"),
    "lasting": ("algorithm=action_repeat", "env=mixedaction", "algorithm.most_steps=4", "memory=prioritized"),
    "lasting values": ("algorithm=dqn", "env=cartpole", "+with=action_repeat", "algorithm.quantiles=4"),
    "lasting numbers": ("algorithm=td3", "env=pendulum", "+with=action_repeat", "num_envs=3"),
    **{f"{name} in a process": (f"algorithm={name}", "env=recall", "+with=async") for name in ("dqn", "sac")},
}


@pytest.mark.parametrize("name", RUNS)
def test_algorithms_learn_from_windows(name, tmp_path):
    result = rlrun.train([*RUNS[name], *SMALL, "algorithm.recurrent=gru"], run_dir=tmp_path / "run")
    assert result.summary["status"] == "completed"
    assert result.trainer.loader.table.past.length == 6
    policy = result.trainer.callbacks["collector"].agent.policy
    assert rlrun.load(tmp_path / "run").agent.policy.state_size == policy.state_size > 0
    recurrent = [
        part for part in result.trainer.callbacks.values() if any("core" in n for n in getattr(part, "names", ()))
    ]
    assert recurrent
    for callback in recurrent:
        moments = callback.optimizer.state
        cores = [p for n, p in zip(callback.names, callback.parameters, strict=True) if "core.layer.weight" in n]
        assert all(float(moments[parameter]["exp_avg"].abs().max()) > 0.0 for parameter in cores)


def test_on_policy_updates_refuse_recurrent_networks(tmp_path):
    overrides = ["algorithm=sac", "+with=on_policy", "env=pendulum", "algorithm.recurrent=gru", "logger=[]"]
    with pytest.raises(ConfigError, match="recurrent networks of this algorithm learn from replay alone; remove algor"):
        rlrun.train(overrides, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
