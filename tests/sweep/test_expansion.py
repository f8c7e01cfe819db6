"""From overrides with several values to jobs."""

import re

import pytest

from rlrun.config import compose, expansion
from rlrun.config.expansion import expand, identity, read, values
from rlrun.config.overrides import parse
from rlrun.core.errors import ConfigError

SMALL = ("algorithm=dqn", "env=cartpole")


def labels(*overrides):
    return [job.label for job in expand([*SMALL, *overrides])]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=3,1", ["seed=3", "seed=1"]),
        ("seed=range(3)", ["seed=0", "seed=1", "seed=2"]),
        ("seed=range(10,20,5)", ["seed=10", "seed=15"]),
        ("seed=choice(4,5)", ["seed=4", "seed=5"]),
        ("seed=sort(3,1,2)", ["seed=1", "seed=2", "seed=3"]),
        ("algorithm.hidden=[16,16],[32]", ["algorithm.hidden=[16,16]", "algorithm.hidden=[32]"]),
        ("memory=glob(re*)", ["memory=recent", "memory=replay"]),
        ("algorithm.lr=1e-3,3.0e-4", ["algorithm.lr=0.001", "algorithm.lr=0.0003"]),
        ("+with=prioritized,reward_clip", ["+with=prioritized", "+with=reward_clip"]),
    ],
)
def test_each_way_to_name_several_values(override, expected):
    assert labels(override) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("range(0.1,0.4,0.1)", [0.1, 0.2, 0.3]),
        ("range(0.1,1.0,0.1)", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ("range(1,0,-0.25)", [1.0, 0.75, 0.5, 0.25]),
        ("range(0.4,0.1,-0.1)", [0.4, 0.3, 0.2]),
        ("range(1e-3,4e-3,1e-3)", [0.001, 0.002, 0.003]),
        ("range(-0.3,0,0.1)", [-0.3, -0.2, -0.1]),
        ("sort(range(0.3,0.0,-0.1))", [0.1, 0.2, 0.3]),
        ("tag(a,range(0.1,0.4,0.1))", [0.1, 0.2, 0.3]),
        ("range(1,2.1,0.5)", [1.0, 1.5, 2.0]),
        ("range(9007199254740993,9007199254740995)", [9007199254740993, 9007199254740994]),
        ("range(0.4,0.1,0.1)", []),
    ],
)
def test_a_range_counts_as_people_do(text, expected):
    assert [*values(read(f"key={text}"), None)] == [*map(str, expected)]


def test_a_range_is_shuffled():
    assert {*values(read("key=shuffle(range(0.1,0.4,0.1))"), None)} == {"0.1", "0.2", "0.3"}


@pytest.mark.parametrize("text", ["range(inf)", "range(0,1,0)", "range(0.1,0.4,0.0)", "range(0,1,1e-9)", "range(1e99)"])
def test_a_range_without_end_is_refused(text):
    with pytest.raises(ConfigError, match=rf"^'key={re.escape(text)}': (wanted range|it lists more than 100,000)"):
        [*values(read(f"key={text}"), None)]


def test_the_last_word_changes_fastest():
    assert labels("seed=0,1", "algorithm.lr=0.1,0.2") == [
        "seed=0 algorithm.lr=0.1",
        "seed=0 algorithm.lr=0.2",
        "seed=1 algorithm.lr=0.1",
        "seed=1 algorithm.lr=0.2",
    ]


def test_groups_are_swept_with_their_own_numbers():
    jobs = expand(["algorithm=sac,dqn", "env=cartpole"])
    assert [compose(job.overrides).choices["algorithm"] for job in jobs] == ["sac", "dqn"]
    assert len({job.key for job in jobs}) == 2


def test_a_quoted_comma_is_one_value():
    (job,) = expand([*SMALL, "memory.export.path='a,b.zip'"])
    assert job.label == ""
    assert compose(job.overrides).config.memory.export.path == "a,b.zip"


def test_a_job_is_known_by_what_training_depends_on():
    def key(*overrides):
        (job,) = expand([*SMALL, *overrides])
        return job.key

    same = {key(), key("stop.env_steps=7"), key("evaluation.every=9"), key("checkpoint.every=3"), key("log.every=5")}
    same |= {key("device=cpu"), key("logger=[]"), key("threads=2"), key("memory.export.every=10"), key("seed=0")}
    assert same == {key()}
    others = ("seed=1", "algorithm.lr=0.5", "memory.length=1_000", "num_envs=2", "preset=null")
    changed = {key(override) for override in others}
    assert len(changed - same) == 5


@pytest.mark.parametrize(
    ("override", "jobs", "left"),
    [("algorithm.lr=0.001,1.0e-3", 1, "algorithm.lr=0.001"), ("seed=0,1,0,1", 2, "seed=0, seed=1")],
)
def test_the_same_config_by_other_words_is_one_job_and_told(override, jobs, left, caplog):
    assert len(expand([*SMALL, override])) == jobs
    assert caplog.messages == [f"left out, since an earlier combination has the same config: {left}"]
    assert identity(compose(SMALL).config) == expand([*SMALL])[0].key


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lr=interval(0,1)", r"an interval has no end of values.*\+sweep=optuna searches it"),
        ("sede=1,2", r"sede=1: sede: no such key or group \(did you mean 'seed'"),
        ("env=glob(nothing*)", "lists no value"),
        ("algorithm.lr=glob(a*)", "conf/algorithm.lr/ has none"),
        ("seed=range(", "not closed"),
        ("algorithm=sac,nothing", "algorithm=nothing"),
        (
            "stop.env_steps=4_200,9_000",
            "^stop.env_steps=9000 differs from stop.env_steps=4200 only in stop.env_steps, ",
        ),
        ("threads=1,2", "only in threads, which may change when a run is resumed, so both are the same run: start a"),
        ("logger=[],[tensorboard]", "only in logger, "),
    ],
)
def test_what_is_wrong_is_told_with_the_combination(override, message):
    with pytest.raises(ConfigError, match=message):
        expand([*SMALL, override])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1e-5,
        float("inf"),
        "x,y",
        "1e-3",
        "null",
        "it's",
        "a\\'b\\",
        {"a b": [None, "3"]},
        ["1", 2],
        "",
        "a.b-c",
    ],
)
def test_values_of_a_grid_in_yaml_keep_their_kind(value):
    assert parse([f"notes.k={expansion._written(value)}"])[0].value == value
