"""What a compilation read, and whether the store has what came out of it."""
