"""From XLA's serialised executable to a launch plan."""
