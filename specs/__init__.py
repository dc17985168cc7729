"""Specs, variants, targets, launch plans, artifacts, keys, and their loaders."""
