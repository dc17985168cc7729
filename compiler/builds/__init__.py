"""Builds: load specs, look variants up, have the misses compiled, report."""
