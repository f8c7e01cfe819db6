"""A project folder with its own `conf/`, and the packaged folder in miniature."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.config import compose as compose_with
from rlrun.config import places
from rlrun.core.errors import ConfigError

PACKAGED = Path(__file__).parent / "fixture_conf"


@pytest.fixture(autouse=True)
def folder(project: Path) -> None:
    """Stand in an empty folder."""


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the folder in miniature for the packaged one."""
    monkeypatch.setattr(places, "packaged_dir", lambda: PACKAGED)


@pytest.fixture
def compose(miniature: None) -> Callable[..., Any]:
    """Compose from the packaged folder in miniature."""
    return lambda *overrides, **options: compose_with([*overrides], **options)


@pytest.fixture
def refusal(compose: Callable[..., Any]) -> Callable[..., str]:
    """Return the one line with which a request is refused."""

    def refuse(*overrides: str, **options: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            compose(*overrides, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse
