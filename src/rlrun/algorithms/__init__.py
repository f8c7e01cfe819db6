"""Algorithms, one file each; none imports another."""
