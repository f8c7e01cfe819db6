"""Learned models of environments, and planning with them."""
