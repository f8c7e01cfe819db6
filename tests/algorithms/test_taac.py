"""Actions that last, worked by hand on networks of one layer."""

import math

import pytest
import torch

from rlrun.algorithms.actor_critic.sac import Temperature
from rlrun.algorithms.actor_critic.taac import (
    SwitchingPolicy,
    SwitchingPolicyLoss,
    Trajectories,
    TrajectoryCritics,
    TrajectoryLoss,
    TrajectoryTarget,
)
from rlrun.collect import Collector, Repeating, evaluate
from rlrun.core.errors import ConfigError
from rlrun.env import make
from rlrun.memory import Table
from rlrun.nn import Rewards

from .fixed import CONTINUOUS, column, fill, sgd, write

ALPHAS = (0.2, 0.5)  # of actions, and of the choice


def critics_of(*members, trajectory="zero"):
    return write(TrajectoryCritics(CONTINUOUS, trajectory=trajectory, hidden=(), members=len(members)), *members)


def policy_of(critics, level=0.5, **options):
    """Return a policy that, at its most likely, proposes the same action whatever it sees."""
    temperature = Temperature(critics.decisions)
    with torch.no_grad():
        temperature.log.copy_(torch.tensor(ALPHAS).log())
    policy = SwitchingPolicy(CONTINUOUS, critics, temperature, hidden=(), **options)
    fill(policy.gaussian.layers[-1], math.atanh(level), -1.0)
    return policy


@pytest.mark.parametrize(
    ("form", "begun", "then", "towards"),
    [
        ("zero", [0.5], [0.5], [-0.1]),
        ("linear", [0.5, 0.2], [0.9, 0.2], [-0.1, -0.3]),
        ("linear", [0.5, 0.4], [1.0, 0.4], [-0.1, -0.3]),  # kept within the bounds
        ("quadratic", [0.1, 0.1, 0.05], [0.5, 0.2, 0.05], [-0.1, -0.1, -0.05]),
        ("quadratic", [0.0, 0.9, 0.5], [1.0, 1.0, 0.5], [-0.1, -0.05, -0.025]),
    ],
)
def test_trajectories_advance_by_their_form(form, begun, then, towards):
    moves = Trajectories(CONTINUOUS, form)
    row = torch.tensor([begun])
    assert moves.advance(row)[0].tolist() == pytest.approx(then)
    assert moves.towards(row, column(-0.1))[0].tolist() == pytest.approx(towards)


@pytest.mark.parametrize(
    ("form", "begun", "chosen", "towards"),
    [
        ("zero", [0.5], -0.1, [-0.1]),
        ("linear", [0.5, 0.2], -0.1, [0.3, -0.1]),
        ("linear", [0.5, 0.2], 0.4, [1.0, 0.4]),  # kept within the bounds
        ("quadratic", [0.1, 0.3, 0.05], 0.2, [0.9, 0.4, 0.2]),  # v = 0 + 2 · 0.2, a = 0.1 + 2 · 0.4
        ("quadratic", [0.9, -0.5, 0.0], -0.7, [-1.0, -1.0, -0.7]),
    ],
)
def test_inverse_false_chooses_the_constant(form, begun, chosen, towards):
    moves = Trajectories(CONTINUOUS, form, inverse=False)
    row = torch.tensor([begun])
    assert moves.towards(row, column(chosen))[0].tolist() == pytest.approx(towards)
    action, after = moves.follow(torch.tensor([[*begun, 3.0]]), column(chosen), torch.tensor([True]))
    assert action.flatten().tolist() == pytest.approx(towards[:1])  # what is done, and stored
    assert after[0].tolist() == pytest.approx([*towards, 0.0])


def test_chosen_changes_act_by_their_action():
    critics = write(
        TrajectoryCritics(CONTINUOUS, trajectory="linear", inverse=False, hidden=(), members=1),
        ([[0.0], [1.0], [0.0]], [0.0]),  # the action's own value
    )
    policy = policy_of(critics, level=0.25)
    proposal = policy.propose(column(0), torch.tensor([[-0.2, 0.1]]), explore=False)
    assert proposal.kept[0].tolist() == pytest.approx([0.0, 0.1])
    assert proposal.new[0].tolist() == pytest.approx([0.3, 0.25])
    action, after = policy.advance(column(0), {"trajectory": torch.tensor([[-0.2, 0.1, 5.0]])}, explore=False)
    assert action.tolist() == [[pytest.approx(0.3)]]
    assert after["trajectory"][0].tolist() == pytest.approx([0.3, 0.25, 0.0])


