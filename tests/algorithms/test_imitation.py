"""Discriminators: losses and rewards by hand, rewards before advantages, an expert of another rate, and whole runs."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.memory.tables import add_steps
from tests.nn.spaces_for_tests import OBSERVATIONS
from torch import Tensor, nn

import rlrun
from rlrun.algorithms.imitation.airl import AIRLLoss, AIRLReward, RewardFunction
from rlrun.algorithms.imitation.amp import StyleLoss, StyleReward
from rlrun.algorithms.imitation.discriminator import Discriminator, gradient_penalty, style_reward
from rlrun.algorithms.imitation.gail import GAILLoss, imitation_reward
from rlrun.collect import PolicyAgent
from rlrun.commands.check import check
from rlrun.core.errors import ConfigError, RequestError, SpaceError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Advantages, Intrinsic, NStep, ReplayLoader, Table
from rlrun.nn import ActorCritic

from .runs import REPLAY, ROLLOUT, SMALL

pytestmark = pytest.mark.usefixtures("folder")
adam = partial(torch.optim.Adam, lr=1e-2)

LINE = Box((1,), np.full(1, -np.inf, np.float32), np.full(1, np.inf, np.float32))
PLANE = Box((2,), np.full(2, -np.inf, np.float32), np.full(2, np.inf, np.float32))
SPACES = Spaces(LINE, Discrete(3))
SPEED = OBSERVATIONS["camera and speed"][0].parts["speed"].size
RECURRENT = ("algorithm.recurrent=gru", "algorithm.unroll=4")


def linear(weights: list[float], bias: float = 0.0) -> nn.Linear:
    layer = nn.Linear(len(weights), 1)
    layer.weight.data.copy_(torch.tensor([weights]))
    layer.bias.data.fill_(bias)
    return layer


def scored(weights: list[float], bias: float = 0.0, **options) -> Discriminator:
    """Return a discriminator whose score is a weighed sum of its inputs."""
    return Discriminator(SPACES, layers=linear(weights, bias), normalize=False, **options)


def rows(observation: list[float], following: list[float]) -> dict[str, Tensor]:
    return {"observation": torch.tensor(observation)[:, None], "next_observation": torch.tensor(following)[:, None]}


def test_gradient_penalty_is_the_squared_norm_of_each_gradient():
    torch.manual_seed(0)
    inputs, weights = torch.randn(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, -3.0])
    gradient = (inputs.square() @ weights).cos()[:, None] * 2.0 * inputs * weights
    penalty = gradient_penalty((inputs.square() @ weights).sin(), inputs)
    torch.testing.assert_close(penalty, gradient.square().sum(-1), rtol=1e-3, atol=1e-5)


def test_the_loss_of_a_linear_discriminator_is_known():
    """D(x) = 2 s - s' + 0.5; of the penalty, |(2, -1)|², the expert's rows alone have a part."""
    loss = StyleLoss(network := scored([2.0, -1.0], 0.5), adam, grad_loss_weight=3.0)
    own = {"inputs": network.inputs(rows([0.0, 1.0], [0.0, 2.0])), "bonus": torch.zeros(2)}  # scores 0.5 and 0.5
    value, _, metrics = loss.loss(own, rows([1.0], [0.0]))  # score 2.5
    value.backward()
    assert value.item() == pytest.approx(1.5**2 + 1.5**2 + 3.0 * 5.0)
    # 2 (D - 1) x of the expert, 2 (D + 1) x of the policy, 2 w weight of the penalty
    expected = [2 * 1.5 * 1.0 + 1.5 * (0.0 + 1.0) + 3.0 * 4.0, 0.0 + 1.5 * (0.0 + 2.0) + 3.0 * -2.0]
    assert network.layers.weight.grad[0].tolist() == pytest.approx(expected, rel=1e-3)
    assert [float(metrics[f"discriminator/accuracy_{name}"].mean()) for name in ("reference", "own")] == [1.0, 0.0]


def test_void_rows_of_the_policy_count_for_nothing():
    loss = GAILLoss(network := scored([1.0, 0.0]), adam)
    step = rows([1.0, 100.0], [0.0, 0.0])
    own = {"inputs": network.inputs(step), "bonus": torch.zeros(2)}
    value, *_ = loss.loss(own, rows([2.0], [0.0]), valid=torch.tensor([True, False]))
    assert value.item() == pytest.approx(math.log1p(math.exp(-2.0)) + math.log1p(math.exp(1.0)))


def test_rewards_of_scores():
    score = torch.tensor([1.0, -1.0, 3.0, -3.0, 0.0])
    assert style_reward(score).tolist() == [1.0, 0.0, 0.0, 0.0, 0.75]
    assert style_reward(score, floor=False).tolist() == [1.0, 0.0, 0.0, -3.0, 0.75]
    chance = score.sigmoid()
    for form, expected in {
        "positive": -(1.0 - chance).log(),
        "negative": chance.log(),
        "logit": chance.log() - (1.0 - chance).log(),
    }.items():
        torch.testing.assert_close(imitation_reward(score, form), expected)


def filled(*adaptors, **settings) -> Table:
    """Store episodes of 4, 3 and 5 steps: observation 10 e + i² at step i of episode e; reward 100."""
    table = Table(length=60, spaces=SPACES, adaptors=adaptors, **settings)
    for number, length in enumerate((4, 3, 5)):
        step = [{"observation": [[10.0 * number + i * i]], "action": [0], "reward": [100.0]} for i in range(length + 1)]
        add_steps(table, length, step.__getitem__, end="terminated", last=step[length]["observation"])
    return table


def style_of(number: int, i: int) -> float:
    """Return the style of step i by D = ½ (s' - s): s' - s is 2 i + 1."""
    return 1.0 - 0.25 * (0.5 * (2 * i + 1) - 1.0) ** 2


LENGTHS = (4, 3, 5)
PLACES = {10.0 * number + i * i: (number, i) for number, length in enumerate(LENGTHS) for i in range(length)}


@pytest.mark.parametrize("length", [1, 3])
def test_each_step_of_a_window_has_its_own_style(length):
    """A window of n-step returns has one next observation; styles are of the observations in between, up to the end."""
    bonus = StyleReward(scored([-0.5, 0.5]), weight=2.0, floor=False)
    intrinsic = Intrinsic({"amp": bonus}, extrinsic_weight=0.1)
    table = filled(intrinsic, NStep(steps=3, discount=0.5), short="pad")
    seen = set()
    for _ in range(20):
        batch = table.sample(20, length)
        for observation, reward in zip(batch["observation"].flatten(), batch["reward"].flatten(), strict=True):
            number, i = PLACES[float(observation)]
            made = range(min(3, LENGTHS[number] - i))
            assert float(reward) == pytest.approx(sum(0.5**k * (10.0 + 2.0 * style_of(number, i + k)) for k in made))
            seen.add((number, i))
    assert len(seen) == sum(LENGTHS)


class Nothing(nn.Module):
    """Values of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def value(self, observation: Tensor) -> Tensor:
        return torch.zeros(observation.shape[:-1])


def test_styles_are_rewards_before_advantages_are_computed():
    """With λ = 1 and values of 0, an advantage is the discounted sum of the styles up to the episode's end."""
    step = rows([0.0, 1.0, 4.0, 20.0], [1.0, 4.0, 9.0, 21.0])
    batch = {name: value[None] for name, value in step.items()}
    flags = {"terminated": torch.tensor([[False, False, True, False]]), "truncated": torch.zeros(1, 4).bool()}
    batch |= {**flags, "action": torch.zeros(1, 4).long(), "reward": torch.full((1, 4), 7.0)}
    bonus = StyleReward(scored([-0.5, 0.5]), floor=False)
    batch = Intrinsic({"amp": bonus}, extrinsic_weight=0.0)(batch, None)
    batch = Advantages(Nothing(), discount=0.5, lambda_=1.0, log_prob=False)(batch, None)
    style = [style_of(0, i) for i in range(3)]
    expected = [style[0] + 0.5 * style[1] + 0.25 * style[2], style[1] + 0.5 * style[2], style[2], style_of(0, 0)]
    assert batch["advantage"][0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_faster_reference_is_paired_over_several_of_its_steps(steps):
    loader = ReplayLoader(table=filled(), collector=None, batch=64, length=steps)
    loss = StyleLoss(scored([1.0, 1.0]), adam)
    for _, groups in zip(range(5), loader, strict=False):
        pairs = loss.begin_batch({"reference": groups["default"]})["reference"]
        for first, last in zip(pairs["observation"][:, 0], pairs["next_observation"][:, 0], strict=True):
            number, i = PLACES[float(first)]
            assert i + steps <= LENGTHS[number]
            assert float(last) == 10.0 * number + (i + steps) ** 2
    assert loss.begin_batch({}) is None


def test_maps_make_features_of_two_layouts():
    other = Spaces(PLANE, Discrete(3))
    network = Discriminator(
        SPACES, reference=other, imitation_state_map=[1], layers=linear([1.0, 10.0]), normalize=False
    )
    theirs = {"observation": torch.tensor([[5.0, 1.0]]), "next_observation": torch.tensor([[6.0, 2.0]])}
    assert network(network.inputs(theirs, reference=True)).tolist() == [21.0]
    assert network(network.inputs(rows([3.0], [4.0]))).tolist() == [43.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy_state_map": [1]}, "policy_state_map: wanted indices from 0 to 0, or a function"),
        ({"policy_state_map": lambda tree: tree.sum()}, r"policy_state_map: wanted features \[2, S\]"),
        ({"policy_state_map": lambda tree: tree.arm}, "policy_state_map: AttributeError"),
        ({"reference": Spaces(PLANE, Discrete(3))}, "policy_state_map: it makes 2 features of the expert's"),
        ({"reference": Spaces(LINE, Discrete(4)), "columns": ["observation", "action"]}, "dataset: its actions"),
    ],
)
def test_wrong_maps_are_refused(options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Discriminator(SPACES, **options)


def test_pictures_want_a_map():
    spaces = Spaces(OBSERVATIONS["camera and speed"][0], Discrete(2))
    with pytest.raises(SpaceError, match=r"^policy_state_map: observation\.camera is an image"):
        Discriminator(spaces)
    assert Discriminator(spaces, policy_state_map=lambda tree: tree["speed"]).sizes == [SPEED] * 2


def airl(**options) -> tuple[RewardFunction, PolicyAgent]:
    torch.manual_seed(0)
    network = RewardFunction(SPACES, discount=0.5, hidden=[8], normalize=False, **options)
    return network, PolicyAgent(ActorCritic(SPACES, hidden=[8]))


def transitions() -> dict[str, Tensor]:
    step = rows([0.0, 1.0, 4.0], [1.0, 4.0, 9.0])
    return {**step, "action": torch.tensor([0, 2, 1]), "terminated": torch.tensor([False, False, True])}


def test_the_logit_of_airl_is_that_of_its_probability():
    """sigmoid(f - log μ) = exp f / (exp f + μ), μ = ¾ π + ¼ / 3, and the reward is log D - log (1 - D)."""
    network, agent = airl()
    step = transitions()
    f = network(network.inputs(step))
    policy = agent.policy.evaluate_actions(step["observation"], step["action"]).log_prob
    probability = f.exp() / (f.exp() + 0.75 * policy.exp() + 0.25 / 3.0)
    bonus = AIRLReward(network, agent, uniform=0.25)
    reward, view = bonus.learn({**step, "reward": torch.zeros(3)}, None)
    torch.testing.assert_close(reward, probability.log() - (1.0 - probability).log())
    loss, *_ = AIRLLoss(network, adam, agent=agent, uniform=0.25).loss(view, step)
    torch.testing.assert_close(loss, -(probability.log().mean() + (1.0 - probability).log().mean()))


def test_shaping_of_airl_cancels_along_an_episode():
    """Σ γ^t f = Σ γ^t g - h(s_0), as the potential is 0 at the end of an episode that terminates."""
    network, _ = airl(state_only=True)
    step = transitions()
    powers = 0.5 ** torch.arange(3.0)
    shaped = (powers * network(network.inputs(step))).sum()
    plain = (powers * network.reward(step["observation"]).squeeze(-1)).sum()
    torch.testing.assert_close(shaped, plain - network.shaping(step["observation"][:1]).squeeze())
    other = network(network.inputs({**step, "action": torch.tensor([1, 1, 1])}))
    torch.testing.assert_close(other, network(network.inputs(step)))


def test_airl_wants_a_policy_without_a_state():
    network, _ = airl()
    agent = PolicyAgent(ActorCritic(SPACES, hidden=[8], core="gru"))
    with pytest.raises(ConfigError, match=r"^algorithm.recurrent: AIRL .* algorithm=gail"):
        AIRLReward(network, agent)


@pytest.fixture
def stored() -> str:
    handcrafted = ("algorithm=handcrafted", "evaluation.every=0", "logger=[]", "stop.env_steps=300")
    rlrun.train([*handcrafted, "env=pendulum", "memory.export.path=expert.zip"], run_dir="made")
    return "dataset=expert.zip"


def test_a_stored_memory_that_gives_no_batches_is_refused_before_the_first_step(stored):
    amp = ("algorithm=sac", "env=pendulum", "+with=amp", "memory.length=100")
    for overrides, message in (
        ((*amp, "dataset=null"), "^dataset: there are no rows to learn from; a file of memory.export"),
        (("algorithm=airl", "env=pendulum", "dataset=[]"), "^dataset: there are no rows to learn from"),
        ((*amp, "dataset=gone.zip"), "^dataset: .*gone.zip cannot be read"),
        (
            (*amp, stored, "reference.steps=201"),
            "^reference.steps: wanted at most 200, the steps of the ",
        ),
        ((*amp, stored, "intrinsic.amp.every=0"), "^intrinsic.amp.every must be at least 1, not 0"),
        ((*amp, stored, "intrinsic.amp.lr=-1"), "^intrinsic.amp.lr: wanted a number above 0, got -1"),
        ((*amp, stored, "reference.spaces=abc"), "^reference.spaces: wanted a Spaces or null, got 'abc'"),
        (
            ("algorithm=bc", "env=pendulum", "+with=amp", stored),
            "^memory.adaptors.intrinsic: .*bonuses out .amp",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            check(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        (*REPLAY, "algorithm=sac", "+with=amp", "algorithm.n_step=3", "intrinsic.amp.every=2", "reference.steps=2"),
        (*REPLAY, "algorithm=sac", "+with=amp", *RECURRENT, "algorithm.burn_in=1"),
        (*ROLLOUT, "algorithm=ppo", "+with=[amp,observation_norm]", "intrinsic.amp.policy_state_map=[0,1]"),
        (
            *ROLLOUT,
            "algorithm=gail",
            "algorithm.recurrent=gru",
            "algorithm.unroll=4",
            "algorithm.discriminator.every=2",
        ),
        (*ROLLOUT, "algorithm=airl", "+with=observation_norm", "algorithm.discriminator.every=1"),
    ],
)
def test_runs_learn_from_stored_transitions(stored, overrides):
    run = rlrun.train([*overrides, "env=pendulum", stored, "reference.batch_size=16"], run_dir="run")
    record = (run.run_dir / "metrics.jsonl").read_text()
    assert "discriminator/accuracy_reference" in record
    assert SMALL[0] in overrides


def test_an_expert_is_a_run(stored):
    short = (*ROLLOUT, "algorithm=ppo", "env=pendulum")
    rlrun.train([*short], run_dir="expert")
    acts = ("algorithm=handcrafted", "env=pendulum", "evaluation.every=0", "logger=[]", "stop.env_steps=20")
    rlrun.train(
        [*acts, "+with=expert", "expert=expert", "memory.export.path=its.zip", "checkpoint.memory=true"], run_dir="acts"
    )
    table = rlrun.memory.formats.sources.table_of("its.zip")
    policy = rlrun.load("expert")
    observation, action = (table.storage.gather(name, np.arange(19)) for name in ("observation", "action"))
    np.testing.assert_allclose(action.numpy() * 2.0, policy.predict(observation.numpy())[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match=r"expert: .* knows observations"):
        rlrun.train([*acts[:1], "env=cartpole", *acts[2:], "+with=expert", "expert=expert"], run_dir="other")
