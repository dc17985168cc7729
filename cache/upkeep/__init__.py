"""What keeps a store in order: eviction, limits, verification, statistics."""
