"""Memories and data sets on disk, each format in one file."""
