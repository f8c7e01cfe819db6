"""A value is followed through a package by what the code says."""

import pytest
from benchmarks.names import names_on_the_way

FOLLOWED = {
    "parameter of another module": ("from pkg.other import keep\ndef main(texts): keep(texts)", {"texts", "kept"}),
    "import inside the function": ("def main(texts):\n from pkg import other\n other.keep(texts)", {"texts", "kept"}),
    "keyword": ("def main(texts): read(rest=texts)\ndef read(first=None, *, rest=None): pass", {"texts", "rest"}),
    "unpacked arguments": ("def main(texts): read(0, *texts)\ndef read(a, b, c): pass", {"texts", "b", "c"}),
    "part and item": (
        "def main(texts):\n first, *rest = texts[0].name, texts[1:]\n for text in rest: pass",
        {"texts", "first", "rest", "text"},
    ),
    "result of the package": (
        "def main(texts):\n with read(texts) as composed: pass\ndef read(lines): return 0",
        {"texts", "lines", "composed"},
    ),
    "attribute": (
        "def main(texts): Plan(texts)\nclass Plan:\n def __init__(self, given):\n  self.jobs = given\n  self.run()\n"
        "  self.add(self.jobs)\n def run(self): unseen = self.size\n def add(self, more): kept = self.jobs",
        {"texts", "given", "jobs", "more", "kept"},
    ),
    "field": ("def main(texts): Job(0, texts)\nclass Job:\n seed: int\n lines: list", {"texts", "lines"}),
    "nothing of other calls": (
        "def main(texts):\n count = len(texts)\n head = texts.pop()\n flag = texts == 0",
        {"texts"},
    ),
}


@pytest.mark.parametrize(("code", "names"), FOLLOWED.values(), ids=FOLLOWED)
def test_names_of_a_value(tmp_path, code, names):
    source = tmp_path / "pkg"
    source.mkdir()
    (source / "__init__.py").touch()
    (source / "other.py").write_text("from pkg.third import keep")  # passes it on
    (source / "third.py").write_text("def keep(kept): pass")
    (source / "run.py").write_text(code)
    assert names_on_the_way(source, "pkg.run", "main") == names
