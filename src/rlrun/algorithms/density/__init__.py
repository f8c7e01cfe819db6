"""Densities and their samples: autoencoders of latents, particles, mutual information, novelty."""
