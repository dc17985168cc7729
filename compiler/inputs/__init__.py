"""Inputs of a compilation, and how to find its artifact in the store."""
