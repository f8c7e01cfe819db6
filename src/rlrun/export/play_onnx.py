"""Play episodes with an exported policy: python play_onnx.py policy.onnx [--episodes 10] [--seed 0] [--render]

It needs numpy and onnxruntime, and gymnasium (with the environment's own packages) for the episodes. To act in a
program of your own: `Policy(file).act(observation)`, which takes and gives what the environment does.
"""

import argparse
import copy
import importlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np


class Policy:
    """An exported policy.

    Args:
        file: path of the .onnx file, its bytes, or an open session.
        about: the content of its .json file, which is read by default.
        seed: of the noise of a stochastic policy.
    """

    def __init__(self, file: Any, about: Any = None, seed: int = 0) -> None:
        if about is None:
            with open(f"{file}.json", encoding="utf-8") as text:
                about = json.load(text)
        self.session = file if hasattr(file, "run") else session(file)
        self.about = about
        self.inputs = {role: [port for port in about["inputs"] if port["role"] == role] for role in ROLES}
        self.outputs = [port["name"] for port in about["outputs"]]
        self.actions = [port for port in about["outputs"] if port["role"] == "action"]
        self.draw: Any = np.random.default_rng(seed).standard_normal
        self.reset()

    def reset(self, envs: int = 1) -> None:
        """Begin episodes in a number of environments."""
        self.state = {
            port["name"]: np.broadcast_to(np.asarray(port["initial"], port["dtype"]), (envs, *port["shape"]))
            for port in self.inputs["state"]
        }

    def act(self, observation: Any) -> Any:
        """Return the action for one observation, both in the environment's own form."""
        outputs = self.run({name: np.asarray(value)[None] for name, value in parts("observation", observation)})
        values = {port["name"]: outputs[port["name"]][0].astype(port["env_dtype"]) for port in self.actions}
        return values["action"] if list(values) == ["action"] else nested(self.about["action"], values, "action")

    def run(self, observations: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs for observations [N, ...] by name; the recurrent state is kept for the next call."""
        ports = self.inputs["observation"]
        inputs = {port["name"]: np.asarray(observations[port["name"]]).astype(port["dtype"]) for port in ports}
        envs = len(next(iter(inputs.values())))
        for port in self.inputs["epsilon"]:
            inputs[port["name"]] = np.asarray(self.draw((envs, *port["shape"])), np.float32)
        outputs = dict(zip(self.outputs, self.session.run(self.outputs, {**inputs, **self.state}), strict=True))
        self.state = {name: outputs["next_" + name] for name in self.state}
        return outputs


def session(file: Any) -> Any:
    """Open a file, or the bytes of one, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised anyway; logged ones would contain the file's own names
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


ROLES = ("observation", "state", "epsilon")


def parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a dict or tuple with their names, as in `observation.camera`."""
    if isinstance(value, (dict, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from parts(f"{name}.{key}", part)
    else:
        yield name, value


def nested(kinds: Any, values: dict[str, Any], name: str) -> Any:
    """Return named arrays as the dict or tuple that the environment takes."""
    if isinstance(kinds, dict):
        return {key: nested(kind, values, f"{name}.{key}") for key, kind in kinds.items()}
    if isinstance(kinds, list):
        return tuple(nested(kind, values, f"{name}.{index}") for index, kind in enumerate(kinds))
    return values[name]


def episode(policy: Any, env: Any, seed: int, max_steps: int | None = None, options: Any = None) -> tuple[float, int]:
    """Play one episode; return the sum of its rewards and its number of steps."""
    observation, _ = env.reset(seed=seed, options=copy.deepcopy(options))  # a reset may change its options
    policy.reset()
    total, steps, episode_end = 0.0, 0, False
    while not episode_end and (max_steps is None or steps < max_steps):
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total, steps, episode_end = total + np.float32(reward).reshape(-1)[0], steps + 1, terminated or truncated
    return float(total), steps


def make(about: Any, render_mode: str | None = None) -> Any:
    """Make the environment that a policy was trained in."""
    import gymnasium

    kwargs = dict(about["kwargs"])
    if render_mode:
        kwargs["render_mode"] = render_mode
    env = find(about["target"])(**kwargs) if about["target"] else gymnasium.make(about["id"], **kwargs)
    for wrapper in about["wrappers"]:
        wrapper = {key: value for key, value in wrapper.items() if key != "_partial_"}
        env = find(wrapper.pop("_target_"))(env, **wrapper)
    return env


def find(path: str) -> Any:
    """Return a class or function by its path; its package must be installed."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="episode i begins with reset(seed=seed + i)")
    parser.add_argument("--render", action="store_true", help="in a window")
    args = parser.parse_args()
    policy = Policy(args.file, seed=args.seed)
    about = policy.about["env"]
    try:
        env = make(about, "human" if args.render else None)
    except ModuleNotFoundError as error:
        parser.exit(2, f"{error}: install it, or name the folder that it is in by PYTHONPATH\n")
    returns = []
    for index in range(args.episodes):
        total, steps = episode(policy, env, args.seed + index, about["max_steps"], about["reset_options"])
        returns.append(total)
        print(f"episode {index}: seed {args.seed + index}, return {total:.6g}, {steps} steps")
    env.close()
    if returns:
        print(f"mean return {np.mean(returns):.6g} over {len(returns)} episodes")


if __name__ == "__main__":
    main()
