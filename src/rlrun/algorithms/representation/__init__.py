"""Representations, skills and curiosity, learned along with an algorithm."""