def test_state_counts_the_repeats():
    moves, state = Trajectories(CONTINUOUS, "linear"), torch.tensor([[0.5, 0.1, 3.0]] * 2)
    action, after = moves.follow(state, column(-0.5, -0.5), torch.tensor([False, True]))
    assert action.flatten().tolist() == pytest.approx([0.7, -0.5])
    torch.testing.assert_close(after, torch.tensor([[0.7, 0.1, 4.0], [-0.5, -0.5, 0.0]]))


# values of action a at observation s: s + a, and 2 a + 1
MEMBERS = (([[1.0], [1.0]], [0.0]), ([[0.0], [2.0]], [1.0]))


def test_best_action_has_the_larger_value():
    critics = critics_of(*MEMBERS)
    policy = policy_of(critics, most_steps=3)
    # in force: 0.9, better than the 0.5 proposed; -0.9, worse; 0.9 played thrice
    state = torch.tensor([[0.9, 1.0], [-0.9, 0.0], [0.9, 2.0]])
    action, after = policy.advance(column(0, 0, 0), {"trajectory": state}, explore=False)
    assert action.flatten().tolist() == pytest.approx([0.9, 0.5, 0.5])
    assert after["trajectory"][:, 1].tolist() == [2.0, 0.0, 0.0]


def test_rounding_does_not_choose():
    critics = critics_of(([[0.0], [1.0]], [1e8]))  # single precision has steps of 8 here
    action, _ = policy_of(critics).advance(column(0), {"trajectory": torch.tensor([[0.25, 0.0]])}, explore=False)
    assert action.item() == pytest.approx(0.5)


def test_exploring_switches_by_the_values():
    torch.manual_seed(1)
    policy = policy_of(critics_of(([[0.0], [1.0]], [0.0])), level=0.6)
    with torch.no_grad():
        policy.gaussian.layers[-1].bias[1] = -20.0  # no noise around the action
    _, after = policy.advance(torch.zeros(20_000, 1), {"trajectory": torch.tensor([[0.1, 0.0]]).expand(20_000, 2)})
    share = float((after["trajectory"][:, 1] == 0.0).float().mean())
    assert share == pytest.approx(1 / (1 + math.exp(-(0.6 - 0.1) / ALPHAS[1])), abs=0.01)


def still(monkeypatch, *fresh):
    """Let policies propose their most likely action, and fresh choices be these."""
    monkeypatch.setattr("rlrun.nn.policy.normal_like", torch.zeros_like)
    monkeypatch.setattr("rlrun.ops.gumbel_argmax", lambda logits: torch.tensor(fresh).view(logits.shape[:-1]))


def test_clipped_advantage_bounds_the_choice():
    critics = critics_of(([[0.0], [0.0]], [0.0]))
    values = torch.tensor([[3.0, 4.0], [3.0, 13.0], [3.0, -7.0]])
    free = policy_of(critics).choice(values)
    clipped = policy_of(critics, advantage_clip=(-2.0, 1.0)).choice(values)
    assert clipped[0].tolist() == pytest.approx(free[0].tolist())
    odds = (clipped[:, 1] - clipped[:, 0]).tolist()
    assert odds == pytest.approx([1.0 / ALPHAS[1], 1.0 / ALPHAS[1], -2.0 / ALPHAS[1]])
    with pytest.raises(ConfigError, match=r"algorithm\.advantage_clip: wanted two numbers in order"):
        policy_of(critics, advantage_clip=(1.0, -1.0))


