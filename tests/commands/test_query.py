"""`rlrun query` and data frames: what SQL finds in runs, and what it cannot reach."""

import csv
import json
import os
import shutil
import sys
import time

import pytest
from tests.command import code_of
from tests.pace import within

import rlrun
from rlrun.commands import query
from rlrun.config import compose, to_yaml
from rlrun.core.errors import MissingExtra, RequestError
from rlrun.core.files import write_json
from rlrun.runs.directory import RunDir

CONFIG = """
seed: {seed}
algorithm: {{lr: {lr}, hidden: [8, 8], note: null, link: "${{seed}}"}}
stop: {{env_steps: 20}}
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two completed runs, a damaged one, and one that has only begun."""
    monkeypatch.chdir(tmp_path)
    for name, lr, objective in (("a", 0.1, 3.0), ("b", 1e-3, 7.5), ("c", 0.2, None), ("d", 0.3, None)):
        run = RunDir.claim(tmp_path / "runs" / name)
        text = "{" if name == "d" else CONFIG.format(seed=1, lr=lr)
        about = {"created": "2026-11-22T09:00:00+00:00"}
        run.start(config=text, overrides=[f"algorithm.lr={lr}", "seed=1"], manifest=about)
        if objective is not None:
            run.write_status("completed")
            figures = {"env_steps": 20, "updates": 5, "seconds": 2.5, "objective": objective}
            write_json(run.summary, {**figures, "best": {"mean_return": objective + 1}})
            records = [{"env_steps": step, "updates": 1, "seconds": 0.5, "loss/q": step / 10} for step in (10, 20)]
            lines = [*map(json.dumps, records), '{"env_steps": 30, "loss/q": null, "text": "x"}', '{"loss/q": 9']
            run.metrics.write_text("\n".join(lines))
    return tmp_path


def ask(sql, folder="runs"):
    return rlrun.query(sql, folder).rows


def test_runs_have_their_summaries(runs):
    first, second, *others = ask("SELECT * FROM runs ORDER BY run")
    figures = ("completed", "2026-11-22T09:00:00+00:00", "algorithm.lr=0.1 seed=1", 20, 5, 2.5, 3.0)
    assert first[:-1] == ("a", *figures)
    assert json.loads(first[-1])["best"] == {"mean_return": 4.0}
    assert (second[0], [row[0] for row in others], others[0][-2]) == ("b", ["c", "d"], None)
    assert ask("SELECT run FROM runs WHERE (summary->>'$.best.mean_return')::DOUBLE > 5") == [("b",)]
    assert ask("SELECT run FROM runs", "runs/a") == [(".",)]
    assert ask("SELECT run FROM runs", ".")[0] == ("runs/a",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", '{"best": ' + "[" * 900 + "]" * 900 + "}"),
        ("summary.json", '{"env_steps": 1e30}'),
        ("metrics.jsonl", '{"env_steps": 1e30, "updates": 1, "loss/q": 1}'),
        ("metrics.jsonl", r'{"env_steps": 1, "updates": 1, "loss/\ud800": 1}'),
    ],
)
def test_a_damaged_run_leaves_the_others(runs, name, text):
    (runs / "runs" / "a" / name).write_text(text)
    rows = ask(
        f"SELECT DISTINCT run FROM {'runs' if name == 'summary.json' else 'metrics'} WHERE run < 'c' ORDER BY run"
    )
    assert [run for (run,) in rows if run != "a"] == ["b"]


def test_no_run_is_left_out_in_silence(runs, caplog):
    folder = runs / "runs"
    odd = folder / os.fsdecode(b"\xff\xe9x")  # not UTF-8
    shutil.copytree(folder / "a", odd)
    shutil.copytree(folder / "a", folder / "e")
    os.remove(folder / "e" / "metrics.jsonl")
    os.mkfifo(folder / "e" / "metrics.jsonl")
    name = "\ufffd\ufffdx"
    assert [run for (run,) in ask("SELECT run FROM runs ORDER BY run")] == ["a", "b", "c", "d", "e", name]
    assert ask(f"SELECT count(*) FROM config WHERE run = '{name}'") == ask(
        "SELECT count(*) FROM config WHERE run = 'a'"
    )
    assert ask("SELECT DISTINCT run FROM metrics ORDER BY run") == [("a",), ("b",), (name,)]
    assert "e: metrics.jsonl cannot be read" in caplog.messages
    assert any(message.startswith("d: config.yaml, line ") for message in caplog.messages)


