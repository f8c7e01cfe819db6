"""torchrl, put together as its own scripts do, with the numbers of a run of rlrun; eager, or compiled as they compile.

Its collectors hand over lots of steps, and as many updates follow. What its scripts prefetch by further threads is
sampled in between here: a side has one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale, NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torch.optim import Adam
from torchrl._utils import compile_with_warmup
from torchrl.collectors import Collector
from torchrl.data import Composite, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import Compose, DoubleToFloat, EnvBase, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import (
    MLP,
    AdditiveGaussianModule,
    EGreedyModule,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    DQNLoss,
    HardUpdate,
    SACLoss,
    SoftUpdate,
    TD3Loss,
    group_optimizers,
)
from torchrl.objectives.value.advantages import GAE

from benchmarks.rivals.training.work import Work

PACKAGES = ("torchrl", "tensordict")
BURST = {"dqn": 256}  # steps from one lot of updates to the next
USUAL_BURST = 100
MODE = "default"  # of the compiler: its others are for a GPU
Numbers = dict[str, Any]
Update = Callable[[TensorDict, int], Any]


def train(work: Work) -> None:
    """Go on past the window."""
    torch.manual_seed(0)
    numbers, categorical = work.numbers, work.algorithm in ("ppo", "a2c")
    env = made(work.env, numbers["num_envs"], categorical=categorical)
    (on_policy if categorical else off_policy)(work, env)


def made(name: str, count: int, *, categorical: bool) -> EnvBase:
    """Return environments with the transforms of the scripts; categorical: actions are numbered."""

    def make() -> GymEnv:
        return GymEnv(name, categorical_action_encoding=categorical)

    env = make() if count == 1 else SerialEnv(count, make)
    env.set_seed(0)
    return TransformedEnv(env, Compose(DoubleToFloat(), RewardSum(), StepCounter()))


def collected(work: Work, env: EnvBase, policy: Any, *, steps: int, random: int = 0) -> Iterable[TensorDict]:
    """Return what hands over lots of steps."""
    compiled = {"mode": MODE, "warmup": 1} if work.compiled else False
    return Collector(
        env,
        policy,
        frames_per_batch=steps,
        total_frames=10 * work.last // steps * steps,
        init_random_frames=random,
        max_frames_per_traj=-1,
        trust_policy=True,
        compile_policy=compiled,
    )


def prepared(work: Work, function: Any) -> Any:
    """Return a function, compiled where that is asked for."""
    return compile_with_warmup(function, mode=MODE, warmup=1) if work.compiled else function


def adams(numbers: Numbers, *groups: Iterable[Any]) -> Any:
    """Return an optimizer of all groups."""
    return group_optimizers(*(Adam(list(group), lr=numbers["lr"]) for group in groups))


def off_policy(work: Work, env: EnvBase) -> None:
    """Learn from a memory: a lot of steps, then as many updates as belong to it."""
    numbers, steps = work.numbers, BURST.get(work.algorithm, USUAL_BURST)
    policy, update = {"sac": sac, "td3": td3, "dqn": dqn}[work.algorithm](env, numbers)
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(numbers["length"], compilable=work.compiled), batch_size=numbers["batch_size"]
    )
    update, updates, seen = prepared(work, update), 0, 0
    for lot in collected(work, env, policy, steps=steps, random=numbers["warmup_steps"]):
        memory.extend(lot.reshape(-1))
        seen += lot.numel()
        if seen >= numbers["warmup_steps"]:
            for _ in range(round(steps * numbers["updates_per_step"])):
                updates += 1
                update(memory.sample(), updates % numbers.get("policy_every", 1) == 0)


def critic(numbers: Numbers) -> ValueOperator:
    """Return Q(s, a)."""
    network = MLP(num_cells=list(numbers["hidden"]), out_features=1, activation_class=nn.ReLU)
    return ValueOperator(network, in_keys=["action", "observation"])


def built(env: EnvBase, *networks: Any) -> None:
    """Have networks find out how wide what they see is."""
    with torch.no_grad():
        example = env.fake_tensordict()
        for network in networks:
            network(example)


def sac(env: EnvBase, numbers: Numbers) -> tuple[Any, Update]:
    """Return soft actor-critic."""
    spec = env.action_spec
    network = MLP(num_cells=list(numbers["hidden"]), out_features=2 * spec.shape[-1], activation_class=nn.ReLU)
    actor = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(network, NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
        return_log_prob=False,
    )
    value = critic(numbers)
    built(env, actor, value)
    initial = numbers["temperature"]["initial"]
    losses = SACLoss(actor_network=actor, qvalue_network=value, num_qvalue_nets=2, alpha_init=initial)
    losses.make_value_estimator(gamma=numbers["discount"])
    slow = SoftUpdate(losses, eps=1 - numbers["tau"])
    networks = (losses.actor_network_params, losses.qvalue_network_params)
    optimizer = adams(numbers, *(weights.flatten_keys().values() for weights in networks), [losses.log_alpha])

    def update(batch: TensorDict, _: bool) -> Any:
        terms = losses(batch)
        (terms["loss_actor"] + terms["loss_qvalue"] + terms["loss_alpha"]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        slow.step()
        return terms.detach()

    return actor, update


def td3(env: EnvBase, numbers: Numbers) -> tuple[Any, Update]:
    """Return twin delayed deterministic policy gradients."""
    spec, noise = env.action_spec, numbers["noise"]
    network = MLP(num_cells=list(numbers["hidden"]), out_features=spec.shape[-1], activation_class=nn.ReLU)
    actor = TensorDictSequential(
        TensorDictModule(network, in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=spec),
    )
    value = critic(numbers)
    built(env, actor, value)
    losses = TD3Loss(
        actor_network=actor,
        qvalue_network=value,
        num_qvalue_nets=2,
        delay_actor=True,
        delay_qvalue=True,
        action_spec=spec,
        policy_noise=noise["target"],
        noise_clip=noise["target_limit"],
    )
    losses.make_value_estimator(gamma=numbers["discount"])
    slow = SoftUpdate(losses, eps=1 - numbers["tau"])
    for_critics, for_actor = (
        Adam(list(weights.flatten_keys().values()), lr=numbers["lr"])
        for weights in (losses.qvalue_network_params, losses.actor_network_params)
    )

    def update(batch: TensorDict, both: bool) -> Any:
        loss, *_ = losses.value_loss(batch)
        loss.backward()
        for_critics.step()
        for_critics.zero_grad(set_to_none=True)
        if both:
            actor_loss, *_ = losses.actor_loss(batch)
            actor_loss.backward()
            for_actor.step()
            for_actor.zero_grad(set_to_none=True)
            slow.step()
        return loss.detach()

    explores = AdditiveGaussianModule(sigma_init=1, sigma_end=1, mean=0, std=noise["deviation"], spec=spec)
    return TensorDictSequential(actor, explores), update


def dqn(env: EnvBase, numbers: Numbers) -> tuple[Any, Update]:
    """Return deep Q-learning; hardly a random action, the dearest case."""
    network = MLP(num_cells=list(numbers["hidden"]), out_features=env.action_spec.space.n, activation_class=nn.ReLU)
    actor = QValueActor(network, in_keys=["observation"], spec=Composite(action=env.action_spec))
    built(env, actor)
    distance = "l2" if numbers["huber"] is None else "smooth_l1"
    losses = DQNLoss(actor, loss_function=distance, delay_value=True, double_dqn=numbers["double"])
    losses.make_value_estimator(gamma=numbers["discount"])
    slow = HardUpdate(losses, value_network_update_interval=numbers["target_every"])
    optimizer = Adam(losses.parameters(), lr=numbers["lr"])

    def update(batch: TensorDict, _: bool) -> Any:
        loss = losses(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(losses.parameters(), numbers["max_grad_norm"])
        optimizer.step()
        slow.step()
        return loss.detach()

    last = numbers["epsilon"]["last"]
    explores = EGreedyModule(eps_init=last, eps_end=last, annealing_num_steps=1, spec=actor.spec)
    return TensorDictSequential(actor, explores), update


def actor_of(env: EnvBase, numbers: Numbers) -> ProbabilisticActor:
    """Return the policy of PPO and A2C."""
    spec = env.action_spec_unbatched
    choice = not hasattr(spec.space, "low")
    network: nn.Module = MLP(
        num_cells=list(numbers["hidden"]),
        out_features=spec.space.n if choice else spec.shape[-1],
        activation_class=nn.Tanh,
    )
    keys, options = ["logits"], {"distribution_class": torch.distributions.Categorical}
    if not choice:
        keys, network = ["loc", "scale"], nn.Sequential(network, AddStateIndependentNormalScale(spec.shape[-1]))
        bounds = {"low": spec.space.low, "high": spec.space.high, "tanh_loc": False}
        options = {"distribution_class": TanhNormal, "distribution_kwargs": bounds}
    module = TensorDictModule(network, in_keys=["observation"], out_keys=keys)
    return ProbabilisticActor(module, in_keys=keys, spec=Composite(action=spec), return_log_prob=True, **options)


def on_policy(work: Work, env: EnvBase) -> None:
    """Learn from rollouts; advantages are computed again in each epoch, as in the scripts."""
    numbers, clipped = work.numbers, work.algorithm == "ppo"
    actor = actor_of(env, numbers)
    network = MLP(num_cells=list(numbers["hidden"]), out_features=1, activation_class=nn.Tanh)
    value = ValueOperator(network, in_keys=["observation"])
    built(env, actor, value)
    shared: dict[str, Any] = {"actor_network": actor, "critic_network": value}
    shared |= {"entropy_coeff": numbers["entropy_weight"], "critic_coeff": numbers["value_weight"]}
    own = {"clip_epsilon": numbers["clip"], "normalize_advantage": numbers["normalize"]} if clipped else {}
    losses = (ClipPPOLoss if clipped else A2CLoss)(**shared, **own, loss_critic_type="l2")
    eager = not work.compiled
    advantages = prepared(
        work, GAE(gamma=numbers["discount"], lmbda=numbers["lambda"], value_network=value, vectorized=eager)
    )
    optimizer, parameters = adams(numbers, actor.parameters(), value.parameters()), list(losses.parameters())

    def update(batch: TensorDict) -> Any:
        optimizer.zero_grad(set_to_none=True)
        terms = losses(batch)
        (terms["loss_critic"] + terms["loss_objective"] + terms.get("loss_entropy", 0.0)).backward()
        nn.utils.clip_grad_norm_(parameters, numbers["max_grad_norm"])
        optimizer.step()
        return terms.detach()

    update = prepared(work, update)
    rows = numbers["horizon"] * numbers["num_envs"]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows, compilable=work.compiled),
        sampler=SamplerWithoutReplacement(),
        batch_size=numbers.get("batch_size", rows),
    )
    for rollout in collected(work, env, actor, steps=rows):
        for _ in range(numbers.get("epochs", 1)):
            with torch.no_grad():
                samples = advantages(rollout)
            buffer.extend(samples.reshape(-1))
            for batch in buffer:
                update(batch)
