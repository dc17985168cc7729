"""Executes a plan once, in a worker, for `pallasc run --emulate`."""
