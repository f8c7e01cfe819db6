"""Windows of a recurrent network: the state they begin with, the ends within, and what is computed from both."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from tests.identical import compare
from tests.short import copy_as_killed

import rlrun
from rlrun.collect import Collector, PolicyAgent
from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import map_tree
from rlrun.env import make
from rlrun.memory import Advantages, Rollout, RolloutLoader, Table
from rlrun.nn import ActorCritic

ENVS, HORIZON = 3, 12
KINDS = ("gru", "lstm")
TOYS = ("DictObservation", "MixedAction", "Recall", "TupleSpaces")  # tests/nn/test_recurrent.py has all spaces


class Telling(PolicyAgent):
    """Says beside its action how probable that was, when it acted."""

    def __call__(self, observation, state=None, *, explore=True):
        response = super().__call__(observation, state, explore=explore)
        with torch.no_grad():
            heads = self.policy.heads(to_tensors(observation), to_tensors(state))
            acted = self.policy.head.log_prob(heads, to_tensors(response["action"]))
        return {**response, "acted": to_arrays(acted)}


class Parted(ActorCritic):
    """The state of its policy and of its values are parts of a tree."""

    @property
    def state_size(self):
        own, valued = (trunk.state_size for trunk in self.encoders())
        return {"own": [own], "valued": {"core": [1, valued]}}

    def initial_state(self, count):
        return self.parted(torch.zeros(count, sum(trunk.state_size for trunk in self.encoders())))

    def parted(self, state):
        own, valued = super()._parts(state)
        return {"own": own, "valued": {"core": valued.unsqueeze(1)}}

    @staticmethod
    def whole(state):
        return torch.cat([state["own"], state["valued"]["core"].squeeze(1)], -1)

    def _parts(self, state):
        return super()._parts(self.whole(state) if isinstance(state, dict) else state)

    def advance(self, observation, state, explore=True):
        action, after = super().advance(observation, self.whole(state), explore)
        return action, self.parted(after)

    def after(self, observation, state):
        return self.parted(super().after(observation, self.whole(state)))


def parts(env, kind="gru", *, unroll=4, shared=False, discount=0.9, lambda_=0.8, form=ActorCritic, **settings):
    """Return a loader over an environment, whose network acts and judges, and the network."""
    torch.manual_seed(3)
    network = form(env.spaces, hidden=(8,), core=kind, core_size=5, shared=shared, output_gain=1.0)
    columns = {"state": {"shape": network.state_size}, "acted": {}}
    table = Rollout(spaces=env.spaces, num_envs=env.num_envs, columns=columns)
    agent = Telling(network)
    agent.outputs = ("action", "state", "acted")
    collector = Collector(env, agent, table)
    advantages = Advantages(network, discount=discount, lambda_=lambda_)
    advantages.chunk = 2 * HORIZON
    settings = {"horizon": HORIZON, "minibatch": 3 * unroll, "unroll": unroll, "adaptors": [advantages], **settings}
    loader = RolloutLoader(table=table, collector=collector, **settings)
    collector.begin_training()
    return loader, network


def toy(name, **options):
    return make(target=f"rlrun.env.toys.{name}", num_envs=ENVS, **options)


def batches(loader, count):
    return [groups["default"] for groups in itertools.islice(loader, count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TOYS)
def test_log_prob_equals_that_of_acting(name, kind):
    loader, network = parts(toy(name), kind)
    for batch in batches(loader, 9):  # three rollouts: episodes go on from one to the next
        evaluated = network.evaluate_actions(
            batch["observation"], batch["action"], batch["state"], batch["episode_end"]
        )
        torch.testing.assert_close(batch["log_prob"], batch["acted"], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(evaluated.log_prob, batch["log_prob"], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(evaluated.value, batch["value"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_void_rows_change_no_state(vectorization):
    env = make(id="CartPole-v1", num_envs=ENVS, vectorization=vectorization)
    loader, network = parts(env, horizon=60, unroll=20, minibatch=60)
    void = ends = 0
    for batch in batches(loader, 9):
        valid = batch["valid"]
        evaluated = network.evaluate_actions(
            batch["observation"], batch["action"], batch["state"], batch["episode_end"]
        )
        torch.testing.assert_close(evaluated.log_prob[valid], batch["acted"][valid], atol=1e-4, rtol=1e-4)
        void, ends = void + int((~valid).sum()), ends + int((batch["terminated"] & valid)[:, :-1].sum())
    assert (void > 0) is (vectorization == "native")
    assert ends > 3  # within windows


@pytest.mark.parametrize("shared", [False, True])
def test_values_equal_those_step_by_step(shared):
    loader, network = parts(toy("DiscreteStart"), "lstm", shared=shared, minibatch=ENVS * HORIZON, unroll=HORIZON)
    loader.collector.collect(7 * ENVS)  # so that rollouts begin amidst episodes, which are cut off after 10 steps
    loader.table.clear()
    (batch,) = batches(loader, 1)
    assert batch["truncated"].sum() == ENVS
    with torch.no_grad():
        for env_index in range(ENVS):
            rows = {name: batch[name][env_index] for name in ("observation", "next_observation", "reward", "truncated")}
            value, following, state = [], [], batch["state"][env_index : env_index + 1]
            for t in range(HORIZON):
                seen, then = (rows[name][t : t + 1] for name in ("observation", "next_observation"))
                value.append(network.value(seen, state))
                state = network.after(seen, state)
                following.append(network.value(then, state))
                if rows["truncated"][t]:
                    state = network.initial_state(1)
            torch.testing.assert_close(batch["value"][env_index], torch.cat(value), atol=1e-5, rtol=1e-4)
            advantage = torch.zeros(())
            for t in reversed(range(HORIZON)):
                error = rows["reward"][t] + 0.9 * following[t][0] - value[t][0]
                advantage = error + 0.9 * 0.8 * (0.0 if rows["truncated"][t] else advantage)
                torch.testing.assert_close(batch["advantage"][env_index, t], advantage, atol=1e-4, rtol=1e-4)


def test_windows_cut_through_episodes():
    loader, _ = parts(toy("Recall", kwargs={"gap": 4}))
    windows = batches(loader, 6)
    inner = [batch["episode_end"][:, :-1].any() for batch in windows]
    going = [(batch["state"].abs().sum(-1) > 0).any() for batch in windows]
    assert any(inner)
    assert any(going)
    for batch in windows:
        assert batch["state"].shape == (3, 10)
        assert batch["observation"].shape == (3, 4, 1)
        assert torch.equal(batch["episode_end"], batch["terminated"] | batch["truncated"])
        begins = batch["observation"][:, 0, 0] != 0.0  # the sign, at the first step only
        assert torch.equal(batch["state"].abs().sum(-1) == 0.0, begins)


def test_single_rows_have_their_own_state():
    loader, network = parts(toy("Recall"), unroll=1, minibatch=6)
    for batch in batches(loader, 6):
        assert "episode_end" not in batch
        log_prob = network.evaluate_actions(batch["observation"], batch["action"], batch["state"]).log_prob
        torch.testing.assert_close(log_prob, batch["acted"], atol=1e-4, rtol=1e-4)


def test_recurrent_columns_are_always_served():
    loader, _ = parts(toy("Recall"), columns=["observation", "advantage"])
    assert loader.names() == {"default": ("observation", "advantage", "state", "episode_end", "valid")}
    (batch,) = batches(loader, 1)
    assert set(batch) == set(loader.names()["default"])


def test_length_counts_without_a_state():
    env = toy("Recall")
    table = Rollout(spaces=env.spaces, num_envs=ENVS, columns={"state": {"shape": 0}})
    loader = RolloutLoader(table=table, collector=None, horizon=HORIZON, unroll=5, columns=["observation"])
    assert (loader.length, loader.names()) == (1, {"default": ("observation",)})


def stateless():
    env = toy("Recall")
    advantages = Advantages(ActorCritic(env.spaces, core="gru"), discount=0.9, lambda_=0.9)
    table = Rollout(spaces=env.spaces, num_envs=ENVS)
    return RolloutLoader(table=table, collector=None, horizon=8, adaptors=[advantages])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parts(toy("Recall"), unroll=5), r"^unroll: 5 does not divide the horizon of 12"),
        (lambda: parts(toy("Recall"), unroll=24), r"^unroll: 24 does not divide the horizon of 12"),
        (stateless, "Advantages reads 'state'; there are observation"),
    ],
)
def test_wrong_settings_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("kind", [Table, Rollout])
def test_empty_columns_are_left_out(kind):
    columns = {"x": {}, "state": {"shape": 0}, "plan": {"shape": [2, 0]}}
    assert kind(columns=columns, **({"length": 9} if kind is Table else {})).names() == ("x",)


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_a_tree_of_states_is_stored_at_windows_alone_and_changes_no_number(vectorization):
    env = partial(make, "CartPole-v1", vectorization=vectorization, num_envs=ENVS)
    expected = batches(parts(env())[0], 12)
    loader, network = parts(env(), form=Parted)
    for wanted, batch in zip(expected, batches(loader, 12), strict=True):
        assert wanted["episode_end"].shape == (3, 4)
        state = network.whole(batch.pop("state"))
        assert torch.equal(wanted.pop("state"), state)
        for name, values in wanted.items():
            assert torch.equal(values, batch[name]), name
    rows = {name: array.shape for name, array in loader.table._arrays["state"]["valued"].items()}
    assert rows == {"core": (HORIZON // 4, ENVS, 1, 5)}


@pytest.mark.parametrize("filled", [3, 9])
def test_a_rollout_with_states_is_restored(filled):
    loaders = [parts(make("CartPole-v1", num_envs=ENVS), form=Parted, unroll=2)[0] for _ in range(2)]
    table, other = (loader.table for loader in loaders)
    loaders[0].collector.collect(filled * ENVS)
    table.close(np.array([1]), table._arrays["observation"][filled, [1]])
    other.load_state_dict(copy.deepcopy(table.state_dict()))
    here, there = (each.steps(loaders[0].collector.observation)[0] for each in (table, other))
    assert here["end_state"]["place"][filled - 1].tolist() == [1, 2, 3]
    map_tree(np.testing.assert_array_equal, here, there)


def test_runs_with_a_tree_of_states_resume_exactly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["algorithm=a2c", "env=cartpole", "preset=null", "num_envs=2", "stop.env_steps=64", "algorithm.hidden=[4]"]
    short += ["algorithm.recurrent=gru", "algorithm.core_size=3", "algorithm.unroll=4", "evaluation.episodes=1"]
    short += ["checkpoint.every=20", "checkpoint.keep_last=null", "evaluation.every=0", "log.every=16"]
    run = rlrun.train([*short, f"networks.actor_critic._target_={__name__}.Parted"], run_dir="run")
    copy_as_killed(run.run_dir, tmp_path / "killed", at=20)
    rlrun.resume(tmp_path / "killed")
    assert all(compare(run.run_dir, tmp_path / "killed").values())
    flat = rlrun.train(short, run_dir="flat")
    networks = [each.trainer.callbacks["a2c"].network for each in (run, flat)]
    assert all(map(torch.equal, *(network.parameters() for network in networks)))
    assert len(rlrun.evaluate(run, episodes=1).returns) == 1
