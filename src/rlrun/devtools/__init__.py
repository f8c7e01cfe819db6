"""The template of a project."""
