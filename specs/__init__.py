"""The vocabulary: specs, variants, targets, launch plans, artifacts, keys, and their loaders."""
