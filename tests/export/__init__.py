"""Policies as files."""
