"""From config paths to objects."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from rlrun.config.build import Builder
from rlrun.core.errors import BuildError, ConfigError, MissingExtra, SpaceError
from rlrun.nn import MLP

HERE, TEXT = __name__, "text"


class Part:
    """Keeps what it is given, and counts."""

    made = 0

    def __init__(self, *positional: Any, **named: Any) -> None:
        Part.made += 1
        self.positional, self.named = positional, named
        self.size = SimpleNamespace(width=3, table={"a": 5})

    @classmethod
    def second(cls, x: int) -> Part:
        return cls(x)


class Reader:
    inputs: dict[str, str] = {}


class Strict:
    def __init__(self, network: Any, *, discount: float = 0.9) -> None:
        self.network, self.discount = network, discount


class Asking:
    def __init__(self) -> None:
        self.size = type("Envs", (), {"single_action_space": 2, "_action_spaces": 1})().action_space


def fail(kind: str, batch: int = 0) -> None:
    errors = {"value": ValueError("two\nlines"), "key": KeyError("k"), "space": SpaceError("wants Box")}
    raise errors.get(kind) or MissingExtra("env.atari", "ale_py", "atari")


def part(**arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.Part", **arguments}


def strict(**arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.Strict", **arguments}


def build(config: Any, path: str) -> Any:
    return Builder(config).get(path)


def refusal(config: Any, path: str = "a") -> str:
    with pytest.raises(BuildError) as caught:
        build(config, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_same_path_is_the_same_object():
    config = {"net": part(), "a": part(x="${net}"), "b": {"c": "${a}", "d": ["${net}", "${b.c}"]}}
    builder = Builder(OmegaConf.create(config))
    mapping = builder.get("b")
    assert mapping["c"] is builder.get("a") is mapping["d"][1]
    assert mapping["d"][0] is mapping["c"].named["x"] is builder.built["net"]


def test_containers_are_plain_and_shared():
    config = OmegaConf.create(
        {"sizes": [8, {"k": 1}], "a": part(x="${sizes}"), "b": part(x="${sizes}", y="${sizes[1]}")}
    )
    builder = Builder(config)
    sizes, b = builder.get("a").named["x"], builder.get("b").named
    assert (type(sizes), type(sizes[1])) == (list, dict)
    assert b["x"] is sizes
    assert b["y"] is sizes[1]


def test_a_partial_is_a_recipe():
    config = {"net": part(), "a": part(_partial_=True, x="${net}", lr=0.1)}
    builder = Builder(config)
    recipe = builder.get("a")
    assert type(recipe) is functools.partial
    assert recipe.keywords["x"] is builder.get("net")
    assert recipe().named["lr"] == 0.1


def test_nothing_unreachable_is_built(monkeypatch):
    monkeypatch.setattr(Part, "made", 0)
    build({"a": part(x="${b}"), "b": part(), "c": part(), "d": {"_target_": "no.such.Thing"}}, "a")
    assert Part.made == 2


def test_an_entry_does_not_build_its_neighbors():
    config = {"callbacks": {"x": part(), "y": part(other="${callbacks.x}")}}
    builder = Builder(config)
    assert builder.get("callbacks.y").named["other"] is builder.get("callbacks.x")
    assert builder.get("callbacks")["y"] is builder.get("callbacks.y")


def test_a_path_goes_on_beyond_an_object():
    config = {
        "s": part(size=7),
        "a": part(x="${s.size.width}", t="${link.size.table.a}", c="n=${s.size.width}"),
        "link": "${s}",
    }
    config["s"].pop("size")
    assert build(config, "a").named == {"x": 3, "t": 5, "c": "n=3"}


def test_the_configs_own_keys_come_before_attributes():
    assert build({"s": part(size=7), "a": part(x="${s.size}")}, "a").named["x"] == 7


def test_scalars_resolve_as_in_omegaconf(monkeypatch):
    monkeypatch.setenv("RLRUN_WORD", "hello")
    inner = {"e": "${oc.env:RLRUN_WORD}", "r": "${.e}-${n}", "u": "${..n}", "d": "${oc.env:RLRUN_NO,5}", "l": "\\${n}"}
    values = build(OmegaConf.create({"n": 2, "a": inner, "which": "n", "b": "${a.${name}}", "name": "u"}), "a")
    assert values == {"e": "hello", "r": "hello-2", "u": 2, "d": "5", "l": "${n}"}


def test_a_nested_link_reaches_the_object():
    builder = Builder({"nets": {"one": part(), "two": part()}, "which": "two", "a": "${nets.${which}}"})
    assert builder.get("a") is builder.get("nets.two")


def test_positional_arguments_and_hydras_switches_are_understood():
    config = {"p": [1, 2], "a": part(_args_="${p}", _convert_="all", _recursive_="${r}", z=3), "r": True}
    assert (build(config, "a").positional, build(config, "a").named) == ((1, 2), {"z": 3})


def test_a_part_that_is_not_recursive_takes_the_configs_of_its_arguments():
    inner = {**part(size=1), "link": "${n}", "deep": [{"other": "${one}", "size": "${size}"}]}
    config = {"one": part(), "n": "${one}", "size": 3, "a": part(_recursive_=False, _convert_="partial", x=inner)}
    builder = Builder(config)
    assert builder.get("a").named == {
        "x": {
            "_target_": f"{HERE}.Part",
            "size": 1,
            "link": (one := builder.get("one")),
            "deep": [{"other": one, "size": 3}],
        }
    }
    assert builder.get("a").named["x"]["link"] is one
    assert "a.x" not in builder.built


def test_class_methods_and_linked_targets_work():
    config = {"t": f"{HERE}.Part.second", "a": {"_target_": "${t}", "x": 4}}
    assert build(config, "a").positional == (4,)


REFUSALS = {
    "unknown module": (
        {"_target_": "rlrun.training.callback_.Callback"},
        ["a: rlrun.training.callback_.Callback", "did you mean 'rlrun.training.callback'?"],
    ),
    "unknown package": (
        {"_target_": "ruurlrun.X"},
        ["a: ruurlrun.X: there is no module 'ruurlrun' (did you mean 'rlrun'?)"],
    ),
    "module of a project": (
        {"_target_": "nmpy.X"},  # numpy is installed, but no config of ours names it
        ["a: nmpy.X: there is no module 'nmpy' here; the folder of a project of yours is named by PYTHONPATH"],
    ),
    "attribute of an argument": (
        {"_target_": f"{HERE}.Asking"},
        [f"a: {HERE}.Asking: AttributeError: 'Envs' object has no attribute 'action_space'", "'single_action_space'?)"],
    ),
    "unknown attribute": (
        {"_target_": "rlrun.training.callback.Calback"},
        ["rlrun.training.callback", "did you mean 'rlrun.training.callback.Callback'?"],
    ),
    "no class": ({"_target_": f"{HERE}.TEXT"}, [f"a: {HERE}.TEXT is a str, wanted a class or function"]),
    "no path": ({"_target_": "a b"}, ["a: `_target_` wants a path", "'a b'"]),
    "unknown argument": (
        strict(network=1, discont=2),
        [f"a.discont: {HERE}.Strict takes no argument 'discont'", "did you mean 'discount'?"],
    ),
    "far arguments": (
        strict(network=1, yyy=1, zzz=2),
        [f"a: {HERE}.Strict takes no arguments 'yyy', 'zzz'; it takes network"],
    ),
    "missing argument": (strict(discount=1), [f"a: {HERE}.Strict needs the argument 'network'"]),
    "not apart": (strict(network=1, _apart_=["import"], exprt=1), ["a.exprt: "]),
    "twice": (strict(_args_=[1], network=2), ["a.network:", "twice"]),
    "too many": (strict(_args_=[1, 2]), ["a:", "takes 1 positional arguments, got 2"]),
    "not recursive": (part(_recursive_=3), ["a._recursive_:", "only true or false is supported", "got 3"]),
    "converted": (part(_convert_="${networks.how}"), ["a._convert_:", 'only "all" or "partial" is', "got 'object'"]),
    "dangling": (
        part(x="${networks.polcy}"),
        ["a.x: '${networks.polcy}' leads nowhere", "did you mean 'networks.policy'?"],
    ),
    "no attribute": (
        part(x="${networks.policy.siz}"),
        ["a.x: 'networks.policy' (Part) has no 'siz'", "did you mean 'networks.policy.size'?"],
    ),
    "a key of its own that is not there": (part(x="${.y}"), ["a.x: leads to 'a.y', which is no key"]),
    "self": (part(x="${a}"), ["a: these parts need each other in a circle: a -> a"]),
    "link circle": (part(x="${.y}", y="${.x}"), ["circle", "a.x -> a.y -> a.x"]),
    "raises": ({"_target_": f"{HERE}.fail", "kind": "value"}, [f"a: {HERE}.fail: two lines"]),
    "raises key": ({"_target_": f"{HERE}.fail", "kind": "key"}, [f"a: {HERE}.fail: KeyError: 'k'"]),
    "value needed": (part(x="???"), ["a.x: a value is needed"]),
    "environment": (part(x="${oc.env:RLRUN_ABSENT}"), ["a.x:", "RLRUN_ABSENT"]),
    "resolver": (part(x="${nonsense:1}"), ["a.x:", "nonsense"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_built_is_named(name):
    node, wanted = REFUSALS[name]
    message = refusal({"a": node, "networks": {"policy": part(), "how": "object"}})
    assert all(piece in message for piece in wanted), message


def test_unknown_path_is_refused():
    assert refusal({"trainer": 1}, "triner") == "triner: no such key (did you mean 'trainer'?)"
    config = {"a": part(x="${b}"), "b": part(y="${c}"), "c": part(z="${b}")}
    assert refusal(config) == "b: these parts need each other in a circle: b -> c -> b"


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [("space", SpaceError, r"^b: wants Box$"), ("extra", MissingExtra, r"^env.atari needs the package 'ale_py'")],
)
def test_errors_of_rlrun_keep_their_class(kind, error, message):
    with pytest.raises(error, match=message):
        build({"a": part(x="${b}"), "b": {"_target_": f"{HERE}.fail", "kind": kind}}, "a")


def test_an_import_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    (tmp_path / "is_broken.py").write_text("def f(:\n")
    assert "needs the package 'no_such_package'" in refusal({"a": {"_target_": "needs_more.X"}})
    assert "importing is_broken failed: SyntaxError" in refusal({"a": {"_target_": "is_broken.X"}})


def test_settings_apart_are_for_others_to_read():
    table = strict(network=1, _apart_=["import", "export"], export={"every": 5})
    config = {"table": {**table, "import": "a.zip"}, "reader": part(a="${table.import}", b="${table.export.every}")}
    builder = Builder(config)
    assert builder.get("reader").named == {"a": "a.zip", "b": 5}
    assert builder.get("table").network == 1
    assert build({"both": {"_apart_": ["import"], "import": 1, "one": 2}}, "both") == {"one": 2}


def test_a_failed_part_can_be_asked_for_again():
    builder = Builder({"a": {"_target_": f"{HERE}.fail", "kind": "value"}})
    for _ in range(2):
        with pytest.raises(BuildError, match="two lines"):
            builder.get("a")


def test_a_callback_reads_other_names():
    node = {"_target_": f"{HERE}.Reader", "_inputs_": {"reward": "${name}"}}
    assert Builder({"callbacks": {"x": node}, "name": "bonus"}).get("callbacks.x").inputs == {"reward": "bonus"}
    for wrong, message in ((part(_inputs_={"a": "b"}), "a Part is no callback"), ({**node, "_inputs_": 3}, "got 3")):
        with pytest.raises(BuildError, match=rf"callbacks\.x\._inputs_: .*{message}"):
            Builder({"callbacks": {"x": wrong}}).get("callbacks.x")


class Wider(MLP):
    """A class of a user's, which takes more than ours."""

    def __init__(self, inputs: int, outputs: int, *, hidden: int):
        super().__init__(inputs, outputs, hidden=[hidden])


