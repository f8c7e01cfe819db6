"""Features of observations and skills: what is learned beside or in front of an algorithm."""
