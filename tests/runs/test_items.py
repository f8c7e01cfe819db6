"""Numbered files: created, read, updated and deleted, from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlrun.core.errors import RlrunError
from rlrun.runs.items import Items


def test_an_item_is_created_read_updated_and_deleted(tmp_path):
    items = Items(tmp_path / "a" / "b", "episode_", ".json")
    assert (items.items(), items.latest(), items.get(1)) == ([], None, None)
    (tmp_path / "source").write_bytes(b"two")
    first, second = items.create(b"one"), items.create(tmp_path / "source")
    assert first.path == tmp_path / "a/b/episode_000001.json"
    assert abs((datetime.now(UTC) - first.created).total_seconds()) < 60
    assert [item.path.read_bytes() for item in items.items()] == [b"one", b"two"]
    assert items.latest() == second == items.get(2)
    assert items.update(1, b"new").path.read_bytes() == b"new"
    items.delete(1)
    assert [item.handle for item in Items(items.folder, "episode_", ".json").items()] == [2]
    assert items.create(b"").handle == 3  # the number after the highest
    for act in (lambda: items.delete(1), lambda: items.update(1, b"")):
        with pytest.raises(RlrunError, match="b has no file number 1"):
            act()


def test_other_files_are_no_items(tmp_path):
    for name in ("episode_1.txt", "episode_7.json", "xepisode_000001.json", "episode_.json", "episode_000001.json.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "episode_000009.json").mkdir()
    assert Items(tmp_path, "episode_", ".json").items() == []
    (tmp_path / "episode_000007.json").touch()
    assert [item.handle for item in Items(tmp_path, "episode_", ".json").items()] == [7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Path("missing"), "^missing cannot be read: No such file"),
        ("text", "wanted bytes or a Path as content, got a str"),
    ],
)
def test_content_that_cannot_be_is_named(tmp_path, content, message):
    with pytest.raises(RlrunError, match=message):
        Items(tmp_path).create(content)
    assert list(tmp_path.iterdir()) == []


def test_threads_get_a_number_each_and_leave_nothing_behind(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda text: Items(tmp_path).create(text), [b"%d" % number for number in range(64)]))
    assert sorted(item.handle for item in created) == list(range(1, 65))
    assert sorted(int(item.path.read_bytes()) for item in created) == list(range(64))
    assert len(list(tmp_path.iterdir())) == 64


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def fail(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlrun.runs.items.write_bytes", fail)
    with pytest.raises(RlrunError, match="item_000001 cannot be written: No space left on device"):
        Items(tmp_path).create(b"one")
