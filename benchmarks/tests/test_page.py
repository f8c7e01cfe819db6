"""Results are saved and shown, and options are read."""

import json

import pytest
import torch
from benchmarks import __main__, models, page, trees


def test_page_is_made_from_results(page_of, tmp_path):
    text = page_of("dispatch", {"callbacks": 9, "microseconds": 5.25, "bar": 10.0, "passed": True})
    assert "| 9 callbacks with empty hooks, an update | 5.2 | < 10: met |" in text
    assert json.loads((tmp_path / "dispatch.json").read_text())["machine"]["date"] in text


def test_partial_measurement_keeps_the_other_parts(tmp_path):
    page.save("learning", {"a": {"passed": True}, "b": {"passed": True}}, folder=tmp_path)
    page.save("learning", {"a": {"passed": False}}, folder=tmp_path)
    cases = json.loads((tmp_path / "learning.json").read_text())["found"]
    assert (cases["a"]["passed"], cases["b"]["passed"]) == (False, True)


def test_seeds_are_ranges_and_lists():
    seeds_of = __main__.seeds_of
    assert (seeds_of("0-4"), seeds_of("3"), seeds_of("0,2-3")) == ([0, 1, 2, 3, 4], [3], [0, 2, 3])


@pytest.mark.parametrize(
    ("overrides", "parts", "rivals"),
    [
        ("memory", [], None),
        ("memory seq8 peak --rivals", ["seq8", "peak"], []),
        ("memory --rivals cpprb", [], ["cpprb"]),
    ],
)
def test_parts_and_rivals_are_chosen(overrides, parts, rivals):
    args = __main__.parser().parse_args(overrides.split())
    assert (args.memory, args.rivals, args.rounds) == (parts, rivals, 5)


def test_costs_of_models_are_on_the_page(page_of):
    result = models.measure(rounds=1, calls=1)
    text = page_of("models", result)
    assert all(f"| {name} |" in text for name in models.BARS)


def test_trees_of_objects_are_those_of_arrays(page_of):
    torch.manual_seed(0)
    networks, latent = trees.Networks(), torch.randn(6, trees.WIDTH)
    model = trees.Learned(networks)
    grown = trees.SEARCHES["PUCT"].grow(model, model.root(latent))
    with torch.no_grad():
        assert grown.root_visits.tolist() == [trees.searched(networks, row[None]) for row in latent]
    text = page_of("trees", trees.measure(rounds=1, searches=1))
    assert all(f"| {name} |" in text for name in trees.SEARCHES)
