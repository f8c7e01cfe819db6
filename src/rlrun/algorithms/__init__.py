"""Algorithms, one file each, by family; none imports another."""
