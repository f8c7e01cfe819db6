"""Parts as the documentation of other libraries shows them, in code of our own of the same shape.

The base classes of the other libraries are stand-ins: the shape is what counts, and none of them is installed.
"""

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn

from rlrun.callbacks import LossCallback

# --- networks


class DQN(nn.Module):
    """https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html"""

    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, 16)
        self.layer3 = nn.Linear(16, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)


class QNetwork(nn.Module):
    """https://docs.cleanrl.dev/rl-algorithms/dqn/"""

    def __init__(self, env):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(np.array(env.single_observation_space.shape).prod(), 16),
            nn.ReLU(),
            nn.Linear(16, env.single_action_space.n),
        )

    def forward(self, x):
        return self.network(x)


class BaseFeaturesExtractor(nn.Module):
    def __init__(self, observation_space, features_dim=0):
        super().__init__()
        self._observation_space = observation_space
        self._features_dim = features_dim


class CustomCNN(BaseFeaturesExtractor):
    """https://stable-baselines3.readthedocs.io/en/master/guide/custom_policy.html"""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 256):
        super().__init__(observation_space, features_dim)
        n_input_channels = observation_space.shape[0]
        self.cnn = nn.Sequential(
            nn.Conv2d(n_input_channels, 8, kernel_size=8, stride=4, padding=0),
            nn.ReLU(),
            nn.Conv2d(8, 8, kernel_size=4, stride=2, padding=0),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            n_flatten = self.cnn(torch.as_tensor(observation_space.sample()[None]).float()).shape[1]
        self.linear = nn.Sequential(nn.Linear(n_flatten, features_dim), nn.ReLU())

    def forward(self, observations):
        return self.linear(self.cnn(observations))


class ScaledCNN(CustomCNN):
    """The same as the message about images says."""

    def forward(self, observations):
        return super().forward(observations.float() / 255)


def actor_net(num_cells, outputs):
    """https://docs.pytorch.org/tutorials/intermediate/reinforcement_ppo.html"""
    return nn.Sequential(
        nn.LazyLinear(num_cells), nn.Tanh(), nn.LazyLinear(num_cells), nn.Tanh(), nn.LazyLinear(outputs)
    )


def layer_init(layer, std=2**0.5, bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    """https://docs.cleanrl.dev/rl-algorithms/ppo/"""

    def __init__(self, envs):
        super().__init__()
        inputs = int(np.array(envs.single_observation_space.shape).prod())
        self.critic = nn.Sequential(layer_init(nn.Linear(inputs, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1), std=1.0))
        self.actor = nn.Sequential(
            layer_init(nn.Linear(inputs, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, envs.single_action_space.n), std=0.01),
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = torch.distributions.Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class SoftQNetwork(nn.Module):
    """https://docs.cleanrl.dev/rl-algorithms/sac/"""

    def __init__(self, env):
        super().__init__()
        inputs = np.array(env.single_observation_space.shape).prod() + np.prod(env.single_action_space.shape)
        self.fc1 = nn.Linear(inputs, 16)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        return self.fc2(F.relu(self.fc1(x)))


class Actor(nn.Module):
    """https://docs.cleanrl.dev/rl-algorithms/sac/"""

    def __init__(self, env):
        super().__init__()
        self.fc1 = nn.Linear(np.array(env.single_observation_space.shape).prod(), 16)
        self.fc_mean = nn.Linear(16, np.prod(env.single_action_space.shape))
        self.fc_logstd = nn.Linear(16, np.prod(env.single_action_space.shape))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        log_std = torch.tanh(self.fc_logstd(x))
        return self.fc_mean(x), -5 + 0.5 * (2 + 5) * (log_std + 1)


class TD3Actor(nn.Module):
    """https://github.com/sfujim/TD3"""

    def __init__(self, state_dim, action_dim, max_action=1.0):
        super().__init__()
        self.l1 = nn.Linear(state_dim, 16)
        self.l2 = nn.Linear(16, action_dim)
        self.max_action = max_action

    def forward(self, state):
        return self.max_action * torch.tanh(self.l2(F.relu(self.l1(state))))


class CustomNetwork(nn.Module):
    """https://stable-baselines3.readthedocs.io/en/master/guide/custom_policy.html, with the last layers inside"""

    def __init__(self, observation_space, action_space, last_layer_dim_pi: int = 16, last_layer_dim_vf: int = 16):
        super().__init__()
        inputs, choices = observation_space.shape[0], getattr(action_space, "n", None)
        outputs = choices or action_space.shape[0]
        self.policy_net = nn.Sequential(
            nn.Linear(inputs, last_layer_dim_pi), nn.ReLU(), nn.Linear(last_layer_dim_pi, outputs)
        )
        self.value_net = nn.Sequential(nn.Linear(inputs, last_layer_dim_vf), nn.ReLU(), nn.Linear(last_layer_dim_vf, 1))

    def forward(self, features):
        return self.policy_net(features), self.value_net(features)


class ActorCritic(nn.Module):
    """https://docs.pytorch.org/examples, reinforcement_learning/actor_critic.py, with logits in place of softmax"""

    def __init__(self, spaces, hidden):
        super().__init__()
        self.affine1 = nn.LazyLinear(hidden[0])
        self.action_head = nn.Linear(hidden[0], 2)
        self.value_head = nn.Linear(hidden[0], 1)

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return self.action_head(x), self.value_head(x).squeeze(-1)


# --- environments


class GridWorldEnv(gym.Env):
    """https://gymnasium.farama.org/introduction/create_custom_env/"""

    def __init__(self, size: int = 5):
        self.size = size
        self._agent_location = np.array([-1, -1], dtype=np.int32)
        self._target_location = np.array([-1, -1], dtype=np.int32)
        self.observation_space = gym.spaces.Dict(
            {
                "agent": gym.spaces.Box(0, size - 1, shape=(2,), dtype=int),
                "target": gym.spaces.Box(0, size - 1, shape=(2,), dtype=int),
            }
        )
        self.action_space = gym.spaces.Discrete(4)
        self._action_to_direction = {
            0: np.array([1, 0]),
            1: np.array([0, 1]),
            2: np.array([-1, 0]),
            3: np.array([0, -1]),
        }

    def _get_obs(self):
        return {"agent": self._agent_location, "target": self._target_location}

    def _get_info(self):
        return {"distance": np.linalg.norm(self._agent_location - self._target_location, ord=1)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._agent_location = self.np_random.integers(0, self.size, size=2, dtype=int)
        self._target_location = self._agent_location
        while np.array_equal(self._target_location, self._agent_location):
            self._target_location = self.np_random.integers(0, self.size, size=2, dtype=int)
        return self._get_obs(), self._get_info()

    def step(self, action):
        direction = self._action_to_direction[action]
        self._agent_location = np.clip(self._agent_location + direction, 0, self.size - 1)
        terminated = np.array_equal(self._agent_location, self._target_location)
        return self._get_obs(), 1 if terminated else 0, terminated, False, self._get_info()


class SimpleCorridor(gym.Env):
    """https://docs.ray.io/en/latest/rllib/rllib-env.html"""

    def __init__(self, config=None):
        config = config or {}
        self.end_pos = config.get("corridor_length", 7)
        self.cur_pos = 0.0
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(0.0, self.end_pos, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.cur_pos = 0.0
        return np.array([self.cur_pos], np.float32), {"env_state": "reset"}

    def step(self, action):
        if action == 0 and self.cur_pos > 0.0:
            self.cur_pos -= 1.0
        elif action == 1:
            self.cur_pos += 1.0
        terminated = self.cur_pos >= self.end_pos
        reward = 2.0 if terminated else -0.1
        return np.array([self.cur_pos], np.float32), reward, terminated, False, {}


class CustomEnv(gym.Env):
    """https://stable-baselines3.readthedocs.io/en/master/guide/custom_env.html"""

    metadata = {"render_modes": ["human"], "render_fps": 30}

    def __init__(self, arg1=36, arg2=30):
        super().__init__()
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(low=0, high=255, shape=(3, arg1, arg1), dtype=np.uint8)
        self.left = self.limit = arg2

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), float(action), self.left <= 0, False, {}

    def reset(self, seed=None, options=None):
        self.left = self.limit
        return self.observation_space.sample(), {}

    def render(self): ...
    def close(self): ...


# --- wrappers: https://gymnasium.farama.org/tutorials/gymnasium_basics/implementing_custom_wrappers/


class RelativePosition(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(shape=(2,), low=-np.inf, high=np.inf)

    def observation(self, obs):
        return obs["target"] - obs["agent"]


class DiscreteActions(gym.ActionWrapper):
    def __init__(self, env, disc_to_cont):
        super().__init__(env)
        self.disc_to_cont = disc_to_cont
        self.action_space = spaces.Discrete(len(disc_to_cont))

    def action(self, act):
        return self.disc_to_cont[act]


# --- losses


class SmoothL1(LossCallback):
    """https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html, in `optimize_model`"""

    def loss(self, observation, action, q_target):
        state_action_values = self.network(observation)[0].gather(1, action.long().unsqueeze(1))
        criterion = nn.SmoothL1Loss()
        return criterion(state_action_values, q_target.unsqueeze(1))


class ClippedPolicy(LossCallback):
    """https://spinningup.openai.com/en/latest/algorithms/ppo.html, `compute_loss_pi` and `compute_loss_v`"""

    def __init__(self, network, optimizer, clip=0.2, **options):
        super().__init__(network, optimizer, **options)
        self.clip_ratio = clip

    def loss(self, observation, action, log_prob, advantage, return_):
        evaluated = self.network.evaluate_actions(observation, action)
        ratio = torch.exp(evaluated.log_prob - log_prob)
        clip_adv = torch.clamp(ratio, 1 - self.clip_ratio, 1 + self.clip_ratio) * advantage
        return -torch.min(ratio * advantage, clip_adv) + (evaluated.value - return_) ** 2


class TwinMSE(LossCallback):
    """https://spinningup.openai.com/en/latest/algorithms/td3.html, `compute_loss_q`"""

    def loss(self, observation, action, q_target):
        q1, q2 = self.network(observation, action)
        return ((q1 - q_target) ** 2) + ((q2 - q_target) ** 2)


class LossModule(nn.Module): ...


class ValueLoss(LossModule):
    """https://docs.pytorch.org/tutorials/advanced/coding_ddpg.html"""

    def __init__(self, network, loss_function="l2"):
        super().__init__()
        self.value_network = network
        self.loss_function = loss_function

    def forward(self, input_tensordict):
        value = self.value_network(input_tensordict["observation"])
        return {"loss_value": F.mse_loss(value, input_tensordict["target"])}


# --- callbacks


class BaseCallback:
    def __init__(self, verbose=0):
        self.verbose = verbose


class TensorboardCallback(BaseCallback):
    """https://stable-baselines3.readthedocs.io/en/master/guide/tensorboard.html"""

    def __init__(self, verbose=0):
        super().__init__(verbose)

    def _on_step(self) -> bool:
        value = np.random.random()
        self.logger.record("random_value", value)
        return True


class RLlibCallback: ...


class PoleAngle(RLlibCallback):
    """https://docs.ray.io/en/latest/rllib/rllib-callback.html"""

    def on_episode_end(self, *, episode, env_runner, metrics_logger, env, env_index, rl_module, **kwargs):
        angles = [observation[2] for observation in episode.get_observations()]
        metrics_logger.log_value("pole_angle", np.mean(angles))
