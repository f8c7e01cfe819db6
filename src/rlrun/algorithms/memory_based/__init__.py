"""Agents with an external memory that a predictor of observations fills."""
