"""The version of rlrun."""

VERSION = "0.1.0"
