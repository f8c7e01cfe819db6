"""Imitation: cloning an expert's actions, and rewards from a discriminator of expert and policy."""
