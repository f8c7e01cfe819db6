"""A project to begin with, and checks of a user's own parts."""