def test_target_reaches_the_first_switch(monkeypatch):
    still(monkeypatch, 0, 0, 1, 0)
    critics = critics_of(*MEMBERS)
    target = TrajectoryTarget(critics, policy_of(critics), discount=0.9)
    write(critics, *[([[0.0], [0.0]], [100.0])] * 2)  # for which both choices are equally good
    # one trajectory, -1/2, during three steps; then 1/4, which begins at the last
    state = torch.tensor([[[-0.5, 0.0], [-0.5, 1.0], [-0.5, 2.0], [0.25, 0.0]]])
    options = {"next_observation": torch.tensor([[[1.0], [2.0], [3.0], [1.0]]]), "next_trajectory": state}
    options["reward"] = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    no = torch.zeros(1, 4, dtype=torch.bool)
    # the slow values there, of what is in force and of 1/2: min(s + a, 2 a + 1)
    values = [(min(s + a, 2 * a + 1) + min(s + 0.5, 2.0)) / 2 for s, a in ((3, -0.5), (1, 0.25))]
    last, third = 4 + 0.9 * values[1], 3 + 0.9 * values[0]
    expected = [1 + 0.9 * (2 + 0.9 * third), 2 + 0.9 * third, third, last]
    q_target = target.begin_batch(**options, terminated=no, truncated=no)["q_target"]
    assert q_target[0].tolist() == pytest.approx(expected)
    over = no.clone()
    over[0, 1] = True
    q_target = target.begin_batch(**options, terminated=over, truncated=no)["q_target"]
    assert q_target[0].tolist() == pytest.approx([1 + 0.9 * 2, 2.0, third, last])
    at_two = 2 + 0.9 * (min(2 - 0.5, 0.0) + 2.0) / 2
    for flags in ({"truncated": over}, {"truncated": no, "valid": torch.tensor([[True, True, False, False]])}):
        q_target = target.begin_batch(**options, terminated=no, **flags)["q_target"]
        assert q_target[0, :2].tolist() == pytest.approx([1 + 0.9 * at_two, at_two])


def test_each_reward_has_a_value(monkeypatch):
    still(monkeypatch, 0, 0)
    weights = [torch.tensor([2.0, -1.0])]  # of s + a and 2 a + 1: both choices are equally good, 2 s - 1
    critics = TrajectoryCritics(CONTINUOUS, hidden=(), members=1, value_head=Rewards(lambda: weights[-1]))
    policy = policy_of(write(critics, ([[1.0, 0.0], [1.0, 2.0]], [0.0, 1.0])))
    target = TrajectoryTarget(critics, policy, discount=[0.9, 0.5])
    observation, state = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[-0.5, 1.0], [-0.5, 2.0]]])
    reward, no = torch.tensor([[[1.0, 3.0], [2.0, 4.0]]]), torch.zeros(1, 2, dtype=torch.bool)
    last = [2 + 0.9 * 2, 4 + 0.5 * 1]  # the second reward's values are 0 and 2
    q_target = target.begin_batch(observation, state, reward, no, no)["q_target"]
    assert q_target[0].tolist() == [pytest.approx([1 + 0.9 * last[0], 3 + 0.5 * last[1]]), pytest.approx(last)]
    one_step = target.begin_batch(observation[0], state[0], reward[0], no[0], no[0])["q_target"]
    assert one_step.tolist() == [pytest.approx([1 + 0.9 * 1, 3 + 0.5 * 1]), pytest.approx(last)]
    loss = SwitchingPolicyLoss(policy, sgd, critics=critics, temperature=policy._borrowed[1])
    cost = ALPHAS[0] * (1.0 - 0.5 * math.log(2 * math.pi) - math.log(1 - 0.25))
    assert loss.loss(observation[0], state[0])[0].tolist() == pytest.approx([cost - 0.5, cost - 1.5])
    for sign in (1.0, -1.0):
        weights.append(torch.tensor([sign, 0.0]))
        action, _ = policy.advance(column(0), {"trajectory": torch.tensor([[0.9, 0.0]])}, explore=False)
        assert action.item() == pytest.approx(0.9 if sign > 0 else 0.5)


@pytest.mark.parametrize("form", ["zero", "linear"])
def test_exploring_episodes_may_begin_anywhere(form):
    torch.manual_seed(1)
    critics = TrajectoryCritics(CONTINUOUS, trajectory=form, random_start=True, hidden=(), members=1)
    policy = policy_of(critics)
    begun = policy.initial_state(2000)["trajectory"]
    on = torch.full_like(begun, 0.25)
    drawn = policy.keeping.before(begun)
    assert (float(drawn.mean()), float(drawn.std())) == (pytest.approx(0.0, abs=0.05), pytest.approx(3**-0.5, abs=0.02))
    assert float(drawn.abs().max()) < 1.0
    assert torch.equal(policy.keeping.before(on), on[:, :-1])
    _, after = policy.keeping.follow(begun, torch.zeros(2000, 1), torch.zeros(2000, dtype=torch.bool))
    assert float(after[:, 0].std()) > 0.5
    assert after[:, -1].unique().tolist() == [0.0]
    _, after = policy.advance(torch.zeros(2000, 1), {"trajectory": begun})
    assert float(after["trajectory"][:, 0].detach().std()) > 0.2
    assert torch.equal(*(policy.advance(column(0), {"trajectory": begun[:1]}, explore=False)[0] for _ in range(2)))
    assert not policy_of(critics_of(*MEMBERS)).initial_state(1)["trajectory"].any()
    loss = SwitchingPolicyLoss(policy, sgd, critics=critics, temperature=policy._borrowed[1])
    for state, differ in ((begun, True), (on, False)):
        seen = []
        policy.gaussian.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]["trajectory"]))
        loss.loss(torch.zeros(2000, 1), state)
        assert bool((seen[0] != state[:, :-1]).any()) is differ


