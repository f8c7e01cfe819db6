"""Sampled MuZero: searches over candidates in the model, the agent, the memory, the loss and whole runs."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box as GymBox
from tests.nn.spaces_for_tests import MIXED, VECTOR, box, draw, multi
from tests.resume.twins import assert_exact
from tests.short import AT, RESUMED, shrink

import rlrun
from rlrun.algorithms.search import Candidates, Gumbel, LearnedModel, Puct, SearchAgent
from rlrun.algorithms.search.muzero import MuZeroLoss, SearchTargets, Targets, losses, targets
from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.commands.check import check
from rlrun.commands.play import play
from rlrun.config import compose
from rlrun.core.errors import ConfigError, RlrunError, SpaceError
from rlrun.core.spaces import ACTION_MASK, Composite, Discrete, Spaces, leaves_of
from rlrun.env.toys import Toy
from rlrun.memory import Table, Trajectory
from rlrun.nn import MuZeroNetwork, Numbers

ADAM = partial(torch.optim.Adam, lr=0.01)
KINDS = {"numbers": box(2), "many": multi(5, 6, 7), "mixed": MIXED, "choice": Discrete(6)}
COUNT = 5
EYE = np.eye(3, dtype=np.float32)


def network(action, observation=VECTOR, **options):
    torch.manual_seed(0)
    sizes = {"latent": 6, "hidden": [8], "dynamics": [8], "prediction": [8]}
    heads = {"value_head": Numbers(), "reward_head": Numbers()}
    net = MuZeroNetwork(Spaces(observation, action), **{**sizes, **heads, **options})
    torch.nn.init.normal_(net.prediction[-1].weight)
    return net


def model_of(net, **options):
    return LearnedModel(net, candidates=Candidates(net.codec, COUNT), discount=0.9, **options)


def agent_of(action, search=None, observation=VECTOR):
    net = network(action, observation)
    search = search or Puct(simulations=12)
    return SearchAgent(net, model=model_of(net), search=search, spaces=Spaces(observation, action), seed=3)


def flat(tree):
    return [tree] if isinstance(tree, np.ndarray) else [part for value in tree.values() for part in flat(value)]


@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_an_action_of_a_search_is_the_candidate_of_its_number(action):
    net = network(action)
    model = model_of(net)
    root = model.root(EYE, np.random.default_rng(0))
    assert root.state["candidates"].shape == (3, COUNT, net.codec.continuous + len(net.codec.branches))
    taken = np.array([4, 0, 2])
    after = model(root.state, taken)
    actions = net.codec.from_rows(torch.from_numpy(root.state["candidates"][range(3), taken]))
    latent = net.step(net.represent(torch.from_numpy(EYE)), net.codec.coded(actions))
    np.testing.assert_allclose(after.state["latent"], latent.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.value, net.decoded(latent).value.detach(), rtol=1e-5, atol=1e-6)
    assert (after.state["candidates"] != root.state["candidates"]).any()
    summed = model_of(net, period=0)
    start = summed.root(EYE, np.random.default_rng(0))
    np.testing.assert_array_equal(start.state["candidates"], root.state["candidates"])
    np.testing.assert_allclose(summed(start.state, taken).reward, after.reward, rtol=1e-6)


def test_all_actions_of_several_choices_are_refused():
    with pytest.raises(SpaceError, match=r"wanted candidates: .* as actions are more than one choice; .* Box"):
        LearnedModel(network(box(1)))


@pytest.mark.parametrize("search", [Puct(simulations=12), Gumbel(simulations=12)], ids=["puct", "gumbel"])
@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_evaluations_take_the_best_candidate_of_each_row_by_itself(action, search):
    searches = agent_of(action, search)
    before = searches.state_dict()
    torch.manual_seed(5)
    drawn = torch.get_rng_state()
    response = searches(EYE, explore=False)
    assert searches.state_dict() == before
    assert torch.equal(torch.get_rng_state(), drawn)
    trees = search.grow(searches.model, searches.model.root(EYE))
    rows = trees.state["candidates"][range(3), search.acting(trees, 0.0).argmax(1)]
    codec = searches.candidates.codec
    for part, wanted in zip(
        flat(response["action"]), flat(to_arrays(codec.from_rows(torch.from_numpy(rows)))), strict=True
    ):
        np.testing.assert_array_equal(part, wanted)
    for row in range(3):
        alone = searches(EYE[[row]], explore=False)
        for part, whole in zip(flat(alone), flat(response), strict=True):
            np.testing.assert_allclose(part, whole[[row]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_exploration_draws_new_candidates_and_goes_on_after_a_resume(action):
    searches, other = agent_of(action), agent_of(action)
    assert searches.outputs == ("action", "search_policy", "search_value", "search_candidates")
    first = searches(EYE)
    assert set(first) == set(searches.outputs)
    assert first["search_policy"].shape == (3, COUNT)
    rows = searches.candidates.codec.rows(to_tensors(first["action"])).numpy()
    assert (first["search_candidates"] == rows[:, None]).all(-1).any(1).all()
    other.load_state_dict(searches.state_dict())
    again, wanted = other(EYE), searches(EYE)
    assert all((part == whole).all() for part, whole in zip(flat(again), flat(wanted), strict=True))
    assert (wanted["search_candidates"] != first["search_candidates"]).any()


def test_a_mask_forbids_candidates_at_the_root():
    masked = Composite({ACTION_MASK: box(6, low=0, high=1, dtype="int8"), "seen": VECTOR})
    observation = {
        ACTION_MASK: np.tile(np.array([0, 1, 0, 0, 1, 0], np.int8), (40, 1)),
        "seen": np.zeros((40, 3), "f4"),
    }
    searches = agent_of(Discrete(6), observation=masked)
    for explore in (True, False):
        response = searches(observation, explore=explore)
        assert set(response["action"]) <= {1, 4}
        assert set(response["search_candidates"].ravel()) <= {1, 4}
    random = searches.at_random(Discrete(6), seed=0)(observation)
    assert set(random["action"]) == {1, 4}
    below = searches.model(searches.model.root(observation).state, np.zeros(40, int))
    assert set(below.state["candidates"].ravel()) - {1.0, 4.0}  # what a later mask forbids is not predicted


@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_random_actions_teach_the_policy_nothing(action):
    searches = agent_of(action)
    random = searches.at_random(action, seed=0)
    assert random.outputs == searches.outputs
    response = random(np.zeros((200, 3), np.float32))
    assert response["search_candidates"].shape == (200, COUNT, searches.candidates.shape[1])
    assert not response["search_candidates"].any()
    assert not response["search_policy"].any()  # where a loss counts nothing
    taken = searches.candidates.codec.rows(to_tensors(response["action"])).numpy()
    if action is KINDS["numbers"]:
        assert abs(taken.mean()) < 0.1
        assert taken.std() == pytest.approx(3**-0.5, abs=0.05)


def test_evaluations_look_at_balanced_candidates():
    net = network(Composite({"one": box(1), "other": box(1), "choice": Discrete(3)}))
    model = LearnedModel(net, candidates=Candidates(net.codec, 8), discount=0.9)
    rows = model.root(EYE).state["candidates"]
    heads = net.head(net.predict(net.represent(torch.from_numpy(EYE))).policy)
    noise = (np.arctanh(rows[..., :2]) - heads.mean[:, None].detach().numpy()) / heads.log_std.exp()[:, None].detach()
    for part in (0, 1):
        quantiles = np.sort(noise[..., part], 1)
        np.testing.assert_allclose(quantiles, -quantiles[:, ::-1], atol=1e-3)  # symmetric
        np.testing.assert_allclose(quantiles, quantiles[:1].repeat(3, 0), atol=1e-3)
    assert (np.argsort(noise[0, :, 0]) != np.argsort(noise[0, :, 1])).any()
    assert (model.root(EYE, np.random.default_rng(0)).state["candidates"] != rows).any()


def test_a_policy_of_numbers_and_choices_learns_the_log_probability_of_candidates():
    space = Composite({"choice": Discrete(3), "number": box(1)})
    net, rows = network(space), torch.tensor([[0.5, 2.0], [-0.3, 0.0], [0.9, 1.0]])
    latent = torch.rand(4, 2, 6)
    predicted = net.predict(latent)
    share = torch.rand(4, 2, 3).softmax(-1)
    zeros = torch.zeros(4, 2)
    wanted = Targets(zeros, zeros, share, zeros, zeros, zeros[:, 0], rows.expand(4, 2, 3, 2))
    terms = losses(net, predicted, wanted)
    mean, log_std, logits = predicted.policy[..., 0], predicted.policy[..., 1], predicted.policy[..., 2:]
    total = zeros.clone()
    for k, (number, choice) in enumerate(rows.tolist()):
        normal = torch.distributions.Normal(mean, log_std.exp())
        squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
        log_prob = squashed.log_prob(torch.tensor(number)) + logits.log_softmax(-1)[..., int(choice)]
        total -= share[..., k] * log_prob
    torch.testing.assert_close(terms["policy"], total)
    exact = torch.distributions.Categorical(logits=logits).entropy() + 0.5 * np.log(2 * np.pi * np.e) + log_std
    assert (terms["entropy"] < exact).all()  # squashing takes some of it


def test_an_entropy_of_numbers_may_be_negative():
    loss = MuZeroLoss(network(box(1), entropy_weight=0.1), ADAM, entropy_target=-0.5)
    assert loss.entropy_target == -0.5
    with pytest.raises(ConfigError, match=r"entropy_target: wanted a number from 0, got -0\.5"):
        MuZeroLoss(network(Discrete(3), entropy_weight=0.1), ADAM, entropy_target=-0.5)


def test_candidates_behind_the_end_are_those_of_the_end():
    reward, end = torch.zeros(1, 4), torch.tensor([1])
    candidates = torch.arange(4.0).reshape(1, 4, 1, 1).expand(1, 4, 2, 1)
    policy = torch.rand(1, 4, 2)
    wanted = targets(reward, reward + 0.9, reward, policy, end, td_steps=2, candidates=candidates)
    assert wanted.candidates[0, :, 0, 0].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert torch.equal(wanted.policy[0], policy[0, [0, 1, 1, 1]])


def test_new_searches_bring_their_own_candidates():
    net, steps, rows = network(box(2)), 2, 4
    trajectory = {
        "action": torch.rand(rows, steps, 2),
        "reward": torch.zeros(rows, 5),
        "terminated": torch.zeros(rows, 5, dtype=torch.bool),
        "value": torch.zeros(rows, 5),
        "policy": torch.full((rows, steps + 1, COUNT), 1 / COUNT),
        "candidates": torch.zeros(rows, steps + 1, COUNT, 2),
        "end": torch.full((rows,), 4),
        "closed": torch.zeros(rows, dtype=torch.bool),
        "age": torch.zeros(rows),
    }
    later = torch.randn(rows, 6, 3)
    search, candidates = Puct(simulations=8), Candidates(net.codec, COUNT)
    options = {"candidates": candidates, "share": 0.5, "noise": False, "discount": 0.9, "td_steps": 2, "tau": 1.0}
    wanted = SearchTargets(net, search, **options).target(trajectory, later)[0]["wanted"]
    new = (wanted["candidates"] != 0.0).flatten(1).any(1)
    assert int(new.sum()) == 2
    model = model_of(net)
    trees = search.grow(model, model.node(later[:, : steps + 1].flatten(0, 1)))
    policy = torch.from_numpy(search.policy(trees)).float().reshape(rows, steps + 1, COUNT)
    drawn = torch.from_numpy(trees.state["candidates"][trees.roots]).reshape(rows, steps + 1, COUNT, 2)
    torch.testing.assert_close(wanted["policy"][new], policy[new])
    torch.testing.assert_close(wanted["candidates"][new], drawn[new])
    observation = torch.randn(rows, 3)
    loss = MuZeroLoss(net, ADAM).loss(observation, trajectory=trajectory, wanted=wanted, later=later)[0]
    assert torch.isfinite(loss).all()


@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_the_memory_gives_candidates_of_the_same_step_as_their_probabilities(action):
    codec = network(action).codec
    shape = Candidates(codec, COUNT).shape
    columns = {"search_policy": {"shape": COUNT}, "search_value": {}, "search_candidates": {"shape": shape}}
    adaptors = [Trajectory(steps=3, td_steps=2, candidates=True)]
    table = Table(spaces=Spaces(VECTOR, action), num_envs=1, length=50, adaptors=adaptors, columns=columns)
    for step in range(12):
        row = {
            "observation": np.full((1, 3), step, np.float32),
            "action": to_arrays(draw(action, 1)),
            "reward": np.zeros(1, np.float32),
            "terminated": np.zeros(1, bool),
            "truncated": np.zeros(1, bool),
            "search_policy": np.full((1, COUNT), step, np.float32),
            "search_value": np.zeros(1, np.float32),
            "search_candidates": np.full((1, *shape), step, np.float32),
        }
        table.add(np.array([0]), row)
    trajectory = table.sample(20)["trajectory"]
    assert trajectory["candidates"].shape == (20, 4, *shape)
    torch.testing.assert_close(trajectory["candidates"][..., 0, 0], trajectory["policy"][..., 0])
    assert len(leaves_of(action, trajectory["action"])) == len(codec.parts)


class Once(Toy):
    """Choose a number, once: the reward is 4 less sixteen squares of its distance from 0.5."""

    def __init__(self):
        self.observation_space, self.action_space = GymBox(0.0, 1.0, (1,)), GymBox(-2.0, 2.0, (1,))

    def act(self, action):
        return 4.0 - 16.0 * (float(action[0]) / 2.0 - 0.5) ** 2, True

    def observe(self):
        return np.ones(1, np.float32)


@pytest.mark.parametrize("gumbel", [True, False])
def test_the_best_number_is_found(gumbel, tmp_path):
    sizes = [f"algorithm.{name}=[32]" for name in ("hidden", "dynamics", "prediction")]
    searches = [f"algorithm.search.gumbel={gumbel}", "algorithm.search.simulations=16", "algorithm.unroll=1"]
    run = ["algorithm=muzero", f"env.target={__name__}.Once", "stop.env_steps=1_000", "algorithm.warmup_steps=200"]
    rest = ["algorithm.latent=16", "evaluation.episodes=4", "memory.length=400"]
    rest += ["algorithm.lr=1.0e-2", "algorithm.updates_per_step=0.5"]
    result = rlrun.train([*run, *sizes, *searches, *rest], run_dir=tmp_path / "run")
    wider = rlrun.evaluate(
        result.run_dir, episodes=2, overrides=[f"algorithm.search.{name}=50" for name in ("candidates", "considered")]
    )
    assert wider.mean_return > 3.8
    agent = rlrun.load(result.run_dir).agent
    observation = np.ones((1, 1), np.float32)
    assert agent(observation, explore=False)["action"][0, 0] == pytest.approx(0.5, abs=0.12)
    assert agent.exported(observation, explore=False)["action"][0, 0] == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(
    "words",
    [
        ("env=pendulum", "algorithm.reanalyze.share=0.5"),
        ("env=mixedaction", "algorithm.search.gumbel=false", "algorithm.search.candidate_temperature=1.5"),
        ("env.target=rlrun.env.toys.MultiDiscreteAction", "+networks.muzero.joint_limit=1"),
        ("env=cartpole", "algorithm.search.candidates=2", "algorithm.search.likeliest=true"),
    ],
    ids=["numbers", "mixed", "many", "likeliest"],
)
def test_a_run_over_candidates_is_resumed_exactly(words, tmp_path):
    composed = compose(["algorithm=muzero", "preset=null", *words])
    assert_exact(shrink(composed, {**RESUMED, "num_envs": 3}), tmp_path, at=AT)


def test_a_picture_needs_no_environment_that_can_be_shown(tmp_path):
    small = ("algorithm.hidden=[8]", "algorithm.latent=4", "algorithm.search.simulations=4", "algorithm.batch_size=4")
    budget = ("preset=null", "num_envs=1", "algorithm.warmup_steps=10", "stop.updates=1", "evaluation.every=0")
    run = rlrun.train(["algorithm=muzero", "env=mixedaction", *small, *budget], run_dir=tmp_path / "run").run_dir
    said = []
    play(run, tree=tmp_path / "tree.svg", say=said.append)
    assert "4 visits" not in (text := (tmp_path / "tree.svg").read_text())
    assert "5 visits" in text
    assert re.search(r">[+-]\d\.\d\d( [+-]?[\d.]+)* +p ", text), "numbers of an action, not that of a candidate"
    assert said[0].endswith("renders no text (ansi) and no window (human)")
    with pytest.raises(RlrunError, match="nowhere"):
        play(run, tree=tmp_path / "nowhere" / "tree.svg")


def test_searches_are_for_the_goal_of_their_step():
    with pytest.raises(RlrunError, match="stored searches were for the goal of their step"):
        check(["algorithm=muzero", "env=bitflip", "+with=hindsight"])
