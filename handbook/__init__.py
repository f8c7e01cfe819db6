"""The documentation site: pages written by hand in `docs/`, and pages made from code, conf and results.

`mkdocs build` calls `handbook.hooks`; nothing that is made is kept in the repository.
"""
