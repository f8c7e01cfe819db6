"""Adaptors: what changes a sample before it becomes a batch."""
