"""Foundations of all other packages: errors, types, spaces, seeds, files, processes, machine."""