def test_a_line_that_is_too_long_costs_its_own_file_alone(runs, caplog, monkeypatch):
    monkeypatch.setitem(query.INSERT, "metrics", query.INSERT["metrics"].replace("134217728", "1000"))
    with open(runs / "runs" / "b" / "metrics.jsonl", "a") as file:
        file.write("\n" + json.dumps({"env_steps": 1, "text": "x" * 40_000_000}) + "\n")
    assert ask("SELECT DISTINCT run FROM metrics") == [("a",)]
    assert [message for message in caplog.messages if message.startswith("b: metrics.jsonl: ")]


def test_blocks_that_refer_to_others_are_read(runs, caplog):
    (runs / "runs" / "a" / "config.yaml").write_text("a: &x {b: 1}\nc: *x\ntext: |\n  d: 2\n\nlist:\n- 1\n- 2\n")
    rows = dict(ask("SELECT key, value FROM config WHERE run = 'a'"))
    assert rows == {"a.b": "1", "c.b": "1", "text": "d: 2\n", "list": "[1, 2]"}
    (runs / "runs" / "a" / "config.yaml").write_text("seed: 1\nb: 2\nseed: 3\n")
    assert ask("SELECT count(*) FROM config WHERE run = 'a'") == [(0,)]
    assert any("key 'seed' is there twice" in message for message in caplog.messages)


def test_values_that_no_column_holds_are_null(runs):
    (runs / "runs" / "a" / "summary.json").write_text('{"env_steps": 1e30, "objective": 2.5}')
    assert ask("SELECT env_steps, objective FROM runs WHERE run = 'a'") == [(None, 2.5)]
    lines = [
        '{"env_steps": 1, "a/b~c": 1, "true": true, "text": "1", "huge": 1e200}',
        '{"env_steps": 2, "a/b~c": -2e9}',
    ]
    (runs / "runs" / "a" / "metrics.jsonl").write_text("\n".join(lines))
    assert ask("SELECT env_steps, name, value FROM metrics WHERE run = 'a' ORDER BY ALL") == [
        (1, "a/b~c", 1.0),
        (2, "a/b~c", -2e9),
    ]


@pytest.mark.speed
def test_configs_of_hundreds_of_runs_take_a_moment(tmp_path):
    text = to_yaml(compose(["algorithm=sac", "env=pendulum"]).config)
    for number in range(200):
        run = RunDir(tmp_path / str(number))
        run.path.mkdir()
        run.config.write_text(text.replace("seed: 0", f"seed: {number}", 1))
        run.manifest.write_text("{}")

    def seconds() -> float:
        before = time.process_time()
        assert ask("SELECT count(DISTINCT run), count(DISTINCT value) FROM config WHERE key = 'seed'", tmp_path) == [
            (200, 200)
        ]
        return time.process_time() - before

    assert within(seconds, 1.0)


def test_columns_of_the_same_name_are_numbered(runs):
    result = rlrun.query("SELECT run, 1 AS run_1, run, run FROM runs WHERE run = 'a'", "runs")
    assert result.to_json() == [{"run": "a", "run_1": 1, "run_2": "a", "run_3": "a"}]
    assert list(result.to_pandas().columns) == result.columns


def test_a_terminal_gets_no_control_characters(runs, monkeypatch, capsys):
    sql = "SELECT 'a\x1b[2J' AS \"b\x1b\", 1 AS c"
    assert code_of("query", sql, "runs", "--csv") == 0
    assert capsys.readouterr().out == "b\x1b,c\na\x1b[2J,1\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert code_of("query", sql, "runs", "--csv") == 0
    assert capsys.readouterr().out == "b?,c\na?[2J,1\n"


def test_config_has_each_key_as_text(runs):
    rows = dict(ask("SELECT key, value FROM config WHERE run = 'b'"))
    assert (rows["seed"], rows["algorithm.lr"], rows["algorithm.note"]) == ("1", "0.001", None)
    assert rows["algorithm.link"] == "${seed}"
    assert ask("SELECT run FROM config WHERE key = 'algorithm.lr' AND value::DOUBLE < 0.15 ORDER BY run") == [
        ("a",),
        ("b",),
    ]
    assert ask("SELECT count(*) FROM config WHERE run = 'd'") == [(0,)]


