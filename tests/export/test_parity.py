"""Files act as the policies that they were made of, whatever the algorithm and the spaces."""

import itertools

import pytest
import torch
from tests.configs import ALGORITHMS, actions
from tests.export.made import SMALL, SPACES, file_of, make, proven

from rlrun.collect import PolicyAgent, RandomAgent
from rlrun.collect.unroll import freeze
from rlrun.core.errors import RequestError, RlrunError
from rlrun.export import making
from rlrun.export.checking import running
from rlrun.export.graph import Graph, Outer
from rlrun.nn import Normalizer

pytest.importorskip("onnx")
OWN = {
    "handcrafted": ["box", "discrete"],  # made for an environment each
    "action_repeat": ["box", "discrete"],  # SAC's networks, behind which actions are kept
    "mbrl": ["box", "discrete", "mixed"],  # all that a plan has of other spaces
    "latent_mbrl": ["box"],  # the planner of mbrl
    "pets": ["box"],
    "merlin": ["mixed"],  # PPO's head, whose numbers and choices its memory reads as well
}
PLAN = ("horizon=2", "population=4", "elite=2")
ONCE = "algorithm.plan.iterations=1"  # a second one takes the same steps: mbrl proves it in a box
SMALLER = {
    "handcrafted": (),
    **dict.fromkeys(("airl", "bc", "causal_bc", "gail"), (*SMALL, "dataset=unused")),
    "a2c": (*SMALL, "algorithm.spread=free"),  # as the others have it
    "genrl": (*SMALL, "init.networks.vae=null"),
    "seditor": (*SMALL, "lagrangian.thresholds=[null,-0.25]"),
    "merlin": (
        *(*SMALL, "algorithm.slots=4", "algorithm.latent=3", "algorithm.predictor.keys=2"),
        *("algorithm.predictor.lstm_size=[5,4]", "algorithm.actor.lstm_size=[5]"),
    ),
    "taac_q": (*SMALL, "algorithm.inverse=false"),  # as taac_l is not
    **dict.fromkeys(("mbrl", "pets"), (*SMALL, *(f"algorithm.plan.{name}" for name in PLAN), ONCE)),
    "latent_mbrl": (*SMALL, "algorithm.latent=5", *(f"algorithm.plan.{name}" for name in PLAN), ONCE),
}
ENVS = {"seditor": "env=constrainedbandit"}  # where rewards are of two numbers
ALIKE = (  # they act by the very same agent, which is proven once
    *(("ppo", "a2c", "trac", "gail", "airl"), ("bc", "iql"), ("ddpg", "sarsa_ddpg"), ("sac", "sarsa", "mbpo")),
)


FRAMES = "env.wrappers=[{_target_: rlrun.env.wrappers.FrameStack, count: 32}]"
DENSE = ("encoder._target_=torch.nn.LazyLinear", "+encoder.out_features=5")
OBSERVED = ("dict", "image", "start")  # what else "discrete" is but for what is observed
# whose policies have the head of sac's or ppo's, proven in all spaces
COPIES = ("bc", "ppg", "muzero", *(name for names in ALIKE for name in names[1:]))
ENCODERS = ("dqn", "ppo", "handcrafted")  # whose networks read all of these; those of others are the same


def trained(algorithm, kind):
    """Whether an algorithm is trained in such spaces, and is not known to act alike in others."""
    if (kind in OBSERVED and algorithm not in ENCODERS) or (algorithm in COPIES and kind not in ("box", "discrete")):
        return False
    if actions(algorithm) == "games":  # tests/algorithms/search/test_alphazero.py
        return False
    if actions(algorithm) == "continuous":
        return kind == "box"
    continuous = kind in ("box", "mixed", "tuple")
    return kind in OWN.get(algorithm, SPACES) and not (actions(algorithm) == "discrete" and continuous)


def families():
    """Return those that act alike, each algorithm once."""
    together = {name for names in ALIKE for name in names}
    return [*ALIKE, *((name,) for name in ALGORITHMS if name not in together)]


