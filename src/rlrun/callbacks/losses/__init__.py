"""Losses, the targets that they learn, and weights of their terms."""
