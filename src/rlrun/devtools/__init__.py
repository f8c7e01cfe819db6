"""The template of a project, and conformance tests of plugins."""
