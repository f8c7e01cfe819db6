"""Losses, their targets, and weights of their terms."""
