"""The table of a replay memory: slots, rows, samplers and ejectors."""
