"""A plan executed once, in a worker, for `pallasc run --emulate`."""
