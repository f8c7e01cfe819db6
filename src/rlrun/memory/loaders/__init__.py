"""Loaders: iterables of batches that decide when to collect and when to learn."""
