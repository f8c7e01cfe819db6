"""Algorithms, one file each in the room of its family; none imports another."""