def test_target_of_single_steps(monkeypatch):
    still(monkeypatch, 0, 0)
    critics = critics_of(*MEMBERS)
    target = TrajectoryTarget(critics, policy_of(critics, level=-0.5), discount=0.9)
    ends = torch.tensor([False, True])
    options = {"reward": torch.ones(2), "terminated": ends, "truncated": ~ends}
    batch = target.begin_batch(column(1, 1), torch.tensor([[-0.5, 0.0]] * 2), **options)
    assert batch["q_target"].tolist() == pytest.approx([1.0, 1.0])  # both of value min(0.5, 0)


def test_critics_learn_the_current_trajectory():
    loss = TrajectoryLoss(critics_of(*MEMBERS), sgd)
    losses, *_ = loss.loss(column(1), torch.tensor([[0.5, 4.0]]), torch.tensor([1.0]))
    assert losses.tolist() == pytest.approx([0.5**2 + 1.0**2])  # 1.5 and 2


def test_policy_learns_by_switching_probability(monkeypatch):
    still(monkeypatch)
    critics = critics_of(([[0.0], [1.0]], [0.0]))
    policy = policy_of(critics)
    loss = SwitchingPolicyLoss(policy, sgd, critics=critics, temperature=policy._borrowed[1])
    value, outputs, _ = loss.loss(column(0), torch.tensor([[-0.5, 1.0]]))
    switch = 1 / (1 + math.exp(-1.0 / ALPHAS[1]))
    log_prob = 1.0 - 0.5 * math.log(2 * math.pi) - math.log(1 - 0.25)
    assert value.tolist() == pytest.approx([ALPHAS[0] * log_prob - switch * 0.5], abs=1e-6)
    choice = -switch * math.log(switch) - (1 - switch) * math.log(1 - switch)
    assert outputs["policy_entropy"].tolist() == [pytest.approx([-log_prob, choice])]
    (value.sum()).backward()
    # d/du of -β tanh u - α · 2 log cosh … the density's own slope at its mode is 2 α tanh u
    expected = -switch * (1 - 0.25) + ALPHAS[0] * 2 * 0.5
    assert float(policy.gaussian.layers[-1].bias.grad[0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("random", "inverse"), [(True, True), (False, True), (True, False)])
def test_memory_keeps_current_trajectories(random, inverse):
    env = make("Pendulum-v1", num_envs=2)
    critics = TrajectoryCritics(env.spaces, trajectory="linear", inverse=inverse, hidden=(8,))
    policy = SwitchingPolicy(env.spaces, critics, Temperature(critics.decisions), hidden=(8,))
    agent = Repeating(policy)
    columns = {name: {"shape": policy.keeping.state_size} for name in ("trajectory", "next_trajectory")}
    table = Table(spaces=env.spaces, num_envs=2, length=400, columns=columns)
    collector = Collector(env, agent, table, warm_up_seed=3)
    collector.begin_training()
    collector.collect(300, random=random)
    batch = table.sample(200, 4)
    before, after = batch["trajectory"], batch["next_trajectory"]
    assert torch.equal(before[:, 1:], after[:, :-1])
    assert torch.equal(batch["action"], after[..., :1])
    switched = after[..., -1] == 0
    assert torch.equal(after[~switched][:, :-1], policy.keeping.advance(before[~switched][:, :-1]))
    assert 0.3 < float(switched.float().mean()) < 0.7
    assert evaluate(env.copy(num_envs=2), agent, episodes=2, seed=1, max_steps=30).lengths == [30, 30]
    assert random or agent.metrics["repeat/steps"] * agent.metrics["repeat/switched"] == pytest.approx(1.0)
    env.close()
