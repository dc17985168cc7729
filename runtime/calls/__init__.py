"""Launches: plans bound to addresses and streams, the fast path and the slow path."""
