"""Policies as files that run without `rlrun`, and the proof that they act the same."""
