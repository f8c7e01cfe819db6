"""Updates as graphs make the same runs as updates hook by hook."""

from __future__ import annotations

import logging

import pytest
import torch

from rlrun import train
from rlrun.conformance.small import SMALL

RUNS = {
    "a2c": ("algorithm=a2c", "env=cartpole"),
}


def test_x():
    pass
