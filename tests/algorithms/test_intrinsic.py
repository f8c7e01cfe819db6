"""RND, ICM and DIAYN: what their networks begin with, what they learn, who trains what, and whole runs."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch._dynamo
from tests.nn.spaces_for_tests import ACTIONS, OBSERVATIONS, box, draw
from torch import nn

import rlrun
from rlrun.algorithms.density.rnd import Distillation, Novelty, NoveltyLoss
from rlrun.algorithms.representation.diayn import Discriminator, DiscriminatorLoss, Diversity
from rlrun.algorithms.representation.icm import Curiosity, CuriosityLoss, Surprise
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.nn import Normalizer

from .fixed import fill
from .runs import REPLAY, ROLLOUT

pytestmark = pytest.mark.usefixtures("folder")
adam = partial(torch.optim.Adam, lr=1e-3)

LINE = box(2, low=-1.0, high=1.0)
KINDS = ("vector", "discrete", "camera and speed")  # tests/nn/test_encoders.py has all


def step_of(spaces, *lead):
    return {
        "observation": draw(spaces.observation, *lead),
        "next_observation": draw(spaces.observation, *lead),
        "action": draw(spaces.action, *lead),
        "reward": torch.zeros(*lead),
    }


def parts(kind, spaces, **options):
    """Return network, bonus and loss of a kind."""
    network, bonus, loss = {
        "rnd": (Distillation, Novelty, NoveltyLoss),
        "icm": (Curiosity, Surprise, CuriosityLoss),
        "diayn": (Discriminator, Diversity, DiscriminatorLoss),
    }[kind]
    model = network(spaces, **options)
    normalize = Normalizer(spaces, needed=False, clip=5.0)
    return model, bonus(model, observation=normalize), loss(model, adam)


CASES = [("rnd", name, "vector") for name in KINDS] + [("diayn", name, "vector") for name in KINDS]
CASES += [("icm", name, "mixed") for name in KINDS] + [("icm", "vector", name) for name in ACTIONS]


@pytest.mark.parametrize(("kind", "observation", "action"), CASES)
def test_every_space_has_a_bonus(kind, observation, action):
    torch.manual_seed(0)
    space, _ = OBSERVATIONS[observation]
    if kind == "diayn":
        space = Composite({"observation": space, "goal": Discrete(3)})
    spaces = Spaces(space, ACTIONS[action])
    _, bonus, loss = parts(kind, spaces)
    value, view = bonus.learn(step_of(spaces, 4, 5), None)
    assert value.shape == (4, 5)
    assert torch.isfinite(value).all()
    before = [parameter.clone() for parameter in loss.parameters]
    first, *_ = loss.loss(view)
    assert first.shape == (4, 5)
    for _ in range(30):
        loss.backward(view)
    assert loss.loss(view)[0].mean() < first.mean()
    assert any(not torch.equal(*pair) for pair in zip(before, loss.parameters, strict=True))


@pytest.mark.parametrize(
    ("kind", "action"), [("diayn", LINE), ("icm", Composite({"level": LINE, "sides": ACTIONS["many"]}))]
)
def test_losses_are_single_graphs(kind, action):
    observation = Composite({"observation": LINE, "goal": Discrete(3)}) if kind == "diayn" else LINE
    spaces = Spaces(observation, action)
    _, bonus, loss = parts(kind, spaces)
    torch._dynamo.reset()
    report = torch._dynamo.explain(loss.loss)(bonus.learn(step_of(spaces, 4), None)[1], torch.ones(4).bool())
    assert (report.graph_break_count, report.graph_count) == (0, 1)


@pytest.mark.parametrize("kind", ["rnd", "icm", "diayn"])
def test_invalid_rows_teach_nothing(kind):
    spaces = Spaces(Composite({"observation": LINE, "goal": Discrete(3)}) if kind == "diayn" else LINE, Discrete(2))
    _, bonus, loss = parts(kind, spaces)
    view = bonus.learn(step_of(spaces, 2, 3), None)[1]
    valid = torch.tensor([[True, True, False], [True, False, False]])
    elements, *_ = loss.loss(view, valid)
    assert (elements[~valid] == 0).all()
    assert torch.equal(elements[valid], loss.loss(view)[0][valid])


# --- random network distillation


def test_random_network_never_learns():
    network, bonus, loss = parts("rnd", Spaces(LINE, LINE))
    before = [parameter.clone() for parameter in network.random.parameters()]
    view = bonus.learn(step_of(Spaces(LINE, LINE), 8), None)[1]
    for _ in range(3):
        loss.backward(view)
    assert all(torch.equal(*pair) for pair in zip(before, network.random.parameters(), strict=True))


def test_error_is_squared_feature_distance():
    network = Distillation(Spaces(LINE, LINE), hidden=(), further=(), features=2, init="default")
    fill(network.random[1][0], 1.0, -2.0)
    fill(network.predictor[1][0], 0.0, 1.0)
    assert network.error(torch.zeros(3, 2)).tolist() == [10.0] * 3


def test_learned_observations_are_not_novel():
    torch.manual_seed(1)
    spaces = Spaces(box(10), LINE)
    network = Distillation(spaces, hidden=(64,), further=(64,), features=16)
    loss, centres = NoveltyLoss(network, partial(adam, lr=4e-3)), torch.randn(2, 10) * 2
    for _ in range(300):
        loss.backward({"observation": centres[0] + 0.3 * torch.randn(64, 10), "bonus": torch.zeros(64)})
    with torch.no_grad():
        old, new = (network.error(center + 0.3 * torch.randn(500, 10)) for center in centres)
    assert old.mean() < 0.1 * new.mean()
    assert (new[:, None] > old).float().mean() > 0.99  # area under the curve


def test_bonus_is_of_the_next_observation():
    spaces = Spaces(LINE, LINE)
    network, step = Distillation(spaces), step_of(spaces, 5)
    bonus = Novelty(network)
    with torch.no_grad():
        assert torch.equal(bonus.read(step), network.error(step["next_observation"]))


def test_only_newest_frames_count():
    stack = Box((4, 10, 10), np.zeros((4, 10, 10), np.uint8), np.full((4, 10, 10), 255, np.uint8), "uint8")
    space = Composite({"camera": stack, "speed": LINE})
    network = Distillation(Spaces(space, LINE), frames=1)
    pixels = torch.randint(0, 256, (3, 4, 10, 10), dtype=torch.uint8)
    seen = {"camera": pixels, "speed": torch.zeros(3, 2)}
    older, newest = pixels.clone(), pixels.clone()
    older[:, :3] = 0
    newest[:, 3] = 0
    with torch.no_grad():
        error = network.error(seen)
        assert torch.equal(network.error(seen | {"camera": older}), error)
        assert not torch.equal(network.error(seen | {"camera": newest}), error)


# --- intrinsic curiosity


@pytest.mark.parametrize(
    ("action", "expected"), [("discrete", math.log(3)), ("multi", math.log(6)), ("many", 6 * math.log(3))]
)
def test_inverse_model_begins_uniform(action, expected):
    spaces = Spaces(LINE, ACTIONS[action])
    network, step = Curiosity(spaces), step_of(spaces, 6)
    before, after = network.features(step["observation"]), network.features(step["next_observation"])
    assert network.inverse_error(before, step["action"], after).tolist() == pytest.approx([expected] * 6, abs=1e-5)


def test_inverse_model_begins_at_zero():
    spaces = Spaces(LINE, LINE)
    network, features = Curiosity(spaces), torch.randn(3, 128)
    action = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, -1.0]])
    assert network.inverse_error(features, action, features).tolist() == [0.0, 0.25, 0.5]


def test_actions_are_those_of_memory():
    network = Curiosity(Spaces(LINE, box(3)), stored=Spaces(box(4), LINE))
    step = step_of(Spaces(LINE, LINE), 6)
    before, after = network.features(step["observation"]), network.features(step["next_observation"])
    assert network.inverse_error(before, step["action"], after).shape == (6,)
    assert network.forward_error(before, step["action"], after).shape == (6,)


def test_forward_error_halves_the_square():
    network = Curiosity(Spaces(LINE, LINE), hidden=(4,), model=())
    fill(network.foretell[0], 1.0, 0.0, 0.0, 0.0)
    error = network.forward_error(torch.zeros(2, 4), torch.zeros(2, 2), torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 2.0]]))
    assert error.tolist() == [0.0, 0.625]


def test_forward_model_shapes_no_features():
    spaces = Spaces(LINE, Discrete(4))
    network, bonus, loss = parts("icm", spaces)
    view = bonus.learn(step_of(spaces, 8), None)[1]
    loss.loss(view)[0].mean().backward()
    assert all((parameter.grad == 0).all() for parameter in network.features.parameters())  # the inverse says nothing
    assert any((parameter.grad != 0).any() for parameter in network.foretell.parameters())
    assert any((parameter.grad != 0).any() for parameter in network.tell.parameters())


def test_actions_are_predicted_and_novelty_surprises():
    torch.manual_seed(0)
    spaces = Spaces(box(25), Discrete(4))
    network, bonus, loss = parts("icm", spaces)
    moves = torch.tensor([[0, 1], [1, 0], [0, 4], [4, 0]])

    def steps(count, cells):
        x, y, action = *cells, torch.randint(0, 4, (count,))
        moved = torch.stack([(x + moves[action, 0]) % 5, (y + moves[action, 1]) % 5])
        after = torch.eye(25)[moved[0] * 5 + moved[1]]
        return {"observation": torch.eye(25)[x * 5 + y], "action": action, "next_observation": after}

    for _ in range(150):
        x, y = torch.randint(0, 5, (2, 64))
        known = steps(64, (x, torch.where(x == 2, y % 2, y)))  # never from three cells of row 2
        loss.backward(known | {"bonus": torch.zeros(64)})
    with torch.no_grad():
        before, after = network.features(known["observation"]), network.features(known["next_observation"])
        prediction = network.tell(torch.cat((before, after), -1)).argmax(-1)
        new = steps(200, (torch.full((200,), 2), torch.full((200,), 3)))
        seen, unseen = (bonus.measure(step).mean() for step in (known, new))
    assert (prediction == known["action"]).float().mean() >= 0.95
    assert unseen >= 3 * seen


# --- skills

SKILLED = Spaces(Composite({"observation": LINE, "goal": Discrete(4)}), Discrete(2))


def test_skills_begin_uniform_and_pay_nothing():
    _, bonus, loss = parts("diayn", SKILLED)
    value, view = bonus.learn(step_of(SKILLED, 6), None)
    assert value.tolist() == pytest.approx([0.0] * 6, abs=1e-6)
    assert loss.loss(view)[0].tolist() == pytest.approx([math.log(4)] * 6, abs=1e-6)


def test_bonus_is_of_the_acting_skill():
    network, bonus, _ = parts("diayn", SKILLED)
    with torch.no_grad():
        network.layers[-1].bias.copy_(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    step = step_of(SKILLED, 4)
    step["observation"]["goal"], step["next_observation"]["goal"] = torch.arange(4), torch.zeros(4).long()
    log_prob = torch.tensor([0.0, 1.0, 2.0, 3.0]).log_softmax(0)
    assert torch.allclose(bonus.learn(step, None)[0], log_prob + math.log(4))


def test_network_cannot_see_the_skill():
    network, bonus, _ = parts("diayn", SKILLED)
    step = step_of(SKILLED, 6)
    view = bonus.learn(step, None)[1]
    assert network.encoder.size == view["observation"].shape[-1] == 2
    several = Spaces(Composite({**SKILLED.observation.parts, "speed": LINE}), SKILLED.action)
    network, bonus, _ = parts("diayn", several)
    assert set(bonus.learn(step_of(several, 6), None)[1]["observation"]) == {"observation", "speed"}
    assert network.encoder.size == 4


def test_own_modules_replace_networks():
    def layer(outputs):
        return nn.LazyLinear(outputs)

    spaces, learned = Spaces(LINE, Discrete(3)), {}
    for kind, own in {
        "icm": {"features": layer(5), "inverse": layer(3), "forward": layer(5)},
        "rnd": {"encoder": layer(4), "random": layer(6), "predictor": layer(6)},
        "diayn": {"encoder": layer(7)},
    }.items():
        seen = SKILLED if kind == "diayn" else spaces
        network, bonus, loss = parts(kind, seen, **own)
        before = {name: module.weight.clone() for name, module in own.items()}
        value, view = bonus.learn(step_of(seen, 8), None)
        assert value.shape == (8,)
        for _ in range(3):  # the last layer of diayn begins at 0
            loss.backward(view)
        learned[kind] = {name for name, module in own.items() if not module.weight.equal(before[name])}
        if kind == "icm":
            assert (network.size, own["forward"].in_features, own["inverse"].in_features) == (5, 5 + 3, 10)
    assert learned == {"icm": {"features", "inverse", "forward"}, "rnd": {"predictor"}, "diayn": {"encoder"}}


def test_frozen_encoder_keeps_its_statistics():
    encoder = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    network = Distillation(Spaces(LINE, Discrete(3)), encoder=encoder)
    seen = torch.randn(8, 2)
    errors = [network.train().error(seen).tolist() for _ in range(2)]
    assert errors[0] == errors[1]
    assert (encoder.training, network.predictor.training) == (False, True)


def test_own_modules_of_another_size_are_refused():
    spaces = Spaces(LINE, Discrete(3))
    with pytest.raises(ConfigError, match="a Linear makes 4 numbers of 256; wanted 3"):
        Curiosity(spaces, inverse=nn.LazyLinear(4))
    with pytest.raises(ConfigError, match=r"wanted a module of torch, such as .*, got 'mlp'"):
        Distillation(spaces, encoder="mlp")
    with pytest.raises(ConfigError, match=r"networks\.rnd: random makes 8 numbers and predictor 64"):
        Distillation(spaces, random=nn.LazyLinear(8))


NUMBERS = Spaces(Composite({"observation": LINE, "goal": LINE}), Discrete(2))


def test_continuous_skill_is_predicted_by_mean():
    network, bonus, loss = parts("diayn", NUMBERS)
    step = step_of(NUMBERS, 4)
    square = step["observation"]["goal"].square().sum(-1)
    value, view = bonus.learn(step, None)
    assert torch.allclose(loss.loss(view)[0], square / 2)  # it begins with a mean of 0
    assert torch.allclose(value, 1 / 3 - square / 2)  # E |z|² of two numbers uniform in [-1, 1] is 2/3
    with torch.no_grad():
        network.layers[-1].bias.copy_(torch.tensor([0.5, -0.5]))
    distance = (step["observation"]["goal"] - torch.tensor([0.5, -0.5])).square().sum(-1)
    assert torch.allclose(bonus.read(step), 1 / 3 - distance / 2)


def test_visible_continuous_skill_is_learned():
    torch.manual_seed(0)
    _, bonus, loss = parts("diayn", NUMBERS)
    for _ in range(150):
        step = step_of(NUMBERS, 64)
        step["next_observation"]["observation"] = step["observation"]["goal"].flip(-1)
        value, view = bonus.learn(step, None)
        loss.backward(view)
    assert float(value.detach().mean()) > 0.3  # 1/3 at most, on average
    assert float(loss.metrics["intrinsic/_right"]) > 0.95


# --- in runs: added once, with off-policy and on-policy algorithms


def test_rnd_adds_the_documented_sum(tmp_path):
    """Σ γ^k · (extrinsic · reward + weight · error / root mean square), each step's by itself."""
    steps = 3
    weights = ("intrinsic.rnd.weight=0.5", "intrinsic.extrinsic_weight=3.0", f"algorithm.n_step={steps}")
    overrides = ["algorithm=sac", "env=pendulum", "preset=null", "+with=rnd", *weights, *REPLAY]
    trainer = rlrun.train(overrides, run_dir=tmp_path / "run").trainer
    table, network = trainer.loader.table, trainer.callbacks["rnd"].network
    (intrinsic,) = [adaptor for adaptor in table.adaptors if hasattr(adaptor, "bonuses")]
    bonus = intrinsic.bonuses["rnd"]
    for _ in range(3):
        batch = table.sample(32)
        ((_, rows),) = batch.parts
        slots, lengths = rows.onward(steps)
        expected = torch.zeros(32)
        for k in range(steps):
            stored = rows.stored("reward", slots[:, k])
            following = rows.stored("observation", rows.where.after(slots[:, k], 1))
            seen = (following - bonus.observation.statistics[0].shift) * bonus.observation.statistics[0].scale
            error = network.error(seen.clamp(-5.0, 5.0)).detach()
            scaled = error / bonus.reward.statistics[0].moments[1].sqrt()
            counts = torch.from_numpy(k < lengths) * 0.99**k
            expected += counts * (3.0 * stored + 0.5 * scaled)
        assert torch.allclose(batch["reward"], expected.float(), rtol=1e-4)
        assert lengths.max() == steps


