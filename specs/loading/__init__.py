"""Loaders of specs: YAML and Python, parameters, the matrix and its points."""
