"""Models of environments, learned from transitions, and planning by them."""