def test_metrics_have_each_number(runs):
    expected = [("a", 10, 1, 0.5, "loss/q", 1.0), ("a", 20, 1, 0.5, "loss/q", 2.0)]
    assert ask("SELECT * FROM METRICS WHERE run = 'a' ORDER BY ALL") == expected
    joined = "SELECT run, objective, max(value) FROM runs JOIN metrics USING (run) GROUP BY ALL ORDER BY run"
    assert ask(joined) == [("a", 3.0, 2.0), ("b", 7.5, 2.0)]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM read_text('secret')", "query: Permission Error: .*file system operations are disabled"),
        ("SELECT * FROM glob('*')", "file system operations are disabled"),
        ("SELECT * FROM 'secret'", "Table with name secret does not exist.*; the tables are runs, config, metrics"),
        ("SELECT * FROM frame", "Table with name frame does not exist"),
        ("SELECT getenv('HOME')", "getenv does not exist"),
        ("COPY runs TO 'out.csv'", "query: wanted one SELECT, got \"COPY runs TO 'out.csv'\""),
        ("SET enable_external_access = true", "wanted one SELECT"),
        ("ATTACH 'out.db'", "wanted one SELECT"),
        ("SELECT 1; DROP TABLE runs", "wanted one SELECT"),
        ("", "wanted one SELECT"),
        ("SELECT FROM", "query: Parser Error: "),
    ],
)
def test_a_query_reaches_nothing_else(runs, sql, message):
    frame = rlrun.ls().to_pandas()  # a variable that DuckDB would find by its name
    (runs / "secret").write_text("secret")
    with pytest.raises(RequestError, match=message) as refusal:
        rlrun.query(sql)
    assert "\n" not in str(refusal.value)
    assert frame is not None
    assert sorted(path.name for path in runs.iterdir()) == ["runs", "secret"]


def test_the_command_prints_a_table_json_or_csv(runs, capsys):
    sql = "SELECT run, objective, overrides AS 'o' FROM runs WHERE run < 'c' ORDER BY run"
    assert code_of("query", sql, "runs") == 0
    assert capsys.readouterr() == (
        "run  objective  o\na            3  algorithm.lr=0.1 seed=1\nb          7.5  algorithm.lr=0.001 seed=1\n",
        "2 rows\n",
    )
    assert code_of("query", sql, "runs", "--json") == 0
    assert json.loads(capsys.readouterr().out)[1] == {"run": "b", "objective": 7.5, "o": "algorithm.lr=0.001 seed=1"}
    assert code_of("query", sql, "runs", "--csv") == 0
    assert list(csv.reader(capsys.readouterr().out.splitlines()))[:2] == [
        ["run", "objective", "o"],
        ["a", "3.0", "algorithm.lr=0.1 seed=1"],
    ]
    assert code_of("query", "SELECT run FROM runs WHERE run > 'x'") == 0
    assert capsys.readouterr() == ("run\n", "0 rows\n")
    refusals = (
        ((sql, "nowhere"), "nowhere does not exist"),
        ((sql, "--csv", "--json"), "give one of"),
        (("runs", sql), "the SELECT comes first, then the folder: rlrun query 'SELECT …' runs"),
    )
    for arguments, line in refusals:
        assert code_of("query", *arguments) == 2
        assert line in capsys.readouterr().err


def test_rows_are_data_frames_where_pandas_is(runs, monkeypatch):
    frame = rlrun.ls("runs").to_pandas()
    assert list(frame.columns[:5]) == ["path", "status", "created", "overrides", "env_steps"]
    assert frame["best.mean_return"].dropna().tolist() == [4.0, 8.5]
    assert frame.sort_values("objective").path.str[-1].tolist()[:2] == ["a", "b"]
    assert list(rlrun.ls("runs/a/checkpoints").to_pandas().columns) == list(frame.columns[:8])
    frame = rlrun.query("SELECT name, avg(value) AS mean FROM metrics GROUP BY name", "runs").to_pandas()
    assert frame.to_dict("list") == {"name": ["loss/q"], "mean": [1.5]}
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"to_pandas needs the package 'pandas', .*\[query\]"):
        rlrun.ls("runs").to_pandas()
    with pytest.raises(MissingExtra, match=r"rlrun query needs the package 'duckdb', .*\[query\]"):
        rlrun.query("SELECT 1", "runs")
