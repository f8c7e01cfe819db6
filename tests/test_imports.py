"""Importing rlrun changes nothing of other libraries, and no run leaves a change behind."""

import subprocess
import sys

LOOK = """
import importlib, inspect, pkgutil, sys
import gymnasium, numpy, omegaconf, torch, torch.nn, torch.optim, torch.utils.data

LIBRARIES = ("torch", "numpy", "gymnasium", "omegaconf")

def functions(value):
    while value is not None:
        yield value
        value = getattr(value, "__wrapped__", None)

def look():
    seen = {}
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        module = sys.modules[name]
        for key, kind in [*vars(module).items()]:
            place = f"{name}.{key}"
            if inspect.isclass(kind) and kind.__module__.partition(".")[0] in LIBRARIES:
                for own, value in [*vars(kind).items()]:
                    if not own.startswith("__") or callable(value):
                        seen[f"{place}.{own}"] = id(value)
                    for depth, function in enumerate(functions(value)):
                        if inspect.isfunction(function):
                            seen[f"{place}.{own} {depth}"] = sorted(vars(function))
            elif inspect.isfunction(kind):
                seen[place] = (id(kind), sorted(vars(kind)))
    return seen
"""
IMPORTS = """
before = look()
import rlrun
for module in pkgutil.walk_packages(rlrun.__path__, "rlrun."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:  # of an extra
            pass
"""
TRAINS = """
import gc, rlrun, rlrun.commands.train
before, frozen = look(), gc.get_freeze_count()
rlrun.train(["algorithm=sac", "env=pendulum", "preset=null", "stop.env_steps=60", "algorithm.warmup_steps=40",
    "algorithm.batch_size=8", "algorithm.hidden=[8]", "evaluation.every=0", "logger=[]"], run_dir=sys.argv[1])
assert gc.get_freeze_count() == frozen
assert "torch._dynamo" not in sys.modules
"""
COMPARE = """
after = look()
OWN = ("Adam.step", "str_representer_added")  # torch and omegaconf mark these themselves, at their first use
changed = [place for place, value in before.items() if after.get(place) != value and not any(map(place.count, OWN))]
sys.exit("\\n".join(changed[:20]) or 0)
"""


def test_imports_change_no_library(tmp_path):
    subprocess.run([sys.executable, "-c", LOOK + IMPORTS + COMPARE], check=True, timeout=300, cwd=tmp_path)


def test_a_run_changes_no_library(tmp_path):
    run = str(tmp_path / "run")
    subprocess.run([sys.executable, "-c", LOOK + TRAINS + COMPARE, run], check=True, timeout=300, cwd=tmp_path)
