"""Measure rlrun: python -m benchmarks --help."""
