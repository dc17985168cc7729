"""Builds: load specs, look variants up, compile the misses, and report."""