@pytest.mark.parametrize(
    ("algorithms", "kind"),
    [pair for pair in itertools.product(families(), SPACES) if any(trained(name, pair[1]) for name in pair[0])],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_every_policy_is_exported_as_it_acts(algorithms, kind):
    parities = {}  # by all that a file is made of
    for algorithm in (name for name in algorithms if trained(name, kind)):
        env = ENVS.get(algorithm, SPACES[kind])
        twice = ["algorithm.plan.iterations=2"] if (algorithm, kind) == ("mbrl", "box") else []
        setup = make(f"algorithm={algorithm}", env, *SMALLER.get(algorithm, SMALL), *twice)
        key = freeze((setup.agent, Outer(*setup.env.outer)))
        if key not in parities:
            parities[key] = proven(setup, setup.graph())
    assert len(parities) == 1
    for parity in parities.values():
        assert parity.rows == 67
        assert parity.largest < 1e-5


@pytest.mark.parametrize(
    ("own", "states"),
    [
        (("algorithm.recurrent=gru", "algorithm.core_size=5"), ["state.plan", "state.recurrent"]),
        (("+networks.dynamics.network={_target_: rlrun.nn.MLP, _partial_: true}",), ["state.plan"]),
    ],
)
def test_a_plan_is_exported_with_the_members_that_predict(own, states):
    setup = make("algorithm=pets", "env=pendulum", *SMALLER["pets"], "algorithm.members=3", "algorithm.elites=2", *own)
    setup.parts["networks.dynamics"].held_out.copy_(torch.tensor([3.0, 2.0, 1.0]))
    graph = setup.graph()
    assert [port.name for port in graph.inputs if port.role == "state"] == states
    assert proven(setup, graph).largest < 1e-5


CUT = "+networks.actor_critic.distribution=truncated"


@pytest.mark.parametrize(
    ("algorithm", "kind", "more"),
    [("td3", "box", ()), ("sac", "mixed", ()), ("ppo", "tuple", ()), ("ppo", "box", (CUT,))],
)
def test_noise_comes_from_outside(algorithm, kind, more):
    setup = make(f"algorithm={algorithm}", SPACES[kind], *SMALL, *more)
    graph = setup.graph(stochastic=True)
    assert proven(setup, graph).largest < 1e-5
    names = [port.name for port in graph.inputs if port.role not in ("observation", "state")]
    assert names == ["epsilon"]


def test_an_epsilon_greedy_agent_explores_as_often_as_in_training():
    setup = make("algorithm=dqn", "env=cartpole", *SMALL, "algorithm.epsilon.first=0.4")
    graph = setup.graph(stochastic=True)
    assert proven(setup, graph).largest == 0.0
    envs = 20_000
    epsilon = torch.randn(envs, 4, generator=torch.Generator().manual_seed(0))
    observation = torch.tensor([[0.1, -0.2, 0.3, 0.4]]).expand(envs, 4)
    action = graph(observation, epsilon)[0]
    best = setup.graph()(observation[:1])[0]
    assert float((action != best).float().mean()) == pytest.approx(0.2, abs=0.015)  # half of the random ones are best


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("algorithm=ppo", SPACES["dict"]), ("",)),
        (("algorithm=dqn", "env=cartpole"), ("",)),
        (("algorithm=sac", SPACES["mixed"]), ("",)),
        (("algorithm=td3", "env=pendulum"), ("",)),
        (("algorithm=taac_q", "env=pendulum"), (".trajectory", ".recurrent")),
        (("algorithm=dqn", "env=cartpole", "+with=action_repeat"), (".action", ".left", ".recurrent")),
    ],
)
def test_a_recurrent_policy_takes_and_gives_its_state(overrides, parts):
    setup = make(*overrides, *SMALL, "algorithm.recurrent=lstm", "algorithm.core_size=5")
    graph = setup.graph()
    assert [port.name for port in graph.inputs if port.role == "state"] == [f"state{part}" for part in parts]
    assert [port.name for port in graph.outputs if port.role == "next_state"] == [f"next_state{part}" for part in parts]
    assert proven(setup, graph).largest < 1e-5


