"""Overrides of runs that take a moment."""

SMALL = ("algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=20")
