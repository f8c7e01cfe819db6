"""Q-learning for discrete actions, and for continuous actions in bins."""
