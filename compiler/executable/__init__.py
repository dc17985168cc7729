"""From XLA's serialized executable to a launch plan."""