@pytest.mark.parametrize(
    "overrides",
    [
        (
            "algorithm=ppo",
            SPACES["image"],
            "encoder=impala",
            "encoder.images.channels=[2,3]",
            "algorithm.recurrent=gru",
        ),
        ("algorithm=dqn", SPACES["image"], "encoder=small", "encoder.features=null"),
        ("algorithm=ddpg", SPACES["box"], "+with=shared_encoder", *DENSE),
        ("algorithm=dqn", "env=cartpole", "encoder=signals", FRAMES),
        ("algorithm=sac", SPACES["box"], "+with=shared_encoder", "encoder=recurrent", "encoder.core_size=3"),
        ("algorithm=dqn", SPACES["image"], "+with=representation_shared", "encoder.core=gru"),
        ("algorithm=dqn", SPACES["image"], "+with=muzero_representation"),
        ("algorithm=ppo", "env=maskedchain", "preset=null", "+with=muzero_representation"),
    ],
    ids=["impala", "small", "shared", "signals", "recurrent", "representation", "latents", "latents and a mask"],
)
def test_encoders_are_exported(overrides):
    setup = make(*overrides, *SMALL)
    assert proven(setup, setup.graph()).largest < 1e-5


def test_normalizers_are_inside():
    setup = make("algorithm=ppo", "env=pendulum", *SMALL, "+with=observation_norm")
    normalizer = next(part for part in setup.parts.values() if isinstance(part, Normalizer))
    normalizer.update(torch.randn(100, 3) * torch.tensor([0.5, 0.5, 4.0]) + 0.3)
    assert proven(setup, setup.graph()).largest < 1e-5


def mean_in_place_of_tanh(made):
    head = made.agent.policy.head
    head.mode = lambda heads: head.codec.join(heads.mean, None)


def worst_choice(made):
    codec = made.agent.policy.codec
    codec.best = lambda values: values.argmin(-1, keepdim=True)


@pytest.mark.parametrize(
    ("overrides", "mutate"),
    [
        (("algorithm=ppo", "env=pendulum", *SMALL), mean_in_place_of_tanh),
        (("algorithm=dqn", "env=cartpole", *SMALL), worst_choice),
    ],
)
def test_a_wrong_graph_is_refused(overrides, mutate):
    right, wrong = (make(*overrides) for _ in range(2))
    for module in (right.agent.policy, wrong.agent.policy):  # alike, and far enough from zero to matter
        torch.manual_seed(4)
        for parameter in module.parameters():
            parameter.data.normal_(0.0, 0.8)
    mutate(wrong)
    graph = wrong.graph()
    with pytest.raises(RlrunError, match="disagrees: 'action' is"):
        proven(right, right.graph(), running(file_of(graph), graph))


def test_a_file_for_one_batch_size_is_refused(monkeypatch):
    setup = make("algorithm=dqn", "env=cartpole", *SMALL)
    graph = setup.graph()
    fixed = torch.export.export(graph, tuple(graph.blank(7)))
    monkeypatch.setattr(making, "traced", lambda graph: fixed)
    data = file_of(graph)
    with pytest.raises(RlrunError, match="the exported policy fails on 1 observations"):
        proven(setup, graph, running(data, graph))


class Coin:
    """Draws by itself."""

    state_size = 0

    def act(self, observation, explore):
        return (torch.rand(observation.shape[0]) < 0.5).long()


def test_a_policy_that_draws_by_itself_is_refused():
    setup = make("algorithm=dqn", "env=cartpole", *SMALL)
    agent = PolicyAgent(Coin())
    graph = Graph(agent, Outer(*setup.env.outer))
    with pytest.raises(RlrunError, match="disagrees"):
        proven(setup._replace(agent=agent), graph)


def test_an_agent_of_arrays_is_refused():
    setup = make("algorithm=dqn", "env=cartpole", *SMALL)
    with pytest.raises(RequestError, match="a RandomAgent cannot be exported: it has no respond"):
        Graph(RandomAgent(setup.env.spaces.action, seed=0), Outer(*setup.env.outer))
