"""Entries of the ledgers are trained module by module, and what fails is shown."""

from benchmarks import ledger


def test_modules_that_are_missing_or_failed_are_trained(tmp_path, monkeypatch, page_of):
    texts = {
        "alf.good": {"algorithm=particles": ["One._", "One.dim"]},
        "alf.bad": {"algorithm=particles a=1": ["Two._"]},
    }
    monkeypatch.setattr(ledger, "parts", lambda: texts)
    first = ledger.measure(folder=tmp_path)
    assert {name: part["passed"] for name, part in first.items()} == {"alf.good": True, "alf.bad": False}
    assert first["alf.good"]["entries"] == 2
    (fault,) = first["alf.bad"]["failed"].values()
    assert fault["error"].startswith("a: no such key")
    trained = []
    monkeypatch.setattr(ledger, "one_entry", lambda text: trained.append(text) or {"updates": 3})
    assert ledger.measure(folder=tmp_path)["alf.bad"]["passed"]
    assert trained == ["algorithm=particles a=1"]
    texts["alf.good"] = {"algorithm=generator": ["One._"]}
    ledger.measure(shard=(1, 2), folder=tmp_path)
    assert trained[1:] == ["algorithm=generator"]
    text = page_of("ledger", first)
    assert "1 of 2 different commands trained, which 3 entries say" in text
    assert "| Two._ | `algorithm=particles a=1` | a: no such key" in text


def test_an_entry_that_takes_too_long_fails():
    assert ledger.one_entry("algorithm=particles", limit=0.0) == {"error": "no three updates within 0 s"}