FAMILIES = {
    "dqn": ("algorithm=dqn", "env=cartpole", *REPLAY),
    "sac": ("algorithm=sac", "env=mixedaction", *REPLAY),
    "ppo": ("algorithm=ppo", "env=mixedaction", "algorithm.batch_size=16", *ROLLOUT),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_any_algorithm_takes_all_bonuses(family, tmp_path):
    overrides = [*FAMILIES[family], "+with=[rnd,icm,diayn]", "intrinsic.extrinsic_weight=1.0"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    assert result.summary["status"] == "completed"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "loss/rnd" in line][-1]
    for name in ("rnd", "icm", "diayn"):
        assert np.isfinite([last[f"loss/{name}"], last[f"intrinsic/{name}_bonus"]]).all()
    assert 0.0 <= last["intrinsic/diayn_right"] <= 1.0


def test_reported_returns_are_the_environments(tmp_path):
    overrides = [*FAMILIES["dqn"], "+with=rnd", "intrinsic.rnd.weight=1000.0", "intrinsic.extrinsic_weight=0.0"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    table, collector = result.trainer.loader.table, result.trainer.callbacks["collector"]
    assert collector.metrics["episode/return"] == collector.metrics["episode/length"]  # CartPole pays 1 a step
    batch = table.sample(50)
    ((_, rows),) = batch.parts
    assert (batch["reward"] != 1.0).any()
    assert (rows.stored("reward", rows.index) == 1.0).all()


def test_skills_need_wrapped_environments(tmp_path):
    overrides = ["algorithm=dqn", "env.id=CartPole-v1", "env.vectorization=native", "+with=diayn"]
    with pytest.raises(ConfigError, match=r"env.wrappers wrap single environments; env.vectorization 'native' has non"):
        rlrun.train(overrides, run_dir=tmp_path / "run")
