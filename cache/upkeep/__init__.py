"""What keeps a store in order: eviction, pins, limits, verification, statistics."""
