"""Errors of parts name the keys that a user typed."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from rlrun.config.build import Builder
from rlrun.config.keys import Given, misfit, not_a_part
from rlrun.core.errors import BuildError, ConfigError, require_whole
from rlrun.core.spaces import Spaces
from rlrun.nn.decoders import Decoder
from rlrun.nn.external_memory import ExternalMemory

HERE = __name__


class Inner:
    def __init__(self, keys: int = 1, widths: Any = ()) -> None:
        require_whole("keys", keys, 1)
        if 0 in widths:
            raise ConfigError(f"widths: wanted numbers from 1, got {widths}")


class Outer:
    """Calls recipes, as networks do, and passes arguments on under their name, another one, or as options."""

    def __init__(self, left: Any = None, right: Any = None, layers: Any = (), **options: Any) -> None:
        for recipe in filter(None, (left, right)):
            recipe()
        Inner(widths=layers)
        Inner(**{"keys": 3, **options})


class Terms:
    def __init__(self, terms: dict[str, Any]) -> None:
        for name, entry in terms.items():
            require_whole(f"terms.{name}.every", entry["every"], 1)


class Limited:
    def __init__(self, inputs: int, kernel: int) -> None:
        if kernel > inputs:
            raise ConfigError(f"kernel: wanted at most {inputs}, got {kernel}")


class Stages:
    """Calls each of its stages, with the inputs that it knows."""

    def __init__(self, big: Any, small: Any) -> None:
        big(84)
        small(4)


class Wrapping:
    """Passes its width on as the keys of another."""

    def __init__(self, keys: int, width: int) -> None:
        Inner(keys=width)


class Rebinding:
    def __init__(self, **rates: Any) -> None:
        rates = list(rates)  # type: ignore[assignment]
        raise ConfigError("speed: wanted something else")


class Known:
    def __init__(self, size: int) -> None:
        raise ConfigError("algorithm.other: wanted something else")


class Plain:
    def __init__(self, size: int) -> None:
        raise ConfigError("width: of nothing here")


def part(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{name}", **arguments}


def error_of(**tree: Any) -> str:
    with pytest.raises((ConfigError, BuildError)) as caught:
        Builder(tree).get("part")
    return str(caught.value)


def test_an_argument_has_the_key_that_its_value_came_from():
    algorithm = {"keys": 0, "copy": "${algorithm.keys}", "other": 1}
    assert error_of(algorithm=algorithm, part=part("Inner", keys="${algorithm.copy}")).startswith("algorithm.keys: ")
    assert error_of(part=part("Inner", keys=0)).startswith("part.keys: wanted a whole number from 1, got 0")
    assert error_of(algorithm=algorithm, part=part("Outer", keys="${algorithm.keys}")).startswith("algorithm.keys: ")
    assert error_of(algorithm=algorithm, part=part("Known", size=1)) == "algorithm.other: wanted something else"
    assert error_of(part=part("Plain", size=1)) == "part: width: of nothing here"


def test_a_recipe_that_a_part_calls_names_its_own_key():
    algorithm = {"left": 1, "right": 0}
    sides = {side: part("Inner", _partial_=True, keys=f"${{algorithm.{side}}}") for side in ("left", "right")}
    assert error_of(algorithm=algorithm, part=part("Outer", **sides)).startswith("algorithm.right: ")


def test_an_argument_that_is_passed_on_under_another_name_is_named_by_its_value():
    widths = {"layers": [2, 0], "widths": [1]}
    message = error_of(algorithm=widths, part=part("Outer", layers="${algorithm.layers}"))
    assert message == "algorithm.layers: wanted numbers from 1, got [2, 0]"


def test_an_argument_of_the_same_name_with_another_value_is_not_blamed():
    assert error_of(part=part("Outer", keys=3, left=part("Inner", _partial_=True, keys="${n}")), n=0).startswith("n: ")
    own = functools.partial(Inner, 0)
    builder = Builder({"part": part("Outer", keys=3, left="${own}")})
    builder.tree["own"] = own
    with pytest.raises(ConfigError, match=r"^part: keys: wanted a whole number from 1, got 0"):
        builder.get("part")


def test_where_two_keys_may_be_meant_none_is_named():
    kernels = {name: part("Limited", _partial_=True, kernel=f"${{{name}.kernel}}") for name in ("big", "small")}
    message = error_of(part=part("Stages", **kernels), big={"kernel": 8}, small={"kernel": 8})
    assert message == "part: kernel: wanted at most 4, got 8"
    assert error_of(part=part("Wrapping", keys=0, width=0)).startswith("part: keys: wanted a whole number from 1")
    assert error_of(part=part("Rebinding", speed=1)) == "part: speed: wanted something else"


def test_what_lies_within_an_argument_is_found_by_links():
    terms = {"a": {"every": 2}, "b": {"every": "${pace}"}}
    assert error_of(part=part("Terms", terms="${terms}"), terms=terms, pace=0).startswith("pace: wanted a whole")
    terms["b"]["every"] = 0
    assert error_of(part=part("Terms", terms="${terms}"), terms=terms).startswith("terms.b.every: wanted a whole")


def raised(call: Any) -> Exception:
    with pytest.raises(Exception, match=r".") as caught:
        call()
    return caught.value


def test_values_of_another_kind_are_the_cause_of_pythons_errors():
    spaces = Given(Decoder, ("networks", "decoder"), {"space": "abc", "latent": 3})
    error = raised(lambda: Decoder("abc", 3))  # type: ignore[arg-type]
    message = misfit(error, {"networks": {"decoder": spaces.arguments}}, [spaces])
    assert re.fullmatch("networks.decoder.space: wanted a Box or a .*, got 'abc'", message), message
    fitting = Given(Decoder, ("networks", "decoder"), {"latent": 3})
    assert misfit(error, {"networks": {"decoder": {}}}, [fitting]) == ""
    other = Given(ExternalMemory, ("memory",), {"slots": "x"})  # was not called
    assert misfit(error, {"memory": {}}, [other]) == ""


def test_values_that_fit_are_not_the_cause_of_an_error():
    tree = {"optimizer": {"_target_": "torch.optim.Adam", "betas": [0.9, 0.999], "eps": -1, "params": [torch.ones(1)]}}
    with pytest.raises(BuildError, match="Invalid epsilon value: -1") as caught:
        Builder(tree).get("optimizer")
    assert "betas" not in str(caught.value)


def test_a_text_in_the_place_of_a_module_is_refused_where_nothing_failed():
    given = Given(Decoder, ("a",), {"space": Spaces, "latent": 3, "network": "abc"})
    assert not_a_part(given, {"a": {"network": "abc"}}) == "a.network: wanted a part {_target_: …} or null, got 'abc'"
    assert not_a_part(Given(Decoder, ("a",), {"network": None, "activation": "relu"}), {"a": {}}) == ""
