"""Policies that learn from critics, off-policy."""