def mlp(**arguments: Any) -> dict[str, Any]:
    return {"_target_": "rlrun.nn.MLP", "inputs": 3, "outputs": 2, **arguments}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("inputs", None, "wanted a whole number, got null"),
        ("inputs", 2.5, "wanted a whole number, got 2.5"),
        ("inputs", True, "wanted a whole number, got true"),
        ("layer_norm", None, "wanted true or false, got null"),
        ("layer_norm", 1, "wanted true or false, got 1"),
        ("dropout", "abc", "wanted a number, got 'abc'"),
        ("dropout", {"a": 1}, "wanted a number, got {'a': 1}"),
        ("output_gain", [1.0], "wanted a number or null, got [1.0]"),
        ("hidden", 64, "wanted a list, got 64"),
    ],
)
def test_a_value_of_another_kind_than_our_class_takes_is_named_by_its_key(name, value, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(f'a.{name}: {message}')}"):
        build({"a": mlp(**{name: value})}, "a")
    linked = {"numbers": {"first": value}, "a": mlp(**{name: "${numbers.first}"})}
    with pytest.raises(ConfigError, match=f"^{re.escape(f'numbers.first: {message}')}"):
        build(linked, "a")


def test_values_of_the_kinds_of_our_class_are_taken():
    network = build({"a": mlp(hidden=[4], dropout=0, output_gain=None, layer_norm=True)}, "a")
    assert network[0].out_features == 4
    recipe = build({"a": mlp(_partial_=True, activation={"_target_": "torch.nn.ReLU", "_partial_": True})}, "a")
    assert recipe.keywords["outputs"] == 2
    assert build({"a": {"_target_": f"{HERE}.fail", "_partial_": True, "kind": None, "batch": "x"}}, "a")  # not ours
    assert build({"a": mlp(inputs=1e1)}, "a")[0].in_features == 10
    assert build({"a": mlp(inputs=np.int64(4))}, "a")[0].in_features == 4
    assert build({"a": {"_target_": f"{HERE}.Wider", "inputs": 3, "outputs": 2, "hidden": 4}}, "a")[0].out_features == 4


def test_a_text_of_the_environment_is_read_as_its_argument_wants_it(monkeypatch):
    monkeypatch.setenv("WIDTH", "12")
    assert build({"a": mlp(inputs="${oc.env:WIDTH}", output_gain="${oc.env:WIDTH}")}, "a")[0].in_features == 12
    monkeypatch.setenv("WIDTH", "wide")
    with pytest.raises(ConfigError, match=r"^a.inputs: wanted a whole number, got 'wide'"):
        build({"a": mlp(inputs="${oc.env:WIDTH}")}, "a")


def test_a_link_between_two_numbers_names_both():
    config = {"one": 2.5, "two": "${one}", "a": mlp(inputs="${two}")}
    with pytest.raises(ConfigError, match=r"^one: wanted a whole number, got 2.5; two reads it"):
        build(config, "a")
