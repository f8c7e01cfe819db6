"""What commands print beside their result, on standard error."""

from __future__ import annotations

import logging
import sys


def show(*names: str) -> None:
    """Print what loggers say, as it is."""
    for name in names:
        messages, handler = logging.getLogger(name), logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        messages.handlers, messages.propagate = [handler], False
        messages.setLevel(logging.INFO)
