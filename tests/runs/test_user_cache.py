"""No other user writes into the folder of a user's caches."""

import os
from contextlib import nullcontext

import pytest

from rlrun.core.user_cache import private_folder


@pytest.fixture
def cache(tmp_path):
    """The folder, which is not there yet."""
    return tmp_path / "caches" / "rlrun"


@pytest.mark.skipif(os.name != "posix", reason="no modes of files")
class TestPrivateFolder:
    @pytest.fixture(autouse=True)
    def umask(self):
        """Let a group write what is made, as on machines where each user has a group."""
        before = os.umask(0o002)
        yield
        os.umask(before)

    def test_nobody_else_may_write(self, cache):
        assert private_folder(cache, "code", "cpu") == cache / "code" / "cpu"
        assert private_folder(cache, "code", "cpu") == cache / "code" / "cpu"
        assert [path.stat().st_mode & 0o777 for path in (cache, *cache.rglob("code/**"))] == [0o700] * 3

    @pytest.mark.parametrize("place", [".", "code", "code/cpu"])
    @pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
    def test_folder_that_others_write_is_refused(self, place, mode, cache):
        private_folder(cache, "code", "cpu")
        (cache / place).chmod(mode)
        with pytest.raises(PermissionError, match=f"others may write to {cache / place}; "):
            private_folder(cache, "code", "cpu")

    def test_folder_of_another_user_is_refused(self, cache, monkeypatch):
        private_folder(cache, "code")
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
        with pytest.raises(PermissionError, match=f"others may write to {cache}; "):
            private_folder(cache, "code")

    @pytest.mark.parametrize("link", ["rlrun", "rlrun/code", "rlrun/code/cpu"])
    def test_link_is_followed_once(self, link, tmp_path):
        own, other = tmp_path / "own", tmp_path / "other"
        os.umask(0o022)
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(own)
        folder = private_folder(tmp_path / "rlrun", "code", "cpu")
        (tmp_path / link).unlink()
        (tmp_path / link).symlink_to(other)
        assert folder.resolve() == folder
        assert folder.is_relative_to(own)

    def test_link_in_a_circle_is_refused(self, cache):
        private_folder(cache)
        (cache / "code").symlink_to("code")
        with pytest.raises((OSError, RuntimeError)):
            private_folder(cache, "code")

    def test_link_made_meanwhile_is_refused(self, cache, monkeypatch):
        private_folder(cache)
        (cache / "code").symlink_to(cache)
        monkeypatch.setattr(type(cache), "resolve", lambda path: path)
        with pytest.raises(PermissionError, match=f"others may write to {cache / 'code'}; "):
            private_folder(cache, "code")

    @pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o755, False)])
    def test_place_that_others_rename_is_refused(self, mode, refused, cache):
        private_folder(cache, "code")
        cache.parent.chmod(mode)
        with pytest.raises(PermissionError, match=f"in {cache.parent}; ") if refused else nullcontext():
            private_folder(cache, "code")
