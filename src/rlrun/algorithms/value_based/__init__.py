"""Critics that choose actions themselves."""
